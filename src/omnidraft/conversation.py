"""A conversation with a target in its chat template, on KV caches that stay from turn to turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from omnidraft.api import Generation, OmniDraft
from omnidraft.decoding.stats import Stats
from omnidraft.errors import PromptError
from omnidraft.text.prompting import has_template, usable
from omnidraft.text.roles import of_fewer_roles


class Conversation:
    """Messages of user and target; `options` are those of `OmniDraft.stream`.

    Where the chat template has no place for the system message, it is the beginning of the user's first.  Raises
    PromptError for a target without a chat template.
    """

    def __init__(self, model: OmniDraft, system: str | None = None, **options: Any) -> None:
        if not has_template(model.target.tokenizer):
            fix = "use omnidraft generate, which continues text"
            raise PromptError(f"the target {model.target.name} has no chat template, so it cannot chat: {fix}")
        self._model = model
        self._template = options.pop("template", None)
        self._options = options
        (self._lane,) = model.lanes(1)
        self._opening = [] if system is None else [{"role": "system", "content": usable(system)}]
        self.messages: list[dict[str, str]] = [*self._opening]
        self.answers: list[Generation] = []

    def ask(self, message: str, should_stop: Callable[[], bool] | None = None) -> Generator[str, None, None]:
        """Stream the answer to a user's message; if closed early, the conversation keeps the text so far.

        `should_stop` is that of `OmniDraft.stream`.
        A message without any answer is not kept, so that roles alternate.  Raises PromptError for a message that is
        unusable, and where the conversation does not fit into the target's context.
        """
        asked = [*self.messages, {"role": "user", "content": usable(message)}]
        with self._lane.stream(self._encoded(asked), **self._options, should_stop=should_stop) as stream:
            try:
                yield from stream
            finally:
                stream.close()
                answer = stream.result
                if answer.text:
                    self.messages = [*asked, {"role": "assistant", "content": answer.text}]
                if answer.token_ids:
                    self.answers.append(answer)

    def _encoded(self, messages: list[dict[str, str]]) -> list[int]:
        """The token ids of the messages, of fewer roles where the chat template refuses them; raises PromptError."""
        try:
            return self._model.encode(messages, self._template)
        except PromptError:
            for other in of_fewer_roles(messages):
                with suppress(PromptError):
                    return self._model.encode(other, self._template)
            raise

    def reset(self) -> None:
        """Start a new conversation with the same system message."""
        self.messages = [*self._opening]
        self._lane.clear()

    @property
    def stats(self) -> Stats:
        """Counts and times of all answers, those before a reset included."""
        return Stats.sum(answer.stats for answer in self.answers)

    @property
    def cache_bytes(self) -> int:
        """Memory of the KV caches now."""
        return self._lane.nbytes

    def as_json(self) -> str:
        """The target's name and the messages, as requests hold them."""
        return json.dumps({"target": self._model.target.name, "messages": self.messages}, indent=2, ensure_ascii=False)
