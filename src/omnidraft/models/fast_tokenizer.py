"""A tokenizer of `tokenizers` with what transformers adds to it: the names of special tokens, and the chat template.

Importing that of transformers takes a second.  This one has the methods and attributes that are used here, by the same
names and with the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from tokenizers import Tokenizer

from omnidraft.models.chat_template import chosen, render

Name = Literal["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"]


class FastTokenizer:
    """A tokenizer, the names of its special tokens, and its chat template, or several by their names."""

    is_fast = True

    def __init__(
        self, backend: Tokenizer, special: Mapping[Name, str], chat_template: str | Mapping[str, str] | None = None
    ) -> None:
        self.backend_tokenizer = backend
        self.chat_template = chat_template
        self.special_tokens_map: dict[str, str] = {str(name): token for name, token in special.items()}

    def __call__(
        self, text: str | Sequence[str], *, add_special_tokens: bool = True
    ) -> dict[str, list[int] | list[list[int]]]:
        """The ids of a text, or of each of several, as `input_ids`."""
        if isinstance(text, str):
            encoded = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return {"input_ids": encoded.ids, "attention_mask": encoded.attention_mask}
        all_encoded = self.backend_tokenizer.encode_batch(list(text), add_special_tokens=add_special_tokens)
        return {
            "input_ids": [each.ids for each in all_encoded],
            "attention_mask": [each.attention_mask for each in all_encoded],
        }

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def decode(
        self,
        token_ids: int | Iterable[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """The text of ids; no spaces are cleaned up, as in transformers' own for these kinds of tokenizers."""
        del clean_up_tokenization_spaces
        ids = [token_ids] if isinstance(token_ids, int) else [int(token) for token in token_ids]
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def convert_ids_to_tokens(self, ids: int | Iterable[int]) -> Any:
        """The tokens of ids, None for ids of none."""
        token = self.backend_tokenizer.id_to_token
        return token(ids) if isinstance(ids, int) else [token(int(each)) for each in ids]

    def convert_tokens_to_ids(self, tokens: str | Iterable[str]) -> Any:
        """The ids of tokens, that of the unknown token, or None, for those that are none."""
        if isinstance(tokens, str):
            found = self.backend_tokenizer.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(each) for each in tokens]

    def get_vocab(self) -> dict[str, int]:
        """Ids by token, added ones included."""
        return dict(self.backend_tokenizer.get_vocab(with_added_tokens=True))

    def get_added_vocab(self) -> dict[str, int]:
        """Ids of the added tokens."""
        return {token.content: i for i, token in sorted(self.backend_tokenizer.get_added_tokens_decoder().items())}

    @property
    def all_special_ids(self) -> list[int]:
        """Ids of the tokens that have a name."""
        tokens = dict.fromkeys(self.special_tokens_map.values())
        return [i for each in tokens if (i := self.backend_tokenizer.token_to_id(each)) is not None]

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens_map.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens_map.get("eos_token")

    @property
    def unk_token(self) -> str | None:
        return self.special_tokens_map.get("unk_token")

    @property
    def pad_token(self) -> str | None:
        return self.special_tokens_map.get("pad_token")

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of(self.eos_token)

    @property
    def unk_token_id(self) -> int | None:
        return self._id_of(self.unk_token)

    @property
    def pad_token_id(self) -> int | None:
        return self._id_of(self.pad_token)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self.backend_tokenizer.token_to_id(token)

    def get_chat_template(self, chat_template: str | None = None, tools: Sequence[Any] | None = None) -> str:
        """The template for a chat, by its name or for these tools; raises ValueError where there is none."""
        return chosen(self.chat_template, chat_template, tools)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        chat_template: str | None = None,
        tokenize: bool = True,
        **options: Any,
    ) -> Any:
        """The text of a chat, or its ids; raises ValueError without a template, and whatever the template does."""
        template = self.get_chat_template(chat_template, tools)
        text = render(template, conversation, tools=tools, **{**self.special_tokens_map, **options})
        return self(text, add_special_tokens=False) if tokenize else text
