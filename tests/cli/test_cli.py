"""The command line, through its own entry point and, where signals or pipes matter, in a process."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import omnidraft
from omnidraft.api import OmniDraft, Stream, load
from omnidraft.cli import flags, streams
from omnidraft.cli import main as cli
from omnidraft.cli.flags import ARGUMENTS, INTERRUPTED, interruptible
from omnidraft.config import DraftingOptions, GenerationLimits, LearningOptions, Sampling
from omnidraft.errors import ConfigError, NumericsError, OmniDraftError
from support.command_line import one_error
from support.denied import deny
from support.homes import with_native
from support.project_files import environment
from support.waiting import WAIT_S

pytestmark = pytest.mark.usefixtures("home")
Captured = pytest.CaptureFixture[str]


def generate(prompt: str, target: Path | str, *more: object) -> int:
    return cli.main(["generate", prompt, "--target", str(target), *map(str, more)])


# ------------------------------------------------------------ answers


@pytest.mark.medium
def test_the_answer_is_on_stdout_and_the_rest_on_stderr(target: Path, drafter: Path, capsys: Captured) -> None:
    expected = load(target, None).generate("hello", max_new_tokens=12, temperature=0.8, seed=4, top_k=20)
    capsys.readouterr()
    options = ("--max-new-tokens", 12, "--temperature", 0.8, "--seed", 4, "--top-k", 20)
    assert generate("hello", target, "--drafter", "none", *options) == 0
    out, err = capsys.readouterr()
    assert out == expected.text + "\n"
    assert "target target in float32 on cpu (" in err
    assert "12 tokens in" in err
    assert generate("hello", target, "--drafter", drafter, "--max-new-tokens", 12) == 0
    assert "drafter drafter in Q5_1 on cpu (" in capsys.readouterr().err


@pytest.mark.medium
def test_each_piece_is_written_as_it_comes(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a file or pipe, too, where Python would keep kilobytes back."""
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8"))
    written = []  # bytes, before each piece is asked for
    piece = Stream.__next__

    def noted(stream: Stream) -> str:
        written.append(out.tell())
        return piece(stream)

    monkeypatch.setattr(Stream, "__next__", noted)
    assert generate("hello", target, "--drafter", "none", "--max-new-tokens", 12) == 0
    assert len(written) > 3
    assert written == sorted(set(written))


@pytest.mark.medium
def test_a_terminal_is_told_what_is_loaded(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    generate("hello", target, "--drafter", "none", "--max-new-tokens", 1)
    assert "loading" not in capsys.readouterr().err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    generate("hello", target, "--drafter", "none", "--max-new-tokens", 1)
    assert capsys.readouterr().err.startswith("omnidraft: loading target\n")
    file = tmp_path / "m.gguf"
    file.write_bytes(bytes(2**20))
    generate("hello", file, "--drafter", "none", "--max-new-tokens", 1)
    assert capsys.readouterr().err.startswith("omnidraft: loading m.gguf (1.0 MiB)\n")


def test_a_terminal_is_told_of_paths_that_cannot_be_looked_at(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "m.gguf").touch()
    deny(monkeypatch, private)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    flags.announce("~nobody-here/m", "x" * 300 + ".gguf", str(private / "m.gguf"))
    names = ("m", "x" * 300 + ".gguf", "m.gguf")
    assert capsys.readouterr().err.splitlines() == [f"omnidraft: loading {name}" for name in names]


@pytest.mark.medium
def test_json_is_one_object(target: Path, drafter: Path, capsys: Captured) -> None:
    options = ("--drafter", drafter, "--max-new-tokens", 12, "--draft-length", 2, "--json")
    assert generate("hello", target, *options) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    answer = json.loads(out)
    expected = load(target, None).generate("hello", max_new_tokens=12)
    assert (answer["text"], answer["token_ids"]) == (expected.text, list(expected.token_ids))
    assert answer["finish_reason"] == "length"
    assert answer["stats"]["tokens"] == 12
    assert 0 < answer["stats"]["drafted"] <= 2 * answer["stats"]["rounds"]
    assert (answer["target"]["dtype"], answer["drafter"]["dtype"]) == ("float32", "Q5_1")


@pytest.mark.medium
def test_what_drafts_count_is_chosen_by_a_flag(target: Path, capsys: Captured) -> None:
    options = ("--max-new-tokens", 12, "--draft-length", 3, "--json")
    repeated = "hello world the hello world the hello"
    expected = load(target, draft_length=0).generate(repeated, max_new_tokens=12)
    capsys.readouterr()
    for given in ((), ("--reuse-answers", "request"), ("--set", "reuse_answers=memory")):
        assert generate(repeated, target, *options, "--drafter", "none", *given) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["token_ids"] == list(expected.token_ids)
        assert "drafter" not in answer
        assert answer["stats"]["counted"] == answer["stats"]["proposed"] > 0
    assert generate(repeated, target, *options, "--reuse-answers", "nothing") == 0
    assert json.loads(capsys.readouterr().out)["stats"]["counted"] == 0
    assert generate(repeated, target, "--reuse-answers", "both") == 2
    assert "use one of memory, nothing, profile, request" in capsys.readouterr().err


@pytest.mark.medium
def test_the_prompt_comes_from_stdin(target: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    assert generate("hello été", target, "--max-new-tokens", 8) == 0
    expected = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("hello été\n".encode()), encoding="utf-8"))
    assert generate("-", target, "--max-new-tokens", 8) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.medium
def test_a_byte_order_mark_is_no_part_of_a_prompt(
    target: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []
    for prompt, typed in (("hello", ""), ("\ufeffhello", ""), ("-", "\ufeffhello\n")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed.encode()), encoding="utf-8"))
        assert generate(prompt, target, "--drafter", "none", "--max-new-tokens", 8) == 0
        answers.append(capsys.readouterr().out)
    assert len(set(answers)) == 1


@pytest.mark.medium
def test_a_terminal_without_the_characters(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert generate("hello", target, "--max-new-tokens", 40) == 0
    assert b"?" in stdout.buffer.getvalue()


# ------------------------------------------------------------ options


def test_every_setting_and_its_default_is_listed(capsys: Captured) -> None:
    assert cli.main(["generate", "--help-all"]) == 0
    listed = " ".join(capsys.readouterr().out.partition("by --set KEY=VALUE")[2].split())
    for cls in (GenerationLimits, Sampling, DraftingOptions, LearningOptions):
        for f in fields(cls):
            default = f.metadata["none"] if f.default is None else f.default
            assert re.search(rf"\b{f.name} [^()]*(\([^()]*\)[^()]*)*\(default: {re.escape(str(default))}\)", listed), (
                f.name
            )


def test_the_defaults_of_the_flags_are_those_of_python() -> None:
    parameters = inspect.signature(load).parameters
    for name in ("drafter", "dtype", "device", "graphs", "profile"):
        assert parameters[name].default == ARGUMENTS[f"--{name}"]["default"]
    parameters = inspect.signature(OmniDraft.stream).parameters
    assert {name: parameters[name].default for name in vars(GenerationLimits())} == vars(GenerationLimits())


def test_flags_reach_the_settings(
    target: Path, drafter: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def record(*models: str, **options: object) -> OmniDraft:
        given.update(options, models=models)
        given.pop("warn")("a\nwarning")
        raise OmniDraftError("two\nlines")

    monkeypatch.setattr("omnidraft.api.load", record)
    flags = ("--draft-length", 3, "--dtype", "float32", "--profile", "none", "--adapt", "inline")
    more = ("reuse_answers=request", "learning_rate=1e-4", "max_draft_length=9", "update_every=2")
    arguments = (*flags, *(text for pair in more for text in ("--set", pair)))
    assert generate("hello", target, "--drafter", drafter, *arguments) == 1
    assert given.pop("models") == (str(target), str(drafter))
    assert given == {
        "draft_length": 3, "dtype": "float32", "device": "auto", "graphs": "off", "profile": None, "adapt": "inline",
        "reuse_answers": "request", "learning_rate": 1e-4, "max_draft_length": 9, "update_every": 2,
    }  # fmt: skip
    assert capsys.readouterr().err == "omnidraft: a warning\nomnidraft: error: two lines\n"


@pytest.mark.medium
def test_a_setting_may_be_json(target: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--drafter", "none", "--max-new-tokens", 4, "--json")
    assert generate("hello", target, *options) == 0
    first = json.loads(capsys.readouterr().out)["token_ids"][0]
    for value in (json.dumps({str(first): -100}), json.dumps([[first, -100]])):
        assert generate("hello", target, *options, "--set", f"logit_bias={value}") == 0
        assert first not in json.loads(capsys.readouterr().out)["token_ids"]
    for wrong in ("5", "{5: -100}", '{"5": "x"}', "{" * 10_000, '{"a": 1}'):
        line = one_error(capsys, "generate", "hello", "--target", target, "--set", f"logit_bias={wrong}")
        assert 'finite numbers by the ids of their tokens, such as {"5": -100}' in line
    for name, origin in (("cors_origin", "http://localhost:3000"), ("allowed_host", "my-machine.lan")):
        monkeypatch.setattr("omnidraft.server.run.Running", _refused)
        for value in (origin, f'["{origin}"]'):
            assert f"{name} {(origin,)}" in one_error(capsys, "serve", "--target", target, "--set", f"{name}={value}")
        line = one_error(capsys, "serve", "--target", target, "--set", f"{name}=5")
        assert f'it must be a list: use ["{origin}"]' in line


def _refused(settings: Any, *_: object, **__: object) -> None:
    raise ConfigError(f"cors_origin {settings.cors_origin}, allowed_host {settings.allowed_host}: use others")


WITHOUT_TORCH = """
import sys
from omnidraft.cli.main import COMMANDS, main
codes = [main([*command.split(), "--help"]) for command in ("", *COMMANDS, "bench compare", "bench report")]
codes += [main(["--version"]), main(["profiles", "list"]), main(["generate", "x", "--target", "y", "--top-k", "many"])]
assert codes == [0] * (len(codes) - 1) + [2], codes
assert not {"torch", "transformers", "matplotlib", "datasets"} & set(sys.modules)
"""


@pytest.mark.medium
def test_help_and_mistakes_need_no_model_library(home: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=True, encoding="utf-8")
    assert omnidraft.__version__ in done.stdout
    assert done.stdout.count("examples:") == len(cli.COMMANDS) + 3


# ------------------------------------------------------------ bad input


def with_options(*options: str) -> Callable[[Path], list[str]]:
    return lambda _: ["hello", "--target", "unread", *options]


BAD: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "no folder": (lambda folder: ["hello", "--target", str(folder / "nothing")], "nothing' is no file or folder"),
    "no user": (lambda _: ["hello", "--target", "~nobody-here/m"], "'~nobody-here/m' is no file or folder"),
    "empty prompt": (lambda _: ["", "--target", "unread"], "the prompt is empty"),
    "top_p": (with_options("--top-p", "0"), "top_p is 0; it must be"),
    "no number": (with_options("--top-k", "many"), "top_k is 'many'; it must be"),
    "stop": (with_options("--stop", ""), "stop is ['']; it must be"),
    "no choice": (with_options("--set", "adapter=fast"), "use one of full, lora"),
    "unknown key": (with_options("--set", "adapted=full"), "unknown setting 'adapted': did you mean 'adapter'?"),
    "of experiments": (with_options("--set", "mode=paper"), "unknown setting 'mode': it is for experiments"),
    "no value": (with_options("--set", "rank"), "--set is 'rank'; it must be KEY=VALUE"),
    "given twice": (with_options("--top-k", "5", "--set", "top_k=6"), "top_k is given twice"),
    "key as a flag": (with_options("--min-p", "0.1"), "unknown argument '--min-p': use --set min_p=VALUE"),
    "no empty value": (with_options("--set", "adapter=none"), "adapter is None; use one of"),
    "unknown flag": (with_options("--temprature", "1"), "did you mean '--temperature'"),
    "two prompts": (with_options("world"), "quotation marks"),
    "abbreviation": (with_options("--temp", "1"), "unknown argument '--temp'"),
    "zoo": (lambda _: ["hello", "--target", "zoo:nothing"], "use one of general"),
    "no target": (lambda _: ["hello"], "--target"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_code_two(name: str, tmp_path: Path, capsys: Captured) -> None:
    make, words = BAD[name]
    assert words in one_error(capsys, "generate", *make(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["generate hello", "chat", "serve", "inspect zoo:target-b", "demo --quick"])
def test_an_interpreter_without_docstrings(command: str, home: Path) -> None:
    models = [] if command.split(maxsplit=1)[0] in ("inspect", "demo") else ["--target", "zoo:target-b"]
    words = [sys.executable, "-OO", "-m", "omnidraft", *command.split(), *models]
    done = subprocess.run(words, env=environment(home), capture_output=True, check=False, input=b"")
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("omnidraft: error: transformers does not run under `python -OO`")


def test_libraries_are_quiet(capsys: Captured) -> None:
    assert generate("hello", "zoo:nothing") == 2
    logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_bad_bytes_on_stdin(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, words in ((b"\xff", "no UTF-8"), (b"\n", "empty")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        assert generate("-", "unread") == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["generat", "x"], "did you mean 'generate'"), (["x"], "use one of adapt"), ([], "COMMAND")],
)
def test_an_unknown_command(arguments: list[str], words: str, capsys: Captured) -> None:
    assert words in one_error(capsys, *arguments)


# ------------------------------------------------------------ interruptions


@pytest.mark.medium
@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_keeps_the_text_so_far(
    target: Path, drafter: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    whole = load(target, None).generate("hello", max_new_tokens=40).text
    after = Stream.__next__
    pieces: list[str] = []

    def interrupted(stream: Stream) -> str:
        if len(pieces) == 5:
            signal.raise_signal(signal.SIGINT)
        pieces.append(after(stream))
        return pieces[-1]

    monkeypatch.setattr(Stream, "__next__", interrupted)
    options = ("--drafter", drafter, "--max-new-tokens", 40, *(["--json"] if as_json else []))
    capsys.readouterr()
    assert generate("hello", target, *options) == INTERRUPTED
    out, err = capsys.readouterr()
    text = json.loads(out)["text"] if as_json else out.removesuffix("\n")
    assert text.startswith("".join(pieces))
    assert whole.startswith(text)
    assert text != whole
    assert "ended by interrupted" in err


@pytest.mark.skipif(os.name == "nt", reason="no process groups")
@pytest.mark.slow
def test_ctrl_c_at_a_terminal_leaves_the_trainer_to_its_parent(target: Path, drafter: Path, home: Path) -> None:
    """A terminal sends Ctrl-C to every process of the command."""
    models = ["--target", str(target), "--drafter", str(drafter)]
    command = [sys.executable, "-m", "omnidraft", "generate", "hello", *models]
    command += ["--adapt", "background", "--max-new-tokens", "4000"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(with_native(home)), start_new_session=True, **pipes) as process:
        assert process.stdout is not None
        process.stdout.read(40)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == INTERRUPTED, err
    assert b"Traceback" not in err
    assert b"has died" not in err


def test_a_lost_ctrl_c_is_noticed_at_the_next_piece() -> None:
    """What is raised inside a finalizer is reported and dropped by Python."""
    before = signal.getsignal(signal.SIGINT)
    with interruptible() as check:
        check()
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)  # the signal comes before that
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [(KeyboardInterrupt(), INTERRUPTED, "interrupted"), (NumericsError("logits are NaN"), 2, "error: logits are NaN")],
)
def test_ctrl_c_or_nan_while_loading(
    end: BaseException, code: int, said: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise end

    monkeypatch.setattr("omnidraft.api.load", ended)
    assert generate("hello", "unread") == code
    assert capsys.readouterr().err == f"omnidraft: {said}\n"


@pytest.mark.medium
def test_a_reader_that_is_gone(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w", encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert generate("hello", target, "--max-new-tokens", 8) == streams.NO_READER
        monkeypatch.undo()
