"""A target that says what a script makes of the prompt's text, with the tokenizer and chat template of a real one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import omnidraft.api
from omnidraft.models.language_model import CachedSequence, Read
from omnidraft.models.loading import LoadedModel, load_model
from omnidraft.models.transformers_model import TransformersModel
from support.serving import At, serving

HEADER = "<|im_start|>assistant\n"
CONTEXT = 1_000_000
Script = Callable[[str], str]


class ScriptedSequence(CachedSequence):
    """The ids of a text."""

    nbytes = 0

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.ids: list[int] = []

    def crop(self, length: int) -> None:
        del self.ids[length:]
        self.length = length


class ScriptedModel(TransformersModel):
    """Puts all of its probability on the next token of what the script says after a prompt."""

    def __init__(self, loaded: LoadedModel, script: Script) -> None:
        super().__init__(loaded.lm.model)
        self.context = CONTEXT
        self._tokenizer: Any = loaded.tokenizer
        self._header: list[int] = self._ids(HEADER)
        self._script = script
        self._answers: dict[tuple[int, ...], list[int]] = {}

    @property
    def token_bytes(self) -> float:
        return 0.0

    def new_sequence(self, *, hidden: bool = False) -> Any:  # noqa: ARG002
        return ScriptedSequence(self)

    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        return [self._rows(each) for each in reads]

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _rows(self, read: Read) -> torch.Tensor:
        sequence: Any = read.sequence
        sequence.ids += read.ids
        sequence.length = len(sequence.ids)
        logits = torch.full((read.keep, self.vocab_size), -20.0)
        for row in range(read.keep):
            logits[row, self._next(sequence.ids[: len(sequence.ids) - read.keep + row + 1])] = 20.0
        return logits

    def _next(self, ids: list[int]) -> int:
        size = len(self._header)
        start = next(at for at in range(len(ids), size - 1, -1) if ids[at - size : at] == self._header)
        prompt, said = tuple(ids[:start]), ids[start:]
        if prompt not in self._answers:
            self._answers[prompt] = self._ids(self._script(self._tokenizer.decode(prompt)))
        answer = self._answers[prompt]
        ended = len(said) >= len(answer) or said != answer[: len(said)]
        return int(self._tokenizer.eos_token_id) if ended else answer[len(said)]


@contextmanager
def serving_script(target: Path, script: Script, **settings: Any) -> Iterator[At]:
    """A server whose target says what the script makes of a prompt."""

    def load(*arguments: Any, **options: Any) -> LoadedModel:
        loaded = load_model(*arguments, **options)
        if options.get("verifies"):
            loaded = replace(loaded, lm=ScriptedModel(loaded, script))
        return loaded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(omnidraft.api, "load_model", load)
        with serving([target], **settings) as at:
            yield at
