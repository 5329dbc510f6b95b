"""Choose the tokens of a smaller BPE vocabulary, and cut a tokenizer to them.

A token can go once no longer token that stays is merged from it; the least used one goes first, and its uses become
uses of the two tokens that it is merged of (leaf-based pruning).
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from omnidraft.alignment.token_bytes import backend_of
from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH = 256  # texts that are tokenized at once


def count_tokens(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Counter[int]:
    """Count the tokens of a tokenizer in texts."""
    backend, counts, rest = backend_of(tokenizer), Counter[int](), iter(texts)
    while batch := list(itertools.islice(rest, BATCH)):
        counts.update(i for each in backend.encode_batch_fast(batch, add_special_tokens=False) for i in each.ids)
    return counts


def choose_tokens(tokenizer: PreTrainedTokenizerBase, counts: Mapping[int, int], size: int) -> list[int]:
    """The ids of the `size` tokens to keep, ascending: the end token, every token that no merge makes, the most useful.

    Raises ModelError for a tokenizer without merges, and where `size` is not above the tokens that must stay.
    """
    state, end = _bpe(tokenizer), tokenizer.eos_token_id
    ids: dict[str, int] = state["model"]["vocab"]
    added = {token["id"] for token in state["added_tokens"]}
    merges: dict[int, list[tuple[int, int]]] = {}
    users = Counter[int]()  # merges that take a token
    for left, right in state["model"]["merges"]:
        pair = ids[left], ids[right]
        merges.setdefault(ids[left + right], []).append(pair)
        users.update(pair)
    kept = (set(ids.values()) - added) | {end}
    least = len(kept) - len(merges)
    if not least < size <= len(kept):
        raise ModelError(f"a vocabulary of {size} tokens cannot be cut from this one: use {least + 1} to {len(kept)}")
    used = Counter({token: counts.get(token, 0) for token in kept})
    leaves = [(used[token], -token) for token in merges if not users[token]]
    heapq.heapify(leaves)
    while len(kept) > size:
        count, negative = heapq.heappop(leaves)
        if count != used[-negative]:  # its uses grew since it was put here
            heapq.heappush(leaves, (used[-negative], negative))
            continue
        kept.remove(-negative)
        for merge in merges[-negative]:
            for token in merge:
                users[token] -= 1
                used[token] += count
                if not users[token] and token in merges:
                    heapq.heappush(leaves, (used[token], -token))
    return sorted(kept)


def cut_tokenizer(tokenizer: PreTrainedTokenizerBase, kept: list[int]) -> PreTrainedTokenizerFast:
    """The tokenizer with the tokens `kept` alone, numbered in that order, and its end token as its only special one.

    Text in it has no chat template and nothing put in front.
    """
    state, number = _bpe(tokenizer), {old: new for new, old in enumerate(kept)}
    model, ids = state["model"], state["model"]["vocab"]
    model["vocab"] = {word: number[i] for word, i in ids.items() if i in number}
    model["merges"] = [[left, right] for left, right in model["merges"] if _survives(left, right, model["vocab"])]
    state["added_tokens"] = [
        token | {"id": number[token["id"]]} for token in state["added_tokens"] if token["id"] in number
    ]
    state["post_processor"] = None
    if model.get("unk_token") not in model["vocab"]:
        model["unk_token"] = None
    end = tokenizer.eos_token
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)), eos_token=end, pad_token=end)


def _survives(left: str, right: str, vocab: Mapping[str, int]) -> bool:
    return left in vocab and right in vocab and left + right in vocab


def _bpe(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The state of a BPE tokenizer."""
    state: dict[str, Any] = json.loads(backend_of(tokenizer).to_str())
    if state["model"].get("type") != "BPE" or tokenizer.eos_token_id is None:
        raise ModelError("the drafter's tokenizer must be BPE with an end token: use another model as its source")
    vocab = state["model"]["vocab"]
    if tokenizer.eos_token not in vocab:  # special tokens may be listed beside the vocabulary only
        vocab[tokenizer.eos_token] = tokenizer.eos_token_id
    return state
