"""Language models behind one small interface, and the fast paths of small ones."""
