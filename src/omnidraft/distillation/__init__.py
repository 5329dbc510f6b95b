"""Learning the drafter's weights from the target's answers."""
