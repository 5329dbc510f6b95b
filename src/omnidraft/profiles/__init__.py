"""What was learned for one drafter and one target, kept on disk."""
