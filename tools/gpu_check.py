"""Check decoding with CUDA graphs on a machine with a GPU, and measure it beside `generate` of transformers.

    tools/gpu_check.sh OUT [--target MODEL] [--drafter MODEL] [--minutes 7]
    python tools/gpu_check.py OUT --device cpu --shape tiny --new-tokens 8 --prompts 1 --tests none

Runs the tests of graphs on the device, times passes of both models with graphs and without, answers prompts by every
method in turns, and writes OUT/gpu-check.md and OUT/gpu-check.json.  Without --target the target is a random one of
`--shape`: what passes cost is that of such a model, while its text is no language, and so the acceptance of drafts
says nothing.  The baseline is `generate` with a static cache, compiled: on a GPU, eager `generate` is bound by its
launches.  --device cpu runs the same code without graphs, as a trial of this tool.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from omnidraft import zoo
from omnidraft.api import OmniDraft, assemble
from omnidraft.attach import make_cache
from omnidraft.bench.environment import machine
from omnidraft.bench.interleaved import LaneMethod, Method, Timed, TimedAnswer, drafter_of, interleave
from omnidraft.bench.output import down, markdown_table
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.drafter import Drafter
from omnidraft.decoding.lane import Lane
from omnidraft.draft_length.cost_model import time_passes
from omnidraft.models.graphs.graphed_model import GraphedModel
from omnidraft.models.transformers_model import PretrainedModel

ROOT = Path(__file__).parents[1]
TESTS = ("tests/exactness/test_graphed_models.py", "tests/models/test_graphs.py")
TESTS_SHARE = 0.4  # of the time, at most
NONE = 2  # exit status without a device
SHAPES: dict[str, dict[str, int]] = {
    "1.5b": {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 32, "num_attention_heads": 12,
        "num_key_value_heads": 2, "max_position_embeddings": 8192,
    },
    "tiny": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 1024,
    },
}  # fmt: skip
PROMPTS = (
    "Write a function that returns the median of a list of numbers, and explain each line of it.",
    "A baker has 3 trays with 12 rolls each and sells 20 of them. How many rolls are left? Think step by step.",
    "Describe how a bridge over a river is planned, from the first survey to the day when it opens.",
    "List the planets of the solar system with one fact about each of them.",
)
BASELINE, PLAIN = "generate, static cache, compiled", "plain"
LENGTH = 4  # draft tokens, where their number is fixed
RATES = (0.5, 0.6, 0.7, 0.8)  # acceptance of a draft token, for what passes of these costs would gain


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    if options.device != "cpu" and not torch.cuda.is_available():
        print("gpu_check: there is no CUDA device here: run it on a machine with one (--device cpu is a trial)")
        return NONE
    began = time.perf_counter()
    ends = began + 60 * options.minutes
    device = torch.device(options.device)
    about = machine(device)
    print(f"device: {about['device']}; torch {about['torch']}, transformers {about['transformers']}", flush=True)
    report: dict[str, Any] = {"environment": about, "settings": {**vars(options), "out": options.out.name}}
    report["tests"] = tests_on(device, options.tests, TESTS_SHARE * 60 * options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        target = options.target or random_target(Path(folder), options.shape, device)
        model = assemble(
            zoo.resolve(target), options.drafter, Drafting(drafter_backend="transformers"), {},
            dtype="bfloat16" if device.type == "cuda" else "float32", device=options.device, profile=None,
        )  # fmt: skip
        report["models"] = {
            "target": model.target.name if options.target else f"random, of shape {options.shape}",
            "drafter": model.drafter and model.drafter.name,
            "dtype": model.target.lm.precision,
        }
        measure(model, options, ends, report)
    report["seconds"] = time.perf_counter() - began
    options.out.mkdir(parents=True, exist_ok=True)
    text = markdown(report)
    (options.out / "gpu-check.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (options.out / "gpu-check.md").write_text(text, encoding="utf-8")
    print(text)
    return 0 if report["tests"]["passed"] is not False else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the results")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for a trial (default: cuda)")
    parser.add_argument("--target", metavar="MODEL", help="a folder, or zoo:NAME (default: a random model)")
    parser.add_argument("--drafter", metavar="MODEL", default="zoo:general")
    parser.add_argument("--shape", choices=SHAPES, default="1.5b", help="of the random target (default: 1.5b)")
    parser.add_argument("--new-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), metavar="N")
    parser.add_argument("--minutes", type=float, default=7.0, help="after which no prompt is begun (default: 7)")
    parser.add_argument("--tests", default="all", help="all, none, or an expression for -k of pytest (default: all)")
    return parser.parse_args(arguments)


# ---------------------------------------------------------------- tests


def tests_on(device: torch.device, chosen: str, seconds: float) -> dict[str, Any]:
    """The tests of graphs on a device; `passed` is None where none were run to their end."""
    if chosen == "none" or importlib.util.find_spec("pytest") is None:
        return {"passed": None, "said": "none run" if chosen == "none" else "none run: pip install -e '.[dev]'"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    command += [] if chosen == "all" else ["-k", chosen]
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    there = {**os.environ, "OMNIDRAFT_TEST_DEVICE": str(device), "PYTHONPATH": paths}
    try:
        done = subprocess.run(  # noqa: S603  fixed arguments
            command, cwd=ROOT, env=there, timeout=seconds, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return {"passed": None, "said": f"stopped after {seconds:.0f} s, none had failed"}
    lines = [*done.stdout.strip().splitlines(), *done.stderr.strip().splitlines()]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))]
    return {"passed": done.returncode == 0, "said": lines[-1] if lines else "nothing", "failed": failed}


# ---------------------------------------------------------------- models and methods


def random_target(folder: Path, shape: str, device: torch.device) -> Path:
    """A random model in a folder, with the tokenizer of the drafter that ships."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(zoo.path("general"))
    sizes: dict[str, Any] = {**SHAPES[shape], "vocab_size": len(tokenizer)}
    config = LlamaConfig(**sizes, eos_token_id=None, bos_token_id=None)
    torch.manual_seed(0)
    with device:
        model = LlamaForCausalLM(config)
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Static:
    """`generate` of transformers with a static cache, which it compiles on a GPU."""

    name = BASELINE

    def __init__(self, model: OmniDraft) -> None:
        self.target: Any = model.target.lm.model
        self._asked: tuple[list[int], int] = ([], 0)
        self._tokens: list[int] = []

    def restart(self) -> None:
        """Nothing is kept between answers."""

    def begin(self, ids: list[int], new_tokens: int, seed: int) -> None:  # noqa: ARG002  greedy
        self._asked = ids, new_tokens

    def advance(self, length: int) -> bool:
        """Decode the whole answer."""
        ids, new_tokens = self._asked
        inputs = torch.tensor([ids], device=self.target.device)
        output = self.target.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=new_tokens, do_sample=False,
            repetition_penalty=1.0, num_beams=1, pad_token_id=0, cache_implementation="static",
        )  # fmt: skip
        self._tokens = output[0, len(ids) :].tolist()
        return len(self._tokens) > length

    def end(self) -> TimedAnswer:
        return TimedAnswer(self._tokens)


def lanes(model: OmniDraft) -> tuple[list[Method], dict[str, tuple[PretrainedModel, PretrainedModel]]]:
    """Our own loop by every method, and the models without graphs and with them, which have the same weights."""
    attached = drafter_of(model)
    source: Any = attached.drafter.model
    pairs: dict[str, tuple[PretrainedModel, PretrainedModel]] = {
        "without graphs": (model.target.lm, source),
        "with graphs": (GraphedModel(model.target.lm.model), GraphedModel(source.model, to_host=True)),
    }
    fixed, default = Drafting(draft_length=LENGTH), Drafting()
    methods: list[Method] = []
    for graphs, (target, drafter) in pairs.items():
        methods.append(LaneMethod(f"{PLAIN}, {graphs}", Lane(target, model.lane.eos), Sampling()))
        for name, drafting in ((f"{LENGTH} draft tokens", fixed), ("drafts by default", default)):
            mine = replace(attached, drafter=Drafter(drafter), cache=make_cache(attached.cache.table, drafting))
            lane = Lane(target, model.lane.eos, mine, drafting)
            methods.append(LaneMethod(f"{name}, {graphs}", lane, Sampling()))
    return methods, pairs


# ---------------------------------------------------------------- measurements


def measure(model: OmniDraft, options: argparse.Namespace, ends: float, report: dict[str, Any]) -> None:
    """Add what passes take and what methods answer to the report."""
    methods, pairs = lanes(model)
    report["passes"] = {graphs: asdict(time_passes(*pair)) for graphs, pair in pairs.items()}
    prompts = [model.encode_message(text) for text in PROMPTS[: options.prompts]]
    report["left_out"] = {}
    try:  # compiles, which takes up to minutes and needs a compiler
        interleave([static := Static(model)], prompts[0], options.new_tokens)
        methods.insert(0, static)
    except Exception as error:  # noqa: BLE001  any error means that it does not work here
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        report["left_out"][BASELINE] = reason
    interleave(methods, prompts[0], options.new_tokens)  # records graphs
    answers: dict[str, list[Timed]] = {method.name: [] for method in methods}
    for turn, ids in enumerate(prompts):
        if turn and time.perf_counter() > ends:
            break
        for method, timed in zip(methods, interleave(methods, ids, options.new_tokens, turn=turn), strict=True):
            answers[method.name].append(timed)
    report["answers"] = summary(answers)


def summary(answers: dict[str, list[Timed]]) -> list[dict[str, Any]]:
    """A row for each method: its speed, and how its text compares with that of plain decoding without graphs."""
    plain = [timed.answer.tokens for timed in answers[f"{PLAIN}, without graphs"]]
    speeds = {name: [len(each.answer.tokens) / each.seconds for each in timed] for name, timed in answers.items()}
    rows = []
    for name, timed in answers.items():
        rounds = [record for each in timed for record in each.answer.rounds or ()]
        proposed, accepted = (sum(each) for each in zip(*_counts(rounds), strict=True)) if rounds else (0, 0)
        rows.append({
            "method": name,
            "tokens_per_s": statistics.median(speeds[name]),
            "times": statistics.median(
                one / other for one, other in zip(speeds[name], speeds[BASELINE], strict=True)
            ) if BASELINE in speeds else None,
            "tokens_per_pass": sum(len(each.emitted) for each in rounds) / len(rounds) if rounds else None,
            "acceptance": accepted / proposed if proposed else None,
            "same_text": sum(each.answer.tokens == text for each, text in zip(timed, plain, strict=True)),
            "answers": len(timed),
        })  # fmt: skip
    return rows


def _counts(rounds: Sequence[Any]) -> list[tuple[int, int]]:
    return [(len(each.proposals), each.counts.accepted) for each in rounds]


def gains(passes: dict[str, Any]) -> dict[float, float]:
    """By acceptance of a draft token, plain decoding's time over that with drafts, of these passes alone."""
    one, more = passes["target"][1], passes["target"][LENGTH + 1] + LENGTH * passes["drafter"]
    return {rate: one * (1 - rate ** (LENGTH + 1)) / (1 - rate) / more for rate in RATES}


# ---------------------------------------------------------------- the report


def markdown(report: dict[str, Any]) -> str:
    about, models = report["environment"], report["models"]
    sizes = list(next(iter(report["passes"].values()))["target"])
    passes = markdown_table(
        ["ms", *(f"{size} rows" if size > 1 else "1 row" for size in sizes), "a drafter's step"],
        [
            [graphs, *(f"{1e3 * each:.2f}" for each in (*taken["target"].values(), taken["drafter"]))]
            for graphs, taken in report["passes"].items()
        ],
    )
    expected = markdown_table(
        [f"acceptance of a token, {LENGTH} of them", *RATES],
        [
            [graphs, *(f"{down(each, 2)}x" for each in gains(taken).values())]
            for graphs, taken in report["passes"].items()
        ],
    )
    answers = markdown_table(
        ["method", "tokens/s", f"over {BASELINE}", "tokens per pass", "acceptance", "same text as plain"],
        [
            [
                row["method"], down(row["tokens_per_s"], 1), down(row["times"], 2), down(row["tokens_per_pass"], 2),
                down(row["acceptance"], 2), f"{row['same_text']} of {row['answers']}",
            ]
            for row in report["answers"]
        ],
    )  # fmt: skip
    random = "" if report["settings"]["target"] else (
        "\nThe target is random: its text is no language, and acceptance and tokens per pass say nothing of real "
        "models. The second table has what passes of these costs gain at a given acceptance.\n"
    )  # fmt: skip
    left_out = "".join(f"\nLeft out: {name} ({reason})\n" for name, reason in report["left_out"].items())
    trial = "" if about["device"] != "cpu" else "\nA trial on the CPU, without graphs: no figure says anything.\n"
    return (
        f"# Decoding on {about['device']}\n\n{about['date']}, commit {about['commit']}, torch {about['torch']}, "
        f"transformers {about['transformers']}. Target: {models['target']}; drafter: {models['drafter']}; "
        f"{models['dtype']}; {report['seconds']:.0f} s in all.\n{trial}{random}\n"
        f"Tests on the device: {report['tests']['said']}\n\n{passes}\n{expected}\n{answers}{left_out}\n"
        "In 16 bits logits depend on the number of tokens in a pass, so near ties may be decided differently.\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
