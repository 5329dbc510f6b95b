"""`omnidraft inspect --header`: how a file's model is computed, by its header alone and without PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from omnidraft.cli import main as cli
from omnidraft.models.families import BY_TYPE, FAMILIES, OTHERS
from omnidraft.models.gguf.architectures import ARCHITECTURES
from omnidraft.models.gguf.header import read_shard
from support.command_line import one_error
from support.gguf_models import MODELS, shards_of, write_model
from support.project_files import ROOT, tool

Captured = pytest.CaptureFixture[str]


def header_alone(path: Path) -> Path:
    """The file cut where its tensors begin."""
    begin = min(info.start for info in read_shard(path).tensors.values())
    path.write_bytes(path.read_bytes()[:begin])
    return path


def figures(path: Path, capsys: Captured) -> dict[str, Any]:
    code = cli.main(["inspect", str(path), "--header", "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["step"]["how"] == "not yet") == (code == 1)
    return found


@pytest.mark.parametrize("architecture", MODELS)
def test_a_header_says_what_the_whole_file_would(architecture: str, tmp_path: Path, capsys: Captured) -> None:
    path, model = write_model(tmp_path / "m.gguf", architecture)
    found = figures(header_alone(path), capsys)
    family = BY_TYPE.get(model.config.model_type)
    assert found["step"]["how"] == ("native" if family else "transformers")
    assert found["step"]["family"] == (family.name if family else None)
    assert (found["architecture"], found["layers"], found["hidden"]) == (architecture, 4, 32)
    assert found["weights"]["F32"] > 0
    assert cli.main(["inspect", str(path), "--header"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("m.gguf: native step") == (family is not None)
    if family is None:
        assert (found["step"]["code"], found["step"]["field"]) == ("family", "model_type")
        assert "m.gguf: transformers" in shown
        assert found["step"]["reason"] in shown.replace("\n", " ")


def test_what_is_refused_is_said_with_the_reason(tmp_path: Path, capsys: Captured) -> None:
    path, _ = write_model(tmp_path / "m.gguf", "llama", {"expert_count": 8})
    found = figures(header_alone(path), capsys)
    assert found["step"]["how"] == "not yet"
    assert "llama.expert_count = 8" in found["step"]["reason"]
    assert found["keys"] is None


def test_a_header_that_is_cut_itself_is_damaged(tmp_path: Path, capsys: Captured) -> None:
    path, _ = write_model(tmp_path / "m.gguf", "llama")
    path.write_bytes(path.read_bytes()[:2000])
    assert cli.main(["inspect", str(path), "--header"]) == 2
    assert "damaged" in capsys.readouterr().err
    assert cli.main(["inspect", str(tmp_path / "none.gguf"), "--header"]) == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.medium
@pytest.mark.parametrize("empty", [False, True])
def test_all_shards_that_are_there_are_one_model(tmp_path: Path, capsys: Captured, *, empty: bool) -> None:
    whole, _ = write_model(tmp_path / "m.gguf", "qwen2")
    expected = figures(whole, capsys)
    paths = shards_of(tmp_path, empty=empty)
    for path in paths[empty:]:
        header_alone(path)
    for path in paths:
        found = figures(path, capsys)
        assert (found["name"], found["keys"].pop("honoured")) != (expected["name"], None)
        for name in ("architecture", "step", "layers", "hidden", "heads", "key_heads", "vocabulary", "context"):
            assert found[name] == expected[name]
        assert (found["weights"], found["first_of"]) == (expected["weights"], None)


@pytest.mark.parametrize("empty", [False, True])
def test_a_first_shard_alone_is_judged_by_its_keys(tmp_path: Path, capsys: Captured, *, empty: bool) -> None:
    first, *others = shards_of(tmp_path, empty=empty)
    others[0].unlink()
    found = figures(first, capsys)
    assert (found["step"]["how"], found["step"]["family"], found["first_of"]) == ("native", "Qwen2, Qwen2.5", 3)
    assert (found["vocabulary"] is None) == empty
    assert cli.main(["inspect", str(first), "--header"]) == 0
    assert "1 of 3" in capsys.readouterr().out
    assert cli.main(["inspect", str(others[1]), "--header"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{others[1].name} is shard 3 of 3: give the first, {first.name}" in line
    renamed = others[1].rename(tmp_path / "a.gguf")
    assert cli.main(["inspect", str(renamed), "--header"]) == 2
    assert "a.gguf is shard 3 of 3: give the first, NAME-00001-of-00003.gguf" in capsys.readouterr().err


def test_a_first_shard_whose_keys_are_not_supported_is_refused(tmp_path: Path, capsys: Captured) -> None:
    split = {"split.no": 0, "split.count": 2, "split.tensors.count": 99}
    path, _ = write_model(tmp_path / "m-00001-of-00002.gguf", "llama", {"expert_count": 8}, others=split)
    assert "llama.expert_count = 8" in figures(path, capsys)["step"]["reason"]


@pytest.mark.medium
def test_nothing_that_takes_long_is_imported(tmp_path: Path) -> None:
    path, _ = write_model(tmp_path / "m.gguf", "gemma3")
    code = (
        "import sys; from omnidraft.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        "print(sorted({'torch', 'transformers', 'tokenizers'} & sys.modules.keys()))\n"
        "sys.exit(code)"
    )
    command = [sys.executable, "-c", code, "inspect", str(path), "--header"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_page_has_the_tables_of_the_code() -> None:
    docs = tool("write_model_docs")
    text = docs.PAGE.read_text(encoding="utf-8")
    assert text == docs.page(text), "run python tools/write_model_docs.py"
    assert (ROOT / docs.TEST).is_file()
    assert all(family.name in text for family in FAMILIES)
    assert all(other.name in text for other in OTHERS)
    named = {architecture for family in FAMILIES for architecture in family.architectures}
    for architecture in ARCHITECTURES:
        row = next(line for line in text.splitlines() if line.startswith(f"| `{architecture}`"))
        assert ("| yes" in row) == (architecture in named), architecture


def test_no_model_type_is_in_both_tables() -> None:
    assert not BY_TYPE.keys() & {kind for other in OTHERS for kind in other.model_types}


def test_the_home_of_nobody_is_one_line(capsys: Captured) -> None:
    assert "cannot read ~nobody-here/m.gguf" in one_error(capsys, "inspect", "~nobody-here/m.gguf", "--header")
