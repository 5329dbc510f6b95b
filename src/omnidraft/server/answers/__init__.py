"""Answers on the client's side: from rounds and text to events, for one choice or for several."""
