"""Benefit of online distillation: speed, acceptance, losses, adapters, changes of task and target."""
