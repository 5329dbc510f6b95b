"""`omnidraft serve`: an HTTP server with OpenAI's endpoints, and a page to chat and to look on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from omnidraft.cli import flags
from omnidraft.config import DraftingOptions, LearningOptions
from omnidraft.errors import ConfigError
from omnidraft.server.server_settings import Serving

ADAPT = ("background", "off")  # learning in turns with answers would hold them up
KEY = "OMNIDRAFT_API_KEY"
SHOWN = ("host", "port", "lanes", "max_queue", "max_tokens", "timeout_s", "cache_dir", "cache_gb")
EXAMPLES = (
    "omnidraft serve --target Qwen/Qwen2-7B-Instruct --target ./my-model --adapt background --port 9000",
    "omnidraft serve --target model.gguf --host 0.0.0.0 --api-key secret --set max_cache_mb=8192",
)


def main(arguments: Sequence[str]) -> int:
    """Run `omnidraft serve` until a signal comes; raises InputError and its kinds."""
    options = _parser().read(arguments)
    for name in ("cors_origin", "allowed_host"):
        if name in options:
            setattr(options, name, tuple(getattr(options, name)))
    keys = options.api_key if "api_key" in options else os.environ.get(KEY, "").split()
    if keys:
        options.api_key = tuple(keys)
    serving, drafting, learning = flags.collect(options, Serving, DraftingOptions, LearningOptions)
    if options.adapt not in ADAPT:
        raise ConfigError(
            f"adapt is {options.adapt!r}; a server learns in the background or not: use {' or '.join(ADAPT)}"
        )
    flags.announce(*options.target)
    flags.prepare_libraries(options.threads)
    try:
        from omnidraft.server.run import Running
    except ModuleNotFoundError as error:
        fix = "pip install 'omnidraft[serve]'"
        raise ConfigError(f"the server needs the package {error.name}, which is not installed: {fix}") from error
    places = {"dtype": options.dtype, "device": options.device, "graphs": options.graphs}
    models = {**places, "adapt": options.adapt, **drafting, **learning}
    settings = Serving(**serving)
    Running(settings, options.target, options.drafter, models, say=flags.say, log_prompts=options.log_prompts).run()
    return 0


def _parser() -> flags.CommandParser:
    parser = flags.CommandParser(
        prog="omnidraft serve",
        usage="%(prog)s --target MODEL [--target MODEL ...] [--drafter MODEL] [OPTION ...]",
        description="Serve targets behind one drafter, with OpenAI's endpoints and a page at /.",
        examples=EXAMPLES,
    )
    models = parser.add_argument_group("models")
    flags.add(models, "--target", action="append", help="a folder, a GGUF file, a hub id or zoo:NAME; repeatable")
    flags.add(models, "--drafter", help=f"one draft model for all targets, or none (default: {flags.DRAFTER})")
    server = parser.add_argument_group("server")
    flags.add_settings(server, Serving, *SHOWN)
    server.add_argument(
        "--api-key",
        action="append",
        default=argparse.SUPPRESS,
        metavar="KEY",
        help="required API key, one per user; repeatable. Prefer the environment variable "
        f"{KEY} (keys separated by white space), which `ps` does not show (default: none)",
    )
    server.add_argument(
        "--cors-origin",
        action="append",
        default=argparse.SUPPRESS,
        metavar="URL",
        help="origin of web pages that may use the server; * allows all, a scheme such as moz-extension:// all of that "
        "scheme; repeatable (default: none but its own; desktop programs may)",
    )
    server.add_argument(
        "--allowed-host",
        action="append",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="name by which clients may address this machine, such as proxy.example; repeatable",
    )
    server.add_argument("--log-prompts", action="store_true", help="write prompts to the log")
    more = parser.add_argument_group("drafting, learning and devices")
    flags.add_settings(more, DraftingOptions, "draft_length", "reuse_answers")
    more.add_argument(
        "--adapt", default="off", metavar="NAME", help=f"learn from the answers: {', '.join(ADAPT)} (default: off)"
    )
    flags.add(more, "--dtype", "--device", "--graphs", "--threads")
    flags.add_set(parser, more, Serving, DraftingOptions, LearningOptions)
    return parser
