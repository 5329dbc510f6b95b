"""Readers of reasoning and function calls in an answer's text, in the formats of many models."""
