"""The tokenizer of a GGUF file, built of what its header says: tokens, kinds, merges or scores, and flags.

What text becomes is what llama.cpp makes of it, which is what such files are made and tested with: special tokens in it
are parsed, each stretch of text between them is tokenized by itself.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from omnidraft.errors import ModelError
from omnidraft.models.chat_template import DEFAULT as DEFAULT_TEMPLATE
from omnidraft.models.chat_template import TOOL_USE
from omnidraft.models.fast_tokenizer import FastTokenizer, Name
from omnidraft.models.gguf.ollama_files import GEMMA3
from omnidraft.models.gguf.pre_tokenizers import DEFAULT, GEMMA4, Split, split_of
from omnidraft.models.gguf.split_files import read_header, reading
from omnidraft.models.gguf.token_kinds import (
    ADDED,
    FILE_ENDS,
    MARKS,
    OLD_KEYS,
    PREFIX,
    SPECIAL,
    Tokens,
    read_array,
    read_tokens,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPACE = "▁"
TEMPLATE = "tokenizer.chat_template"
KNOWN = (
    "model", "pre", "tokens", "token_type", "scores", "merges", "add_bos_token", "add_eos_token", "add_space_prefix",
    "bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id", "padding_token_id",
    "eos_token_ids", *FILE_ENDS, *MARKS, *OLD_KEYS.values(),
)  # fmt: skip
HARMLESS = (  # of other kinds of tokenizers, or of tasks other than to go on with a text
    "token_type_count", "seperator_token_id", "cls_token_id", "mask_token_id", "add_sep_token", "precompiled_charsmap",
    "remove_extra_whitespaces", "normalizer.lowercase", "normalizer.strip_accents",
    "add_padding_token", "add_unknown_token", "add_mask_token",
)  # fmt: skip


def load_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a file as one of transformers, with its chat template; raises ModelError."""
    with reading(path):
        return build_tokenizer(read_header(path).metadata)


def fast_tokenizer(path: Path) -> Callable[[], FastTokenizer]:
    """A function that makes the tokenizer of a file, with its chat template; both raise ModelError.

    The header is read now: it is let go of once the function is over.
    """
    with reading(path):
        metadata = [read_header(path).metadata]

    def make() -> FastTokenizer:
        with reading(path):
            backend = Tokenizer(models.BPE())
            return FastTokenizer(backend, *_build(backend, metadata.pop()))

    return make


def build_tokenizer(metadata: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """The tokenizer that a header describes, its chat template included; raises ModelError for one that it cannot be.

    `metadata` holds the header's values by key, arrays as lists.
    """
    from transformers import PreTrainedTokenizerFast

    # the components are put in one by one: of a whole backend a copy would be made, which takes as long as all the rest
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), clean_up_tokenization_spaces=False
    )
    names, templates = _build(tokenizer.backend_tokenizer, metadata)
    for name, token in names.items():
        setattr(tokenizer, name, token)
    tokenizer.chat_template = templates
    return tokenizer


def _build(backend: Tokenizer, metadata: Mapping[str, Any]) -> tuple[dict[Name, str], str | dict[str, str] | None]:
    """Put the components into an empty backend; the special tokens by name, and the chat template, or several."""
    kind = metadata.get(f"{PREFIX}model")
    build = _BUILDERS.get(str(kind))
    if build is None:
        raise ModelError(
            f"{PREFIX}model is {kind!r}, a kind of tokenizer that is not supported: use a file with one of "
            f"{', '.join(_BUILDERS)}"
        )
    _check_keys(metadata)
    tokens = read_tokens(metadata)
    split = build(backend, metadata, tokens)
    _add_tokens(backend, metadata, tokens)
    backend.post_processor = _frame(metadata, tokens, split)
    ids: dict[Name, int | None] = {
        "bos_token": tokens.bos, "eos_token": tokens.eos, "unk_token": tokens.unknown, "pad_token": tokens.padding,
    }  # fmt: skip
    names = {name: tokens.texts[i] for name, i in ids.items() if i is not None and tokens.kinds[i] in ADDED}
    return names, _templates(metadata)


def _templates(metadata: Mapping[str, Any]) -> str | dict[str, str] | None:
    """The chat template of a header, or those by their names where there are several; one of them is the default."""
    named = {TEMPLATE: DEFAULT_TEMPLATE}
    named |= {key: key.removeprefix(f"{TEMPLATE}.") for key in metadata if key.startswith(f"{TEMPLATE}.")}
    templates: dict[str, str] = {}
    for key, name in named.items():
        template = metadata.get(key)
        if not isinstance(template, str | None):
            raise ModelError(f"{key} is no text: get the file anew")
        if template:
            templates.setdefault(name, template)
    default = templates.setdefault(DEFAULT_TEMPLATE, templates.get(TOOL_USE, ""))  # as in llama.cpp
    return (templates if len(templates) > 1 else default) if default else None


def end_tokens(metadata: Mapping[str, Any]) -> list[int]:
    """Ids of the tokens that end an answer, the header's own first; raises ModelError where tokens are missing."""
    return read_tokens(metadata).ends


# ---------------------------------------------------------------- kinds of tokenizers


def _byte_level(backend: Tokenizer, metadata: Mapping[str, Any], tokens: Tokens) -> Split:
    split = split_of(metadata.get(f"{PREFIX}pre") or DEFAULT)
    if not split.byte_level:
        return _characters(backend, metadata, tokens)
    backend.model = _bpe(tokens, _merges(metadata), ignore_merges=split.whole)
    steps = [*_steps(split), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return split


def _characters(backend: Tokenizer, metadata: Mapping[str, Any], tokens: Tokens) -> Split:
    """Merges as of byte-level tokenizers, between characters as of SentencePiece."""
    split = split_of(GEMMA4 if metadata[f"{PREFIX}model"] == GEMMA4 else str(metadata[f"{PREFIX}pre"]))
    _check_bytes(tokens)
    backend.model = _bpe(tokens, _merges(metadata), byte_fallback=True)
    backend.normalizer = normalizers.Replace(" ", SPACE)
    backend.pre_tokenizer = pre_tokenizers.Sequence(_steps(split))
    backend.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return split


def _sentencepiece(backend: Tokenizer, metadata: Mapping[str, Any], tokens: Tokens) -> Split:
    """Pairs merge into the token with the highest score; every stretch of text begins with a space."""
    _check_bytes(tokens)
    backend.model = _bpe(tokens, _scored_merges(metadata, tokens), byte_fallback=True)
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    replace = normalizers.Replace(" ", SPACE)
    # Gemma 3 has none; llama.cpp's converter says so, and Ollama's leaves it out
    if _flag(metadata, "add_space_prefix", default=metadata.get("general.architecture") != GEMMA3):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), replace])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = replace
    backend.decoder = decoders.Sequence(steps)
    return Split((), begins=True, byte_level=False)


_BUILDERS: dict[str, Callable[[Tokenizer, Mapping[str, Any], Tokens], Split]] = {
    "gpt2": _byte_level,
    "llama": _sentencepiece,
    GEMMA4: _characters,
}


# ---------------------------------------------------------------- components


def _steps(split: Split) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(each), "isolated") for each in split.steps]


def _merges(metadata: Mapping[str, Any]) -> list[tuple[str, str]]:
    rules = (rule.partition(" ") for rule in read_array(metadata, "merges"))
    return list(dict.fromkeys((left, right) for left, _, right in rules))  # the first of two that are alike counts


def _bpe(tokens: Tokens, merges: list[tuple[str, str]], **options: bool) -> models.BPE:
    try:
        return models.BPE(tokens.ids, merges, **options)
    except Exception as error:  # of no type of its own
        wrong = next(((a, b) for a, b in merges if not {a, b, a + b} <= tokens.ids.keys()), None)
        if wrong is None:
            raise
        raise ModelError(
            f"{PREFIX}merges has {' '.join(wrong)!r}, whose tokens are not all there: get the complete file"
        ) from error


def _scored_merges(metadata: Mapping[str, Any], tokens: Tokens) -> list[tuple[str, str]]:
    """All pairs of tokens that make up a token, the one of the highest score first.

    Of two with the same score, the one further left in a text goes first.  That is no order of tokens; but for runs of
    one character, which share a score in many files, merging to the longest gives the same.
    """
    scores = read_array(metadata, "scores")
    if len(scores) < len(tokens.texts):
        raise ModelError(f"{PREFIX}scores is too short: get the complete file of a text model")
    texts, known = tokens.texts, tokens.ids
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], -len(texts[i])))
    merges: list[tuple[str, str]] = []
    for _, group in itertools.groupby(order, lambda i: scores[i]):
        alike = [texts[i] for i in group]
        pairs = [(text[:at], text[at:]) for text in alike for at in range(1, len(text))]
        pairs = [pair for pair in pairs if pair[0] in known and pair[1] in known]
        if len(alike) > 1:
            _check_order(pairs)
        merges += pairs
    return merges


def _check_order(alike: list[tuple[str, str]]) -> None:
    """Refuse tokens of one score that can overlap in a text, other than runs of one character."""
    begun: dict[str, set[str]] = {}
    for left, right in alike:
        begun.setdefault(left, set()).add(left + right)
    for left, right in alike:
        for other in begun.get(right, set()) - {left + right}:
            if len({*left, *right, *other}) > 1:
                raise ModelError(
                    f"{PREFIX}scores are the same for {left + right!r} and {other!r}, so which is merged first is not "
                    "known: use a file whose tokens have scores of their own"
                )


def _check_bytes(tokens: Tokens) -> None:
    lacking = [f"<0x{byte:02X}>" for byte in range(256) if f"<0x{byte:02X}>" not in tokens.ids]
    if lacking:
        raise ModelError(
            f"{PREFIX}tokens has no {lacking[0]}, so not every text can be written: use a file with all byte tokens"
        )


def _add_tokens(backend: Tokenizer, metadata: Mapping[str, Any], tokens: Tokens) -> None:
    """Have special and user-defined tokens found in a text before it is split."""
    name = str(metadata.get("general.name", "")).lower()
    strips = "phi-3" in name or "phi3" in name  # white space after its special tokens is dropped
    later = _found_later([tokens.texts[i] for i, kind in enumerate(tokens.kinds) if kind in ADDED])
    if later and backend.normalizer is not None:  # which would change what is looked for
        raise _overlapping(*sorted(later))
    added = [
        AddedToken(
            tokens.texts[i],
            normalized=tokens.texts[i] in later,
            special=kind in SPECIAL,
            rstrip=strips and tokens.texts[i] not in ("<unk>", "<s>", "<|endoftext|>"),
        )
        for i, kind in enumerate(tokens.kinds)
        if kind in ADDED
    ]
    backend.add_special_tokens([each for each in added if each.special])
    backend.add_tokens([each for each in added if not each.special])


def _frame(metadata: Mapping[str, Any], tokens: Tokens, split: Split) -> processors.PostProcessor:
    """Add BOS and EOS around a text, if the header or the kind of tokenizer asks for them."""
    begins = split.always or _flag(metadata, "add_bos_token", default=split.begins)
    names = {"bos": begins, "eos": _flag(metadata, "add_eos_token", default=False)}
    ids = {name: getattr(tokens, name) for name, wanted in names.items() if wanted}
    for name, i in ids.items():
        if i is None:
            raise ModelError(f"{PREFIX}{name}_token_id is missing, which texts are to have: get the complete file")
    return processors.TemplateProcessing(
        single=[*(["bos"] if "bos" in ids else []), "$A", *(["eos"] if "eos" in ids else [])],
        pair=None,
        special_tokens=[{"id": name, "ids": [i], "tokens": [tokens.texts[i]]} for name, i in ids.items()],
    )


def _flag(metadata: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = metadata.get(f"{PREFIX}{key}", default)
    if not isinstance(value, bool):
        raise ModelError(f"{PREFIX}{key} is {value!r}, true or false is needed: get the file anew")
    return value


def _check_keys(metadata: Mapping[str, Any]) -> None:
    """Refuse a header with a key that may bear on tokens and is not known."""
    for key, value in metadata.items():
        name = key.removeprefix(PREFIX)
        if name != key and name not in (*KNOWN, *HARMLESS):
            shown = f"an array of {len(value)}" if isinstance(value, list | tuple) else repr(value)
            raise ModelError(f"{key} is {shown}, which is not supported: use a file without it")


# ---------------------------------------------------------------- added tokens that overlap in a text

# llama.cpp looks for the longest first, `tokenizers` for the one further left; but it looks for its normalized tokens
# after all others, which gives two turns


def _found_later(texts: Collection[str]) -> set[str]:
    """The tokens that are to be found in the second turn; raises ModelError where two turns are too few."""
    hidden = _hidden(set(texts))
    if not hidden:
        return set()
    turns: dict[str, int] = {}
    for text in sorted(texts, key=len, reverse=True):
        longer = [(other, turn) for other, turn in turns.items() if len(other) > len(text) and _meet(text, other)]
        turns[text] = max((turn + (other in hidden[text]) for other, turn in longer), default=0)
        if turns[text] > 1:
            raise _overlapping(text, *hidden[text])
    return {text for text, turn in turns.items() if turn}


def _overlapping(*texts: str) -> ModelError:
    """The refusal of tokens whose order is not supported."""
    return ModelError(
        f"tokenizer.ggml.tokens has special tokens that overlap, such as {' and '.join(map(repr, texts[:2]))}, so "
        "which is found first is not known: use a file without such"
    )


def _hidden(texts: set[str]) -> defaultdict[str, set[str]]:
    """By token, the longer ones of which a beginning is its end: looked for further left, it would hide them."""
    begun: defaultdict[str, list[str]] = defaultdict(list)
    for text in texts:
        for end in range(1, len(text)):
            begun[text[:end]].append(text)
    hidden: defaultdict[str, set[str]] = defaultdict(set)
    for text in texts:
        for start in range(1, len(text)):
            for other in begun.get(text[start:], ()):
                if len(other) > len(text) and not _starts_longer(text[:start] + other, text, texts):
                    hidden[text].add(other)
    return hidden


def _starts_longer(both: str, text: str, texts: set[str]) -> bool:
    """True if a longer token begins where the text of two begins, as in runs of one character."""
    return len(set(both)) == 1 or any(both[:end] in texts for end in range(len(text) + 1, len(both) + 1))


def _meet(text: str, other: str) -> bool:
    """True if a token can overlap with a longer one in a text."""
    ends = range(1, len(text))
    return text in other or any(other.endswith(text[:end]) or other.startswith(text[-end:]) for end in ends)
