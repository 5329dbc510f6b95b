"""From logits to the tokens that are emitted: sampling, reading a draft, acceptance and residual."""
