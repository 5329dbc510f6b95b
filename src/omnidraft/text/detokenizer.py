"""From token ids to text, as it is produced: whole characters only."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Iterable, Sequence

BROKEN = "\ufffd"
_UTF8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of the tokens that follow a prompt, given out as soon as it is certain.

    `tokens` are the target's bytes by id (`Vocab.tokens`), `prompt` the ids that come before.  The pieces add up to
    what the tokenizer decodes prompt and answer to, less what it decodes the prompt to, special tokens skipped and
    no spaces cleaned up.

    What a tokenizer makes of bytes that are no UTF-8 belongs to that.  Byte-level ones write one U+FFFD for each
    broken sequence.  SentencePiece ones take a run of byte tokens as a whole, and write one U+FFFD for each of them
    if anything in it is broken: `fallback` are the ids of those tokens, and a run is held back to its end.  They also
    drop the space that opens a text: `opening` says what the tokenizer makes of a text of one token.
    """

    def __init__(
        self,
        tokens: Sequence[bytes | None],
        prompt: Iterable[int] = (),
        *,
        fallback: Collection[int] = (),
        opening: Callable[[int], str] | None = None,
    ) -> None:
        self._tokens = tokens
        self._fallback = fallback
        self._opening = opening
        self._drop = 0  # spaces that the tokenizer drops from the front
        self._run = b""  # byte tokens in a row
        self._decoder = _UTF8("replace")
        self._mends = False
        self._known_bytes = self._known_characters = 0  # of the run
        self.feed(prompt)
        # the prompt may end inside a character: what is broken shows in its own text
        self._mends = bool(self._decoder.getstate()[0])
        self._known_bytes, self._known_characters = len(self._run), len(_UTF8("replace").decode(self._run))
        self._drop = 0

    def feed(self, ids: Iterable[int]) -> str:
        """Return the characters that these tokens complete, possibly none."""
        return "".join(self._add(token, data) for token in ids if (data := self._tokens[token]))

    def end(self) -> str:
        """Return the rest at the end of the text; U+FFFD for an incomplete character."""
        return self._trim(self._end_run() + self._decode(b"", final=True))

    def ending(self) -> str:
        """The text that `end` would return now."""
        before, bytes_before = dict(vars(self)), self._decoder.getstate()
        text = self.end()
        vars(self).update(before)
        self._decoder.setstate(bytes_before)
        return text

    def _add(self, token: int, data: bytes) -> str:
        if self._opening is not None:
            if data.startswith(b" "):
                self._drop = len(data) - len(self._opening(token).encode())
            self._opening = None
        if token in self._fallback:
            self._run += data
            return ""
        return self._trim(self._end_run() + self._decode(data))

    def _end_run(self) -> str:
        run, self._run = self._run, b""
        known_bytes, known_characters = self._known_bytes, self._known_characters
        self._known_bytes = self._known_characters = 0
        try:
            return run.decode()[known_characters:]
        except UnicodeDecodeError:
            return BROKEN * (len(run) - known_bytes)

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        text = self._decoder.decode(data, final=final)
        if text and self._mends:
            self._mends = False
            return text.removeprefix(BROKEN)
        return text

    def _trim(self, text: str) -> str:
        if not (text and self._drop):
            return text
        drop, self._drop = self._drop, 0
        return text[:drop].lstrip(" ") + text[drop:]
