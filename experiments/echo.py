"""A server whose target says what it is told to, so that clients can be tried without a model that understands them."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch

from omnidraft import zoo
from omnidraft.errors import OmniDraftError
from omnidraft.models.language_model import CachedSequence, Read, check_crop
from omnidraft.models.loading import LoadedModel, load_model
from omnidraft.models.transformers_model import TransformersModel
from omnidraft.server.run import Running
from omnidraft.server.server_settings import Serving

NAME = "echo"
WORD = "SAY "  # what is to be said follows it in the last message
TEMPLATE = """\
{% if tools %}<|im_start|>system
Tools: {% for t in tools %}{{ t | tojson }}{% endfor %}
Calls are written as <tool_call>{...}</tool_call>, thoughts as <think>...</think><|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}
{{ m['content'] or '' }}{% for c in m['tool_calls'] or [] %}<tool_call>{{ c['function'] | tojson }}</tool_call>\
{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
HEADER = "<|im_start|>assistant\n"
LAST = re.compile(r"<\|im_start\|>(\w+)\n((?:(?!<\|im_start\|>).)*)<\|im_end\|>\n" + re.escape(HEADER) + "$", re.DOTALL)
START_S = 120.0


class Echo(TransformersModel):
    """A target that is as good as certain of its next token."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__(loaded.lm.model)
        self.context = 2**15
        self._tokenizer: Any = loaded.tokenizer

    @property
    def token_bytes(self) -> float:
        return 0.0

    def new_sequence(self, *, hidden: bool = False) -> Any:  # noqa: ARG002
        return EchoSequence(self)

    def read(self, reads: Sequence[Read]) -> list[torch.Tensor]:
        return [cast("EchoSequence", each.sequence).append(each.ids, each.keep) for each in reads]

    def text(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def answer(self, prompt: str) -> list[int]:
        """What is to be said after a prompt."""
        found = LAST.search(prompt)
        role, content = (found[1], found[2]) if found else ("user", "")
        said = f"The function says {content.strip()}" if role == "tool" else content.partition(WORD)[2] or "Hello."
        return [*self._tokenizer(said, add_special_tokens=False)["input_ids"], self._tokenizer.eos_token_id]


class EchoSequence(CachedSequence):
    """A text, with what is to be said at its end."""

    nbytes = 0

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._ids: list[int] = []
        self._begun, self._answer = 0, list[int]()

    def crop(self, length: int) -> None:
        check_crop(length, len(self._ids))
        del self._ids[length:]
        self.length = length

    def append(self, ids: Sequence[int], keep: int) -> torch.Tensor:
        """Logits of the last `keep` of some more ids."""
        model = cast("Echo", self.model)
        self._ids += ids
        self.length = len(self._ids)
        rows = torch.zeros(keep, model.vocab_size)
        for row, at in enumerate(range(len(self._ids) - keep + 1, len(self._ids) + 1)):
            text = model.text(self._ids[max(0, at - 20) : at])
            if text.endswith(HEADER):
                self._begun, self._answer = at, model.answer(model.text(self._ids[:at]))
            place = at - self._begun
            rows[row, self._answer[place] if 0 <= place < len(self._answer) else self._answer[-1]] = 30.0
        return rows


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server with this target, called `echo`; its tokenizer and template are kept in `folder`."""
    place = folder / NAME
    shutil.copytree(zoo.path("target-b"), place)
    (place / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")

    def loaded(*arguments: Any, **options: Any) -> LoadedModel:
        found = load_model(*arguments, **options)
        return replace(found, lm=Echo(found))

    ready = threading.Event()
    with mock.patch("omnidraft.api.load_model", loaded):
        running = Running(
            Serving(port=0, lanes=4),
            [str(place)],
            None,
            {"profile": None, "dtype": "float32"},
            say=lambda _: ready.set(),
        )
        thread = threading.Thread(target=running.run)
        thread.start()
        try:
            if not ready.wait(START_S):
                raise OmniDraftError("the server does not begin")
            yield running.address
        finally:
            running.end()
            thread.join(START_S)
