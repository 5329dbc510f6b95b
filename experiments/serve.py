"""`python -m experiments.serve`: a server under load, with drafts and without, beside `generate` of transformers.

Some clients ask one prompt after the other for some time, streamed and greedy; each answer is compared with that of the
same prompt alone.  Then one is answered while the long prompt of another is read: how long it waits at most for a
piece, and how long the server goes on with the prompt once its client has left.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console

from experiments.command import parser, run
from experiments.real import shown
from experiments.results import Results, Row, page_of
from experiments.serve_ways import GenerateWay, Reply, ServerWay, way_of
from experiments.tasks import PROMPTS
from omnidraft.bench import prompts
from omnidraft.bench.environment import command
from omnidraft.bench.output import markdown_table, writing
from omnidraft.cli import flags

SETTLED_S = 60.0  # after which memory is to stay as it is
METHODS = ("drafts", "no drafts", "generate")
COLUMNS = (
    *("target", "method", "clients", "answers", "identical", "lost", "tokens_per_s", "of_one"),
    *("first_p50_s", "first_p95_s", "rss_settled_mb", "rss_end_mb"),
)
BESIDE = ("target", "method", "prompt", "read_s", "alone_gap_s", "gap_s", "left_s")
LONG_ANSWER = 640  # tokens at most of an answer that waits for others
LOOK_S = 0.01  # between looks at whether a request is over


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Clients at once, seconds of load of each number, prompts, tokens of an answer, and those of the long prompt."""

    clients: tuple[int, ...]
    seconds: int
    prompts: int
    new_tokens: int
    long: int


FULL = Sizes(clients=(1, 4, 8, 16), seconds=20, prompts=16, new_tokens=64, long=4000)
QUICK = Sizes(clients=(1, 2), seconds=4, prompts=2, new_tokens=12, long=100)


def load_run(
    way: ServerWay | GenerateWay, texts: Sequence[str], alone: Sequence[str | None], clients: int, seconds: int
) -> Row:
    """The figures of some clients that ask for some seconds; `alone` are the answers of each text alone."""
    replies: list[Reply] = []
    began = time.perf_counter()

    def client(number: int) -> None:
        for place in itertools.count(number):
            if time.perf_counter() - began >= seconds:
                return
            replies.append(way.ask(place % len(texts), texts[place % len(texts)]))

    with ThreadPoolExecutor(clients) as pool:
        running = [pool.submit(client, number) for number in range(clients)]
        time.sleep(min(SETTLED_S, seconds / 3))
        settled = way.rss()
        for each in running:
            each.result()
    took_s = time.perf_counter() - began
    whole = [reply for reply in replies if reply.text is not None]
    first = sorted(reply.first_s for reply in whole)
    return {
        "answers": len(replies),
        "identical": sum(reply.text == alone[reply.prompt] for reply in whole) if alone else None,
        "lost": len(replies) - len(whole),
        "tokens_per_s": sum(reply.tokens for reply in whole) / took_s,
        "first_p50_s": statistics.median(first) if first else None,
        "first_p95_s": first[min(len(first) - 1, int(0.95 * len(first)))] if first else None,
        "rss_settled_mb": settled,
        "rss_end_mb": way.rss(),
    }


def longest_gap(way: ServerWay, prompt: str, over: Callable[[], bool]) -> float:
    """The longest wait for a piece of answers to a prompt, but for the first ones, until that is so; in seconds."""
    longest = 0.0
    while not over():
        last: float | None = None
        for piece, _ in way.pieces(prompt, LONG_ANSWER):
            if piece:
                now = time.perf_counter()
                longest, last = max(longest, now - (last or now)), now
            if over():
                break
    return longest


def beside_run(way: ServerWay, texts: Sequence[str], count: int) -> Row:
    """What an answer waits for while a prompt of so many tokens is read, and how long that goes on for nobody."""
    ids = way.tokenizer(" ".join(itertools.islice(itertools.cycle(texts), count)), add_special_tokens=False)[
        "input_ids"
    ]
    prompt = way.tokenizer.decode(ids[:count])
    pieces = itertools.count()
    alone = longest_gap(way, texts[0], lambda: next(pieces) > LONG_ANSWER)
    with ThreadPoolExecutor(1) as pool:
        began = time.perf_counter()
        reading = pool.submit(way.ask, 0, prompt)
        gap = longest_gap(way, texts[0], reading.done)
        read_s = reading.result().first_s or time.perf_counter() - began
        leaving = threading.Event()
        # another beginning, so that nothing of it is held
        pool.submit(way.begin, f"Read this. {prompt}", leaving)
        time.sleep(read_s / 4)
        leaving.set()
        began = time.perf_counter()
        while way.active():
            time.sleep(LOOK_S)
    taken = time.perf_counter() - began
    return {"prompt": count, "read_s": read_s, "alone_gap_s": alone, "gap_s": gap, "left_s": taken}


def measure(options: argparse.Namespace, console: Console) -> int:
    """Measure what the file lacks; 1 where an answer was lost, or one in float32 or int8 depends on the load."""
    given = {name: value for name in asdict(FULL) if (value := getattr(options, name)) is not None}
    sizes = replace(QUICK if options.quick else FULL, **given)
    texts = prompts.read(PROMPTS / "instructions.jsonl", None, sizes.prompts)
    results = Results(options.out and options.out.with_name(options.out.name + ".jsonl"), "serve")
    recipe = asdict(sizes) | {"drafter": shown(str(options.drafter)), "dtype": options.dtype}
    results.begin(command(options.words), recipe)
    for target, method in itertools.product(options.target, options.method or METHODS):
        _measure(options, target, method, texts, sizes, results, console)
    page = markdown(results)
    if options.out is not None:
        with writing(options.out):
            options.out.with_name(options.out.name + ".md").write_text(page, encoding="utf-8")
    print(page, end="")
    rows = results.of("rows").values()
    checked = [row for row in rows if row["dtype"] in ("float32", "int8") and row["identical"] is not None]
    return int(any(row["lost"] for row in rows) or any(row["identical"] < row["answers"] for row in checked))


def _measure(
    options: argparse.Namespace,
    target: str,
    method: str,
    texts: Sequence[str],
    sizes: Sizes,
    results: Results,
    console: Console,
) -> None:
    """Measure what the file lacks of a target and a method; `generate` answers one after the other in any case."""
    named = {"target": shown(target), "method": method, "dtype": options.dtype}
    keys = {count: f"{shown(target)}|{method}|{count}" for count in (sizes.clients if method != "generate" else (1,))}
    beside = f"{shown(target)}|{method}"
    left = [count for count, key in keys.items() if key not in results.of("rows")]
    long = method != "generate" and beside not in results.of("beside")
    if not left and not long:
        return
    with way_of(method, options, target, sizes.new_tokens, max(sizes.clients)) as way:
        checked = left and method != "generate"
        alone = [way.ask(place, text).text for place, text in enumerate(texts)] if checked else []
        for count in left:
            console.print(f"{shown(target)}, {method}: {count} clients for {sizes.seconds} s")
            row = named | {"clients": count} | load_run(way, texts, alone, count, sizes.seconds)
            results.add("rows", keys[count], row)
        if long and isinstance(way, ServerWay):
            console.print(f"{shown(target)}, {method}: beside a prompt of {sizes.long} tokens")
            results.add("beside", beside, named | beside_run(way, texts, sizes.long))


def markdown(results: Results) -> str:
    """The commands, a row for each target, method and number of clients, and one for what an answer waits for."""
    rows = list(results.of("rows").values())
    one = {(row["target"], row["method"]): row["tokens_per_s"] for row in rows if row["clients"] == 1}
    for row in rows:
        first = one.get((row["target"], row["method"]))
        row["of_one"] = row["tokens_per_s"] / first if first else None
    page = page_of("A server under load", results, COLUMNS, "clients", 2)
    lines = [
        [f"{row[name]:.3f}" if isinstance(row[name], float) else row[name] for name in BESIDE]
        for row in results.of("beside").values()
    ]
    return f"{page}\n{markdown_table(BESIDE, lines, 2)}" if lines else page


def main(arguments: Sequence[str] | None = None) -> int:
    """Put servers under load, and return the exit code."""
    options = parser(
        "serve",
        "A server under load: answers, times and memory, with drafts, without, and by generate of transformers.",
        "--target HuggingFaceTB/SmolLM2-135M-Instruct --quick",
        "--target MODEL --dtype int8 --clients 1 --clients 8 --seconds 20 --out results/serve",
    )
    flags.add(options, "--target", action="append", help="a folder, a GGUF file, a hub id or zoo:NAME; repeatable")
    flags.add(options, "--drafter", "--dtype")
    options.add_argument("--lanes", type=flags.at_least(1), default=8, metavar="N", help="of the server (default: 8)")
    options.add_argument("--method", action="append", choices=METHODS, help="repeatable (default: all of them)")
    counts = f"clients at once, repeatable (default: {FULL.clients}, {QUICK.clients} with --quick)"
    options.add_argument("--clients", type=flags.at_least(1), action="append", metavar="N", help=counts)
    for name, about in (
        ("seconds", "seconds of load, of each number of clients"),
        ("prompts", "prompts, in turns"),
        ("new_tokens", "maximum tokens of an answer"),
        ("long", "tokens of the prompt that is read beside an answer"),
    ):
        default = f"{about} (default: {getattr(FULL, name)}, {getattr(QUICK, name)} with --quick)"
        options.add_argument(flags.flag(name), type=flags.at_least(1), metavar="N", help=default)
    options.add_argument("--out", type=Path, metavar="STEM", help="write STEM.jsonl, and go on with it, and STEM.md")
    return run(options, measure, arguments)


if __name__ == "__main__":
    sys.exit(main())
