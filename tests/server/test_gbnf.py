"""Grammars in GBNF: each allows the texts that it does in llama.cpp, whatever its rules are called.

`gbnf.json` holds grammars with what llama.cpp (as of llama-cpp-python 0.3.36) says of texts, and grammars that it
refuses.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from omnidraft.errors import ConfigError
from omnidraft.server.grammars.gbnf import MAX_DEPTH, is_gbnf, rules_of
from omnidraft.server.grammars.gbnf_to_lark import to_lark
from omnidraft.server.grammars.grammar import ResponseFormat, Thought, answer_grammar

KEPT = json.loads((Path(__file__).parent / "gbnf.json").read_text(encoding="utf-8"))
BYTES = LLTokenizer("byte")
NO_TOKENS: Any = {"<|end|>": [7], "<b>": [60, 98, 62]}
CALLS = [{"name": "add", "parameters": {}}]
THOUGHT = Thought("</think>", special=False)
OUR_NAMES = ("start", "answer", "call", "thought", "THOUGHT", "SPACE", "a_form", "rule_1")


def grammar(text: str, thought: Thought | None = None, calls: Any = ()) -> str:
    return answer_grammar(BYTES, ResponseFormat("grammar", text, ""), calls, thought)


def allows(made: str, text: str) -> bool:
    """Whether a grammar allows a whole text."""
    matcher, data = LLMatcher(BYTES, made), list(text.encode())
    assert not matcher.is_error(), matcher.get_error()
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


@pytest.mark.parametrize("kept", KEPT["read"], ids=lambda kept: kept["grammar"][:60])
def test_the_same_texts_are_allowed_as_in_llama_cpp(kept: dict[str, Any]) -> None:
    made = grammar(kept["grammar"])
    assert [text for text in kept["fits"] if not allows(made, text)] == []
    assert [text for text in kept["fails"] if allows(made, text)] == []


@pytest.mark.parametrize("text", KEPT["refused"])
def test_what_llama_cpp_refuses_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        grammar(text)
    assert "\n" not in str(raised.value)


def test_the_line_and_what_is_wrong_in_it_are_said() -> None:
    with pytest.raises(ConfigError, match=r"line 3: \\q is no escape"):
        grammar('root ::= x\n# x\nx ::= "\\q"')
    with pytest.raises(ConfigError, match="it has no rule other"):
        grammar("root ::= other")


@pytest.mark.parametrize("calls", [(), CALLS], ids=["a form", "or a call"])
@pytest.mark.parametrize("thought", [None, THOUGHT], ids=["at once", "behind reasoning"])
@pytest.mark.parametrize("name", OUR_NAMES)
def test_rules_may_have_any_names(name: str, thought: Thought | None, calls: Any) -> None:
    before = "" if thought is None else "Well.</think>\n"
    word = f'{name} ::= "x"\nroot ::= {name} "y"'
    pair = f'root ::= {name} "y"\n{name} ::= "x" | "(" {name} ")"'
    lark = f'start: {name} "y"\n{name}: "x"' if name != "start" else 'start: "x" "y" | "(" start ")"'
    for text in (word, pair, lark):
        made = grammar(text, thought, calls)
        assert allows(made, f"{before}xy")
        assert not allows(made, f"{before}x")
        assert allows(made, before + '{"name": "add", "arguments": {}}') == bool(calls)


def test_names_with_underscores_are_taken_too() -> None:
    assert allows(grammar('root ::= a_b a-b\na_b ::= "1"\na-b ::= "2"'), "12")


def test_grammars_are_told_apart() -> None:
    assert is_gbnf('start ::= "a"\nroot ::= start')
    assert is_gbnf('# start: x\n  root\t::= "a"')
    assert not is_gbnf('start: x "::="\nx: "a"')
    assert allows(grammar('%llguidance {}\nstart: x "::="\nx: "a"'), "a::=")


def test_tokens_may_be_named() -> None:
    rules = rules_of("root ::= <|end|> !<[12]> <[5]>", NO_TOKENS.get)
    assert to_lark(rules) == "start: (<[7]> <[^12]> <[5]>)\n"
    with pytest.raises(ValueError, match="<b> is no token"):
        rules_of("root ::= <b>", NO_TOKENS.get)


RUNS = [  # a grammar, and whether its loop is a terminal, which is fast
    (r'root ::= "\"" ([^"\\] | "\\" ["\\bfnrt])* "\""', True),
    (r'root ::= "\"" char* "\"" root?' + "\n" + r'char ::= [^"\\] | "\\" (["\\bfnrt] | "u" [0-9a-f]{4})', True),
    ('root ::= ("- " [^\\n]+ "\\n")+', True),
    ('root ::= [ぁ-ゟ]+ | other+\nother ::= cjk | "x"\ncjk ::= [一-鿿]', True),
    ('root ::= [a-z]* "end"', False),
    ('root ::= [a-z]* | "if" "!"', False),
    ("root ::= ([a-z]+){2}", False),
    ('root ::= ("r" "eturn" | [a-z] [a-z]*) ";"', False),
]


@pytest.mark.parametrize(("text", "fast"), RUNS)
def test_runs_of_characters_are_terminals_where_that_changes_nothing(text: str, fast: bool) -> None:
    made = to_lark(rules_of(text, NO_TOKENS.get))
    assert ("]{1,}/" in made) == fast


@pytest.mark.medium
@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f'{"root" if at == 0 else f"r{at}"} ::= "a"? r{at + 1}' for at in range(MAX_DEPTH))
        + f'\nr{MAX_DEPTH} ::= "a"',
        "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "root ::= " + "(" * 200 + '"a"' + "{1,2})" * 200,
    ],
    ids=["rules", "parentheses", "counts"],
)
def test_what_leads_too_far_down_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        grammar(text)


@pytest.mark.medium
@pytest.mark.parametrize(
    "text",
    [
        "root ::= (" + "|".join(f'"word{at}"' for at in range(3000)) + ")*",
        "root ::= " + "([a-c]* | [b-d]*) " * 500,
    ],
    ids=["words", "runs"],
)
def test_large_grammars_are_read(text: str) -> None:
    assert allows(grammar(text), "")
