"""Counts of what followed the end of a text before: an index of tokens, measured hit rates, guesses made of both."""
