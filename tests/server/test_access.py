"""Who is let in: addresses, keys, hosts, origins and sizes."""

from __future__ import annotations

import asyncio
import json
import mimetypes
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope, Send

from omnidraft.decoding.lane import Lane
from omnidraft.decoding.round import verify
from omnidraft.errors import ConfigError
from omnidraft.server.access import Guard
from omnidraft.server.server_settings import Serving, is_local, is_loopback
from support.serving import PATIENT, QUESTION, At, serving, user
from support.waiting import WAIT_S, until

KEY, OTHER = "a-key", "another-key"
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
ORIGIN = "http://friend.example:3000"


@pytest.fixture(scope="module")
def guarded(target: Path, drafter: Path) -> Iterator[At]:
    with serving(
        [target], drafter, api_key=(KEY, OTHER), cors_origin=(ORIGIN,), max_body_mb=0.01, body_timeout_s=1.0
    ) as at:
        yield at


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "my-machine", "localhost.evil.example"])  # noqa: S104
def test_another_address_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="no API key: give --api-key"):
        Serving(host=host)
    assert Serving(host=host, api_key=KEY).api_key == (KEY,)
    with pytest.raises(ConfigError, match="no API key"):
        Serving(host=host, api_key=())


@pytest.mark.parametrize("key", ["", "a key", "key\n", " key", "kéy", "key\x7f", 5, ("key", ""), ("key", 5)])
def test_a_key_that_no_header_holds_is_refused_at_start(key: Any) -> None:
    with pytest.raises(ConfigError, match=r"^api_key must be ASCII letters.*: choose another$"):
        Serving(api_key=key)


def test_only_this_machine_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("", "evil.example", "127.0.0.1.evil.example", "10.0.0.1", "::")))


@pytest.mark.medium
@pytest.mark.parametrize(
    "given", [None, "Bearer", "Bearer no", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer é"]
)
def test_without_the_key_nothing_is_answered(guarded: At, given: str | None) -> None:
    headers = [] if given is None else [(b"Authorization", given.encode())]
    for path in ("/v1/models", "/stats", "/metrics", "/report", "/openapi.json", "/tokenize", "/nothing"):
        refused = guarded.get(path, headers=headers)
        assert refused.status_code == 401, path
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert guarded.get("/health", headers=headers).status_code == 200


@pytest.mark.medium
def test_with_a_key_all_is(guarded: At) -> None:
    for key in (KEY, OTHER):
        assert guarded.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "",
        "127.0.0.1.evil.example",
        "[",
        "10.0.0.1",
        "0.0.0.0.evil.example",
        "internal",
        "host.docker.internal.evil.example",
        "localhost.evil.example",
        "a.local",
        "evil.internal",
    ],
)
def test_a_name_that_is_made_to_point_here_is_refused(server: At, host: str) -> None:
    refused = server.get("/v1/models", headers={"Host": host})
    assert refused.status_code == 403
    assert "Host" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:1", "127.0.0.1:99", "[::1]:8080", "0.0.0.0:8080", "[::]:1", "localhost.:8080",
     "tauri.localhost", "host.docker.internal:8080", "Host.Docker.Internal",
     "host.containers.internal"],
)  # fmt: skip
def test_names_of_this_machine_are_not(server: At, host: str) -> None:
    assert server.get("/v1/models", headers={"Host": host}).status_code == 200
    foreign = {"Host": host, "Origin": "http://evil.example"}
    assert server.get("/v1/models", headers=foreign).status_code == 403


@pytest.mark.parametrize(("host", "taken"), [("my-mac", True), ("mail.example", False), ("my-mac.local", False)])
def test_the_machines_own_name_is_taken_where_no_public_one_can_be_it(
    host: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnidraft.server.server_settings.gethostname", lambda: host)
    assert is_local(host.upper()) == taken


@pytest.mark.medium
def test_pages_of_other_origins_are_refused_unless_named(server: At, guarded: At) -> None:
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        for at in (server, guarded):
            headers = {"Origin": origin, "Authorization": f"Bearer {KEY}"}
            refused = at.post("/tokenize", {"content": "x"}, headers=headers)
            assert refused.status_code == 403
            assert "access-control-allow-origin" not in refused.headers
    assert server.get("/v1/models", headers={"Origin": server.url}).status_code == 200
    allowed = guarded.get("/v1/models", headers={"Origin": ORIGIN, "Authorization": f"Bearer {KEY}"})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == ORIGIN
    assert allowed.headers["access-control-expose-headers"] == "retry-after, x-request-id"
    asks = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-os",
    }
    assert httpx.options(guarded.url + "/v1/chat/completions", headers=asks, **PATIENT).status_code == 200
    private = {**asks, "Access-Control-Request-Private-Network": "true"}  # of a public page, for this machine
    answer = httpx.options(guarded.url + "/v1/chat/completions", headers=private, **PATIENT)
    assert answer.headers["access-control-allow-private-network"] == "true"
    foreign = httpx.options(guarded.url, headers={**private, "Origin": "http://evil.example"}, **PATIENT)
    assert foreign.status_code == 400
    assert "access-control-allow-origin" not in foreign.headers


@pytest.mark.parametrize("origin", ["app://obsidian.md", "file://", "tauri://localhost", "http://tauri.localhost"])
def test_desktop_programs_are_no_pages(server: At, origin: str) -> None:
    """Without an option; a browser's page from a file has the origin `null`."""
    asks = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    for answer in (
        httpx.options(server.url + "/v1/chat/completions", headers=asks, **PATIENT),
        server.post("/tokenize", {"content": "x"}, headers={"Origin": origin}),
    ):
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.medium
@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
def test_what_other_pages_load_is_refused_but_for_links_to_the_page(server: At, guarded: At, site: str) -> None:
    def status(path: str, mode: str, dest: str) -> int:
        headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
        return server.get(path, headers=headers).status_code

    expected = 403 if site.endswith("-site") else 200
    asked = [("/stats", "no-cors", "image"), ("/", "navigate", "iframe"), ("/", "no-cors", "document")]
    asked += [("/stats", "navigate", "document"), ("/page/api.js", "cors", "script")]
    assert {status(*each) for each in asked} == {expected}
    assert status("/", "navigate", "document") == 200
    named = {"Origin": ORIGIN, "Sec-Fetch-Site": site, "Authorization": f"Bearer {KEY}"}
    assert guarded.get("/v1/models", headers=named).status_code == 200


@pytest.mark.medium
def test_every_response_has_the_id_of_its_request(server: At, guarded: At, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError

    named = {"X-Request-Id": "of-a-client/7"}
    monkeypatch.setattr("omnidraft.server.app.tokenizer_info", failing)
    for path, status in (("/v1/models", 200), ("/", 200), ("/nothing", 404), ("/tokenizer_info", 500)):
        found = server.get(path, headers=named)
        assert (found.status_code, found.headers.get_list("x-request-id")) == (status, ["of-a-client/7"])
    refused = guarded.get("/v1/models", headers=named)
    assert (refused.status_code, refused.headers["x-request-id"]) == (401, "of-a-client/7")
    streamed = server.chat(stream=True)
    assert streamed.headers["x-request-id"] != server.chat().headers["x-request-id"]
    assert server.get("/health", headers={"X-Request-Id": "x" * 999}).headers["x-request-id"].startswith("req_")


@pytest.mark.medium
def test_large_requests_are_refused_by_length_and_by_what_comes(guarded: At) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    body = b'{"content": "' + b"x" * 20_000 + b'"}'
    refused = httpx.post(guarded.url + "/tokenize", content=body, headers=headers, **PATIENT)
    chunked = httpx.post(
        guarded.url + "/tokenize", content=iter([body[:9000], body[9000:]]), headers=headers, **PATIENT
    )
    for each in (refused, chunked):
        assert each.status_code == 413
        assert "larger than 0.01 MB" in each.json()["error"]["message"]
    assert guarded.post("/tokenize", {"content": "x"}, headers=headers).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("length", ["Content-Length: 9", "Transfer-Encoding: chunked"])
def test_requests_that_come_too_slowly_are_ended(guarded: At, length: str) -> None:
    head = f"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n{length}\r\n"
    with socket.create_connection(("127.0.0.1", int(guarded.url.rsplit(":", 1)[1])), timeout=WAIT_S) as slow:
        slow.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode())
        answer = b"".join(iter(lambda: slow.recv(4096), b""))  # until the server ends it
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not come within 1 s" in answer


@contextmanager
def connected(at: At, count: int, said: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections to a server, on which no more is said than this."""
    with ExitStack() as stack:
        sockets = []
        for _ in range(count):
            place = ("127.0.0.1", int(at.url.rsplit(":", 1)[1]))
            sockets.append(stack.enter_context(socket.create_connection(place, timeout=60)))
            sockets[-1].sendall(said)
        yield sockets


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.medium
@pytest.mark.parametrize("said", [b"", HEAD, HEAD + b"Content-Length: 99\r\n\r\n{"], ids=["nothing", "head", "body"])
def test_connections_that_say_little_keep_no_other_out(
    chat: Path, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnidraft.server.run.SPARE", 0)
    with serving([chat], None, {"draft_length": 0}, lanes=1, max_queue=0) as at, connected(at, 40, said):
        assert at.chat(max_tokens=2).status_code == 200
        assert at.get("/health").status_code == 200


@pytest.mark.medium
def test_requests_are_limited(chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnidraft.server.run.SPARE", 0)
    body = json.dumps({"messages": user(QUESTION), "max_tokens": 2, "stream": True, "temperature": 0}).encode()
    whole = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    with serving([chat], None, {"draft_length": 0}, lanes=1, max_queue=0) as at:

        def held(lane: Lane, request: Any) -> Any:
            assert go.wait(60)
            return verify(lane, request)

        go = threading.Event()
        monkeypatch.setattr("omnidraft.decoding.stream.verify", held)
        with connected(at, 1, whole):
            until(lambda: at.figures()["active"] == 1)
            refused = at.post("/tokenize", {"content": "x"})
            go.set()
        assert refused.status_code == 503
        assert "too many requests" in refused.json()["error"]["message"]
        assert int(refused.headers["Retry-After"]) >= 1
        until(lambda: at.post("/tokenize", {"content": "x"}).status_code == 200)


def test_bytes_of_all_requests_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of those that are not there whole; what is over makes room."""
    monkeypatch.setattr("omnidraft.server.access.TOGETHER", 1)

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()
        began.set()
        await go.wait()

    async def some() -> Message:
        return {"type": "http.request", "body": b"x" * 900, "more_body": True}

    async def told(_: Message) -> None: ...

    async def three() -> None:
        scope = {"type": "http", "path": "/tokenize", "headers": [(b"host", b"localhost")]}
        first = asyncio.create_task(guard(dict(scope), some, told))
        await began.wait()
        go.set()  # so that none waits where it should have been refused
        with pytest.raises(HTTPException, match="503"):
            await guard(dict(scope), some, told)
        await first
        await guard(dict(scope), some, told)

    guard, began, go = Guard(app, Serving(max_body_mb=0.001), 9), asyncio.Event(), asyncio.Event()
    asyncio.run(three())


def test_every_answer_forbids_foreign_content(server: At) -> None:
    for answer in (server.get("/health"), server.get("/nothing"), server.get("/health", headers={"Host": "evil"})):
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.medium
def test_the_page_is_of_the_kind_that_browsers_take(chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a system's own list, as that of Windows, calls scripts plain text."""
    monkeypatch.setattr(mimetypes, "_db", mimetypes.MimeTypes())
    for ending in (".js", ".css", ".svg", ".html"):
        mimetypes.add_type("text/plain", ending)
    with serving([chat], None, {"draft_length": 0}) as at:
        paths = ("/page/api.js", "/page/style.css", "/page/icon.svg", "/page/index.html")
        kinds = [at.get(path).headers["content-type"].partition(";")[0] for path in paths]
    assert kinds == ["text/javascript", "text/css", "image/svg+xml", "text/html"]


def test_the_default_address_is_this_machine_alone(server: At) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    own = [each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None)]
    for address in (each for each in own if not is_loopback(str(each))):
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{address}:{server.url.rsplit(':', 1)[1]}/health", timeout=2)


@pytest.mark.parametrize(
    ("allowed", "origin", "taken"),
    [
        ("*", "http://anything.example", True),
        ("*", "null", True),
        ("null", "null", True),
        ("null", "http://anything.example", False),
        ("app://", "app://obsidian.md", True),
        ("vscode-webview://", "vscode-webview://1f3c", True),
        ("app://", "http://app", False),
        ("http://a.example", "tauri://localhost", True),
        ("http://a.example", "https://tauri.localhost.evil.example", False),
        ("http://a.example", "moz-extension://1f3c", False),
        ("http://a.example", "http://a.example.evil.example", False),
        ("http://a.example", "http://aXexample", False),
    ],
)
def test_origins_are_matched_whole_or_by_their_scheme(allowed: str, origin: str, taken: bool) -> None:
    assert bool(re.fullmatch(Serving(cors_origin=(allowed,)).origins, origin)) == taken


@pytest.mark.medium
def test_a_host_that_is_allowed_may_name_this_machine(target: Path, drafter: Path) -> None:
    with serving([target], drafter, allowed_host=("Proxy.example",)) as at:
        for host, status in (("proxy.example:80", 200), ("elsewhere.example", 403)):
            assert at.get("/v1/models", headers={"Host": host}).status_code == status


@pytest.mark.medium
def test_anthropics_header_for_keys_is_taken(guarded: At) -> None:
    both = {"x-api-key": KEY, "Authorization": "Bearer left-over"}
    for headers, status in (({"x-api-key": KEY}, 200), (both, 200), ({"x-api-key": "wrong"}, 401), ({}, 401)):
        found = guarded.get("/v1/models", headers=headers)
        assert found.status_code == status
    refused = guarded.post("/v1/messages", {"messages": []}).json()
    assert (refused["type"], refused["error"]["type"]) == ("error", "authentication_error")
    assert isinstance(guarded.post("/api/chat", {}).json()["error"], str)


def test_a_request_that_offers_http_2_keeps_its_body(server: At) -> None:
    """As Java's clients offer it with every request, also where httptools is installed."""
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}, headers=offer).status_code == 200
