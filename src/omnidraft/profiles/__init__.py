"""Learned weights and n-gram records of a drafter and target pair, one file each."""
