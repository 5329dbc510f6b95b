"""A server whose target says what it is told to, so that clients can be tried without a model that understands them."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

import httpx
import torch

from omnidraft import zoo
from omnidraft.api import OmniDraft, load
from omnidraft.config import Drafting
from omnidraft.decoding.engine import Engine
from omnidraft.errors import OmniDraftError
from omnidraft.models.language_model import CachedSequence, Read, check_crop
from omnidraft.models.loading import LoadedModel
from omnidraft.server.memories import Memories
from omnidraft.server.run import Running
from omnidraft.server.served import Served
from omnidraft.server.settings import Serving

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


class Echo:
    """A language model that is as good as certain of its next token."""

    name, precision, no_drafts = NAME, "float32", None
    context, chunk, part, token_bytes = 2**15, 512, 512, 0.0
    joint, rows_independent, hybrid = False, True, False
    device = torch.device("cpu")

    def __init__(self, tokenizer: Any, size: int, end: int) -> None:
        self.vocab_size = size
        self._tokenizer, self._end = tokenizer, end

    def new_sequence(self, *, hidden: bool = False) -> EchoSequence:  # noqa: ARG002
        return EchoSequence(cast("Any", self))

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
        return [*self._tokenizer(said, add_special_tokens=False)["input_ids"], self._end]


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


def echo(folder: Path) -> OmniDraft:
    """The target, with the tokenizer of an embedded one, and a chat template of its own in `folder`."""
    shutil.copytree(zoo.path("target-b"), folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    model = load(folder, None, dtype="float32", profile=None)
    made = Echo(model.target.tokenizer, len(model.vocab.tokens), model.vocab.eos[0])
    target = LoadedModel(cast("Any", made), model.target.tokenizer, NAME, "")
    return OmniDraft(
        target, model.vocab, Engine(cast("Any", made), model.vocab.eos, None, Drafting()), memory=model.memory
    )


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server with this target."""
    settings = Serving(port=0, lanes=4)

    def loaded(*_: Any, **__: Any) -> list[Served]:
        model = echo(folder)
        return [Served(NAME, model, settings.lanes, (NAME, None), Memories(model.engine.drafting, model.memory))]

    with mock.patch("omnidraft.server.run.load_all", loaded):
        running = Running(settings, [NAME], None, {}, say=lambda _: None)
        thread = threading.Thread(target=running.run)
        thread.start()
        try:
            _wait(running.address)
            yield running.address
        finally:
            running.end()
            thread.join(START_S)


def _wait(address: str) -> None:
    """Wait for a server; raises OmniDraftError where it does not come."""
    pause = threading.Event()
    for _ in range(int(START_S / 0.1)):
        try:
            if httpx.get(f"{address}/health", timeout=START_S).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        pause.wait(0.1)
    raise OmniDraftError("the server does not answer")
