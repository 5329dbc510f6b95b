"""Access to the server: the check of host, origin and key, and the limits on the size and time of requests."""

from __future__ import annotations

import asyncio
import hmac
import re
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omnidraft.server.errors import REQUEST_ID, RETRY_S, ApiError, response
from omnidraft.server.server_settings import ANY, MEGABYTE, Serving, is_local

BUSY = "too many requests are open: try again later"
TOGETHER = 16  # times the size of a request that all at once may have
USED_KEY = "omnidraft.key"  # of an ASGI scope: the place of the API key, where the server has keys
OPEN = ("/health", "/v1/health", "/")  # without a key; and the page's files, which ask for it
PAGE = "/page/"
NEEDLESS = re.compile("(?<=.)/+$|(?<=/)/+|(?<=^/v1)(/v1)+(?=/)")  # of a path: clients add it to a base URL that has it
NAME = re.compile("[!-~]{1,256}")  # of a request
LINK = ("/", "navigate", "document")  # path, Sec-Fetch-Mode and -Dest of a link to the page
POLICY = b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
HEADERS = (
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
)


class Guard:
    """ASGI middleware that lets only those requests in that the settings allow, and at most `most` bodies at once.

    A request counts once its body is there whole: one that comes slowly keeps no other out.
    """

    def __init__(self, app: ASGIApp, settings: Serving, most: int) -> None:
        self._app, self._settings = app, settings
        self._most, self._open = most, 0
        self._limit = int(settings.max_body_mb * MEGABYTE)
        self._taken = 0  # bytes of all requests
        self._origins = re.compile(settings.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        scope["path"] = NEEDLESS.sub("", scope["path"])
        headers = Headers(scope=scope)
        scope[REQUEST_ID] = number = _number(headers.get(REQUEST_ID, ""))

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = (REQUEST_ID.encode(), number.encode())
                message["headers"] = [*message.get("headers", ()), *HEADERS, named]
            await send(message)

        error = self._refusal(scope, headers) or self._size(headers)
        if error is not None:
            await response(error, scope["path"])(scope, receive, safely)
            return
        taken, coming, counted = 0, True, False
        end = asyncio.get_running_loop().time() + self._settings.body_timeout_s

        async def bounded() -> Message:
            nonlocal taken, coming, counted
            try:
                async with asyncio.timeout_at(end if coming else None):
                    message = await receive()
            except TimeoutError as error:
                late = f"the request did not come within {self._settings.body_timeout_s:g} s: send it faster"
                raise HTTPException(408, late, {"Connection": "close"}) from error
            coming = message.get("more_body", False)
            if message["type"] == "http.request" and not coming and not counted:
                if self._open >= self._most:
                    raise HTTPException(503, BUSY, {"Retry-After": str(RETRY_S)})
                counted = True
                self._open += 1
            size = len(message.get("body", b""))
            taken += size
            self._taken += size
            self._check(taken)
            return message

        try:
            await self._app(scope, bounded, safely)
        finally:
            self._open -= counted
            self._taken -= taken

    def _check(self, taken: int) -> None:
        """Raise HTTPException for too many bytes of a request, or of all."""
        if taken > self._limit:
            raise HTTPException(413, self._too_large)
        if self._taken > TOGETHER * self._limit:
            raise HTTPException(503, BUSY, {"Retry-After": str(RETRY_S)})

    @property
    def _too_large(self) -> str:
        return f"the request is larger than {self._settings.max_body_mb:g} MB: send less"

    def _size(self, headers: Mapping[str, str]) -> ApiError | None:
        length = headers.get("content-length", "0")
        return ApiError(413, self._too_large) if length.isdigit() and int(length) > self._limit else None

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> ApiError | None:
        """Why a request is refused, if it is; else its key is noted in the scope."""
        path: str = scope["path"]
        host = headers.get("host", "")
        name, _ = _address(f"//{host}")
        # a name that is made to point here
        if self._settings.loopback and not (is_local(name) or name in (*ANY, *self._settings.allowed_host)):
            return ApiError(403, "the Host header names another machine: use localhost, or --allowed-host")
        origin = headers.get("origin")
        if origin is not None:
            foreign = self._origins.fullmatch(origin) is None and _address(origin)[1] != host
        else:  # browsers leave it out of images, scripts, frames and links
            foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
            foreign &= (path, headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) != LINK
        if foreign:
            return ApiError(403, "pages of this origin may not use the server: see --cors-origin")
        keys = self._settings.api_key
        if not keys or path in OPEN or path.startswith(PAGE):
            return None
        kind, _, credentials = headers.get("authorization", "").partition(" ")
        bearer = credentials.strip() if kind.lower() == "bearer" else ""
        sent = [each.encode() for each in (bearer, headers.get("x-api-key", "").strip()) if each]
        # each is compared, in a time that does not depend on how much of it is right
        accepted = [place for place, key in enumerate(keys) for each in sent if hmac.compare_digest(each, key.encode())]
        if accepted:
            scope[USED_KEY] = accepted[0]
            return None
        fix = "send Authorization: Bearer KEY, or x-api-key: KEY"
        return ApiError(401, f"no or a wrong API key: {fix}", code="invalid_api_key")


def _number(asked: str) -> str:
    """The id of a request: what the client calls it, or a new one."""
    return asked if NAME.fullmatch(asked) else f"req_{secrets.token_hex(12)}"


def _address(url: str) -> tuple[str, str]:
    """The host name of a URL, and the host with its port; empty for none."""
    try:
        split = urlsplit(url)
        return split.hostname or "", split.netloc
    except ValueError:
        return "", ""
