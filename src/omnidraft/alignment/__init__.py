"""Alignment of two vocabularies: tokens as bytes, spellings, the n-gram cache, target tokens as drafter tokens."""
