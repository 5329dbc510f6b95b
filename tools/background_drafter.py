"""Write teacher text and train the shipped drafter in the background: starts, pauses, and goes on after any stop.

    python tools/background_drafter.py start --models DIR --data DIR [--code DIR ...] [--cores 1]
    python tools/background_drafter.py status | pause | resume | stop

DIR of models holds the teachers' GGUF files, DIR of data what tools/training_prompts.py reads.  Text, checkpoints and
progress.log, with a line every ten minutes, lie in `omnidraft-drafter` in the user's cache folder.  All work has the
lowest priority: it takes what other programs leave of its cores.  Text is written until each teacher has its share;
training begins when there is some of each, and reads what is there at the beginning of each pass.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

FOLDER = Path(platformdirs.user_cache_dir("omnidraft-drafter"))
LOG, PROCESS, PROMPTS, OPTIONS = (
    FOLDER / name for name in ("progress.log", "process.json", "prompts.jsonl", "options.json")
)
GOALS = {  # tokens that each teacher writes: most by the larger ones, of which drafts lack most
    "smollm2-135m-instruct.gguf": 300_000,
    "qwen2.5-coder-0.5b-instruct.gguf": 1_000_000,
    "qwen2.5-coder-1.5b-instruct.gguf": 1_000_000,
}
SOURCE = "smollm2-135m-instruct.gguf"
ENGLISH_ALONE = {"smollm2-135m-instruct.gguf": {"de", "fr", "es", "zh", "tools"}}  # kinds that a teacher cannot do
BATCH = {"qwen2.5-coder-1.5b-instruct.gguf": 24}  # conversations at once, for memory; else 32
TURNS = 20  # in which a teacher writes its share, one after another
CONVERSATION = 8192  # tokens, at most
SELF_ASKED = 0.15
BEFORE_TRAINING = 0.04  # of its share that each teacher has written before the first training
VOCAB, LAYERS, TRAINED, BATCH_TOKENS, RATE = 16384, (0, 1, 2, 29), 60_000_000, 8192, 3e-4
MINUTES = 10  # between two lines of the log


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="go on, in the background")
    start.add_argument("--models", type=Path, help="folder of the teachers' GGUF files (default: as the last time)")
    start.add_argument("--data", type=Path, help="folder of the prompts' sources (default: as the last time)")
    start.add_argument("--code", type=Path, action="append", default=[], help="a folder of code to work on; repeatable")
    start.add_argument("--cores", type=int, default=1, help="processor cores to use, at most (default: 1)")
    for name, about in {"status": "show the log's end", "pause": "", "resume": "", "stop": "", "run": ""}.items():
        commands.add_parser(name, help=about)
    commands.add_parser("write").add_argument("teachers", nargs="+")
    commands.add_parser("train")
    options = parser.parse_args()
    match options.command:
        case "start":
            begin(options)
        case "run":
            run()
        case "write":
            write(options.teachers)
        case "train":
            train()
        case "status":
            print("".join(LOG.read_text(encoding="utf-8").splitlines(keepends=True)[-5:]) if LOG.exists() else "")
        case command:
            signals = {"pause": signal.SIGSTOP, "resume": signal.SIGCONT, "stop": signal.SIGTERM}
            os.killpg(running() or sys.exit("nothing runs"), signals[command])


def running() -> int | None:
    """The process group at work."""
    if not PROCESS.exists():
        return None
    group = int(json.loads(PROCESS.read_text())["group"])
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return None
    return group


def begin(options: argparse.Namespace) -> None:
    if running():
        sys.exit("it runs already")
    FOLDER.mkdir(parents=True, exist_ok=True)
    last = json.loads(OPTIONS.read_text()) if OPTIONS.exists() else {}
    chosen = {key: str(value.resolve()) for key in ("models", "data") if (value := getattr(options, key))}
    code = [str(folder.resolve()) for folder in options.code] or last.get("code", [])
    OPTIONS.write_text(json.dumps(last | chosen | {"code": code, "cores": options.cores}))
    if not PROMPTS.exists():
        tool = Path(__file__).with_name("training_prompts.py")
        PROMPTS.write_bytes(subprocess.check_output([sys.executable, str(tool), settings()["data"], *_code()]))  # noqa: S603
    with (FOLDER / "output.log").open("ab") as output:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, __file__, "run"], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    PROCESS.write_text(json.dumps({"group": process.pid}))


def _code() -> list[str]:
    """The options that name folders of code."""
    return [word for folder in settings().get("code", ()) for word in ("--code", folder)]


def settings() -> dict[str, Any]:
    chosen: dict[str, Any] = json.loads(OPTIONS.read_text())
    return chosen


def run() -> None:
    """Keep the workers going, and write the log."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    cores = settings()["cores"]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    *smaller, largest = GOALS
    jobs = [["write", *GOALS]] if cores == 1 else [["write", *smaller], ["write", largest]]
    jobs.append(["train"])
    workers: list[subprocess.Popen[bytes] | None] = [None] * len(jobs)
    logged = 0.0
    while True:
        for at, job in enumerate(jobs):
            worker = workers[at]
            if worker is None or worker.poll() not in (None, 0):
                workers[at] = subprocess.Popen([sys.executable, __file__, *job])  # noqa: S603
        if time.monotonic() - logged > 60 * MINUTES:
            log()
            logged = time.monotonic()
        time.sleep(30)


def log() -> None:
    record = FOLDER / "small" / "training.json"
    line: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "text": {name: written(name) for name in GOALS},
    }
    if record.exists():
        line["training"] = json.loads(record.read_text())
        line["training"].pop("settings", None)
    with LOG.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def text_folder(name: str) -> Path:
    """Where the text of a teacher lies."""
    return FOLDER / "text" / name


def written(name: str) -> int:
    """Tokens that a teacher has written."""
    import numpy as np

    total = 0
    for path in text_folder(name).glob("shard-*.npz"):
        with np.load(path) as shard:
            total += int(shard["written"].sum())
    return total


def load(name: str) -> Any:
    import torch

    from omnidraft.models.loading import load_model

    torch.set_num_threads(1)
    return load_model(Path(settings()["models"]) / name, "auto", "cpu", print, verifies=True)


def write(teachers: Sequence[str]) -> None:
    """Let the teacher that is furthest from its share write, in turns."""
    from omnidraft.make_drafter.settings import Writing
    from omnidraft.make_drafter.teacher_text import write_text

    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").split("\n") if line]
    while True:
        tokens = {name: written(name) for name in teachers}
        name = min(tokens, key=lambda each: tokens[each] / GOALS[each])
        if tokens[name] >= GOALS[name]:
            return
        fit = [row for row in rows if row["kind"] not in ENGLISH_ALONE.get(name, ())]
        until = min(GOALS[name], (tokens[name] * TURNS // GOALS[name] + 1) * GOALS[name] // TURNS)
        writing = Writing(
            text_tokens=until, self_asked=SELF_ASKED, batch_size=BATCH.get(name, 32), conversation_tokens=CONVERSATION
        )
        prompts = [row.get("prompt", row) for row in fit]
        write_text(load(name), prompts, writing, text_folder(name), lambda text: print(text, flush=True))


def train() -> None:
    """Train on the text of all teachers, once there is some of each."""
    while any(written(name) < goal * BEFORE_TRAINING for name, goal in GOALS.items()):
        time.sleep(300)
    from omnidraft import zoo
    from omnidraft.make_drafter import make
    from omnidraft.make_drafter.settings import DrafterShape, Training
    from omnidraft.models.loading import load_model

    source = load_model(Path(settings()["models"]) / SOURCE, "float32", "cpu", print)
    training = Training(tokens=TRAINED, batch_tokens=BATCH_TOKENS, learning_rate=RATE)
    shape = DrafterShape(layers=LAYERS, vocab=VOCAB)
    out = FOLDER / "small"
    if not out.exists():  # keeps the vocabulary of the drafter that ships: a new one loses more than it gains
        shutil.copytree(zoo.path("general"), out, ignore=shutil.ignore_patterns("training.json"))
    if not (out / "text").exists():
        (out / "text").symlink_to(FOLDER / "text", target_is_directory=True)
    make.train(source, [load(name) for name in GOALS], shape, training, out, print)


if __name__ == "__main__":
    main()
