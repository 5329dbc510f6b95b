"""Comparisons of ways of decoding: every figure beside its baseline, from the same run."""
