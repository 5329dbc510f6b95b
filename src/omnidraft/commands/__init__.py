"""Commands with a module of their own."""
