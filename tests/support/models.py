"""Language models for tests: random ones of many architectures, folders of them, and scripted ones."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from tokenizers import Tokenizer, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from omnidraft.alignment.vocab import Speller, Vocab
from omnidraft.errors import OmniDraftError
from omnidraft.models.language_model import SingleSequence
from omnidraft.models.transformers_model import TransformersModel
from support.small_tokenizers import wrap

CONTEXT = 4096  # of the models in folders

# ---------------------------------------------------------------- random models of many architectures

ROWS = 96
IDS = [(7 * i * i + 3 * i) % ROWS for i in range(40)]  # five windows of 8
SMALL: dict[str, Any] = {
    "vocab_size": ROWS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
WINDOW = {"sliding_window": 8}
ALTERNATING = {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 2, "interleave_moe_layer_step": 1}
LONGROPE: dict[str, Any] = {
    "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
    "original_max_position_embeddings": 32,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": WINDOW,
    "gemma2": ALTERNATING,
    "gemma3_text": ALTERNATING,
    "qwen2": {**WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "llama4_text": {**EXPERTS, "attention_chunk_size": 8, "layer_types": ["chunked_attention", "full_attention"]},
    "gpt2": GPT2,
    "gpt_neox": {},
}
# what each has that those above have not; a name may say more after its type
FOUR_LAYERS = {**ALTERNATING, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2}
PER_LAYER = {"vocab_size_per_layer_input": 1024, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2}
ROUTED = {
    "moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 4, "head_dim": None, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 12, **ROUTED,
}  # fmt: skip
MORE: dict[str, dict[str, Any]] = {
    "llama tied": {"tie_word_embeddings": True},
    "qwen3": {**ALTERNATING, "use_sliding_window": True, "max_window_layers": 1},  # norms of queries and keys
    "phi": {"partial_rotary_factor": 0.5},  # attention beside the MLP
    "phi3 window": {**WINDOW, "pad_token_id": 0},
    "falcon one key head": {"multi_query": True},
    "falcon alibi": {"alibi": True, "multi_query": False, "num_kv_heads": 4},
    "falcon groups": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "deepseek_v2": {**LATENT, "q_lora_rank": None, "topk_method": "greedy"},  # keys and values of unlike sizes
    "deepseek_v3": LATENT,
    "gpt_oss": {**ALTERNATING, "num_local_experts": 4, "num_experts_per_tok": 2},  # sinks
    "mixtral": {**WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "bloom": {"n_layer": 2, "n_head": 4},  # alibi
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 1},  # learned positions with an offset
    "xglm": {"d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4, "pad_token_id": 1},
    "gptj": {**GPT2, "rotary_dim": 4},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    "gpt_bigcode": GPT2,  # one key head
    "cohere2": {**ALTERNATING, "logit_scale": 1.0},
    "olmo2": {},
    "stablelm": {"partial_rotary_factor": 0.5},
    "smollm3": {"no_rope_layers": [1, 0], "pad_token_id": 0},
    "gemma3n_text": {**FOUR_LAYERS, **PER_LAYER, "laurel_rank": 4, "altup_num_inputs": 2}
    | {"activation_sparsity_pattern": [0.0] * 4},  # layers that share keys and values
    "gemma4_text": {**FOUR_LAYERS, **PER_LAYER, "global_head_dim": 8},
    "bert decoder": {"is_decoder": True},
}
OTHERWISE = {"gpt2": {*SMALL} - {"vocab_size"}, "falcon": {"head_dim"}}  # what their configs have by other names


def build(kind: str = "llama", **changes: object) -> PreTrainedModel:
    """A random model; its weights are wide enough for every token seen to move the logits."""
    name = kind.split(maxsplit=1)[0]
    small = {key: value for key, value in SMALL.items() if key not in OTHERWISE.get(name, ())}
    config = transformers.CONFIG_MAPPING[name](**{**small, **(KINDS | MORE).get(kind, {}), **changes})
    torch.manual_seed(0)
    model = cast(Any, transformers.AutoModelForCausalLM).from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.05)
    return cast(PreTrainedModel, model.eval())


def afresh(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Logits (T, V) without any cache."""
    with torch.no_grad():
        inputs = torch.tensor([ids], device=model.device)
        return cast(torch.Tensor, model(inputs, use_cache=False).logits[0].float())


def close(left: torch.Tensor, right: torch.Tensor, within: float = 1e-5) -> bool:
    """Whether two passes differ by rounding alone, which depends on their shapes and on the processor."""
    return left.shape == right.shape and bool(((left - right).abs() <= within).all())


def one_line(error: pytest.ExceptionInfo[OmniDraftError], *parts: str) -> None:
    """A message of one line: the value, what is allowed, and after a colon the fix."""
    text = str(error.value)
    assert len(text.splitlines()) == 1
    assert re.search(r": (use|give|load|check|get|add|shorten|put|run|download|make) ", text), text
    for part in parts:
        assert part in text


@contextmanager
def refused(kind: type[OmniDraftError], *parts: str) -> Iterator[pytest.ExceptionInfo[OmniDraftError]]:
    """The block raises this error, with a message as in `one_line`."""
    with pytest.raises(kind) as error:
        yield error
    one_line(error, *parts)


# ---------------------------------------------------------------- random models whose greedy output varies


def _varied(kind: str, vocab_size: int, seed: int, **shape: Any) -> PreTrainedModel:
    """A tiny random model whose greedy output does not settle into one token: its head is scaled up."""
    torch.manual_seed(seed)
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,
    }
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**common, **shape))
    return Qwen2ForCausalLM(Qwen2Config(**common, **shape))


def random_model(kind: str, vocab_size: int, seed: int, layers: int = 2, context: int = 512) -> TransformersModel:
    shape: dict[str, Any] = {"num_hidden_layers": layers, "num_key_value_heads": 2, "max_position_embeddings": context}
    return TransformersModel(_varied(kind, vocab_size, seed, **shape, bos_token_id=None, eos_token_id=None))


def save_model(folder: Path, tokenizer: Tokenizer, seed: int, context: int = CONTEXT) -> Path:
    """Save a random model with its tokenizer, which puts a first token in front, as users have them."""
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    shape = {"num_hidden_layers": 2, "max_position_embeddings": context}
    ids = {"bos_token_id": bos, "eos_token_id": tokenizer.token_to_id("</s>")}
    _varied("llama", tokenizer.get_vocab_size(), seed, **shape, **ids).save_pretrained(folder)
    wrap(tokenizer).save_pretrained(folder)
    return folder


# ---------------------------------------------------------------- models that are functions of their input


class InputFunction(SingleSequence):
    """A `LanguageModel` whose logits are a function of all the ids in its cache, `row`."""

    def __init__(self, vocab_size: int, context: int) -> None:
        self.vocab_size = vocab_size
        self.context = context
        self._ids: list[int] = []

    @property
    def length(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids in the cache."""
        return tuple(self._ids)

    def crop(self, length: int) -> None:
        del self._ids[length:]

    def forward(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        assert len(ids) >= keep
        self._ids += ids
        if not keep:  # a part of a long text
            return torch.empty(0, self.vocab_size)
        end = len(self._ids)
        assert end <= self.context, "more tokens than the context holds"
        return torch.stack([self.row(tuple(self._ids[: end - keep + i + 1])) for i in range(keep)])

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        raise NotImplementedError


class Scripted(InputFunction):
    """Continues a known text token by token, wrongly at every `wrong`-th position (0: never)."""

    def __init__(self, vocab_size: int, script: Sequence[int], wrong: int = 0, context: int = 4096) -> None:
        super().__init__(vocab_size, context)
        self._script = list(script)
        self._wrong = wrong

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        position = len(ids)
        token = self._script[position] if position < len(self._script) else 0
        if self._wrong and position % self._wrong == self._wrong - 1:
            token = (token + 1) % self.vocab_size
        logits = torch.full((self.vocab_size,), -4.0)
        logits[token] = 12.0
        return logits


class Knowing(Scripted):
    """Goes on with a known text from wherever the bytes of its input end, wrongly at every `wrong`-th position."""

    def __init__(self, vocab: Vocab, speller: Speller, text: bytes, wrong: int = 0) -> None:
        super().__init__(vocab.size, (), wrong)
        self._tokens, self._speller, self._text = vocab.tokens, speller, text

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        known = sum(len(self._tokens[i] or b"") for i in ids)
        self._script = [*ids, *(self._speller.spell(self._text[known : known + 40]) or ())]
        return super().row(ids)


class Constant(InputFunction):
    """Always the same token: the drafter that knows nothing."""

    def __init__(self, vocab_size: int, token: int, context: int = 4096) -> None:
        super().__init__(vocab_size, context)
        self._logits = torch.zeros(vocab_size)
        self._logits[token] = 20.0

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:  # noqa: ARG002 (it looks at nothing)
        return self._logits


class Bigram(InputFunction):
    """The next token given the last one, counted over token sequences: a trained model for any tokenizer.

    `blur` mixes in a share of the overall counts, so that no distribution is trivial.
    """

    def __init__(self, vocab_size: int, sequences: Iterable[Sequence[int]], blur: float, context: int = 4096) -> None:
        super().__init__(vocab_size, context)
        self._pairs: dict[int, Counter[int]] = defaultdict(Counter)
        self._all: Counter[int] = Counter()
        for sequence in sequences:
            self._all.update(sequence)
            for before, after in itertools.pairwise(sequence):
                self._pairs[before][after] += 1
        self._blur = blur
        self._common = self._with(torch.full((vocab_size,), 1e-9), self._all, blur)
        self._rows: dict[int, torch.Tensor] = {}

    def row(self, ids: tuple[int, ...]) -> torch.Tensor:
        last = ids[-1]
        if last not in self._rows:
            self._rows[last] = self._with(self._common, self._pairs[last], 1 - self._blur).log()
        return self._rows[last]

    @staticmethod
    def _with(probs: torch.Tensor, counts: Counter[int], share: float) -> torch.Tensor:
        """These probabilities and a share of those of counts."""
        if not (total := counts.total()):
            return probs
        places = torch.tensor(list(counts))
        return probs.index_add(0, places, torch.tensor(list(counts.values())) * (share / total))
