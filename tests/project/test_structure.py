"""The shape of the source: floors, cycles, sizes, names, exports, start-up and packaging.

Every check is a function over source text, so that each is also shown a planted violation.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "omnidraft"
MAX_EXPORTS = 12
VAGUE = {"common", "helper", "helpers", "misc", "util", "utils"}
ABSOLUTE = re.compile(
    r"(?<![\w./~)}*-])/(?:etc|home|mnt|opt|private|root|srv|tmp|usr|var|work|Users|Volumes)\b|\b[A-Z]:\\{1,2}Users\b"
)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def source() -> dict[str, str]:
    """The modules of the package and of the experiments, by dotted name."""
    modules = {}
    for path in [*python_files("src"), *python_files("experiments")]:
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[1:] if parts[0] == "src" else parts
        modules[".".join(parts).removesuffix(".__init__")] = path.read_text(encoding="utf-8")
    return modules


def broken_contracts(folder: Path, cache: Path) -> str:
    """What import-linter says of the package in `folder` and of the experiments; empty if all contracts are kept."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    command += ["--config", str(ROOT / "pyproject.toml"), "--cache-dir", str(cache), "--no-logo"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT)))}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def public_imports(text: str) -> list[str]:
    """The package's own `__init__`, for each time that a module imports one of its public names."""
    found: list[str] = []
    names = set(exports((ROOT / "src" / PACKAGE / "__init__.py").read_text(encoding="utf-8")) or ())
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name == PACKAGE]
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            found += [PACKAGE for alias in node.names if alias.name in names]
    return found


def absolute_paths(text: str) -> list[str]:
    lines = text.splitlines()
    return [line.strip() for line in lines if ABSOLUTE.search(line) and not line.startswith("#!")]


def vague_names(paths: Collection[Path]) -> list[str]:
    return [path.as_posix() for path in paths if VAGUE & {*path.parent.parts, path.stem}]


def exports(text: str) -> list[str] | None:
    """The literal value of `__all__`; None where there is none."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and ast.unparse(node).startswith("__all__"):
            return list(ast.literal_eval(node.value))
    return None


def parsed_errors(text: str) -> list[str]:
    """Expressions that look for something in the text of an error that was caught: comparisons, and parts of it."""

    def is_text(node: ast.expr, name: str | None) -> bool:
        return ast.unparse(node) in (f"str({name})", f"repr({name})", f"{name}.args[0]", f"f'{{{name}}}'")

    found = []
    for handler in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler)):
        for node in ast.walk(handler):
            parts: list[ast.expr] = []
            if isinstance(node, ast.Compare):
                parts = [node.left, *node.comparators]
            elif isinstance(node, ast.Attribute | ast.Subscript):
                parts = [node.value]
            elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
                parts = node.args
            if any(is_text(part, handler.name) for part in parts):
                found.append(ast.unparse(node))
    return found


def export_faults(names: list[str]) -> list[str]:
    faults = [] if names == sorted(set(names)) else ["not sorted, or a name twice"]
    return faults if len(names) <= MAX_EXPORTS else [*faults, f"{len(names)} names"]


def loaded_by(statement: str, folder: Path) -> set[str]:
    """The modules that a fresh interpreter has loaded after `statement`, `folder` being on its path."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, encoding="utf-8"
    )
    return set(done.stdout.split())


def unshipped(pyproject: str, project: Path, folder: Path) -> tuple[set[str], set[str]]:
    """Files of `project`'s package that an sdist, and a wheel built from that, do not hold; only names are compared."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    copy = folder / "src"
    shutil.copytree(project / "src", copy, ignore=ignored, copy_function=lambda _, name: Path(name).touch())
    (folder / "pyproject.toml").write_text(pyproject, encoding="utf-8")
    for name in ("LICENSE", "NOTICE", "README.md"):
        (folder / name).write_text("A stand-in.\n", encoding="utf-8")
    build(folder, "sdist")
    (sdist,) = (folder / "sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as source:
        safely: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4 brought it
        source.extractall(folder / "unpacked", **safely)  # noqa: S202  our own archive
    (unpacked,) = (folder / "unpacked").iterdir()
    build(unpacked, "wheel")
    (wheel,) = (unpacked / "wheel").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = set(archive.namelist())
    files = {p.relative_to(copy).as_posix() for p in (copy / PACKAGE).rglob("*") if p.is_file()}
    return {name for name in files if not (unpacked / "src" / name).exists()}, files - in_wheel


def build(folder: Path, kind: str) -> None:
    """Build an sdist or a wheel of a project, into a folder of that name."""
    code = f"from setuptools import build_meta; build_meta.build_{kind}('{kind}')"
    subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, check=True)


def test_the_source_is_found() -> None:
    assert {"omnidraft.errors", "omnidraft.config"} <= set(source())


@pytest.mark.medium
def test_imports_go_downward_and_in_no_circle(tmp_path: Path) -> None:
    assert broken_contracts(ROOT / "src", tmp_path) == ""


@pytest.mark.medium
def test_nothing_below_the_commands_imports_the_public_names() -> None:
    """The contracts cannot say this: the package's own `__init__` is the ancestor of all floors."""
    above = ("experiments", "omnidraft.cli", "omnidraft.demo", "omnidraft.bench", "omnidraft.__main__")
    assert {
        m: names for m, text in source().items() if not m.startswith(above) and (names := public_imports(text))
    } == {}


def test_the_contributing_page_lists_the_same_floors() -> None:
    (layers, *_) = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    rows = re.findall(r"^\| \d+ \| (.*?) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = [set(re.findall(r"`(\w+)/?`", row)) for row in rows]
    assert listed == [set(re.findall(r"\w+", layer)) for layer in reversed(layers["layers"])]


@pytest.mark.slow
def test_no_module_parses_the_text_of_an_error() -> None:
    assert {module: found for module, text in source().items() if (found := parsed_errors(text))} == {}


@pytest.mark.parametrize(
    "use",
    ["'x' in str(e)", "str(e) == 'x'", "str(e).partition(' is ')[0]", "re.search('x', str(e))", "e.args[0].split()"],
)
def test_what_parses_the_text_of_an_error_is_found(use: str) -> None:
    assert parsed_errors(f"try:\n    f()\nexcept ValueError as e:\n    g({use})")
    assert not parsed_errors("try:\n    f()\nexcept ValueError as e:\n    g(str(e), e.code == 'x')")


@pytest.mark.medium
def test_no_absolute_paths() -> None:
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob(".ci/*")]
    texts += [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    texts += python_files("src", "experiments", "tests", "tools")
    found = {path.relative_to(ROOT): absolute_paths(path.read_text(encoding="utf-8")) for path in texts}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_no_vague_module_names() -> None:
    assert vague_names([path.relative_to(ROOT) for path in python_files("src", "experiments", "tests", "tools")]) == []


@pytest.mark.medium
def test_public_names_are_few_and_sorted() -> None:
    found = {module: names for module, text in source().items() if (names := exports(text)) is not None}
    assert PACKAGE in found or PACKAGE not in source()
    assert {module: faults for module, names in found.items() if (faults := export_faults(names))} == {}


@pytest.mark.medium
@pytest.mark.parametrize("module", [name for name in (PACKAGE, f"{PACKAGE}.cli.main") if name in source()])
def test_start_up_loads_no_model_library(module: str) -> None:
    modules = loaded_by(f"import {module}", ROOT / "src")
    assert module in modules
    assert modules.isdisjoint({"torch", "transformers"})


@pytest.mark.slow
def test_every_file_of_the_package_is_shipped_but_models_for_tests(tmp_path: Path) -> None:
    source = ROOT / "src"
    assert (source / PACKAGE / "py.typed").is_file()
    away = {f"{PACKAGE}/zoo/models/{name}" for name in ("drafter", "target-a")}
    held = {path.relative_to(source).as_posix() for folder in away for path in (source / folder).iterdir()}
    assert len(held) > len(away)
    assert unshipped((ROOT / "pyproject.toml").read_text(encoding="utf-8"), ROOT, tmp_path) == (held, held)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("verification/drawn", "from omnidraft.decoding.lane import Lane"),  # upward
        ("verification/drawn", "def late():\n    import omnidraft.decoding.lane"),
        ("draft_length/policy", "if TYPE_CHECKING:\n    from omnidraft.decoding.lane import Lane"),
        (
            "alignment/vocab",
            "from omnidraft.models.transformers_cache import GrowingCache",
        ),  # on the same floor
        ("alignment/vocab", "from omnidraft.alignment.spelling_table import ROOT"),  # a circle within a package
        ("tables", "import os"),  # on no floor
    ],
)
def test_an_import_that_breaks_the_order_is_found(module: str, line: str, tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "src" / PACKAGE, tmp_path / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "models.*")
    )
    file = tmp_path / PACKAGE / f"{module}.py"
    file.write_text((file.read_text(encoding="utf-8") if file.exists() else "") + f"\n{line}\n", encoding="utf-8")
    assert "BROKEN" in broken_contracts(tmp_path, tmp_path / "cache")


@pytest.mark.parametrize(
    "line", ["import omnidraft", "from omnidraft import load", "def late():\n    from omnidraft import load"]
)
def test_an_import_of_the_public_names_is_found(line: str) -> None:
    assert public_imports(line) == ["omnidraft"]
    assert public_imports("from omnidraft import zoo\nfrom omnidraft.alignment import trie") == []


def test_absolute_paths_are_found() -> None:
    home = "/" + "home/ann/models"
    planted = [f'load("{home}")', f"load('{home}')", f"# see {home}", f"--out={home}", "open('C:" + r"\\Users\ann')"]
    assert absolute_paths("\n".join([f"#!/{'usr'}/bin/env bash", *planted])) == planted
    fine = ["a/home/b", "../work/x", "~/.local/share", "$(VENV)/opt", "{root}/tmp/x", "https://example.com/", "1 / var"]
    assert absolute_paths("\n".join(fine)) == []


def test_vague_names_are_found() -> None:
    planted = [Path("src/omnidraft/utils.py"), Path("src/omnidraft/helpers/bytes.py")]
    assert vague_names([*planted, Path("src/omnidraft/vocab.py")]) == [path.as_posix() for path in planted]


def test_unsorted_and_too_many_exports_are_found() -> None:
    assert exports("x = 1") is None
    assert export_faults(exports('__all__ = ("A", "b")') or []) == []
    unsorted = exports('__all__: list[str] = ["b", "A"]') or []
    assert export_faults(unsorted) == export_faults(["A", "A"]) == ["not sorted, or a name twice"]
    assert export_faults([f"n{i:02}" for i in range(MAX_EXPORTS + 1)]) == ["13 names"]


def test_a_library_loaded_at_start_up_is_found(tmp_path: Path) -> None:
    (tmp_path / "torch.py").touch()
    (tmp_path / f"{PACKAGE}.py").write_text("import torch\n", encoding="utf-8")
    assert {PACKAGE, "torch"} <= loaded_by("import omnidraft", tmp_path)


@pytest.mark.slow
def test_a_file_left_out_of_the_wheel_is_found(tmp_path: Path) -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    model = tmp_path / "project" / "src" / PACKAGE / "zoo" / "models" / "general"
    model.mkdir(parents=True)
    for path in (model / "tiny.safetensors", model.parents[2] / "py.typed", model.parents[2] / "__init__.py"):
        path.touch()
    without = pyproject.replace('"zoo/models/general/*", ', "")
    left_out = {"omnidraft/zoo/models/general/tiny.safetensors"}
    assert unshipped(without, tmp_path / "project", tmp_path) == (left_out, left_out)
