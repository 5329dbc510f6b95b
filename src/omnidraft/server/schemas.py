"""JSON schemas as a grammar takes them: references resolved, and objects that say nothing else without further keys."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from omnidraft.config import shown
from omnidraft.errors import ConfigError

MAPS = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")  # of schemas, by name
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
SINGLE = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties", "contains")
CHOICES = ("anyOf", "oneOf")  # whose parts exclude each other
NAMING = ("$defs", "definitions", "$id", "$anchor", "$schema")  # which only say where something is
SAYING = {"title", "description", "$schema", "$id", "$comment", "examples", "default", "type", "required", "strict"}
ANNOTATIONS = SAYING - {"type", "required", "strict"}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}  # llguidance's
LISTED = 100  # names of `propertyNames` that are listed as properties
MOST = 20_000  # schemas within a schema: what is referred to in different surroundings is copied
CLOSED: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
SURROGATE = re.compile(r"[\ud800-\udfff]")
DEEPEST = 64  # objects and lists of a schema in each other: who reads them goes down by recursion
# of keys, each once, in the order in which they are to come; with the keyword that lists it, as keys go by pattern too
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
    parts: list[Any] = [schema]
    depth = 0
    while parts:
        for part in parts:
            if isinstance(part, str):
                encodable(part)
        holders = [part for part in parts if isinstance(part, dict | list)]
        parts = [each for one in holders for each in ([*one, *one.values()] if isinstance(one, dict) else one)]
        depth += bool(holders)
        if depth > DEEPEST:
            raise ValueError(f"it is deeper than {DEEPEST} levels: make it flatter")
    return schema


class Schemas:
    """Rewrites schemas, so that all they refer to is below one `$defs`, and that objects are closed.

    An object with `properties` or `patternProperties` and no word on others gets `additionalProperties: false`.  Where
    several schemas describe one object (`allOf`, `anyOf` beside `properties`, ...), each is given the names of the
    others first; where one of them lets further keys in, none is closed.  What only annotates, or is null, is left out
    where a grammar would be refused for it.
    """

    def __init__(self) -> None:
        self._definitions: dict[str, Any] = {}
        self._names: dict[tuple[int, Names | None], str] = {}
        self._refs: dict[str, str] = {}  # as they were given, by name
        self._waiting: deque[tuple[str, _Document, Any, str, Names | None]] = deque()
        self._kept: list[_Document] = []  # or an id could be another's
        self._count = 0

    def add(self, schema: Any) -> Any:
        """The schema for use in what `whole` makes; raises ConfigError for a `$ref` that cannot be followed."""
        document = _Document(schema)
        self._kept.append(document)
        made = self._rewritten(document, schema, "", ())
        while self._waiting:
            name, *rest = self._waiting.popleft()
            self._definitions[name] = self._rewritten(*rest)
        self._check(made)
        return made

    def whole(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema that is made of those added, with their definitions."""
        return schema | ({"$defs": self._definitions} if self._definitions else {})

    def definitions(self) -> Iterator[tuple[str, Any]]:
        """Each definition that was made, with the place that what it is of had in its schema."""
        for name, schema in self._definitions.items():
            yield self._refs[name].removeprefix("#").removeprefix("/").replace("/", "."), schema

    def _rewritten(self, document: _Document, schema: Any, base: str, beside: Names | None) -> Any:
        """The schema of an object of which others say that it has the keys `beside`; None: it may have any."""
        if not isinstance(schema, dict):
            return schema
        base = _base(schema, base)
        schema = document.given(schema, base)
        parts = list(_parts(schema))
        self._count += 1 + len(parts) ** 2 // 50
        if self._count > MOST:
            raise ConfigError(f"the schema comes to more than {MOST} parts: make it smaller")
        around = _Around(schema, beside, [(place, *document.keys(part, base)) for place, part in parts])
        made: dict[str, Any] = {}
        for key, value in schema.items():
            if key == "$ref":
                made[key] = self._reference(document, value, base, around.others((key, 0)))
            elif key in ("allOf", *CHOICES) and isinstance(value, list):
                besides = [around.others((key, place)) for place in range(len(value))]
                made[key] = [
                    self._rewritten(document, *each) for each in zip(value, repeat(base), besides, strict=False)
                ]
            elif key not in NAMING:
                made[key] = self._inside(document, key, value, base)
        if _is_silent(schema, len(around.own)) and (allowed := around.others(None)) is not None:
            for keyword, name in allowed:
                if isinstance(found := made.setdefault(keyword, {}), dict):
                    found.setdefault(name, True)
            made["additionalProperties"] = False
        return made

    def _inside(self, document: _Document, key: str, value: Any, base: str) -> Any:
        """What a keyword holds; its schemas are of other values than the object itself."""
        if key in MAPS and isinstance(value, dict):
            return {name: self._rewritten(document, each, base, ()) for name, each in value.items()}
        if key in (*LISTS, *SINGLE):
            many = isinstance(value, list)
            found = [self._rewritten(document, each, base, ()) for each in (value if many else [value])]
            return found if many else found[0]
        return value

    def _reference(self, document: _Document, ref: Any, base: str, beside: Names | None) -> str:
        target, base = document.find(ref, base)
        key = (id(target), beside)
        if key not in self._names:
            name = f"{len(self._names)}_{re.sub('[^A-Za-z0-9]+', '_', ref)[-40:]}"
            self._names[key] = name
            self._refs[name] = ref
            self._waiting.append((name, document, {} if target is True else target, base, beside))
        return f"#/$defs/{self._names[key]}"

    def _check(self, made: Any) -> None:
        """Raise ConfigError where a definition has no end, as it holds itself in any case."""
        ends: set[str] = set()
        left = dict(self._definitions)
        while found := {f"#/$defs/{name}" for name, schema in left.items() if _ends(schema, ends)}:
            ends |= found
            left = {name: schema for name, schema in left.items() if f"#/$defs/{name}" not in ends}
        if left or not _ends(made, ends):
            ref = shown(self._refs[min(left)]) if left else "'#'"
            raise ConfigError(f"$ref {ref} has no end, as what it names holds itself: make a part of it optional")


class _Around:
    """The parts of a schema that describe the same object: each with its place, its keys, and whether it opens it."""

    def __init__(
        self, schema: Mapping[str, Any], beside: Names | None, parts: list[tuple[tuple[str, int], Names, bool]]
    ) -> None:
        self.own, self._opens = _own(schema)
        self._beside, self._parts = beside, parts

    def others(self, place: tuple[str, int] | None) -> Names | None:
        """The keys that the part at a place (None: the schema itself) must let through; None where it must let all."""
        if self._beside is None or (self._opens and place is not None):
            return None
        found = dict.fromkeys(self._beside + self.own)
        for other, names, opens in self._parts:
            if other != place and not (place and place[0] == other[0] in CHOICES):
                if opens:
                    return None
                found |= dict.fromkeys(names)
        return tuple(found)


class _Document:
    """A schema with the places that its references name."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._read = 0
        self._places: dict[str, tuple[Any, str]] = {"": (root, "")}
        stack = [(root, "")]
        while stack:
            schema, base = stack.pop()
            if isinstance(schema, dict):
                base = _base(schema, base)
                self._places.setdefault(base, (schema, base))
                for key in ("$anchor", "$id"):
                    if isinstance(anchor := schema.get(key), str) and (key == "$anchor" or anchor.startswith("#")):
                        self._places.setdefault(f"{base}#{anchor.removeprefix('#')}", (schema, base))
                stack += [(each, base) for each in _schemas(schema)]

    def find(self, ref: Any, base: str) -> tuple[Any, str]:
        """The schema that a reference names, and its base; raises ConfigError."""
        if not isinstance(ref, str):
            raise ConfigError(f"$ref is {shown(ref)}; it must be a string: use '#/$defs/NAME'")
        place, fragment = urldefrag(base + ref if ref.startswith("#") else urljoin(base, ref))
        if not fragment.startswith("/"):
            found = self._places.get(f"{place}#{fragment}" if fragment else place)
            if found is None:
                raise ConfigError(f"$ref {shown(ref)} names nothing in the schema: add it under $defs")
            return found
        if place not in self._places:
            raise ConfigError(f"$ref {shown(ref)} leads out of the schema: put what it names under $defs")
        value, base = self._places[place]
        for step in unquote(fragment)[1:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and len(name) < 9 and int(name) < len(value):
                value = value[int(name)]
            else:
                raise ConfigError(f"$ref {shown(ref)} names nothing in the schema: add it under $defs")
            if isinstance(value, dict):
                base = _base(value, base)
        if not isinstance(value, dict | bool):
            raise ConfigError(f"$ref {shown(ref)} names something that is no schema: name one under $defs")
        return value, base

    def keys(self, schema: Any, base: str) -> tuple[Names, bool]:
        """The keys of the objects that a schema with all its parts describes, and whether it lets any others in."""
        names: dict[tuple[str, str], None] = {}
        seen, stack, opened = set(), [(schema, base)], False
        while stack:
            part, base = stack.pop()
            if isinstance(part, dict) and id(part) not in seen:
                seen.add(id(part))
                self._read += 1
                if self._read > 10 * MOST:
                    raise ConfigError("the schema is of too many parts that describe one value: make it simpler")
                base = _base(part, base)
                part = self.given(part, base)
                own, opens = _own(part)
                names |= dict.fromkeys(own)
                opened |= opens
                stack += [
                    self.find(each["$ref"], base) if place[0] == "$ref" else (each, base)
                    for place, each in _parts(part)
                ]
        return tuple(names), opened

    def given(self, schema: Mapping[str, Any], base: str) -> dict[str, Any]:
        """A schema without what says nothing, and with the names that `propertyNames` allows as its properties."""
        made = _said(schema)
        any_name, names = self._allowed(made["propertyNames"], base) if "propertyNames" in made else (False, ())
        listed = made.get("properties", {})
        if any_name:
            del made["propertyNames"]
        if not names or not isinstance(listed, dict) or {"patternProperties", "unevaluatedProperties"} & {*made}:
            return made
        del made["propertyNames"]
        others = made.get("additionalProperties", True)
        kept = {name: each for name, each in listed.items() if name in names}
        made["properties"] = kept | {name: others for name in names if name not in kept and others is not False}
        made["additionalProperties"] = False
        return made

    def _allowed(self, schema: Any, base: str) -> tuple[bool, list[str]]:
        """Whether a schema of names allows any, and else those that it lists; none where it says something else."""
        for _ in range(DEEPEST):
            said = _said(schema) if isinstance(schema, dict) else {}
            kind, rules = said.get("type", "string"), {*said} - ANNOTATIONS - {"type"}
            if schema is True or (isinstance(schema, dict) and kind == "string" and not rules):
                return True, []
            if kind != "string" or rules not in ({"$ref"}, {"enum"}, {"const"}):
                break
            if "$ref" not in rules:
                names = [each for each in _list(said, "enum") or [said.get("const")] if isinstance(each, str)]
                return False, names if len(names) <= LISTED else []
            schema, base = self.find(said["$ref"], _base(schema, base))
        return False, []


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], Any]]:
    """The schemas that describe the same value as this one, with their places; of a reference itself."""
    if "$ref" in schema:
        yield ("$ref", 0), {"$ref": schema["$ref"]}
    for key in ("allOf", *CHOICES):
        if isinstance(schema.get(key), list):
            yield from (((key, place), each) for place, each in enumerate(schema[key]))


def _schemas(schema: Mapping[str, Any]) -> Iterator[Any]:
    """All schemas right within one, but for those that it refers to."""
    for key, value in schema.items():
        if key in MAPS and isinstance(value, dict):
            yield from value.values()
        elif key in (*LISTS, *SINGLE):
            yield from value if isinstance(value, list) else [value]


def _said(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without nulls where they mean nothing, and without a `format` that is only an annotation."""
    made = {key: value for key, value in schema.items() if value is not None or key == "const"}
    if isinstance(form := made.get("format"), str) and form not in FORMATS:
        del made["format"]
    return made


def _own(schema: Mapping[str, Any]) -> tuple[Names, bool]:
    """The keys that a schema names itself, and whether it lets any others in by its own word."""
    names = [("properties", name) for name in _dict(schema, "properties")]
    names += [("properties", each) for each in _list(schema, "required") if isinstance(each, str)]
    names += [("patternProperties", pattern) for pattern in _dict(schema, "patternProperties")]
    opens = schema.get("additionalProperties", False) is not False or "unevaluatedProperties" in schema
    return tuple(dict.fromkeys(names)), opens


def _is_silent(schema: Mapping[str, Any], names: int) -> bool:
    """True of a schema that names keys and says nothing of others, and needs none."""
    said = {"additionalProperties", "unevaluatedProperties"} & {*schema}
    least, patterns = schema.get("minProperties"), _dict(schema, "patternProperties")
    if patterns:
        return not said
    return isinstance(schema.get("properties"), dict) and not said and not (isinstance(least, int) and least > names)


def _base(schema: Mapping[str, Any], base: str) -> str:
    """The address that references within a schema are relative to."""
    own = schema.get("$id")
    return urldefrag(urljoin(base, own))[0] if isinstance(own, str) and not own.startswith("#") else base


def _ends(schema: Any, ends: set[str]) -> bool:
    """Whether some value of a schema is finite; `ends` are the references of which that is known."""
    if not isinstance(schema, dict):
        return True
    known = "$ref" not in schema or schema["$ref"] in ends
    if not known or not all(_ends(each, ends) for each in _list(schema, "allOf")):
        return False
    if not all(any(_ends(each, ends) for each in found) for key in CHOICES if (found := _list(schema, key))):
        return False
    inner, least = schema.get("properties"), schema.get("minItems")
    if schema.get("type") == "object" and isinstance(inner, dict):
        return all(_ends(inner.get(each), ends) for each in _list(schema, "required") if isinstance(each, str))
    if schema.get("type") == "array" and isinstance(least, int) and least > 0:
        return all(_ends(each, ends) for each in _list(schema, "prefixItems")[:least] or [schema.get("items")])
    return True


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def _dict(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def nothing_asked(parameters: Mapping[str, Any] | None) -> bool:
    """True of a function's parameters that name none."""
    given = _said(parameters or {})
    return not (set(given) - SAYING or given.get("required")) and given.get("type", "object") == "object"
