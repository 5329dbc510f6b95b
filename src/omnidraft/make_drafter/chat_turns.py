"""What a chat template writes between the words of a conversation, as ids of a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from omnidraft.models.loading import LoadedModel

Prompt = str | Mapping[str, Any]  # a user's words, or the fields `messages` and, if the template has them, `tools`
USER, ANSWER, NEXT = "\1", "\2", "\3"  # stand for the words of turns


class ChatTurns:
    """The token ids that a teacher's chat template writes around messages.

    Raises ModelError for a model without a chat template, or whose template does not end turns with the end token.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        self._tokenizer = loaded.tokenizer
        if not loaded.tokenizer.chat_template:
            raise ModelError(f"{loaded.name} has no chat template: use a chat model as teacher")
        self._before, _, after = self._written([USER]).partition(USER)
        self.header = self.ids(self._before)  # before the first words
        self.after = self.ids(after)  # from the end of the user's words to the answer
        end = loaded.tokenizer.eos_token_id
        if self.after[:1] != [end] or not self.header:
            raise ModelError(f"the chat template of {loaded.name} does not end turns with the end token: use another")
        between = self._written([USER, ANSWER, NEXT]).partition(ANSWER)[2].partition(NEXT)[0]
        ids = self.ids(between)
        self.between = ids[1:] if ids[:1] == [end] else []  # from the end of an answer to the next words, if it can be

    def ids(self, text: str) -> list[int]:
        """The ids of a piece of a conversation."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def prompt(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt, up to the answer."""
        if isinstance(prompt, str):
            return self.ids(self._written([prompt]))
        return self.ids(self._rendered(prompt["messages"], tools=prompt.get("tools")))

    def _written(self, words: list[str]) -> str:
        return self._rendered(
            [{"role": ("user", "assistant")[at % 2], "content": each} for at, each in enumerate(words)]
        )

    def _rendered(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        form = {"tokenize": False, "add_generation_prompt": True} | variables
        return str(self._tokenizer.apply_chat_template(messages, **form))
