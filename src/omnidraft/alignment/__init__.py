"""Two vocabularies side by side: tokens as bytes, spellings, n-grams, and the target's text for the drafter."""
