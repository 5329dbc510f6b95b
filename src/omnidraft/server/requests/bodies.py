"""From the bytes of a request to a body; what is wrong is named with its place, and in plain words."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from fastapi import Request
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from omnidraft.server.errors import MAX_SHOWN, ApiError, as_json
from omnidraft.server.requests import fields as base
from omnidraft.server.requests.unsupported_parameters import TEXT_ALONE, check

BodyT = TypeVar("BodyT", bound=base.Body)
TakenT = TypeVar("TakenT")
VALUES = 2**20  # of a body, at most: Python reads them in one go, in which no other thread runs
CONVERSATION = ("messages", "input", "prompt")
MEMBERS = 1000  # of a packed body, at most
ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # with the windows that zlib wants for them
MEDIA = re.compile(r"(?:input_|output_)?(?:image|audio|video|file|document|media)(?:_url)?")
NAMED = {kind: key for key, kind in base.NAMED.items()}
OBJECT = ("dict_type", "model_type", "model_attributes_type")
WORDS = {
    "missing": ("is missing: give it", "missing_required_parameter"),
    "string_unicode": ("holds a name that no encoding has: leave it out", "invalid_value"),
    "string_too_short": ("is empty: leave it out", "invalid_value"),
    "int_parsing_size": ("is too large an integer: use a smaller one", "invalid_value"),
}


@dataclass(frozen=True)
class Received(Generic[BodyT]):
    """A body, what came beside its conversation, and the paths of its parameters that are ignored.

    The conversation is not kept twice: it may be of many megabytes, and waits as long as its answer.
    """

    body: BodyT
    raw: Mapping[str, Any]
    ignored: Sequence[str]


async def receive(request: Request, limit: int, take: Callable[[Any], TakenT]) -> TakenT:
    """What `take` makes of a request's JSON value, of `limit` bytes at most once it is unpacked.  Raises ApiError.

    It is JSON whatever its type says, as clients and proxies send all kinds; web pages are kept out by `access.Guard`.
    All is done in a thread, as one of many megabytes takes longer than other requests should wait.
    """
    try:
        pieces = [piece async for piece in request.stream()]  # the request would keep its `body()`
    except ClientDisconnect as error:
        raise ApiError(400, "the request ended before its body did: send it again") from error
    encoding = request.headers.get("content-encoding", "")
    return await run_in_threadpool(lambda: take(_parsed(_unpacked(b"".join(pieces), encoding, limit))))


def read(raw: Any, kind: type[BodyT]) -> Received[BodyT]:
    """The body that a JSON value is.  Raises ApiError."""
    if not isinstance(raw, dict):
        raise ApiError(400, f"the body is {as_json(raw)}: send a JSON object", code="invalid_type")
    check(raw, kind.refused)
    try:
        body = kind.model_validate(raw)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        wrong = [each for each in faults if each["type"] != "missing"]  # says more than what is missing
        raise _refusal([*wrong, *faults][0]) from error
    beside = {name: value for name, value in raw.items() if name not in CONVERSATION}
    return Received(body, beside, [_path(place) for place in _unknown(body, [])])


def _unknown(value: Any, place: list[str | int]) -> Iterator[list[str | int]]:
    """The places of what a body has beside its fields, which is taken out of it."""
    if isinstance(value, list):
        for at, each in enumerate(value):
            yield from _unknown(each, [*place, at])
    elif isinstance(value, base.Body):
        for name, field in type(value).model_fields.items():
            yield from _unknown(getattr(value, name), [*place, field.alias or name])
        more = value.model_extra or {}
        yield from ([*place, name] for name in more)
        more.clear()


def _place(error: Mapping[str, Any]) -> list[str | int]:
    """Where a fault is in a body: without the tags of unions, which begin with ~."""
    return [key for key in error["loc"] if isinstance(key, int) or not key.startswith("~")]


def _path(place: Sequence[str | int]) -> str:
    """A place in a body as clients write it; a key of thousands of characters is cut."""
    path = ""
    for key in place:
        if isinstance(key, int):
            path += f"[{key}]"
        else:
            path += f".{key[:MAX_SHOWN]}" if path else key[:MAX_SHOWN]
    return path


def _unpacked(data: bytes, encoding: str, limit: int) -> bytes:
    """The bytes of a body that came packed.  Raises ApiError."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return data
    if name not in ENCODINGS:
        raise ApiError(415, f"the body is packed with {as_json(name)}: send it as it is, or with gzip")
    unpacked = b""
    try:
        for _ in range(MEMBERS):  # each copies what follows it
            if not data:
                break
            unpacker = zlib.decompressobj(ENCODINGS[name])
            unpacked += unpacker.decompress(data, limit + 1 - len(unpacked))
            if len(unpacked) > limit:
                raise ApiError(413, f"the request is larger than {limit / 2**20:g} MB when unpacked: send less")
            if not unpacker.eof:
                raise ApiError(400, f"the body, packed with {name}, ends early: send all of it", code="invalid_json")
            data = unpacker.unused_data
        if data:
            raise ApiError(400, f"the body has more than {MEMBERS} packed members: send one", code="invalid_json")
    except zlib.error as error:
        raise ApiError(400, f"the body is not packed with {name}, as its header says", code="invalid_json") from error
    return unpacked


def _parsed(data: bytes) -> Any:
    """The JSON value of a body.  Raises ApiError that says where reading stopped."""

    def constant(name: str) -> NoReturn:
        raise ApiError(400, f"the body is no JSON ({name} is none of its numbers): use null", code="invalid_json")

    def number(written: str) -> float:
        if math.isinf(value := float(written)):
            why = f"the body holds {written[:MAX_SHOWN]}, which is no number of 64 bits: use a smaller one"
            raise ApiError(400, why, code="invalid_json")
        return value

    if data.count(b",") > VALUES:  # those in texts, too: no context is as long as such a text
        raise ApiError(413, f"the body may hold more than {VALUES} values: send fewer")
    try:
        text = data.decode(json.detect_encoding(data))
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is no UTF-8 at byte {error.start}: send UTF-8", code="invalid_json") from error
    try:
        return json.loads(text, parse_constant=constant, parse_float=number)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}, character {error.pos}"
        raise ApiError(400, f"the body is no JSON at {at}: {error.msg}", code="invalid_json") from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply: make it flatter", code="invalid_json") from error
    except ValueError as error:  # an integer of thousands of digits
        raise ApiError(400, "the body holds too long an integer: shorten it", code="invalid_json") from error


def _refusal(error: Mapping[str, Any]) -> ApiError:
    """The 400 for the first thing that is wrong in a body."""
    kind, value = error["type"], error["input"]
    path = _path(_place(error))
    if kind in NAMED and isinstance(value, dict):
        path = f"{path}.{NAMED[kind]}"
        kind, value = (kind, value[NAMED[kind]]) if NAMED[kind] in value else ("missing", value)
    elif kind in NAMED:
        kind = "model_type"
    what, code = _fault(kind, value, error["msg"], error.get("ctx", {}))
    return ApiError(400, f"{path or 'the body'} {what}", param=path or None, code=code)


def _fault(kind: str, value: Any, message: str, context: Mapping[str, Any]) -> tuple[str, str]:
    """The text that follows a wrong value's path, and the code of the error."""
    shown_value, code = as_json(value), "invalid_value"
    if kind in WORDS:
        return WORDS[kind]
    if kind in NAMED and isinstance(value, str) and MEDIA.fullmatch(value):
        return f"is {shown_value}; {TEXT_ALONE}", "unsupported_value"
    if kind in ("too_long", "too_short"):
        many = kind == "too_long"
        bound = f"at most {context['max_length']}" if many else f"at least {context['min_length']}"
        return f"holds {len(value)}; it must hold {bound}: send {'fewer' if many else 'more'}", code
    if kind == "value_error":  # of a check of our own
        return f"is not usable: {context.get('error', 'change it')}", code
    wrong = kind.endswith(("_type", "_float", "_number"))
    if kind in NAMED or kind == base.OF_KIND:  # whose message is what it may be
        what, wrong = f"be {message}", kind == base.OF_KIND or not isinstance(value, str)
    else:
        what = "be an object" if kind in OBJECT else message.partition(" should ")[2]
    return f"is {shown_value}; it must {what}", "invalid_type" if wrong else code


# ---------------------------------------------------------------- for the description of the server


def described(schema: Callable[[], dict[str, Any]], kinds: Collection[type[base.Body]]) -> Callable[[], dict[str, Any]]:
    """An application's `openapi`, with the kinds of bodies among its schemas."""

    def whole() -> dict[str, Any]:
        page = schema()
        _, models = models_json_schema(
            [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
        )
        schemas = page.setdefault("components", {}).setdefault("schemas", {})
        schemas.update(models["$defs"])
        return page

    return whole


def taking(kind: type[base.Body]) -> dict[str, Any]:
    """The field of a route's description that says which body it takes."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
