"""Drafting for an engine that verifies elsewhere, and one drafter that learns from many such replicas.

`rows` drafts for the requests of a batch, `releases` holds the versions of the learned weights, `spool` the answers
that replicas hand to the trainer, `trainer` makes a version from them.
"""
