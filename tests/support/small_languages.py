"""Two small languages that differ, and texts to go on from."""

from __future__ import annotations

from omnidraft.alignment.vocab import Speller, read_vocab
from support.pairs import Language
from support.small_tokenizers import byte_level, sentencepiece, wrap

TEXTS = (
    "A baker has 3 trays with 12 rolls each",
    "def count(items): return",
    "the first of them was the",
    "1 + 2 = 3 and 4 + 5 =",
)


def _language(tokenizer: object) -> Language:
    wrapped = wrap(tokenizer)  # type: ignore[arg-type]
    vocab = read_vocab(wrapped)
    return Language(wrapped, vocab, Speller(wrapped, vocab))


LANGUAGES = (_language(byte_level()), _language(sentencepiece()))  # of the target, of the drafter
