"""The options of `omnidraft serve`, and what it says where it cannot begin."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest

from omnidraft.cli.main import main
from omnidraft.server import run
from omnidraft.server.server_settings import Serving
from support.command_line import one_error

TARGET = ("serve", "--target", "zoo:target-a")
ORIGINS = ("--cors-origin", "http://a", "--cors-origin", "https://b:1", "--allowed-host", "box")


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a server would be begun with."""
    given: dict[str, Any] = {}

    class Noted:
        def __init__(self, settings: Serving, targets: object, drafter: object, options: object, **rest: Any) -> None:
            given.update(settings=settings, targets=targets, drafter=drafter, options=options, **rest)

        def run(self) -> None:
            given["ran"] = True

    monkeypatch.setattr(run, "Running", Noted)
    return given


def test_flags_reach_the_server(begun: dict[str, Any]) -> None:
    server = ("--port", "0", "--lanes", "2", "--api-key", "123", "--api-key", "ab", *ORIGINS)
    models = ("--target", "b", "--drafter", "none", "--dtype", "float32", "--graphs", "on", "--draft-length", "4")
    more = ("--adapt", "background", "--log-prompts", "--set", "save_every_s=5", "--set", "update_every=2")
    assert main([*TARGET, *server, *models, *more]) == 0
    assert begun.pop("settings") == Serving(
        port=0, lanes=2, save_every_s=5,
        api_key=("123", "ab"), cors_origin=("http://a", "https://b:1"), allowed_host=("box",),
    )  # fmt: skip
    begun.pop("say")
    assert begun == {
        "ran": True, "targets": ["zoo:target-a", "b"], "drafter": None, "log_prompts": True,
        "options": {
            "adapt": "background", "dtype": "float32", "device": "auto", "graphs": "on", "draft_length": 4,
            "update_every": 2,
        },
    }  # fmt: skip


def test_keys_may_come_from_the_environment(begun: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIDRAFT_API_KEY", "secret\nof-another\n")  # as from a file, one a line
    assert main([*TARGET, "--host", "0.0.0.0"]) == 0  # noqa: S104
    assert begun["settings"].api_key == ("secret", "of-another")
    assert main([*TARGET, "--api-key", "other"]) == 0
    assert begun["settings"].api_key == ("other",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--host", "0.0.0.0"), "host is '0.0.0.0', which others may reach, and there is no API key"),  # noqa: S104
        (("--adapt", "inline"), "adapt is 'inline'; a server learns in the background or not"),
        (("--port", "70000"), "port is 70000; it must be an integer at least 0, at most 65535"),
        (("--api-key", "ключ"), "api_key must be ASCII"),
        (("--cors-origin", "a"), "cors_origin holds 'a'; an origin is a scheme and a host"),
        (("--lane", "2"), "unknown argument '--lane': did you mean '--lanes'?"),
        (("--set", "timeout_s=0"), "timeout_s is 0; it must be a finite number at least 0.1"),
    ],
)
def test_mistakes_are_one_line(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert one_error(capsys, *TARGET, *arguments).startswith(f"omnidraft: error: {message}")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in [name for name in sys.modules if name.startswith("omnidraft.server.") and "settings" not in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    message = "the server needs the package fastapi, which is not installed: pip install 'omnidraft[serve]'"
    assert one_error(capsys, *TARGET) == f"omnidraft: error: {message}"


@pytest.mark.medium
def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        error = one_error(capsys, *TARGET, "--port", taken.getsockname()[1])
    assert "cannot listen on 127.0.0.1" in error
    assert "use another --port" in error
