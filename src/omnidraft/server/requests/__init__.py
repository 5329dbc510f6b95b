"""From a body to a task: what is asked for, checked, and put in terms of the models."""
