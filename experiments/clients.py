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
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from rich.console import Console

from experiments.client_cases.shared import COLUMNS
from experiments.client_cases.table import CLIENTS
from experiments.command import parser, run
from experiments.echo import serving
from omnidraft.errors import ConfigError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "clients.md"
BEGIN, END = "<!-- clients: made by python -m experiments.clients -->", "<!-- end of clients -->"
CASE_S = 300.0
QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
Outcomes = Mapping[str, Mapping[str, str]]
"""What came of each case, by library: empty where it went well."""


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


def table(outcomes: Outcomes, versions: Mapping[str, str], known: Sequence[str] = ()) -> str:
    """The table of what works with which version; of libraries that were not tried, the row that is `known`."""
    head = [f"| library | version | {' | '.join(COLUMNS)} |", f"| --- | --- |{' --- |' * len(COLUMNS)}"]
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in known}
    for library, found in outcomes.items():
        cells = ["" if name not in found else "no" if found[name] else "yes" for name in COLUMNS]
        rows[library] = f"| {library} | {versions[library]} | {' | '.join(cells)} |"
    return "\n".join([*head, *(rows[library] for library in CLIENTS if library in rows)])


def written() -> list[str]:
    """The rows of the table as it is."""
    made = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    return [line for line in made.splitlines() if line.startswith("| ")][2:]


def page(made: str) -> str:
    """The whole page, with a table as it is to be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


def measure(options: argparse.Namespace, console: Console) -> int:
    """Try all cases; 1 where one fails."""
    chosen = options.only or [*CLIENTS]
    if unknown := [name for name in chosen if name not in CLIENTS]:
        raise ConfigError(f"only is {unknown[0]!r}: use some of {', '.join(CLIENTS)}")
    outcomes, versions = dict[str, dict[str, str]](), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "echo") as url:
        for library in chosen:
            own = options.libraries / library if options.libraries else None
            own = own if own is not None and own.is_dir() else None
            found = version(library, own)
            if found is None:
                console.print(f"{library}: not installed")
                continue
            versions[library], outcomes[library] = found, {}
            for name in CLIENTS[library].cases:
                problem = outcomes[library][name] = tried(library, name, url, own)
                console.print(f"{library} {found}, {name}: {problem or 'works'}")
    if options.write:
        PAGE.write_text(page(table(outcomes, versions, written())), encoding="utf-8")
    return int(any(problem for found in outcomes.values() for problem in found.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    made = parser("clients", "official libraries against a server", "--libraries FOLDER --write")
    made.add_argument("--libraries", type=Path, metavar="FOLDER", help="a folder with one for each library's packages")
    made.add_argument("--only", action="append", metavar="NAME", help="one of the libraries alone")
    made.add_argument("--write", action="store_true", help="write the table into docs/clients.md")
    return run(made, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
