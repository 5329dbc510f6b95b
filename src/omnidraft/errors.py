"""Every error OmniDraft raises on purpose; one line each, with the value, what is allowed and the fix.

OmniDraftError
├── InputError (also a ValueError)   what the caller passed is not usable
│   ├── ConfigError                  an option's value or name
│   ├── PromptError                  an empty or over-long prompt
│   ├── ModelError                   a model, tokenizer or pair that cannot be used
│   └── ProfileError                 a profile that is damaged, in use, or of another pair
└── NumericsError                    a model returned NaN or infinite logits
"""

from __future__ import annotations

CONTEXT_LENGTH = "context_length_exceeded"  # the code of a prompt that is too long, as OpenAI's API has it


class OmniDraftError(Exception):
    """Root of the errors this package raises on purpose."""


class InputError(OmniDraftError, ValueError):
    """Something the caller passed is not usable; the command line exits with code 2.

    Programs read the fields, never the message: `option` is the setting or keyword that is to blame, `code` the kind of
    fault, as `CONTEXT_LENGTH`; each is None where there is none to name.
    """

    def __init__(self, *args: object, option: str | None = None, code: str | None = None) -> None:
        super().__init__(*args)
        self.option, self.code = option, code


class ConfigError(InputError):
    """An option has a value or a name that is not allowed."""


class PromptError(InputError):
    """The prompt is empty or does not fit the context."""


class ModelError(InputError):
    """A model, a tokenizer or a pair of them cannot be used, or cannot be read."""


class ProfileError(InputError):
    """A profile cannot be loaded, saved or found, or belongs to another pair."""


class NumericsError(OmniDraftError):
    """A model returned logits from which no token can be drawn."""
