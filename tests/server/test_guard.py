"""Who is let in: addresses, keys, hosts, origins and sizes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from omnidraft.errors import ConfigError
from omnidraft.server.settings import Serving, is_loopback
from support.serving import At, serving

KEY = "a-key"
ORIGIN = "http://friend.example:3000"


@pytest.fixture(scope="module")
def guarded(target: Path, drafter: Path) -> Iterator[At]:
    with serving([target], drafter, api_key=KEY, cors_origin=(ORIGIN,), max_body_mb=0.01) as at:
        yield at


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "my-machine", "localhost.evil.example"])  # noqa: S104
def test_another_address_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="no API key: give --api-key"):
        Serving(host=host)
    assert Serving(host=host, api_key=KEY).host == host


def test_only_this_machine_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost", "LOCALHOST")))
    assert not any(map(is_loopback, ("", "evil.example", "127.0.0.1.evil.example", "10.0.0.1", "::")))


@pytest.mark.parametrize(
    "given", [None, "Bearer", "Bearer no", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer é"]
)
def test_without_the_key_nothing_is_answered(guarded: At, given: str | None) -> None:
    headers = [] if given is None else [(b"Authorization", given.encode())]
    for path in ("/v1/models", "/stats", "/metrics", "/report", "/openapi.json", "/tokenize", "/nothing"):
        refused = httpx.get(guarded.url + path, headers=headers)
        assert refused.status_code == 401, path
        assert refused.json()["error"]["code"] == "invalid_api_key"
    assert httpx.get(guarded.url + "/health", headers=headers).status_code == 200


def test_with_the_key_all_is(guarded: At) -> None:
    assert guarded.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "", "127.0.0.1.evil.example", "[", "10.0.0.1"])
def test_a_name_that_is_made_to_point_here_is_refused(server: At, host: str) -> None:
    refused = server.get("/v1/models", headers={"Host": host})
    assert refused.status_code == 403
    assert "Host" in refused.json()["error"]["message"]


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:99", "[::1]:8080"])
def test_names_of_this_machine_are_not(server: At, host: str) -> None:
    assert server.get("/v1/models", headers={"Host": host}).status_code == 200


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
    asks = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization",
    }
    assert httpx.options(guarded.url + "/v1/chat/completions", headers=asks).status_code == 200


def test_large_requests_are_refused_by_length_and_by_what_comes(guarded: At) -> None:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    body = b'{"content": "' + b"x" * 20_000 + b'"}'
    refused = httpx.post(guarded.url + "/tokenize", content=body, headers=headers)
    chunked = httpx.post(guarded.url + "/tokenize", content=iter([body[:9000], body[9000:]]), headers=headers)
    for each in (refused, chunked):
        assert each.status_code == 413
        assert "larger than 0.01 MB" in each.json()["error"]["message"]
    assert httpx.post(guarded.url + "/tokenize", content=b'{"content": "x"}', headers=headers).status_code == 200


def test_every_answer_forbids_foreign_content(server: At) -> None:
    for answer in (server.get("/health"), server.get("/nothing"), server.get("/health", headers={"Host": "evil"})):
        assert answer.headers["content-security-policy"] == "default-src 'self'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_the_default_address_is_this_machine_alone(server: At) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    own = [each[4][0] for each in socket.getaddrinfo(socket.gethostname(), None)]
    for address in (each for each in own if not is_loopback(str(each))):
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{address}:{server.url.rsplit(':', 1)[1]}/health", timeout=2)
