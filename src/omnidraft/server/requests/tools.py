"""The functions that an answer may call, or must."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from omnidraft.server.errors import ApiError, as_json
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests import response_bodies as r


@dataclass(frozen=True, kw_only=True)
class Tools:
    """Functions by their paths in the body, and which of them are to be called."""

    functions: Mapping[str, p.FunctionSchema]
    others: Mapping[str, str]  # the types of tools that are no functions, by their paths
    choice: str | p.NamedTool | p.AllowedTools | p.OtherTool | None = None
    parallel: bool | None = None

    @property
    def forced(self) -> bool:
        """True where one must be called."""
        if isinstance(self.choice, p.AllowedTools):
            return self.choice.required
        return self.choice not in (None, "auto", "none")

    @property
    def names(self) -> frozenset[str] | None:
        """The names of those that may be called; None for all."""
        if isinstance(self.choice, p.AllowedTools):
            return self.choice.names
        return frozenset([self.choice.called]) if isinstance(self.choice, p.NamedTool) else None

    def chosen(self) -> dict[str, dict[str, Any]]:
        """The functions that may be called, by their paths; raises ApiError for a choice there is not."""
        if self.choice == "none":
            return {}
        if isinstance(self.choice, p.OtherTool):
            raise _no_function("tool_choice", self.choice.type)
        if self.choice == "required" and self.others and not self.functions:
            raise _no_function(*next(iter(self.others.items())))
        functions = {
            path: each.model_dump(exclude={"strict", "type"}, exclude_none=True)
            for path, each in self.functions.items()
            if self.names is None or each.name in self.names
        }
        if isinstance(self.choice, p.AllowedTools) and (
            unknown := self.choice.names - {f["name"] for f in functions.values()}
        ):
            why = f"allows {as_json(min(unknown))}, which tools have not"
            raise ApiError(400, f"tool_choice {why}: add it, or leave it out", param="tool_choice")
        if self.forced and not self.functions:
            raise ApiError(400, "tool_choice needs tools: give some, or leave it out", param="tool_choice")
        if self.forced and not functions:
            raise ApiError(400, "tool_choice names a function that tools have not: add it", param="tool_choice")
        return functions

    def told(self, chosen: Collection[str]) -> dict[str, dict[str, Any]]:
        """The functions at these paths as a grammar takes them."""
        told = {}
        for path in chosen:
            each = self.functions[path]
            told[path] = {"name": each.name, "parameters": each.parameters, "strict": bool(each.strict)}
        return told

    @property
    def strict(self) -> bool:
        """True where some function's arguments must follow their schema."""
        return any(each.strict for each in self.functions.values())

    def without_effect(self, chosen: Collection[str], *, followed: bool) -> list[str]:
        """The paths of what has no effect; `chosen` are those of functions that may be called.

        Their schemas are `followed` where a grammar does, of the whole answer.
        """
        shown = bool(chosen)
        if not self.functions and not self.others:
            unused = []
        elif self.choice == "none" or (self.functions and not chosen):
            unused = ["tools"]
        else:
            unused = [*self.others, *(path.removesuffix(".function") for path in self.functions if path not in chosen)]
        if shown:
            # calls that are free keep to no schema where a model writes them in a way of its own
            loose = [] if followed or self.forced else [path for path in chosen if self.functions[path].strict]
            return [*unused, *(f"{path}.strict" for path in loose)]
        stated = {"tool_choice": self.choice == "auto", "parallel_tool_calls": self.parallel is not None}
        return [*unused, *(name for name, there in stated.items() if there)]


def _no_function(path: str, kind: str) -> ApiError:
    """The 400 for a call of a tool that is no function."""
    why = f"{path}.type is {as_json(kind)}; functions alone can be called"
    fix = "leave it out, or give it as a function"
    return ApiError(400, f"{why}: {fix}", param=f"{path}.type", code="unsupported_value")


def tools_of(body: p.ChatRequest | r.ResponseRequest) -> Tools:
    """The tools of a body."""
    functions: dict[str, p.FunctionSchema] = {}
    others: dict[str, str] = {}
    for place, tool in enumerate(body.tools or ()):
        if isinstance(tool, r.Namespace):
            for at, each in enumerate(tool.tools):
                path = f"tools[{place}].tools[{at}]"
                if isinstance(each, p.OtherTool):
                    others[path] = each.type
                else:
                    functions[path] = each.model_copy(update={"name": r.full_name(tool.name, each.name)})
        elif isinstance(tool, p.OtherTool):
            others[f"tools[{place}]"] = tool.type
        elif isinstance(tool, p.Tool):
            functions[f"tools[{place}].function"] = tool.function
        else:
            functions[f"tools[{place}]"] = tool
    choice = body.tool_choice.type if isinstance(body.tool_choice, p.ChoiceInObject) else body.tool_choice
    choice = "required" if choice == "any" else choice
    return Tools(functions=functions, others=others, choice=choice, parallel=body.parallel_tool_calls)
