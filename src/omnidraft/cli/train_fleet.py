"""`omnidraft train-fleet`: one drafter learns from the answers of many replicas."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from omnidraft.cli import flags
from omnidraft.config import Drafting, names
from omnidraft.defaults import AUTO
from omnidraft.errors import ConfigError, OmniDraftError
from omnidraft.fleet.settings import FleetLearning

EXAMPLES = (
    "omnidraft train-fleet --target MODEL --spool /fleet/spool --releases /fleet/releases",
    "omnidraft train-fleet --target MODEL --spool S --releases R --answers 256 --share 0.05",
)
ABOUT = """\
Learn from the answers that replicas spool, and publish versions of the learned weights that replicas adopt.  Of the
target only the tokenizer and the config are read."""


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft train-fleet` until it is interrupted or told to end; raises InputError and its kinds."""
    parser = _parser()
    flags.add_settings(parser.add_argument_group("learning"), FleetLearning)
    options = parser.read(arguments)
    given = vars(options)
    settings = FleetLearning(**{name: given[name] for name in names(FleetLearning) if name in given})

    from filelock import FileLock, Timeout

    from omnidraft.fleet.pair import load_pair
    from omnidraft.fleet.releases import Releases
    from omnidraft.fleet.trainer import FleetTrainer
    from omnidraft.storage import make_folder

    flags.prepare_libraries(options.threads)
    spool, releases = (Path(os.path.expanduser(given[name])) for name in ("spool", "releases"))  # noqa: PTH111
    make_folder(releases)
    try:
        with FileLock(releases / ".trainer.lock", timeout=0):
            drafter = options.drafter or AUTO
            pair = load_pair(options.target, drafter, Drafting(drafter_step="transformers"), options.device, flags.say)
            trainer = FleetTrainer(pair, Releases(releases, pair.key), spool, settings, say=flags.say)
            ended = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: ended.set())
            flags.say(f"learning from {spool}; versions go to {releases}")
            trainer.run(ended.is_set)
    except Timeout as error:
        raise ConfigError(f"another trainer publishes to {releases}: end it, or give another folder") from error
    except OSError as error:
        raise OmniDraftError(f"learning ends ({error}): mend that, and the same command goes on") from error
    return 0


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(prog="omnidraft train-fleet", description=ABOUT, examples=EXAMPLES)
    flags.add(parser, "--target", "--drafter")
    parser.add_argument("--spool", required=True, metavar="FOLDER", help="where replicas put answers")
    parser.add_argument("--releases", required=True, metavar="FOLDER", help="where replicas find versions")
    flags.add(parser, "--device", "--threads")
    return parser
