"""Text on its way in and out: prompts to token ids, and token ids to text."""
