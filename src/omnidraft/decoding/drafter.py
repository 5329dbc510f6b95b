"""The drafter: keeps its KV cache and its counts in step with the committed text, and draws draft tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from omnidraft.alignment.drafter_context import DrafterContext
from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import Probs
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.counts.counts import Counts, Guess
from omnidraft.counts.token_index import LONGEST
from omnidraft.decoding.passes import Passes
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.simple_policies import DraftLengthPolicy, Fixed
from omnidraft.errors import NumericsError
from omnidraft.models.language_model import LanguageModel, Read
from omnidraft.models.prefix_cache import PrefixCache, circle_of, common, shares
from omnidraft.verification.sampling import Sampler, largest, one_hot, softmax

TAIL_IDS = 16  # ids that a drafter reads with the logits after them where others may wait: fewer take as long
WINDOW = 1024  # tokens of a text, the last ones, that a model drafts from at most
STARTS = 8  # places in a window's length where one may begin
UNUSABLE = "the drafter's logits are NaN or infinite: check its weights, or use another drafter"


class Drafter:
    """A language model that drafts continuations of a text in its own tokens, with counts of what followed before.

    Each token is the best of (1 − w) · network + w · counts, or of the counts alone where the policy trusts them: then
    the network makes no pass, and reads the token with the next one that it makes.
    """

    def __init__(self, model: LanguageModel, *, beside: bool = False) -> None:
        self._beside = beside  # others may wait while it reads
        self.sequence = model.new_sequence(hidden=True)
        self._text: list[int] = []  # the committed text
        self.begun = 0  # how many of its tokens are the prompt
        self.window = min(model.context, WINDOW)
        self._base = 0  # where the window begins in the text
        self._cached: list[int] = []  # the tokens in the model's cache, from `_base` on
        self._agreed = 0  # how many of them are known to be committed text
        self._aligned = False  # in the present draft
        self.counts: Counts | None = None  # none: the network drafts alone
        self.network = True  # False: the counts draft alone
        self.prefix_cache: PrefixCache | None = None  # of texts that were read elsewhere, of those in the circle
        self.circle = b""
        # of the last draft: passes of the model, the tokens they read, and the tokens drawn from the counts alone
        self.passes = self.read = self.counted = 0

    def start(
        self, tokens: Sequence[int], *, keep: bool = False, new_tokens: int = 0, memory: AnswerMemory | None = None
    ) -> int:
        """Begin a new text with an empty cache, whatever became of the last one; how many tokens need not be read.

        With `keep`, the cache keeps what the two texts have in common.  Where there are counts, they are of this text,
        to which about `new_tokens` come, and of the answers in `memory`.
        """
        base, text = self._base, list(tokens)
        if self.counts is not None:
            self.counts.start(text, new_tokens, memory)
        held = self._cached[: self.sequence.length]  # an interrupted pass may have emptied it
        kept = common(held, text[base:]) if keep and self._text[:base] == text[:base] else 0
        if base and len(text) - base < min(len(text), self.window // 2):
            kept = 0  # a new window holds more of the text than is left of this one
        self._text, self.begun, self._agreed = text, len(text), kept
        if not kept:
            self._begin_window(0)
        if len(text) - self._base >= self.window:
            self._move_window()
        self._adopt()
        return self._base + self._agreed

    def put_away(self) -> None:
        """Let go of the text at its end; what was read of it can be found again."""
        if self.prefix_cache is not None and shares(self.sequence):
            window = self._text[self._base :]
            self.sequence.crop(common(self._cached[: self.sequence.length], window))
            self.prefix_cache.add(self._name, window, self.sequence, end=True)

    def _begin_window(self, at: int) -> None:
        self._base, self._cached, self._agreed = at, [], 0
        self.sequence.crop(0)

    def _move_window(self) -> None:
        """Begin a window that the end of the text fills by half, at a place where those of other requests do.

        Keys cannot be dropped from the front of a window: their positions would no longer be true.
        """
        step = max(1, self.window // STARTS)
        self._begin_window(max(0, -(-(len(self._text) - self.window // 2) // step) * step))

    def _adopt(self) -> None:
        """Take over what was read elsewhere of the window, where that is more than is read here."""
        if self.prefix_cache is None or not shares(self.sequence):
            return
        window = self._text[self._base :]
        blocks, length = self.prefix_cache.find(self._name, window, self.sequence)
        if length > self._agreed:
            self.sequence.adopt(blocks, length, self._agreed)
            self._cached, self._agreed = window[:length], length

    @property
    def _name(self) -> bytes:
        return circle_of(self.model.identity, self.circle)

    @property
    def model(self) -> LanguageModel:
        return self.sequence.model

    @property
    def text(self) -> list[int]:
        """The committed text; not to be changed."""
        return self._text

    def load_model(self, model: LanguageModel) -> None:
        """Draft with this model; the text is prefilled again."""
        self.sequence = model.new_sequence(hidden=True)
        self._cached, self._agreed = [], 0

    def extend(self, tokens: Sequence[int], kept: int | None = None) -> None:
        """Add committed tokens; with `kept`, they replace all after the first `kept` tokens of the text."""
        if kept is not None and kept < len(self._text):
            del self._text[kept:]
            if kept < self._base:
                self._base, self._cached = 0, []
            self._agreed = min(self._agreed, max(0, kept - self._base))
        start = len(self._text)
        self._text += tokens
        if self.counts is not None:
            self.counts.follow(self._text, start)

    def guess(self, drafted: Sequence[int] = ()) -> Guess | None:
        """Return the guess of the counts for the token after the text and a draft."""
        if self.counts is None:
            return None
        return self.counts.guess([*self._text[-LONGEST:], *drafted][-LONGEST:])

    def keep(self) -> None:
        """Remember the complete answer that the text ends with, if answers are kept."""
        if self.counts is not None:
            self.counts.keep(self._text)

    def draft(
        self,
        length: int,
        temperature: float,
        draw: Sampler | None,
        read: Callable[[int], bool],
        allowed: npt.NDArray[np.bool_] | None = None,
        policy: DraftLengthPolicy | None = None,
    ) -> Passes[tuple[list[int], list[Probs]]]:
        """Draw up to `length` tokens: the tokens, and for each the (V_q,) vector it was drawn from.

        At temperature 0 they are the best ones, and the vectors one-hot.  Without `draw` they are the best ones, too,
        and there are no vectors.  Each token is handed to `read`, which says whether another one could be used;
        `policy` says before each whether it is to be drawn, and from what.  With `allowed` (V_q,) the rest is masked
        out before drawing, and the counts are left out.
        """
        policy = policy or Fixed()
        tokens: list[int] = []
        vectors: list[Probs] = []
        self.passes = self.read = self.counted = 0
        if length == 0 or not self._text:
            return tokens, vectors
        self._aligned = False
        while True:
            guess = self.guess(tokens) if allowed is None else None
            if guess is not None and policy.should_use_counts(guess.chance):
                self.counted += 1
                seen: torch.Tensor | Guess = guess
            elif not self.network or (tokens and not policy.should_step(tokens[-1])):
                return tokens, vectors
            else:
                logits = yield from self._next_logits(tokens, room=length)
                if logits is None:
                    return tokens, vectors
                seen = logits if allowed is None else _only(logits, allowed)
                hidden = self.sequence.hidden if policy.reads_hidden else None
                if not policy.should_draw(seen, temperature, hidden, guess):
                    return tokens, vectors
            if draw is None:
                token = _best(seen, temperature, guess)
            else:
                q = _distribution(seen, temperature, guess, self.model.vocab_size)
                token = draw(q) if temperature else int(q.argmax())
                vectors.append(q)
            tokens.append(token)
            if not read(token) or len(tokens) == length:
                return tokens, vectors

    @property
    def _behind(self) -> int:
        """Tokens of the text that the cache does not hold."""
        return len(self._text) - self._base - len(self._cached)

    @property
    def _tail(self) -> int:
        """Ids at the end of a long text that are read with the logits that follow it."""
        return min(TAIL_IDS, self.model.chunk) if self._beside else self.model.chunk

    def _catch_up(self) -> Passes[None]:
        """Read a long text, but for its end, in chunks, or their beginnings; what was read stays whatever happens."""
        while self._behind > self._tail:
            position, held = self._base + len(self._cached), self.sequence.length
            size = min(self.model.chunk, self._behind - (self._tail if self._beside else 0))
            chunk = self._text[position : position + size]
            yield Read(self.sequence, chunk, 0)
            read = self.sequence.length - held
            self._cached += chunk[:read]
            self.read += read

    def _next_logits(self, drafted: list[int], room: int) -> Passes[torch.Tensor | None]:
        """Logits (V_q,) of what follows the text and a draft, of which all that is unread is read in one pass.

        None for a draft that has begun, from the counts, where a long text is unread: that is read before others.
        """
        if not self._aligned:
            self._align(drafted, room)
        if drafted and self._behind > self._tail:
            return None
        yield from self._catch_up()
        position = self._base + len(self._cached)
        unread = self._text[position:] + drafted[max(0, position - len(self._text)) :]
        self.passes += 1
        self.read += len(unread)
        try:
            logits = yield Read(self.sequence, unread, 1)
        except NumericsError as error:
            raise NumericsError(UNUSABLE) from error
        self._cached += unread
        return logits[-1]

    def _align(self, drafted: list[int], room: int) -> None:
        """Cut the cache back to a beginning of the committed text that leaves something to read."""
        text = self._text
        if len(text) - self._base + room > self.window:
            self._move_window()
            self._adopt()
        # at least one token is read, for its logits
        agreed, end = self._agreed, min(len(self._cached), len(text) - self._base - (0 if drafted else 1))
        while agreed < end and self._cached[agreed] == text[self._base + agreed]:
            agreed += 1
        agreed = min(agreed, end)
        if agreed < self.sequence.length:
            self.sequence.crop(agreed)
        del self._cached[agreed:]
        self._agreed, self._aligned = len(text) - self._base, True


@dataclass(frozen=True, kw_only=True)
class AttachedDrafter:
    """A drafter bound to one target: translation of its tokens, active n-grams, acceptance head."""

    drafter: Drafter
    context: DrafterContext
    cache: NgramCache
    head: Head = field(default_factory=Head)
    untranslated: list[int] = field(default_factory=list, init=False)  # committed tokens the drafter has not been given

    def start(
        self, prompt: Sequence[int], *, keep: bool = False, new_tokens: int = 0, memory: AnswerMemory | None = None
    ) -> Sequence[int]:
        """Begin a request with these target tokens; the drafter tokens of the prompt that are to be read.

        With `keep`, the drafter's cache keeps what the last text has in common with the prompt.
        """
        text = self.context.prompt(prompt)
        kept = self.drafter.start(text, keep=keep, new_tokens=new_tokens, memory=memory)
        self.untranslated.clear()
        return text[kept:]

    def translate(self) -> Guess | None:
        """Pass the tokens committed since the last draft to the drafter; return the counts' guess for the next one."""
        if self.untranslated:
            self.drafter.extend(*self.context.after(self.drafter.text, self.drafter.begun, self.untranslated))
            self.untranslated.clear()
        return self.drafter.guess()

    def keep(self) -> None:
        """Remember the complete answer, if answers are kept."""
        self.translate()
        self.drafter.keep()

    def commit(self, emitted: Sequence[int], false_merge: int | None) -> None:
        """Add the target tokens of a round; they are translated with the next draft, if there is one."""
        self.untranslated.extend(emitted)
        self.cache.observe(emitted, false_merge)

    def release(self) -> None:
        """Drop the request's text and KV cache."""
        self.drafter.start(())
        self.untranslated.clear()

    def ngrams(self, tokens: Sequence[int]) -> int:
        """Target tokens among these that are spelled by several drafter tokens."""
        return sum(len(self.cache.table.spelling(token)) > 1 for token in tokens)

    @property
    def longest(self) -> int:
        """Maximum number of target tokens that one draft token may stand for."""
        offsets = self.cache.table.long_offsets
        return int((offsets[1:] - offsets[:-1]).max(initial=1))


def _distribution(seen: torch.Tensor | Guess, temperature: float, guess: Guess | None, size: int) -> Probs:
    """The distribution that a token is drawn from, (V_q,), of the counts alone or of logits and a guess of theirs."""
    if temperature == 0:
        return one_hot(_best(seen, temperature, guess), size)
    return seen.over(size) if isinstance(seen, Guess) else _mixture(seen, temperature, guess)


def _best(seen: torch.Tensor | Guess, temperature: float, guess: Guess | None) -> int:
    """The likeliest token of that distribution, at temperature 0 of the one at 1."""
    if isinstance(seen, Guess):
        return seen.best
    if guess is None:
        return largest(seen[None])[0]  # a vector over the vocabulary would take longer to make
    return int(_mixture(seen, temperature or 1.0, guess).argmax())


def _mixture(logits: torch.Tensor, temperature: float, guess: Guess | None) -> Probs:
    try:
        probs = softmax(logits, temperature)
    except NumericsError as error:
        raise NumericsError(UNUSABLE) from error
    return probs if guess is None else guess.mixed(probs)


def _only(logits: torch.Tensor, allowed: npt.NDArray[np.bool_]) -> torch.Tensor:
    """Logits (V_q,) without the tokens that are not allowed: what is drawn from them is what is recorded."""
    # a bound that any temperature leaves finite, for a drafter that gives no probability to any of them
    return logits.clamp(min=-1e30).masked_fill(~torch.from_numpy(allowed).to(logits.device), -torch.inf)
