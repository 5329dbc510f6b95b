"""Errors of requests, as OpenAI's JSON error objects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from omnidraft.errors import InputError

MAX_SHOWN = 60  # characters of a value in a message
LINE_ENDS = "\x85\u2028\u2029"  # at which clients of httpx break lines, too
BAD = 400
RETRY_S = 2  # what a client that is sent away is asked to wait


Paths = Sequence[tuple[str, str]]
"""Patterns of beginnings of a chat's parameters, and what another API calls them."""


def renamed(path: str, paths: Paths) -> str:
    """The path of a chat's parameter as another API calls it."""
    for pattern, path_of in paths:
        if match := re.match(rf"(?:{pattern})(?!\w)", path):
            return match.expand(path_of) + path[match.end() :]
    return path


class ApiError(Exception):
    """An answer with an error status; `param` names the parameter that is to blame, `code` is for programs."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param
        self.code = "invalid_value" if code is None and status == BAD else code

    def at(self, paths: Paths) -> ApiError:
        """The same error, with the parameter as another API calls it, in its message too."""
        param, message = self.param or "", str(self)
        renamed_param = renamed(param, paths)
        if param and message.startswith(param):
            message = renamed_param + message[len(param) :]
        return ApiError(self.status, message, param=renamed_param or None, code=self.code)

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(RETRY_S)} if self.status in (429, 503) else {}


KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ANTHROPIC = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
ANTHROPIC |= {429: "rate_limit_error", 503: "overloaded_error"}
# by which Anthropic's client, whose runner of tools asks for a thread, knows to send the whole conversation each time
NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
# APIs of models that this server has none of
ABSENT = re.compile(
    r"(?:/api)?(?:/v\d+)?/(?:embed|embeddings?|rerank|reranking|score|pooling|classify|moderations|(?:images|audio)/.*)"
)
TEXT_ALONE = "this server's models write text, and none is for embeddings, ranking, images or sound: use another server"
LM_STUDIO = "/api/v0"  # the beginning of its paths
REQUEST_ID = "x-request-id"  # header of requests and responses, and the key of an ASGI scope
INTERNAL = ApiError(500, "internal error: the server's log has it")
ENDING = ApiError(503, "the server is shutting down: try later")
LOADING = ApiError(503, "the models are being loaded: try again soon", code="loading")


class Json(Response):
    """JSON of anything that a request may have brought, lone surrogates included."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def to_json(content: Any) -> bytes:
    """One line of JSON in UTF-8; characters that no encoding has are replaced."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for mark in LINE_ENDS:
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text.encode("utf-8", "replace")


def response(error: ApiError, path: str = "") -> Json:
    """The response for an error, in the form of the API that the path is of."""
    return Json(shaped(error, path), status_code=error.status, headers=error.headers)


def shaped(error: ApiError, path: str) -> dict[str, Any]:
    """The body for an error: Anthropic's, Ollama's or OpenAI's."""
    if "/messages" in path:
        return {"type": "error", "error": of_anthropic(error)}
    ollama = path.startswith("/api/") and not path.startswith(f"{LM_STUDIO}/")
    return {"error": str(error)} if ollama else error.body


def of_anthropic(error: ApiError) -> dict[str, Any]:
    """An error in Anthropic's form."""
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    fields: dict[str, Any] = {"type": ANTHROPIC.get(error.status, default), "message": str(error)}
    return fields | ({"details": NO_THREADS} if error.param == "thread" else {})


def of_input(error: InputError, param: str | None = None) -> ApiError:
    """The 400 for what the models refuse."""
    return ApiError(400, str(error), param=param or error.option, code=error.code)


def as_json(value: Any) -> str:
    """A value of a request for a message: what is short as it is, else of what kind it is."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def install(app: FastAPI) -> None:
    """Have every error of the app's routes answered in the form of its API."""

    async def answer(request: Request, error: Exception) -> Response:
        headers: Mapping[str, str] = {}
        if not isinstance(error, HTTPException | ApiError) and REQUEST_ID in request.scope:  # outside of all else
            headers = {REQUEST_ID: request.scope[REQUEST_ID]}
        if isinstance(error, HTTPException):
            headers, path = error.headers or {}, as_json(request.url.path)
            unrouted = {404: f"there is no {path}: see GET /openapi.json for what there is"}
            if ABSENT.fullmatch(request.url.path):
                unrouted[404] += f"; {TEXT_ALONE}"
            unrouted[405] = f"{path} takes no {request.method}: use {headers.get('Allow', 'another')}"
            error = ApiError(error.status_code, unrouted.get(error.status_code, str(error.detail)))
        reply = response(error if isinstance(error, ApiError) else INTERNAL, request.url.path)
        reply.headers.update(headers)
        return reply

    for kind in (ApiError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
