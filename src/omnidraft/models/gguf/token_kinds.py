"""The tokens of a GGUF file by their kinds, and those that end an answer.

Kinds are often wrong in files, so tokens of well-known meaning are taken for what they are, as llama.cpp does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from omnidraft.errors import ModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type
SPECIAL = (UNKNOWN, CONTROL)
ADDED = (*SPECIAL, USER_DEFINED)  # found in a text before it is split
PREFIX = "tokenizer.ggml."
# tokens that end a turn or a text, whatever the header says; no one writes them as words
ENDS = (
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>",
    "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<eos>", "<end_of_utterance>",
    "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>", "[e~[",
)  # fmt: skip
STRIKE = "</s>"  # is HTML, too: an end only where it is a control token
# of models that complete code: the next file or repository begins, or there is nothing left to fill in
FILE_ENDS = {
    "fim_pad_token_id": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep_token_id": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep_token_id": ("<|file_sep|>",),
}
MARKS = {  # of models that complete code, around what is to be filled in
    "fim_pre_token_id": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
                         "<|code_prefix|>", "<|prefix|>"),
    "fim_suf_token_id": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
                         "<|code_suffix|>", "<|suffix|>"),
    "fim_mid_token_id": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
                         "<|code_middle|>", "<|middle|>"),
}  # fmt: skip
OLD_KEYS = {
    "fim_pre_token_id": "prefix_token_id",
    "fim_suf_token_id": "suffix_token_id",
    "fim_mid_token_id": "middle_token_id",
}
CHANNELS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # text of an answer, as it comes
# ids of BOS, EOS and the unknown token in files that do not name them
DEFAULTS = {"llama": (1, 2, 0), "gpt2": (11, 11, None)}
NO_BOS = ("chatglm-bpe", "glm4", "glm5")  # pre-tokenizers without that default


@dataclass(frozen=True)
class Tokens:
    """The tokens of a header, with their kinds set right."""

    texts: list[str]
    ids: dict[str, int]  # by text
    kinds: list[int]
    bos: int | None
    eos: int | None
    unknown: int | None
    padding: int | None
    ends: list[int]  # ids of the tokens that end an answer, the header's own first


def read_tokens(metadata: Mapping[str, Any]) -> Tokens:
    """Read the tokens of a header; raises ModelError where they are missing or do not fit their kinds."""
    texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(read_array(metadata, "tokens"))]
    kinds = list(read_array(metadata, "token_type")) if f"{PREFIX}token_type" in metadata else [NORMAL] * len(texts)
    if len(kinds) < len(texts):
        raise ModelError(f"{PREFIX}token_type has {len(kinds)} entries for {len(texts)} tokens: get the complete file")
    ids = {text: i for i, text in enumerate(texts)}
    if len(ids) < len(texts):
        twice = next(text for i, text in enumerate(texts) if ids[text] != i)
        raise ModelError(f"{PREFIX}tokens has {twice!r} twice: use a file with distinct tokens")
    strikes = next((i for i in (ids.get(STRIKE),) if i is not None and kinds[i] == CONTROL), None)
    named = {key: _named(metadata, key, len(texts)) for key in (*FILE_ENDS, *MARKS)}
    by_text = {key: _found(ids, texts) for key, texts in (FILE_ENDS | MARKS).items() if named[key] is None}
    known = [ids[text] for text in ENDS if text in ids]
    for i in (*known, *(i for i in by_text.values() if i is not None)):
        kinds[i] = CONTROL
    for text in CHANNELS:
        if text in ids:
            kinds[ids[text]] = USER_DEFINED
    bos, eos, unknown = _defaults(metadata, kinds)
    eos = _named(metadata, "eos_token_id", len(texts), eos)
    turns = (_named(metadata, key, len(texts)) for key in ("eot_token_id", "eom_token_id"))
    files = (named[key] if named[key] is not None else by_text[key] for key in FILE_ENDS)
    more = read_array(metadata, "eos_token_ids") if f"{PREFIX}eos_token_ids" in metadata else ()
    listed = (i for i in more if isinstance(i, int) and 0 <= i < len(texts))
    ends = list(dict.fromkeys(i for i in (eos, *listed, *turns, strikes, *sorted(known), *files) if i is not None))
    for text in _no_ends(texts[i] for i in ends):
        ends.remove(ids[text])
        kinds[ids[text]] = USER_DEFINED if text != STRIKE else NORMAL
    return Tokens(
        texts,
        ids,
        kinds,
        bos=_named(metadata, "bos_token_id", len(texts), bos),
        eos=eos,
        unknown=_named(metadata, "unknown_token_id", len(texts), unknown),
        padding=_named(metadata, "padding_token_id", len(texts)),
        ends=ends,
    )


def _no_ends(ends: Iterable[str]) -> list[str]:
    """Texts that end nothing in the company of others."""
    present = set(ends)
    calls = present & {"<|call|>", "<|calls|>"}
    none = []
    if "<|end|>" in present and calls and present & {"<|return|>", "<|flush|>"}:
        none.append("<|end|>")  # of a message; more of the turn follows
    if STRIKE in present and "<|tool_response>" in present:
        none.append(STRIKE)
    return none


def read_array(metadata: Mapping[str, Any], key: str) -> list[Any]:
    """The values of a key of the tokenizer; raises ModelError where there are none."""
    value = metadata.get(PREFIX + key)
    if not isinstance(value, list | tuple):
        raise ModelError(f"{PREFIX}{key} is missing: get the complete file of a text model")
    return list(value)


def _named(metadata: Mapping[str, Any], key: str, size: int, default: int | None = None) -> int | None:
    """The id under a key; the default where there is none, or one that no token has, as some files write for none."""
    for each in (PREFIX + key, PREFIX + OLD_KEYS.get(key, key)):
        value = metadata.get(each)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ModelError(f"{each} is {value!r}, a token id is needed: get the file anew")
        if value is not None and 0 <= value < size:
            return value
    return default


def _found(ids: Mapping[str, int], texts: Iterable[str]) -> int | None:
    return min((ids[text] for text in texts if text in ids), default=None)


def _defaults(metadata: Mapping[str, Any], kinds: list[int]) -> tuple[int | None, ...]:
    """Ids of BOS, EOS and the unknown token by the kind of tokenizer, where those are special tokens at all."""
    ids = DEFAULTS.get(str(metadata.get(f"{PREFIX}model")), (None, None, None))
    if metadata.get(f"{PREFIX}pre") in NO_BOS:
        ids = (None, *ids[1:])
    return tuple(i if i is not None and i < len(kinds) and kinds[i] in SPECIAL else None for i in ids)
