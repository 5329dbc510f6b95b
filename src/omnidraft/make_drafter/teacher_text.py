"""Write teacher text: a model's answers to prompts and to questions that it writes itself, many at once.

A question of the teacher's own is what it writes after the header of a user's turn and one of OPENINGS.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from omnidraft.errors import InputError, ModelError
from omnidraft.make_drafter import shards
from omnidraft.make_drafter.settings import Writing
from omnidraft.make_drafter.shards import Conversation
from omnidraft.models.transformers_model import cache_argument

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from omnidraft.models.loading import LoadedModel

TOP = 8  # likeliest tokens kept at each position
PROMPT, QUESTION, ANSWER = 200, 120, 192  # tokens, at most, after the header; what exceeds the first two is left out
# how a question of the teacher's own begins, and how often
OPENINGS = {
    "": 0.6,
    "Write a Python function": 0.2,
    "How do I": 0.06,
    "Summarize the following text in one sentence:": 0.1,
    "Fix this code:": 0.04,
}
GREEDY = 0.5  # share of the answers; the others are sampled at temperatures of 0.5 to 1
TRIED = 500  # conversations after which a teacher is given up that wrote none of use and is at none


@dataclass
class _Row:
    """A conversation as far as it is written."""

    number: int
    temperature: float
    ids: list[int]  # tokens read, and those to read next
    read: int  # of them
    asking: bool  # the teacher is at its own question
    begun: int  # where the answer begins, or the question of its own
    written: list[int] = field(default_factory=list)  # positions in `ids` of what the teacher wrote
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)

    def conversation(self) -> Conversation:
        written = np.zeros(len(self.ids), np.bool_)
        written[self.written] = True
        top = np.array(self.top_ids, np.int32), np.array(self.top_logprobs, np.float16)
        return Conversation(self.number, np.array(self.ids, np.int32), written, *top)


class _Cache:
    """Keys and values of rows of different lengths; each row is filled from its start."""

    def __init__(self, model: PreTrainedModel, rows: int, length: int) -> None:
        config: Any = model.config
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (2, rows, config.num_key_value_heads, length, head)
        place: dict[str, Any] = {"dtype": model.dtype, "device": model.device}
        self._layers = [torch.zeros(shape, **place) for _ in range(config.num_hidden_layers)]
        self._rows = torch.arange(rows, device=model.device)
        self._place = place
        self.positions = torch.zeros(rows, dtype=torch.long, device=model.device)  # where each row's next token goes

    def begin(self, row: int, past: Any) -> None:
        """Begin a row with the keys and values of text that was read before."""
        for kept, layer in zip(self._layers, past.layers, strict=True):
            kept[:, row, :, : layer.keys.shape[2]] = torch.cat([layer.keys, layer.values])

    def mask(self) -> torch.Tensor:
        """What each row may see, (R, 1, 1, L): 0 or -inf."""
        places = torch.arange(int(self.positions.max()) + 1, device=self.positions.device)
        unseen = places > self.positions[:, None]
        return torch.zeros(unseen.shape, **self._place).masked_fill(unseen, -torch.inf)[:, None, None]

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *_args: object, **_kwargs: object
    ) -> tuple[torch.Tensor, ...]:
        """Append one token a row to a layer's keys and values, and return all of them; called by the model."""
        kept = self._layers[layer]
        kept[0, self._rows, :, self.positions] = key[:, :, 0]  # (R, heads, width)
        kept[1, self._rows, :, self.positions] = value[:, :, 0]
        return kept[:, :, :, : int(self.positions.max()) + 1].unbind()


class Teacher:
    """Writes many conversations at once; one that is finished makes room for the next.

    `prompts` are users' words.  Raises ModelError for a model without a chat template, or whose template does not end
    the user's turn with the end token, InputError where all prompts are too long.
    """

    def __init__(self, loaded: LoadedModel, prompts: Sequence[str], writing: Writing) -> None:
        from omnidraft.models.kv_cache import new_cache

        self.tokenizer: PreTrainedTokenizerBase = loaded.tokenizer
        self._model: PreTrainedModel = loaded.lm.model
        self._name, self._prompts, self._writing = loaded.name, prompts, writing
        self._order = np.random.default_rng(0).permutation(len(prompts))
        self._special = frozenset(self.tokenizer.all_special_ids)
        if not self.tokenizer.chat_template:
            raise ModelError(f"{loaded.name} has no chat template: use a chat model as teacher")
        self._before, after = self._turn_of("\0").split("\0")
        self._header, self._after = self._ids(self._before), self._ids(after)
        if self._after[:1] != [self.tokenizer.eos_token_id] or not self._header:
            raise ModelError(f"the chat template of {loaded.name} does not end turns with the end token: use another")
        if prompts and all(len(self._given(words)) > PROMPT for words in prompts):
            raise InputError(f"each of the prompts takes more than {PROMPT} tokens of {loaded.name}: give shorter ones")
        header = torch.tensor([self._header[:-1]], device=self._model.device)
        self._past = new_cache()
        with torch.inference_mode():
            self._model(header, use_cache=True, **{cache_argument(self._model): self._past})

    @torch.inference_mode()
    def write(self, numbers: Iterator[int]) -> Iterator[list[Conversation]]:
        """The conversations that each step of the model finished; `numbers` are those of the plan to write.

        Raises ModelError where the model ends no question of its own, and there are no prompts.
        """
        header = len(self._header)
        cache = _Cache(self._model, self._writing.rows, header + PROMPT + QUESTION + len(self._after) + ANSWER)
        planned = (row for row in map(self._plan, numbers) if len(row.ids) <= header + PROMPT)
        rows = list(itertools.islice(planned, self._writing.rows))
        for slot in range(len(rows)):
            cache.begin(slot, self._past)
        tried = found = 0
        while True:
            finished = []
            for slot in self._step(cache, rows):
                goes_on, useful = self._go_on(rows[slot])
                if goes_on:
                    continue
                if useful:
                    finished.append(rows[slot].conversation())
                tried, found = tried + 1, found + useful
                if tried >= TRIED and not found and all(row.asking for row in rows):
                    raise ModelError(f"{self._name} ends no question of its own: use another, or prompts with own=0")
                rows[slot] = next(planned)
                cache.begin(slot, self._past)
            yield finished

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _turn_of(self, words: str) -> str:
        message = [{"role": "user", "content": words}]
        return str(self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))

    def _given(self, words: str) -> list[int]:
        """What follows the header where a user says these words."""
        return self._ids(self._turn_of(words).removeprefix(self._before))

    def _plan(self, number: int) -> _Row:
        """The beginning of a conversation: a prompt, or an opening."""
        rng = np.random.default_rng([0, number])
        greedy, temperature, own = rng.random() < GREEDY, float(rng.uniform(0.5, 1)), rng.random() < self._writing.own
        if asking := own or not self._prompts:
            given = self._ids(str(rng.choice(list(OPENINGS), p=list(OPENINGS.values()))))
        else:
            given = self._given(self._prompts[self._order[number % len(self._prompts)]])
        ids = self._header + given
        return _Row(number, 0.0 if greedy else temperature, ids, len(self._header) - 1, asking, len(ids))

    def _step(self, cache: _Cache, rows: Sequence[_Row]) -> list[int]:
        """Let every row read a token; those that have read all they were given write one, and are returned."""
        device = self._model.device
        cache.positions = torch.tensor([row.read for row in rows], device=device)
        hidden = self._model.base_model(
            input_ids=torch.tensor([[row.ids[row.read]] for row in rows], device=device),
            position_ids=cache.positions[:, None],
            attention_mask=cache.mask(),
            use_cache=True,
            **{cache_argument(self._model.base_model): cache},
        ).last_hidden_state[:, 0]  # (R, H)
        for row in rows:
            row.read += 1
        writing = [slot for slot, row in enumerate(rows) if row.read == len(row.ids)]
        if writing:
            self._append([rows[slot] for slot in writing], hidden[writing])
        return writing

    def _append(self, rows: Sequence[_Row], hidden: torch.Tensor) -> None:
        """Let each row write a token."""
        logits = self._model.get_output_embeddings()(hidden).float()  # (W, V)
        top, ids = logits.topk(TOP)  # (W, TOP)
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

    def _go_on(self, row: _Row) -> tuple[bool, bool]:
        """Whether a row goes on, and if not, whether it is of use."""
        token, size = row.ids[-1], len(row.ids) - row.begun
        if token not in self._special:
            return size < (QUESTION if row.asking else ANSWER), not row.asking
        if not row.asking:
            return False, True
        if token != self.tokenizer.eos_token_id or size == 1:
            return False, False
        row.ids += self._after[1:]
        row.asking, row.begun = False, len(row.ids)
        return True, True


def write_text(
    loaded: LoadedModel, prompts: Sequence[str], writing: Writing, folder: Path, say: Callable[[str], None]
) -> None:
    """Write teacher text to shards in a folder until it holds `writing.text_tokens`, going on after what is there.

    Raises ModelError where the model cannot be a teacher, InputError where all prompts are too long for it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = shards.find(folder)
    kept = [(each.number, int(each.written.sum())) for path in found for each in shards.load(path)]
    done, tokens = {number for number, _ in kept}, sum(size for _, size in kept)
    if tokens >= writing.text_tokens:
        return
    torch.manual_seed(len(done))
    with torch.inference_mode():
        teacher = Teacher(loaded, prompts, writing)
    finished: list[Conversation] = []
    began = time.monotonic()
    for some in teacher.write(i for i in itertools.count() if i not in done):
        finished += some
        wrote, passed = sum(int(each.written.sum()) for each in finished), time.monotonic() - began
        if not finished or (tokens + wrote < writing.text_tokens and passed < writing.minutes * 60):
            continue
        shards.save(folder / f"shard-{len(found):05d}.npz", finished)
        found, tokens = shards.find(folder), tokens + wrote
        say(f"{loaded.name}: {tokens:,} tokens written, {wrote / passed:.0f} a second")
        if tokens >= writing.text_tokens:
            return
        finished, began = [], time.monotonic()
