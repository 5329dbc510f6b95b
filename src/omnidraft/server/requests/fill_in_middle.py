"""Fill-in-the-middle prompts, for targets that were trained on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from omnidraft.server.errors import ApiError
from omnidraft.server.running.served_model import ServedModel


class FillInTokens(NamedTuple):
    """The tokens around what comes before and after; `after_first`: what comes after is written first."""

    before: str
    after: str
    middle: str
    after_first: bool = False


FAMILIES = (
    FillInTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma, Granite 4
    FillInTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    FillInTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    FillInTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    FillInTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    FillInTokens("[PREFIX]", "[SUFFIX]", "", after_first=True),  # Codestral
    FillInTokens("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4 code
)


ANCHOR = "☺"  # in the way of the space that SentencePiece puts before a text


def filling(served: ServedModel, before: str, after: str) -> list[int]:
    """Token ids of a prompt for what stands between two texts; raises ApiError for a target without such tokens."""
    tokenizer = served.model.target.tokenizer
    with served.lock:
        words: Mapping[str, int] = tokenizer.get_vocab()
        for marks in FAMILIES:
            if all(mark in words for mark in marks[:3] if mark):
                marked = [(marks.before, _ids(served, before)), (marks.after, _continued(served, after))]
                marked = marked[::-1] if marks.after_first else marked
                ids = [token for mark, text in marked for token in (words[mark], *text)]
                return [*served.model.vocab.first, *ids, *([words[marks.middle]] if marks.middle else [])]
    why = "the target has no tokens to fill in between two texts"
    raise ApiError(
        400, f"suffix is not supported, as {why}: leave it out", param="suffix", code="unsupported_parameter"
    )


def _ids(served: ServedModel, text: str) -> list[int]:
    return list(served.model.target.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _continued(served: ServedModel, text: str) -> list[int]:
    """Token ids of what goes on in the middle of a text: without a space that the tokenizer puts before texts.

    So Code Llama and Codestral were trained on what comes after; what comes before has that space.
    """
    whole, anchor, tokens = _ids(served, text), _ids(served, ANCHOR), served.model.vocab.tokens
    if b"".join(tokens[token] or b"" for token in whole) != b" " + text.encode():
        return whole
    ids = _ids(served, ANCHOR + text)
    return ids[len(anchor) :] if ids[: len(anchor)] == anchor else whole
