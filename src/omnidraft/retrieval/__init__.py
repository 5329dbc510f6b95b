"""Drafts copied from earlier text: an index of tokens, the acceptance of what is copied, the source of drafts."""
