"""`omnidraft inspect`: compatibility of a drafter and a target, and what drafting can gain, without their weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from omnidraft.cli import flags
from omnidraft.defaults import AUTO, drafter_for
from omnidraft.errors import ConfigError, InputError

LONGEST = 2**18  # characters of a text that are read
EXAMPLES = (
    f"omnidraft inspect {flags.TARGET}",
    "omnidraft inspect meta-llama/Llama-3.1-8B-Instruct --drafter ./my-drafter --text notes.txt",
    f"omnidraft inspect {flags.TARGET} --time --json",
    "omnidraft inspect gemma-3-1b-it-Q4_K_M.gguf --header",
)


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft inspect`; 1 where the pair does not work.  Raises InputError and its kinds."""
    options = _parser().read(arguments)
    if options.header:
        return _header(options.target, as_json=options.json)
    texts = None if options.text is None else _read(options.text)
    if flags.unless_none(options.drafter) is None:
        raise ConfigError("drafter is none, and inspect looks at two models: name one, or leave --drafter out")
    from omnidraft.inspection.report import inspect_pair
    from omnidraft.inspection.texts import samples

    flags.prepare_libraries()
    drafter = drafter_for(options.target, flags.say) if options.drafter == AUTO else options.drafter
    found = inspect_pair(options.target, drafter, texts or samples(), time=options.time, say=_progress, warn=flags.say)
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        from omnidraft.cli.inspect_tables import show

        show(found)
    return 0 if found.works else 1


def _header(name: str, *, as_json: bool) -> int:
    """The header of a GGUF file alone, without what takes seconds to import."""
    from omnidraft.cli.inspect_header import show
    from omnidraft.inspection.step import REFUSED, inspect_header

    found = inspect_header(Path(name).expanduser())
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        show(found)
    return 1 if found.step.how == REFUSED else 0


def _progress(message: str) -> None:
    if sys.stderr.isatty():
        flags.say(message)


def _read(path: Path) -> dict[str, str]:
    """Text of a file, or its beginning, by name; raises InputError for an unreadable or empty file."""
    try:
        with path.expanduser().open(encoding="utf-8-sig", newline="") as file:
            text = file.read(LONGEST + 1)
    except (OSError, RuntimeError) as error:
        raise InputError(f"cannot read {path} ({error}): give --text a text file") from error
    except ValueError as error:  # a name with a null byte is one as well
        raise InputError(f"{path} is no text in UTF-8 ({error}): convert it, or give another file") from error
    if not text:
        raise InputError(f"{path} is empty: give --text a file with some text, or leave it out")
    name = path.name if len(text) <= LONGEST else f"{path.name} (the first {LONGEST:,} characters)"
    return {name: text[:LONGEST]}


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(
        prog="omnidraft inspect",
        description="Check that a drafter and a target are compatible, and what drafting can gain, before any weights\n"
        "are loaded.  A folder with only a tokenizer is enough for either of them.",
        examples=EXAMPLES,
    )
    parser.add_argument("target", metavar="TARGET", help="a folder, a GGUF file, a hub id or zoo:NAME")
    parser.add_argument(
        "--drafter",
        default=AUTO,
        metavar="MODEL",
        help=f"draft model, given like the target (default: {flags.DEFAULT})",
    )
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="a text to tokenize (default: samples in several scripts)"
    )
    parser.add_argument(
        "--header",
        action="store_true",
        help="say by the header of a GGUF file alone, which may be cut behind it, how the model is computed",
    )
    parser.add_argument("--time", action="store_true", help="load both models, and measure when drafting pays")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser
