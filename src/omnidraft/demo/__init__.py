"""The demonstration: what it shows, and how it is shown and measured."""
