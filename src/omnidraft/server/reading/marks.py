"""The marks between which models write reasoning and calls, and which of them a target uses."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from omnidraft.server.reading.call_formats import (
    FUNCTION_MARK,
    LINE_MARK,
    Style,
    fenced,
    function_in_xml,
    gemma,
    last_lines,
    named,
    python,
    tagged,
)


@dataclass(frozen=True)
class Region:
    """A mark that opens calls in a style, and those that may close them; `always`: whatever a target uses.

    The marks `between` calls say nothing more.
    """

    open: str
    close: tuple[str, ...]
    style: Style
    always: bool = False
    between: tuple[str, ...] = ()


FENCE = ("```",)
TAG, END_TAG = "<tool_call>", ("</tool_call>",)
FENCED = ("", "text", "plaintext", "html", "python", "bash", "tool_call", "tool_code")  # words of other fences of calls
REGIONS = (
    Region(TAG, END_TAG, tagged, always=True),  # Hermes, Qwen, GLM, Granite 4
    Region(f"{TAG}\n```json", ("```\n</tool_call>", *FENCE, *END_TAG), tagged, always=True),  # small models of these
    *(
        Region(f"```{word}\n{TAG}", (*END_TAG, *FENCE), tagged, always=True, between=(TAG, *END_TAG))
        for word in ("xml", "json")
    ),
    *(Region(f"```{word}\n{TAG}", END_TAG, fenced, always=True) for word in FENCED),
    *(Region(f"<{word}>", (f"</{word}>",), named, always=True) for word in ("tools", "function_call", "function-call")),
    Region("<seed:tool_call>", ("</seed:tool_call>",), tagged),  # Seed-OSS
    Region(FUNCTION_MARK, END_TAG, function_in_xml),
    Region("<|python_tag|>", ("<|eom_id|>", "<|eot_id|>"), named),  # Llama 3
    Region("[TOOL_CALLS]", (), named),  # Mistral
    Region("<|tool_call_start|>", ("<|tool_call_end|>",), python),  # LFM2
    Region("<|tool_call_begin|>", ("<|tool_call_end|>",), named),  # Kimi
    Region("<｜tool▁call▁begin｜>", ("<｜tool▁call▁end｜>",), named),  # DeepSeek
    Region("<|tool_call|>", ("<|/tool_call|>", "<|end|>"), named),  # Phi-4, Granite 3
    Region("<start_function_call>", ("<end_function_call>",), gemma),
    Region("<|tool_call>", ("<tool_call|>",), gemma),  # Gemma 4
    Region("```json", FENCE, named, always=True),
    Region("```tool_call", FENCE, named, always=True),
    Region("```tool_code", FENCE, python, always=True),
    Region("```\n", FENCE, named, always=True),
    Region(LINE_MARK, (), last_lines, always=True),
)
THOUGHTS = (  # marks of reasoning
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
)
AROUND = (  # which say nothing more than the marks of the calls themselves
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    *("<|tool▁calls▁begin|>", "<|tool▁calls▁end|>"),
)
WITHIN = ("<|tool_call_argument_begin|>", "<｜tool▁sep｜>", "[CALL_ID]", "[ARGS]", '<|"|>', "<escape>")
CHANNELS = "<|channel|>"  # of a target that answers in channels
HARMONY = (CHANNELS, "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")


@dataclass(frozen=True)
class RegionMarks:
    """The marks that a target uses: those of calls, of reasoning, and ids of special tokens whose text readers need."""

    regions: tuple[Region, ...] = ()
    thoughts: tuple[tuple[str, str], ...] = ()
    around: tuple[str, ...] = ()
    special: frozenset[int] = frozenset()
    channels: bool = False
    wraps: bool = field(default=False)  # calls in JSON between <tool_call> and its end


def marks_of(template: str, special: Mapping[int, str], words: Collection[str]) -> RegionMarks:
    """The marks of a target: in its chat template, among its special tokens or the `words` of its vocabulary."""
    known = {*special.values()}

    def used(mark: str) -> bool:
        return mark in known or mark in words or mark in template

    regions = tuple(each for each in REGIONS if each.always or used(each.open))
    thoughts = tuple(pair for pair in THOUGHTS if used(pair[0]) and used(pair[1]))
    around = tuple(mark for mark in AROUND if used(mark))
    channels = CHANNELS in known and used("<|message|>")
    texts = {mark for each in regions for mark in (each.open, *each.close)} | {*around, *WITHIN}
    texts |= {mark for pair in thoughts for mark in pair} | ({*HARMONY} if channels else set())
    texts |= {"<|channel>"} if any(pair[0].startswith("<|channel>") for pair in thoughts) else set()
    shown = frozenset(token for token, text in special.items() if text in texts)
    plain = "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template
    return RegionMarks(regions, thoughts, around, shown, channels, plain)
