"""What `omnidraft inspect --header` prints, and what other tables say of a model's step."""

from __future__ import annotations

from collections.abc import Iterator

from omnidraft.inspection.step import NATIVE, TRANSFORMERS, HeaderFigures, Step
from omnidraft.models.gguf.keys import KeyReport

SLOWER = "4 to 6 times slower"  # a token of models of 270M to 350M, by tools/measure_families.py


def sentence(step: Step, *, asked: bool = False) -> str:
    """How a model is computed on a CPU, and why not faster; `asked` where it takes `--dtype int8`."""
    if step.how == NATIVE:
        return f"native step{' with --dtype int8' if asked else ' of at most 8 bits'} ({step.family})"
    why = f"{step.reason} ({step.code}{f', {step.field}' if step.field else ''})"
    return f"transformers, {SLOWER}: {why}" if step.how == TRANSFORMERS else f"not yet: {step.reason}"


def keys(report: KeyReport) -> Iterator[tuple[str, str]]:
    """The keys of a file by group."""
    for group, names in report.honoured.items():
        yield group, ", ".join(name.removeprefix(f"{report.architecture}.") for name in names)
    if report.harmless:
        yield "harmless", ", ".join(report.harmless)


def show(found: HeaderFigures) -> None:
    """Print a header's figures."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    console.print(f"{found.name}: {sentence(found.step)}", style="bold", soft_wrap=True)
    figures = {
        "architecture": found.architecture,
        "layers": found.layers,
        "hidden": found.hidden,
        "heads": found.heads and f"{found.heads}, {found.key_heads} of keys",
        "vocabulary": found.vocabulary and f"{found.vocabulary:,}",
        "context": found.context and f"{found.context:,}",
        "weights": ", ".join(f"{size / 1e6:,.1f} MB in {kind}" for kind, size in found.weights.items()),
    }
    rows = [(name, str(value)) for name, value in figures.items() if value]
    for title, given in (("header", rows), ("keys", list(keys(found.keys)) if found.keys else [])):
        if given:
            table = Table("", "", title=title, title_justify="left", show_header=False)
            for row in given:
                table.add_row(*row)
            console.print(table)
