"""`omnidraft make-drafter`: make a drafter from a language model, for one or more targets."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile

from omnidraft import zoo
from omnidraft.cli import flags, prompts
from omnidraft.config import names
from omnidraft.errors import InputError
from omnidraft.make_drafter.settings import DrafterShape, Training, Writing
from omnidraft.storage import make_folder

EXAMPLES = (
    "omnidraft make-drafter SOURCE --layers 0,1,2,29 --teacher TARGET --prompts prompts.jsonl --out my-drafter",
)
ABOUT = """\
Make a drafter from a Llama-type chat model: it keeps some layers and the most useful tokens, and learns from text that
the teachers write. Resumes from existing output; safe to interrupt."""


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft make-drafter`; raises InputError and its kinds."""
    parser = _parser()
    flags.add_settings(parser.add_argument_group("teacher text"), Writing)
    flags.add_settings(parser.add_argument_group("training"), Training)
    options = parser.read(arguments)
    values = vars(options)
    writing = Writing(**{name: values[name] for name in names(Writing) if name in values})
    training = Training(**{name: values[name] for name in names(Training) if name in values})
    texts = [] if options.prompts is None else prompts.chats(options.prompts)
    _prepare(options.out)

    from omnidraft.make_drafter import make
    from omnidraft.make_drafter.cut import check_layers
    from omnidraft.make_drafter.teacher_text import write_text
    from omnidraft.models.loading import load_model, load_skeleton

    flags.prepare_libraries(options.threads)
    with flags.interruptible():
        begin = None
        if options.only != "text":  # mistakes are noticed before text is written, which takes hours
            check_layers(load_skeleton(zoo.resolve(options.source)), options.layers)
        if options.init_from is not None and options.only != "text":
            begin = load_model(zoo.resolve(options.init_from), "float32", "cpu", flags.say)
        teachers = [
            load_model(zoo.resolve(name), options.dtype, options.device, flags.say, verifies=True)
            for name in options.teacher or [options.source]
        ]
        folders = make.text_folders(options.out, teachers)
        if options.only != "training":
            for teacher, folder in zip(teachers, folders, strict=True):
                write_text(teacher, texts, writing, folder, flags.say)
        if options.only != "text":
            source = load_model(zoo.resolve(options.source), "float32", "cpu", flags.say)
            shape = DrafterShape(layers=options.layers, vocab=options.vocab)
            make.train(source, teachers, shape, training, options.out, flags.say, begin)
    return 0


def _prepare(out: Path) -> None:
    """Make the folder; raises InputError where nothing can be written into it, which is noticed hours later else."""
    try:
        make_folder(out)
        TemporaryFile(dir=out).close()
    except OSError as error:
        raise InputError(f"cannot write into {out} ({error.strerror or error}): give --out another folder") from error


def _layers(text: str) -> tuple[int, ...]:
    """Layer numbers with commas in between."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} are no layers: give their numbers, such as 0,1,2,29") from error


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(prog="omnidraft make-drafter", description=ABOUT, examples=EXAMPLES)
    parser.add_argument("source", metavar="SOURCE", help="the model to cut: a folder, a GGUF file or a hub id")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FOLDER", help="folder for the drafter and its teacher text"
    )
    parser.add_argument(
        "--layers", type=_layers, required=True, metavar="N,N,...", help="layers to keep, counted from 0"
    )
    parser.add_argument(
        "--vocab",
        type=flags.at_least(1),
        default=16384,
        metavar="N",
        help="tokens to keep (default: %(default)s)",
    )
    parser.add_argument(
        "--teacher", action="append", metavar="MODEL", help="a target to learn from; repeatable (default: SOURCE)"
    )
    parser.add_argument(
        "--init-from",
        metavar="DRAFTER",
        help="start from the weights of this drafter, which has the same source and layers",
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='JSONL file, {"prompt": "..."} or {"messages": [...], "tools": [...]} a line',
    )
    parser.add_argument("--only", choices=("text", "training"), help="run only this stage")
    flags.add(parser, "--dtype", help="of the teachers: auto, float32, bfloat16 or float16 (default: %(default)s)")
    flags.add(
        parser, "--device", help="of teachers and training: auto, cpu, cuda, cuda:N or mps (default: %(default)s)"
    )
    flags.add(parser, "--threads")
    return parser
