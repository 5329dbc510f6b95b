#!/usr/bin/env python3
"""Count the source and check the limits of files and functions: `python tools/check_shape.py` prints both.

Counted are all lines of Python files; imports are read from the syntax tree, those of type checking included.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "omnidraft"
TREES = "src", "experiments", "tests"
FILE_LINES = 800
FUNCTION_LINES = 60
FUNCTION_LINES_P95 = 40
THIN = 40  # lines of a module that only one other imports, at least: below, it is part of that one


@dataclass(frozen=True)
class Module:
    """A file of the source."""

    name: str  # dotted
    text: str

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def holds_code(self) -> bool:
        """False of a file that is a docstring alone."""
        return len(ast.parse(self.text).body) > 1

    @property
    def functions(self) -> Iterator[tuple[str, int]]:
        """Each function by name, with its lines."""
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def modules_in(folder: Path) -> list[Module]:
    """The Python files below a folder, named from the folder that holds it."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found.append(Module(".".join(parts), path.read_text(encoding="utf-8")))
    return found


def percentile(lengths: list[int], share: float) -> int:
    """The length that this share of them do not exceed; 0 of none."""
    return sorted(lengths)[min(len(lengths) - 1, int(share * len(lengths)))] if lengths else 0


def importers(modules: list[Module]) -> Counter[str]:
    """How many modules import each one."""
    names = {module.name for module in modules}
    counts: Counter[str] = Counter()
    for module in modules:
        found: set[str] = set()
        for node in ast.walk(ast.parse(module.text)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        counts.update(found & names - {module.name})
    return counts


def faults_of(modules: list[Module]) -> list[str]:
    """Every limit that single files and functions exceed."""
    faults = []
    imported = importers(modules)
    for module in modules:
        if module.lines > FILE_LINES:
            faults.append(f"{module.name} has {module.lines} lines, {FILE_LINES} are allowed")
        for name, lines in module.functions:
            if lines > FUNCTION_LINES:
                faults.append(f"{module.name}.{name} has {lines} lines, {FUNCTION_LINES} are allowed")
        special = module.name.endswith(("__init__", "__main__"))
        if module.lines < THIN and imported[module.name] == 1 and not special:
            faults.append(f"{module.name} has {module.lines} lines and one importer: make it part of that one")
    p95 = percentile([lines for module in modules for _, lines in module.functions], 0.95)
    if p95 > FUNCTION_LINES_P95:
        faults.append(f"5 % of functions have {p95} lines or more, {FUNCTION_LINES_P95} are allowed")
    return faults


def main() -> int:
    """Print the counts; 1 where a limit is exceeded."""
    trees = {name: modules_in(ROOT / name) for name in TREES if (ROOT / name).is_dir()}
    package = [module for module in modules_in(PACKAGE) if module.holds_code]
    print(f"{'package':<24}{'files':>6}{'lines':>8}")
    folders = Counter(module.name.split(".")[1] if module.name.count(".") > 1 else "(root)" for module in package)
    for folder, files in sorted(folders.items()):
        part = [m for m in package if (m.name.split(".")[1] if m.name.count(".") > 1 else "(root)") == folder]
        print(f"{folder:<24}{files:>6}{sum(m.lines for m in part):>8}")
    for name, modules in trees.items():
        print(f"{name + '/':<24}{len(modules):>6}{sum(module.lines for module in modules):>8}")
    lengths = [lines for module in package for _, lines in module.functions]
    print(
        f"functions: {len(lengths)}, 95 % of them up to {percentile(lengths, 0.95)} lines, the longest {max(lengths)}"
    )
    faults = faults_of(package)
    faults += [fault for name in trees if name == "experiments" for fault in faults_of(trees[name])]
    for fault in faults:
        print(f"too much: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
