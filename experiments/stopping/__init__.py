"""Draft-length policies against fixed lengths and plain decoding."""
