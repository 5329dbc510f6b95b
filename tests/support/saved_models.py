"""Small random models in folders as users have them, and the texts of a small task."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, processors
from transformers import LlamaConfig, LlamaForCausalLM

from support.small_tokenizers import wrap

CONTEXT = 4096
TEXTS = ("one two three", "four and five", "six or seven", "a list of things", "no more of it", "what is left")


def save_model(folder: Path, tokenizer: Tokenizer, seed: int, context: int = CONTEXT) -> Path:
    """A two-layer model whose greedy text does not settle into one token: its head is scaled up."""
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=bos,
        eos_token_id=tokenizer.token_to_id("</s>"),
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    wrap(tokenizer).save_pretrained(folder)
    return folder
