"""Rejection sampling of drafts that were drawn: symbol by symbol, in blocks, and as in the paper; for comparison."""
