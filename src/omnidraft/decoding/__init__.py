"""The decoding loop and the drafter at work in it."""
