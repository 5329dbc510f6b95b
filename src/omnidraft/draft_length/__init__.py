"""How far a draft goes, decided before each draw."""
