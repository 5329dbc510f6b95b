"""Chat templates give the text that they give in `apply_chat_template` of transformers, and are refused as there."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from omnidraft.models.chat_template import variables_of
from omnidraft.models.fast_tokenizer import FastTokenizer

SPECIAL: dict[Any, str] = {"bos_token": "<s>", "eos_token": "</s>"}
PLAIN = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TEMPLATES = {
    "plain": PLAIN,
    "trimmed": "{{ bos_token }}\n{% for m in messages %}\n  {% if m.role == 'user' %}\n U:{{ m.content | trim }}\n"
    "  {% else %}\nA:{{ m['content'] }}{{ eos_token }}\n  {% endif %}\n{% endfor %}\n",
    "tools": "{% if tools %}{{ tools | tojson }}{{ tools[0].function | tojson(indent=2) }}{% endif %}" + PLAIN,
    "loops": "{% for m in messages %}{% if loop.index0 > 1 %}{% break %}{% endif %}{% if not m.content %}{% continue %}"
    "{% endif %}{{ loop.index }}{{ m.content }}{% endfor %}",
    "namespace": "{% set ns = namespace(n=0, self='x') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}{{ ns.self }}{{ dict(a=1) | tojson }}{{ dict.fromkeys(['b'], 2) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "reasoning": "{% for m in messages %}{{ m.content }}<think>{{ m.reasoning_content }}{% endfor %}",
    "thinking": "{% for m in messages %}{{ m.content }}<think>{{ m.thinking }}{% endfor %}",
    "extra": "{{ enable_thinking is defined and enable_thinking }}{{ documents }}{{ messages | length }}",
    "absent": "{% for m in messages %}{{ 'content' in m }}{{ m.tool_calls is defined }}{% endfor %}",
    "mutating": "{{ messages.append(1) }}",
    "private namespace": "{% set ns = namespace(_x=1) %}{{ ns }}",
    "reaching out": "{{ messages.__class__.__mro__ }}",
    "raising": "{{ raise_exception('no system') }}",
    "broken": "{% for m in messages %}",
    "no content": "{% for m in messages %}{{ m.role }}{% endfor %}",
}
CHAT = [{"role": "system", "content": " Be kind. "}, {"role": "user", "content": "2 < 3 & é 你好 \n"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "Yes, ", "reasoning": "hm"}]


class Kind(enum.StrEnum):
    TEXT = "text"


@dataclass
class Block:
    type: str
    text: str


CHATS: dict[str, list[dict[str, Any]]] = {
    "chat": CHAT,
    "answered": ANSWERED,
    "nothing": [],
    "empty and absent": [{"role": "user", "content": "", "tool_calls": None}, {"role": "assistant", "content": None}],
    "blocks": [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "image"}, {"text": "b "}]}],
    "objects": [{"role": "user", "content": [Block("text", "a"), Kind.TEXT, object, (1, 2.5, True)], "n": 10**20}],
    "thoughts": [{"role": "assistant", "thinking": "t", "content": "c"}, {"role": "assistant", "content": "d"}],
    "two ends": [{"role": "assistant", "content": "same"}, {"role": "assistant", "content": "same  "}],
}


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "ä": "<>&'"}}}]
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "prompt": {"add_generation_prompt": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "function": {"tools": [add]},
    "no tool": {"tools": ["f"]},
    "continued": {"continue_final_message": True},
    "reasoning continued": {"continue_final_message": "reasoning"},
    "both": {"continue_final_message": True, "add_generation_prompt": True},
    "variables": {"enable_thinking": False, "documents": [{"title": "t", "text": "x"}], "bos_token": "<other>"},
}


def result(tokenizer: Any, chat: list[dict[str, Any]], options: Mapping[str, Any]) -> object:
    """The text, or the kind of error."""
    try:
        return str(tokenizer.apply_chat_template([dict(each) for each in chat], tokenize=False, **options))
    except jinja2.exceptions.TemplateError as error:
        return type(error)
    except Exception:  # noqa: BLE001  of which kind is of no matter
        return Exception


SEVERAL: list[dict[str, str]] = [
    {"default": TEMPLATES["plain"], "tool_use": TEMPLATES["tools"], "rag": TEMPLATES["trimmed"]},
    {"default": TEMPLATES["plain"], "rag": TEMPLATES["trimmed"]},
    {"tool_use": TEMPLATES["tools"]},
]


def both(template: str | dict[str, str]) -> tuple[FastTokenizer, Any]:
    whole: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
    whole.chat_template = template
    return FastTokenizer(Tokenizer(models.BPE()), SPECIAL, template), whole


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_and_errors_are_those_of_transformers(name: str) -> None:
    fast, whole = both(TEMPLATES[name])
    for chat in CHATS.values():
        for options in OPTIONS.values():
            expected = result(whole, chat, options)
            assert result(fast, chat, options) == expected, (chat, options, expected)


@pytest.mark.parametrize("templates", SEVERAL)
def test_of_several_templates_that_of_transformers_is_taken(templates: dict[str, str]) -> None:
    fast, whole = both(templates)
    named: list[dict[str, Any]] = [{"chat_template": name} for name in ("rag", "tool_use", "{{ messages | length }}")]
    tools: list[dict[str, Any]] = [{}, {"tools": TOOLS}, {"tools": []}]
    for options in (*tools, *named, named[0] | {"tools": TOOLS}):
        assert result(fast, CHAT, options) == result(whole, CHAT, options), options
    fast, whole = both(TEMPLATES["plain"])
    assert result(fast, CHAT, named[2]) == result(whole, CHAT, named[2]) == "2"


@pytest.mark.parametrize(
    ("template", "reads"),
    [
        ("{% if tools %}{% endif %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", True),
        ("{% macro m(x) %}{{ x }}{{ tools }}{% endmacro %}{{ m(1) }}", True),
        ("{% generation %}{% for t in tools %}{% break %}{% endfor %}{% endgeneration %}", True),
        ("{# tools #}You have no tools.{% for m in messages %}{{ m.tools }}{{ m['tools'] }}{% endfor %}", False),
        ("{% set tools = 1 %}{{ tools }}", False),
    ],
)
def test_whether_a_template_reads_a_variable(template: str, *, reads: bool) -> None:
    assert ("tools" in variables_of(template)) == reads


def test_a_tokenizer_without_a_template_says_so() -> None:
    with pytest.raises(ValueError, match="no chat template"):
        FastTokenizer(Tokenizer(models.BPE()), SPECIAL).apply_chat_template(CHAT)
