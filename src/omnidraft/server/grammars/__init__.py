"""Grammars that answers follow: of JSON schemas, regular expressions, GBNF and function calls."""
