"""What an answer's text holds beside its content: reasoning, and calls of functions, in the ways of many models."""
