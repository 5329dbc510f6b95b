"""Added tokens that overlap in a text: llama.cpp looks for the longest first, `tokenizers` for the one further left.

`tokenizers` looks for its normalized tokens after all others, though, which gives two turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from omnidraft.errors import ModelError


def found_later(texts: Collection[str]) -> set[str]:
    """The tokens that are to be found in the second turn; raises ModelError where two turns are too few."""
    hidden = _hidden(set(texts))
    if not hidden:
        return set()
    turns: dict[str, int] = {}
    for text in sorted(texts, key=len, reverse=True):
        longer = [(other, turn) for other, turn in turns.items() if len(other) > len(text) and _meet(text, other)]
        turns[text] = max((turn + (other in hidden[text]) for other, turn in longer), default=0)
        if turns[text] > 1:
            raise overlapping(text, *hidden[text])
    return {text for text, turn in turns.items() if turn}


def overlapping(*texts: str) -> ModelError:
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
