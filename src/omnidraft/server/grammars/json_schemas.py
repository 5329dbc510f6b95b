"""JSON schemas as a grammar takes them: objects that say nothing of further keys have none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from omnidraft.config import shown
from omnidraft.errors import ConfigError

MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")  # of schemas, by name
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLE = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains")
CHOICES = ("anyOf", "oneOf")  # whose parts exclude each other
ANNOTATIONS = {"title", "description", "$schema", "$id", "$comment", "examples", "default"}
MAX_LISTED = 100  # names of `propertyNames` that are listed as properties
MAX_PARTS = 20_000  # schemas within a schema: what is referred to beside other keywords is copied
MAX_DEPTH = 64  # objects and lists of a schema in each other: who reads them goes down by recursion
IN_POINTER = "/~!$&'()*+,;=:@?"  # as they are, beside letters, digits and _.-
IN_ADDRESS = f"{IN_POINTER}#%"
SURROGATE = re.compile(r"[\ud800-\udfff]")
# keys, each once, in the order in which they are to come, with the keyword that lists it, as keys go by pattern too
Names = tuple[tuple[str, str], ...]


def whole(value: Any) -> Any:
    """A whole number that is written as a float as the integer that it is; anything else unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def encodable(text: str) -> str:
    """The text itself; raises ValueError where it cannot be encoded."""
    if SURROGATE.search(text):
        raise ValueError("it holds a lone surrogate, which no encoding has: leave it out")
    return text


def plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that is not too deep, all of whose text can be encoded; raises ValueError."""
    values: list[Any] = [schema]
    depth = 0
    while values:
        for value in values:
            if isinstance(value, str):
                encodable(value)
        holders = [value for value in values if isinstance(value, dict | list)]
        values = [each for one in holders for each in ([*one, *one.values()] if isinstance(one, dict) else one)]
        depth += bool(holders)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is deeper than {MAX_DEPTH} levels: make it flatter")
    return schema


def places(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What is at the places of a schema and all those within it, each before its parts, with their paths."""
    yield path, value
    if not isinstance(value, dict):
        return
    start = f"{path}." if path else ""
    for key, inner in value.items():
        if key in MAPS and isinstance(inner, dict):
            for name, each in inner.items():
                yield from places(each, f"{start}{key}.{name}")
        elif key in (*LISTS, *SINGLE) and isinstance(inner, list):
            for place, each in enumerate(inner):
                yield from places(each, f"{start}{key}[{place}]")
        elif key in SINGLE:
            yield from places(inner, start + key)


def walk(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all those within it that are objects, each before its parts, with their paths."""
    return ((path, each) for path, each in places(schema) if isinstance(each, dict))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `additionalProperties: false` where an object names keys and says nothing of others.

    Where several schemas describe one object (`allOf`, `anyOf` beside `properties`, ...), each is given the names of
    the others first, so that a reference there becomes a copy; where one of them lets further keys in, none is closed.
    What is null is left out; `propertyNames`, `unevaluatedProperties` and `unevaluatedItems` are said by `properties`,
    `additionalProperties` and `items` where they can be, and addresses are percent-encoded.  Raises ConfigError for a
    reference to itself, and for a schema that grows too large.
    """
    try:
        closing = _Closing(schema)
        found: dict[str, Any] = closing.closed(schema)
        closing.check_ends()
    except RecursionError as error:
        raise ConfigError("a $ref leads back to what it is a part of: leave it out or change it") from error
    refs = [nested.get("$ref") for _, nested in walk(schema)]
    if all(not isinstance(ref, str) or ref.startswith("#") for ref in refs):
        found.pop("$id", None)  # which would be the base of none of its references
    return found


class _Closing:
    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._count = 0  # schemas that were read or made
        self._finite: set[str] = set()  # references to schemas that have a finite value

    def closed(self, given: Any, beside: Names | None = (), rest: Any = False) -> Any:
        """The schema of an object of which others say that it has the keys `beside`, and more of the schema `rest`.

        With None for `beside`, it may have any.
        """
        if not isinstance(given, dict):
            return given
        schema = self._said(given)
        if closes := "unevaluatedProperties" in schema:
            beside, rest = (), self.closed(schema.pop("unevaluatedProperties"))
        own, opens = _own(schema)
        branches = [_Part(key, each, *self._keys(each)) for key, each in _parts(schema)]
        self._grow(1 + len(branches) ** 2 // 50)
        shared: dict[str, Any] = {}
        for branch in branches:
            around = None if opens else _through(beside, own, branches, branch)
            if branch.keyword != "$ref":
                shared.setdefault(branch.keyword, []).append(self.closed(branch.schema, around, rest))
            elif (target := self._target(branch.schema)) is not None and (around != () or rest is not False):
                shared.setdefault("allOf", []).append(self.closed(target, around, rest))
            else:
                shared["$ref"] = self._address(branch.schema["$ref"])
        made = {key: value for key, value in shared.items() if key not in CHOICES}  # whose keys come first
        made |= {key: self._inside(key, value) for key, value in schema.items() if key not in _composing(schema)}
        made |= shared
        if (closes or _is_silent(schema, len(own))) and (allowed := _through(beside, own, branches)) is not None:
            for keyword, name in allowed:
                if isinstance(listed := made.setdefault(keyword, {}), dict):
                    listed.setdefault(name, True)
            made["additionalProperties"] = rest
        return made

    def _inside(self, key: str, value: Any) -> Any:
        """The value of a keyword whose schemas describe other values than the object itself."""
        if key in MAPS and isinstance(value, dict):
            return {name: self.closed(each) for name, each in value.items()}
        if key == "$id" and isinstance(value, str):
            return self._address(value)
        if key in (*SINGLE, "prefixItems"):
            return [*map(self.closed, value)] if isinstance(value, list) else self.closed(value)
        return value

    def _grow(self, count: int) -> None:
        self._count += count
        if self._count > MAX_PARTS:
            raise ConfigError(f"the schema has more than {MAX_PARTS} parts: make it smaller")

    def check_ends(self) -> None:
        """Raise ConfigError where the schema, or one that it refers to, needs itself and so has no end."""
        refs = [ref for _, nested in walk(self._root) if isinstance(ref := nested.get("$ref"), str)]
        for ref, schema in [*((ref, {"$ref": ref}) for ref in refs), ("#", self._root)]:
            if not self._ends(schema, frozenset({ref} if schema is self._root else ())):
                raise ConfigError(f"$ref {shown(ref)} has no end, as what it names needs itself: make a part optional")

    def _ends(self, schema: Any, within: frozenset[str]) -> bool:
        """Return True if some value of a schema is finite, without those of the references that it is `within`."""
        if not isinstance(schema, dict):
            return True
        self._grow(1)
        ref = schema.get("$ref")
        if isinstance(ref, str) and ref not in self._finite:
            if ref in within or not self._ends(self._target({"$ref": ref}), within | {ref}):
                return False
            self._finite.add(ref)
        if not all(self._ends(each, within) for each in _list(schema, "allOf")):
            return False
        choices = [options for key in CHOICES if (options := _list(schema, key))]
        if not all(any(self._ends(each, within) for each in options) for options in choices):
            return False
        required = [each for each in _list(schema, "required") if isinstance(each, str)]
        needed = [_dict(schema, "properties").get(each) for each in required]
        if isinstance(least := schema.get("minItems"), int) and least > 0:
            needed += _list(schema, "prefixItems")[:least] or [schema.get("items")]
        return all(self._ends(each, within) for each in needed)

    def _target(self, schema: Any) -> Any:
        """The schema that a reference names, through further ones; None where that is for the grammar to find."""
        seen: list[Any] = []
        while isinstance(schema, dict) and (ref := schema.get("$ref")) is not None:
            if ref in seen:
                raise ConfigError(f"$ref {shown(ref)} has no end, as it names itself: name another schema")
            seen.append(ref)
            if not isinstance(ref, str) or (ref != "#" and not ref.startswith("#/")):
                return None
            schema = self._at(self._pointer(ref))
            if isinstance(schema, dict) and {*schema} - ANNOTATIONS - {"$ref", *MAPS[3:]}:
                break
        return schema

    def _at(self, pointer: str) -> Any:
        """What is at a place in the whole; None where there is nothing."""
        schema: Any = self._root
        for step in pointer.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, list) and name.isdecimal() and int(name[:9]) < len(schema):
                schema = schema[int(name[:9])]
            else:
                schema = schema.get(name) if isinstance(schema, dict) else None
        return schema

    def _pointer(self, ref: str) -> str:
        """The place that a reference within the schema names: percent-encoded, as it is to be, or not."""
        return next((each for each in (unquote(ref), ref) if self._at(each) is not None), unquote(ref))

    def _address(self, address: Any) -> Any:
        """An address with what it may not hold percent-encoded."""
        if not isinstance(address, str):
            return address
        if address.startswith("#/"):
            return f"#{quote(self._pointer(address)[1:], safe=IN_POINTER)}"
        return quote(address, safe=IN_ADDRESS)

    def _keys(self, schema: Any) -> tuple[Names, bool]:
        """The keys of the objects that a schema with all its parts describes, and whether it lets any others in."""
        names: dict[tuple[str, str], None] = {}
        seen, stack, opened = set(), [schema], False
        while stack:
            nested = stack.pop()
            if isinstance(nested, dict) and id(nested) not in seen:
                seen.add(id(nested))
                self._grow(1)
                said = self._said(nested)
                keys, opens = _own(said)
                names |= dict.fromkeys(keys)
                opened |= opens
                for key, each in _parts(said):
                    stack.append(self._target(each) if key == "$ref" else each)
                    opened |= stack[-1] is None
        return tuple(names), opened

    def _said(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A schema without nulls where they mean nothing, and with other words for what some keywords say."""
        said = {key: value for key, value in schema.items() if value is not None or key == "const"}
        if "additionalProperties" in said or not _composing(said) & {*said}:
            more = said.pop("unevaluatedProperties", None)
            said |= {} if more is None else {"additionalProperties": said.get("additionalProperties", more)}
        if not (_composing(said) | {"contains"}) & {*said} and not isinstance(said.get("items"), list):
            more = said.pop("unevaluatedItems", None)
            said |= {} if more is None else {"items": said.get("items", more)}
        names = said.get("propertyNames")
        names = self._target(names) if isinstance(names, dict) and "$ref" in names else names
        rules = {*names} - ANNOTATIONS - {"type"} if isinstance(names, dict) else set()
        if not isinstance(names, dict) or names.get("type", "string") != "string":
            return said
        if not rules:  # any name is a string
            del said["propertyNames"]
        elif rules in ({"enum"}, {"const"}) and not {"patternProperties", "unevaluatedProperties"} & {*said}:
            listed = [each for each in _list(names, "enum") or [names.get("const")] if isinstance(each, str)]
            inner, others = _dict(said, "properties"), said.get("additionalProperties", True)
            if listed and len(listed) <= MAX_LISTED:
                kept = {name: each for name, each in inner.items() if name in listed}
                more = {name: others for name in listed if name not in kept and others is not False}
                del said["propertyNames"]
                said |= {"properties": kept | more, "additionalProperties": False}
        return said


class _Part(NamedTuple):
    """A schema that describes the same value as the one that holds it, with its keys, and whether it lets others in."""

    keyword: str
    schema: Any
    names: Names
    opens: bool


def _through(beside: Names | None, own: Names, branches: Sequence[_Part], one: _Part | None = None) -> Names | None:
    """The keys that a branch (None: the schema itself) must let through; None where it must let all."""
    others = [each for each in branches if each is not one and not (one and one.keyword == each.keyword in CHOICES)]
    if beside is None or any(each.opens for each in others):
        return None
    return tuple(dict.fromkeys([*beside, *own, *(name for each in others for name in each.names)]))


def _composing(schema: Mapping[str, Any]) -> set[str]:
    """The keywords that `_parts` reads."""
    return {"$ref"} | {key for key in ("allOf", *CHOICES) if isinstance(schema.get(key), list)}


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas that describe the same value as this one, by the keyword that holds them; of a reference itself."""
    if "$ref" in schema:
        yield "$ref", {"$ref": schema["$ref"]}
    for key in ("allOf", *CHOICES):
        yield from ((key, each) for each in _list(schema, key))


def _own(schema: Mapping[str, Any]) -> tuple[Names, bool]:
    """The keys that a schema names itself, and whether it lets any others in by its own word."""
    names = [("properties", name) for name in _dict(schema, "properties")]
    names += [("properties", each) for each in _list(schema, "required") if isinstance(each, str)]
    names += [("patternProperties", pattern) for pattern in _dict(schema, "patternProperties")]
    more = schema.get("additionalProperties", schema.get("unevaluatedProperties", False))
    return tuple(dict.fromkeys(names)), more is not False


def _is_silent(schema: Mapping[str, Any], names: int) -> bool:
    """True of a schema that names keys and says nothing of others, and needs none."""
    if "additionalProperties" in schema:
        return False
    least = schema.get("minProperties")
    needs = isinstance(least, int) and least > names
    return bool(_dict(schema, "patternProperties")) or (isinstance(schema.get("properties"), dict) and not needs)


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _dict(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}
