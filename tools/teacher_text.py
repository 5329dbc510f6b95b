"""Write teacher text: a model's answers, with its likeliest tokens at every place, for a drafter to be trained on.

    python tools/teacher_text.py MODEL --out OUT [--data DATA] [--tokens N]

MODEL is a folder of a `transformers` model with a chat template.  A third of the rows answer questions of GSM8K's and
MBPP's training parts below DATA (default: the folder `data` of `../shared`); the others answer what the model writes
itself after the header of a user's turn.  About half are greedy, the others sampled at temperatures of 0.5 to 1, what
the model asks itself at 1.  No test question is read.

OUT/shard-NNNNN.npz (see teacher_shards.py) is written every few minutes, whole or not at all, and a second run goes on
after what the shards hold, so the command can be stopped at any time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from teacher_shards import FORMS, OWN, Answer, Questions, load, save

TOP = 8  # likeliest tokens kept at each place
PROMPT, QUESTION, ANSWER = 200, 120, 192  # at most as many tokens; what exceeds the first two is passed over


@dataclass
class Row:
    """An answer as far as it is written."""

    number: int
    source: int
    index: int
    form: int
    temperature: float
    waiting: list[int]  # tokens that the model has yet to read; none: the row is finished
    read: int  # tokens in the cache
    asking: bool  # the model is at its own question
    question: int = 0
    tokens: list[int] = field(default_factory=list)
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float]] = field(default_factory=list)

    def answer(self) -> Answer:
        tokens, top_ids = np.array(self.tokens, np.int32), np.array(self.top_ids, np.int32)
        top_logprobs = np.array(self.top_logprobs, np.float16)
        plan = (self.number, self.source, self.index, self.form, self.temperature)
        return Answer(*plan, self.question, tokens, top_ids, top_logprobs)


class Cache:
    """Keys and values of rows that are not equally long; each row is filled from its start."""

    def __init__(self, model: PreTrainedModel, rows: int) -> None:
        config = model.config
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (2, rows, config.num_key_value_heads, PROMPT + QUESTION + ANSWER, head)
        self._layers = [torch.zeros(shape) for _ in range(config.num_hidden_layers)]
        self._rows = torch.arange(rows)
        self.positions = torch.zeros(rows, dtype=torch.long)  # where each row's next token goes

    def begin(self, row: int, past: Any) -> None:
        """Begin a row with the keys and values of a text read already."""
        for kept, layer in zip(self._layers, past.layers, strict=True):
            kept[:, row, :, : layer.keys.shape[2]] = torch.cat([layer.keys, layer.values])

    def mask(self) -> torch.Tensor:
        """Which places each row may see: 0 or -inf."""
        unseen = torch.arange(int(self.positions.max()) + 1) > self.positions[:, None]
        return torch.zeros(unseen.shape).masked_fill(unseen, -torch.inf)[:, None, None]  # (R, 1, 1, L)

    def update(self, key: torch.Tensor, value: torch.Tensor, layer: int, *_: object) -> tuple[torch.Tensor, ...]:
        """What a layer has for one more token a row, put beside what it has; called by the model."""
        kept = self._layers[layer]
        kept[0, self._rows, :, self.positions] = key[:, :, 0]  # (R, heads, width)
        kept[1, self._rows, :, self.positions] = value[:, :, 0]
        return kept[:, :, :, : int(self.positions.max()) + 1].unbind()


class Teacher:
    """Writes many rows at once; one that is finished makes room for the next."""

    def __init__(self, folder: Path, rows: int, questions: Questions) -> None:
        self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._questions = questions
        self._special = frozenset(self.tokenizer.all_special_ids)
        self._before, after = self._turn_of("\0").split("\0")
        self._header, self._turn = self._ids(self._before), self._ids(after)
        if self._turn[0] != self.tokenizer.eos_token_id:
            raise SystemExit(f"{folder}: the chat template does not end the user's turn with the end token")
        self._past = self._model(torch.tensor([self._header[:-1]]), use_cache=True).past_key_values
        self._cache = Cache(self._model, rows)
        self._rows: list[Row] = []

    def write(self, rows: int, numbers: Iterator[int], seen: set[str]) -> Iterator[list[Answer]]:
        """The answers finished by each step; `seen` are the model's own questions, each of which is asked once."""
        planned = (row for row in map(self._plan, numbers) if len(row.waiting) + row.read <= PROMPT)
        self._rows = list(itertools.islice(planned, rows))
        for slot in range(rows):
            self._cache.begin(slot, self._past)
        while True:
            finished = []
            for slot in self._step():
                useful = self._go_on(self._rows[slot], seen)
                if useful and self._rows[slot].waiting:
                    continue
                if useful:
                    finished.append(self._rows[slot].answer())
                self._rows[slot] = next(planned)
                self._cache.begin(slot, self._past)
            yield finished

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def _turn_of(self, words: str) -> str:
        message = [{"role": "user", "content": words}]
        return str(self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True))

    def _plan(self, number: int) -> Row:
        source, index, form, temperature = self._questions.plan(number)
        words = self._questions.asked(source, index, form)
        text = words if source == OWN else self._turn_of(words).removeprefix(self._before)
        waiting = self._header[-1:] + self._ids(text)
        return Row(number, source, index, form, temperature, waiting, len(self._header) - 1, asking=source == OWN)

    def _step(self) -> list[int]:
        """Let every row read a token; those that have read all they were given write one, and are returned."""
        self._cache.positions = torch.tensor([row.read for row in self._rows])
        hidden = self._model.base_model(
            input_ids=torch.tensor([[row.waiting.pop(0)] for row in self._rows]),
            position_ids=self._cache.positions[:, None],
            attention_mask=self._cache.mask(),
            past_key_values=self._cache,
            use_cache=True,
        ).last_hidden_state[:, 0]  # (R, H)
        for row in self._rows:
            row.read += 1
        writing = [slot for slot, row in enumerate(self._rows) if not row.waiting]
        if writing:
            self._append([self._rows[slot] for slot in writing], hidden[writing])
        return writing

    def _append(self, rows: list[Row], hidden: torch.Tensor) -> None:
        logits = self._model.get_output_embeddings()(hidden)  # (W, V)
        top, ids = logits.topk(TOP)  # (W, TOP)
        top -= logits.logsumexp(-1, keepdim=True)
        chosen = ids[:, 0].clone()
        temperatures = torch.tensor([1.0 if row.asking else row.temperature for row in rows])
        (sampled,) = temperatures.nonzero(as_tuple=True)
        sums = (logits[sampled] / temperatures[sampled, None]).softmax(-1).cumsum(-1)  # multinomial takes far longer
        chosen[sampled] = torch.searchsorted(sums, torch.rand(len(sums), 1) * sums[:, -1:])[:, 0]
        for row, token, its_ids, its_top in zip(rows, chosen.tolist(), ids.tolist(), top.tolist(), strict=True):
            row.tokens.append(token)
            row.top_ids.append(its_ids)
            row.top_logprobs.append(its_top)

    def _go_on(self, row: Row, seen: set[str]) -> bool:
        """Give the row what it reads next, nothing if it is finished; False if it is of no use."""
        token = row.tokens[-1]
        if token not in self._special:
            row.waiting = [token] if row.asking or len(row.tokens) - row.question < ANSWER else []
            return not row.asking or len(row.tokens) < QUESTION
        if not row.asking:
            return True
        text = self.question(row.form, row.tokens[:-1])
        known, row.asking, row.question, row.waiting = text in seen, False, len(row.tokens), list(self._turn)
        seen.add(text)
        return not known and token == self.tokenizer.eos_token_id and bool(text.strip())

    def question(self, form: int, tokens: Any) -> str:
        """A question of the model's own in words."""
        return FORMS[OWN][form] + str(self.tokenizer.decode(tokens))


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path, help="folder of a transformers model with a chat template")
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards")
    shared = Path(os.environ.get("OMNIDRAFT_SHARED", Path(__file__).parents[2] / "shared"))
    parser.add_argument("--data", type=Path, default=shared / "data", help="holds gsm8k/ and mbpp/")
    parser.add_argument("--tokens", type=int, default=10**12, help="stop at so many (default: go on until stopped)")
    parser.add_argument("--rows", type=int, default=96, help="rows written at once (default: 96)")
    parser.add_argument("--minutes", type=float, default=5, help="between two shards (default: 5)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    teacher = Teacher(options.model, options.rows, Questions(options.data))
    shards = sorted(options.out.glob("shard-*.npz"))
    answers = [answer for path in shards for answer in load(path)]
    done = {each.number for each in answers}
    seen = {teacher.question(each.form, each.tokens[: each.question - 1]) for each in answers if each.question}
    tokens = sum(len(each.tokens) for each in answers)
    torch.manual_seed(len(done))
    answers, began = [], time.monotonic()
    for finished in teacher.write(options.rows, (i for i in itertools.count() if i not in done), seen):
        answers += finished
        wrote, passed = sum(len(each.tokens) for each in answers), time.monotonic() - began
        if not answers or (tokens + wrote < options.tokens and passed < options.minutes * 60):
            continue
        shards.append(options.out / f"shard-{len(shards):05d}.npz")
        save(shards[-1], answers)
        tokens += wrote
        print(f"{tokens:,} tokens; {len(answers)} rows at {wrote / passed:.0f} tokens/s", flush=True)
        if tokens >= options.tokens:
            return
        answers, began = [], time.monotonic()


if __name__ == "__main__":
    main()
