"""Write teacher text: conversations of a model with users, many at once.

A user's words are a prompt that is given, or the teacher's own: what it writes after the header of a user's turn and
one of OPENINGS.  Those of later turns are the teacher's own, too, or one of FOLLOW_UPS.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from omnidraft.errors import InputError, ModelError
from omnidraft.make_drafter import shards
from omnidraft.make_drafter.chat_turns import ChatTurns, Prompt
from omnidraft.make_drafter.settings import Writing
from omnidraft.make_drafter.shards import TeacherConversation
from omnidraft.models.language_model import KVSequence, LanguageModel, Read

if TYPE_CHECKING:
    from omnidraft.models.loading import LoadedModel

Kind = TypeVar("Kind")
TOP = 8  # likeliest tokens kept at each position
QUESTION = 120  # tokens of a question of the teacher's own, at most; longer ones are left out
ANSWERS = {192: 0.5, 384: 0.3, 768: 0.2}  # tokens of an answer, at most, and how often
TURNS = {1: 0.6, 2: 0.2, 3: 0.15, 4: 0.05}  # of a user in a conversation, at most, and how often
# how a question of the teacher's own begins, and how often
OPENINGS = {
    "": 0.4,
    "How do I": 0.04,
    "What is": 0.03,
    "Why": 0.02,
    "Explain": 0.04,
    "List": 0.03,
    "Write a short": 0.03,
    "Write an email": 0.03,
    "Rewrite this sentence": 0.03,
    "Summarize the following text in one sentence:": 0.05,
    "Write a Python function": 0.09,
    "Write a JavaScript function": 0.03,
    "Write a SQL query": 0.03,
    "Write a shell command": 0.02,
    "Fix this code:": 0.03,
    "Write a JSON object": 0.03,
    "Make a table": 0.02,
    "Answer in JSON.": 0.02,
    "A shop sells": 0.03,
}
FOLLOWED = 0.4  # share of the later turns that are one of these
FOLLOW_UPS = (
    "Give me an example.",
    "Make it shorter.",
    "Explain that in simpler words.",
    "Why?",
    "Are you sure? Check it again.",
    "Now write it as a list.",
    "Write it in JavaScript.",
    "Add comments and a test.",
    "Give the result as JSON.",
    "Make a table of it.",
    "Continue.",
    "What else should I know?",
)
GREEDY = 0.5  # share of the conversations; the answers of others are sampled at temperatures of 0.5 to 1
TRIED = 500  # conversations after which a teacher is given up that wrote none of use and is at none


@dataclass
class _Row:
    """A conversation as far as it is written."""

    number: int
    temperature: float
    turns: int  # of the user, that are still to come
    longest: int  # tokens of an answer, at most
    ids: list[int]
    asking: bool  # the teacher is at its own question
    begun: int  # where the answer begins, or the question of its own
    whole: int = 0  # tokens up to the end of the last whole answer
    written: list[int] = field(default_factory=list)  # positions in `ids` of what the teacher wrote
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)

    def conversation(self) -> TeacherConversation:
        """Return its complete turns."""
        kept = sum(at < self.whole for at in self.written)
        written = np.zeros(self.whole, np.bool_)
        written[self.written[:kept]] = True
        top = np.array(self.top_ids[:kept], np.int32), np.array(self.top_logprobs[:kept], np.float16)
        return TeacherConversation(self.number, np.array(self.ids[: self.whole], np.int32), written, *top)


class Teacher:
    """Writes many conversations at once; one that is finished makes room for the next.

    Raises what ChatTurns raises, InputError where all prompts are too long.
    """

    def __init__(self, loaded: LoadedModel, prompts: Sequence[Prompt], writing: Writing) -> None:
        self._lm: LanguageModel = loaded.lm
        self._name, self._prompts, self._writing = loaded.name, prompts, writing
        self._order = np.random.default_rng(0).permutation(len(prompts))
        self._special, self._end = frozenset(loaded.tokenizer.all_special_ids), loaded.tokenizer.eos_token_id
        self._chat = ChatTurns(loaded)
        self._most = min(writing.conversation_tokens, self._lm.context - 1)
        self._longest_prompt = self._most * 3 // 4
        if prompts and all(len(self._chat.prompt(each)) > self._longest_prompt for each in prompts):
            raise InputError(
                f"each of the prompts takes more than {self._longest_prompt} tokens of {loaded.name}: "
                "give shorter ones, or more conversation_tokens"
            )

    @torch.inference_mode()
    def write(self, numbers: Iterator[int]) -> Iterator[list[TeacherConversation]]:
        """The conversations that each step of the model finished; `numbers` are those of the plan to write.

        Raises ModelError where the model ends no question of its own, and there are no prompts.
        """
        planned = (row for row in map(self._plan, numbers) if len(row.ids) <= self._longest_prompt)
        rows = list(itertools.islice(planned, self._writing.batch_size))
        texts = [self._lm.new_sequence() for _ in rows]
        tried = ended = 0
        while True:
            finished = []
            self._step(rows, texts)
            for slot, row in enumerate(rows):
                if self._go_on(row):
                    continue
                if row.whole:
                    finished.append(row.conversation())
                tried, ended = tried + 1, ended + bool(row.whole)
                if tried >= TRIED and not ended and all(each.asking for each in rows):
                    raise ModelError(f"{self._name} ends no question of its own: use another, or self_asked=0")
                rows[slot] = next(planned)
                texts[slot].crop(0)
            yield finished

    def _plan(self, number: int) -> _Row:
        """The beginning of a conversation: a prompt, or an opening."""
        rng = np.random.default_rng([0, number])
        greedy, temperature = rng.random() < GREEDY, float(rng.uniform(0.5, 1))
        self_asked = rng.random() < self._writing.self_asked
        if asking := self_asked or not self._prompts:
            ids = self._chat.header + self._chat.ids(_drawn(rng, OPENINGS))
        else:
            ids = self._chat.prompt(self._prompts[self._order[number % len(self._prompts)]])
        turns = _drawn(rng, TURNS) if self._chat.between else 1
        return _Row(number, 0.0 if greedy else temperature, turns, _drawn(rng, ANSWERS), ids, asking, len(ids))

    def _step(self, rows: Sequence[_Row], texts: Sequence[KVSequence]) -> None:
        """Let every row read what it has not read, and write a token."""
        reads = [Read(text, row.ids[text.length :], 1) for row, text in zip(rows, texts, strict=True)]
        for read in reads:
            read.check()
        logits = torch.cat([read.checked(each) for read, each in zip(reads, self._lm.read(reads), strict=True)])
        top, ids = logits.topk(TOP)  # (R, TOP)
        top -= logits.logsumexp(-1, keepdim=True)
        chosen = ids[:, 0].clone()
        temperatures = torch.tensor([1.0 if row.asking else row.temperature for row in rows], device=logits.device)
        (sampled,) = temperatures.nonzero(as_tuple=True)
        sums = (logits[sampled] / temperatures[sampled, None]).softmax(-1).cumsum(-1)  # multinomial takes far longer
        drawn = torch.rand(len(sums), 1, device=logits.device) * sums[:, -1:]
        chosen[sampled] = torch.searchsorted(sums, drawn)[:, 0]
        for row, token, its_ids, its_top in zip(rows, chosen.tolist(), ids.tolist(), top.tolist(), strict=True):
            row.written.append(len(row.ids))
            row.ids.append(token)
            row.top_ids.append(its_ids)
            row.top_logprobs.append(its_top)

    def _go_on(self, row: _Row) -> bool:
        """Return True if a row goes on after its last token; after a turn comes the beginning of the next."""
        token, size = row.ids[-1], len(row.ids) - row.begun
        room = self._most - len(row.ids)
        if token not in self._special:
            if size < (QUESTION if row.asking else row.longest) and room > 0:
                return True
            if not row.asking:
                row.whole = len(row.ids)  # as it is where a server's limit ends it
            return False
        if row.asking:
            if token != self._end or size == 1:
                return False
            row.ids += self._chat.after[1:]
            row.asking, row.begun = False, len(row.ids)
            return row.begun < self._most
        row.whole = len(row.ids)
        row.turns -= 1
        if token != self._end or not row.turns or room < 2 * QUESTION:
            return False
        rng = np.random.default_rng([row.number, row.turns])
        row.ids += self._chat.between
        if rng.random() < FOLLOWED:
            row.ids += self._chat.ids(str(rng.choice(FOLLOW_UPS))) + self._chat.after
        else:
            row.asking = True
        row.begun = len(row.ids)
        return True


def _drawn(rng: np.random.Generator, shares: dict[Kind, float]) -> Kind:
    """One of the keys, each as often as its share says."""
    return list(shares)[int(rng.choice(len(shares), p=list(shares.values())))]


def write_text(
    loaded: LoadedModel, prompts: Sequence[Prompt], writing: Writing, folder: Path, say: Callable[[str], None]
) -> None:
    """Write teacher text to shards in a folder until it holds `writing.text_tokens`, going on after what is there.

    Raises ModelError where the model cannot be a teacher, InputError where all prompts are too long for it and where
    what is there is of another vocabulary.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shards.keep_vocabulary(folder, loaded)
    paths = shards.find(folder)
    kept = [(each.number, int(each.written.sum())) for path in paths for each in shards.load(path)]
    done, tokens = {number for number, _ in kept}, sum(size for _, size in kept)
    if tokens >= writing.text_tokens:
        return
    torch.manual_seed(len(done))
    with torch.inference_mode():
        teacher = Teacher(loaded, prompts, writing)
    finished: list[TeacherConversation] = []
    began = time.perf_counter()
    for some in teacher.write(i for i in itertools.count() if i not in done):
        finished += some
        wrote, passed = sum(int(each.written.sum()) for each in finished), time.perf_counter() - began
        if not finished or (tokens + wrote < writing.text_tokens and passed < writing.shard_minutes * 60):
            continue
        shards.save(folder / f"shard-{len(paths):05d}.npz", finished)
        paths, tokens = shards.find(folder), tokens + wrote
        say(f"{loaded.name}: {tokens:,} tokens written, {wrote / passed:.0f} a second")
        if tokens >= writing.text_tokens:
            return
        finished, began = [], time.perf_counter()
