"""Draft length, decided before each draw."""
