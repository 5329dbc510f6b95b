"""`python -m experiments.clients`: the official libraries against a server, and the table of docs/clients.md.

Each case runs in a process of its own, with the packages of its library alone: those of `--libraries FOLDER/LIBRARY`,
as `pip install --target FOLDER/LIBRARY LIBRARY` puts them there, else those of this environment.  The target says what
it is told to, so that what is tried is the server.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from rich.console import Console

from experiments.client_cases import CLIENTS
from experiments.client_cases.shared import COLUMNS
from experiments.echo import serving
from experiments.results import Results, Row, page_of
from experiments.runner import Experiment
from omnidraft.bench.output import markdown_table
from omnidraft.cli import flags

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- clients: made by python -m experiments.clients -->", "<!-- end of clients -->"
CASE_S = 300.0
QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def version(library: str, folder: Path | None) -> str | None:
    """The version of a library's package; None where it is not installed."""
    names = (library, f"{library}-slim")
    paths = [str(folder)] if folder is not None else [each for each in sys.path if each]
    found = [each for name in names for each in metadata.distributions(name=name, path=paths)]
    return found[0].version if found else None


def tried(library: str, case: str, url: str, folder: Path | None) -> str:
    """The last line of what a case says where it fails; empty where it does not."""
    paths = [*([str(folder)] if folder is not None else []), str(ROOT / "src"), str(ROOT)]
    environment = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "experiments.client_cases", library, case, url]
    try:
        done = subprocess.run(  # noqa: S603  our own command
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=CASE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "it does not end"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else (lines[-1] if lines else "it failed")[:200]


def table(rows: Mapping[str, Row]) -> str:
    """The table of what works with which version."""
    lines = []
    for library in (library for library in CLIENTS if library in rows):
        cases = rows[library]["cases"]
        cells = ["" if name not in cases else "no" if cases[name] else "yes" for name in COLUMNS]
        lines.append([library, rows[library]["version"], *cells])
    heads = ["library", "version", *COLUMNS]
    return markdown_table(heads, lines, len(heads))


def page(made: str) -> str:
    """The whole page of docs, with a table as it is to be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n{END}{rest.partition(END)[2]}"


class Clients(Experiment):
    """Official libraries against a server."""

    name = "clients"
    about = "Official libraries against a server."
    examples = ("--libraries FOLDER --write",)

    def add_options(self, to: flags.CommandParser) -> None:
        about = "a folder with one for each library's packages"
        to.add_argument("--libraries", type=Path, metavar="FOLDER", help=about)
        to.add_argument("--only", action="append", choices=CLIENTS, help="one of the libraries alone; repeatable")
        to.add_argument("--write", action="store_true", help="write the table into docs/clients.md")

    def setting(self, options: argparse.Namespace) -> Row:  # noqa: ARG002  nothing that changes what works
        return {}

    def measure(self, options: argparse.Namespace, results: Results, console: Console) -> None:
        """Try all cases."""
        with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as url:
            for library in options.only or CLIENTS:
                own = options.libraries / library if options.libraries else None
                own = own if own is not None and own.is_dir() else None
                found = version(library, own)
                if found is None:
                    console.print(f"{library}: not installed")
                    continue
                outcomes = {}
                for name in CLIENTS[library].cases():
                    problem = outcomes[name] = tried(library, name, url, own)
                    console.print(f"{library} {found}, {name}: {problem or 'works'}")
                results.add("rows", library, {"version": found, "cases": outcomes})
        if options.write:
            PAGE.write_text(page(table(results.of("rows"))), encoding="utf-8")

    def page(self, results: Results) -> str:
        return page_of("Clients", results, table(results.of("rows")))

    def wrong(self, results: Results) -> bool:
        return any(problem for row in results.of("rows").values() for problem in row["cases"].values())


main = Clients().main

if __name__ == "__main__":
    sys.exit(main())
