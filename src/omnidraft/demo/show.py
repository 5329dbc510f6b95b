"""The demonstration: the models that ship with the package, with and without the drafter, beside `transformers`.

Greedy, in fp32.  The first act: every prompt is answered once by `transformers` alone and once with the drafter, to be
looked at and to compare the tokens; then plain and speculative decoding take turns against the clock.  In the second,
in `second_act`, the drafter learns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from omnidraft import zoo
from omnidraft.api import OmniDraft, load
from omnidraft.attach import make_cache
from omnidraft.config import Sampling
from omnidraft.decoding.engine import Engine
from omnidraft.decoding.stats import Stats
from omnidraft.demo import second_act
from omnidraft.demo.learning_curve import check_folder, down
from omnidraft.demo.terminal import bars, display
from omnidraft.detokenizer import Detokenizer
from omnidraft.models.language_model import LanguageModel
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import GeneratorSampler

NEW_TOKENS = 96
REPEATS = 3
BUDGET_S = 60.0  # for the runs against the clock: fewer repeats where the machine is slow
ACCEPTED, OWN = "green", "bold yellow"
PROBES = 15  # forward passes whose median is a step's cost
PROBED = 3  # tokens of a pass of verification that is timed
LENGTHS = 40  # rounds whose draft lengths are shown at a time
# Written for this demonstration, in the two forms that the embedded targets know; as a chat where they have a template.
QUESTIONS = (
    "Nora picks 14 baskets of plums with 9 plums in each. She gives 37 plums away. How many plums does she have left?",
    "A bus has 23 passengers. At one stop 8 people get off and twice as many get on. How many passengers has it now?",
    "Tomas saves $15 every week for 6 weeks. He buys a lamp for $28 and two books for $11 each. How much is left?",
    "A garden has 7 rows of 12 tulips. A third of all the tulips are red. How many tulips are not red?",
    "Irene runs 4 miles on each of 5 weekdays and 10 miles on Saturday. How many miles does she run in 3 weeks?",
)
TASKS = {
    "Write a function to count how many numbers of a list are larger than a given number.": (
        "assert count_larger([4, 9, 2, 7], 3) == 3"
    ),
    "Write a python function to join the first letters of the words of a sentence.": (
        'assert first_letters("open the old gate") == "otog"'
    ),
    "Write a function to find the difference between the largest and the smallest element of a tuple.": (
        "assert spread((8, 3, 11, 5)) == 8"
    ),
}
PROMPTS = (
    *(f"Question: {question}\nAnswer:" for question in QUESTIONS),
    *(f"Task: {task}\n{test}\nSolution:\n" for task, test in TASKS.items()),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What the demonstration found out about one target; a step is one forward pass of one token."""

    name: str
    identical: bool  # to `transformers`, plain and speculative, every token of every run
    plain_tokens_per_s: float
    tokens_per_s: float
    speedup: float
    acceptance_rate: float
    block_efficiency: float
    drafter_step: float  # cost of a drafter step, in target steps
    verify_step: float  # cost of a pass over PROBED tokens, in target steps
    draft_len: float  # tokens of a draft on average, rounds without one included
    longest_draft: int
    repeats: int


def main(*, as_json: bool, out: Path | None = None) -> int:
    """Run both acts on the models that ship, keeping the curve of the second in a folder where one is given.

    1 where a token differs from what the target alone says; raises InputError where the folder cannot be written.
    """
    if out is not None:
        check_folder(out)
    console = Console(stderr=as_json, highlight=False)
    targets = {name: zoo.path(name) for name in zoo.names("target")}
    drafter = zoo.path(zoo.names("drafter")[0])
    results = run(console, targets, drafter)
    show(console, results)
    curve = second_act.run(console, targets[second_act.TARGET], drafter)
    second_act.show(console, curve, out)
    if as_json:
        found = {"targets": [asdict(result) for result in results], "learning": curve.as_dict()}
        sys.stdout.write(json.dumps(found) + "\n")
    return 0 if curve.sound and all(result.identical for result in results) else 1


def run(
    console: Console,
    targets: Mapping[str, Path],
    drafter: Path,
    *,
    prompts: Sequence[str] = PROMPTS,
    new_tokens: int = NEW_TOKENS,
    repeats: int = REPEATS,
) -> list[Result]:
    """Try each target with the drafter; the display goes to `console`, live where it is a terminal."""
    results = []
    for name, folder in targets.items():
        console.print(f"{name}: loading", style="dim")
        model = load(folder, drafter, dtype="float32", profile=None, warn=console.print)
        bench = _Bench(model, [model.encode_message(prompt) for prompt in prompts], new_tokens)
        results.append(bench.result(name, console, repeats, BUDGET_S / len(targets)))
    return results


def show(console: Console, results: Sequence[Result]) -> None:
    """Print the figures, and loudly what must not be."""
    table = Table("", *(result.name for result in results), title="greedy decoding in fp32")
    rows: dict[str, Callable[[Result], str]] = {
        "tokens/s of the target alone": lambda r: down(r.plain_tokens_per_s, 1),
        "tokens/s with the drafter": lambda r: down(r.tokens_per_s, 1),
        "speedup": lambda r: down(r.speedup, 2) + "x",
        "acceptance rate": lambda r: down(r.acceptance_rate, 2),
        "block efficiency (tokens a pass)": lambda r: down(r.block_efficiency, 2),
        "cost of a drafter step, in target steps": lambda r: f"{r.drafter_step:.2f}",
        "draft tokens a round, as it pays": lambda r: f"{r.draft_len:.2f}, at most {r.longest_draft}",
        f"cost of verifying {PROBED} tokens, likewise": lambda r: f"{r.verify_step:.2f}",
        "identical to transformers' own tokens": lambda r: "yes" if r.identical else "NO",
    }
    for row, figure in rows.items():
        table.add_row(row, *map(figure, results))
    console.print(table)
    repeats = min(result.repeats for result in results)
    console.print(
        f"threads: {torch.get_num_threads()}; repeats, of which the median: {repeats}; "
        "times include the prompts; the two ways took turns"
    )
    for r in results:
        if not r.identical:
            console.print(f"{r.name}: THE TOKENS DIFFER from the target's own. This is a bug.", style="bold red")


@dataclass
class _Lap:
    """One turn of each way of decoding over all prompts."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by way, for each prompt
    rounds: dict[str, list[Round]] = field(default_factory=lambda: defaultdict(list))


class _Bench:
    """One target with its drafter and its prompts."""

    def __init__(self, model: OmniDraft, prompts: Sequence[list[int]], new_tokens: int) -> None:
        self.model = model
        self.prompts = prompts
        self.new_tokens = new_tokens
        if model.engine.pair is None:
            raise ValueError("the demonstration needs a drafter")
        self.pair = model.engine.pair
        self.plain = Engine(model.target.lm, tuple(model.engine.eos))

    def result(self, name: str, console: Console, repeats: int, budget_s: float) -> Result:
        expected = [self._alone(prompt) for prompt in self.prompts]
        shown, engine = [], self._speculative()
        for number, (prompt, tokens) in enumerate(zip(self.prompts, expected, strict=True)):
            rounds = self._show(console, engine, prompt)
            same = _tokens(rounds) == tokens
            shown.append(same)
            console.print(
                f"{name}, prompt {number + 1} of {len(self.prompts)}: {len(tokens)} tokens, "
                f"{down(Stats.of(rounds).block_efficiency, 2)} a pass, {'identical' if same else 'NOT IDENTICAL'}; "
                f"draft tokens of the last rounds: {bars(_drafted(rounds), LENGTHS)}"
            )
        laps, same = self._race(expected, repeats, budget_s)
        plain, speculative = (_medians([lap.seconds[kind] for lap in laps]) for kind in ("plain", "speculative"))
        drafting = [record for lap in laps for record in lap.rounds["speculative"]]
        stats, count = Stats.of(drafting), sum(map(len, expected))
        target_step, verify, drafter_step = self._steps()
        return Result(
            name=name,
            identical=same and all(shown),
            plain_tokens_per_s=count / plain,
            tokens_per_s=count / speculative,
            speedup=plain / speculative,
            acceptance_rate=stats.acceptance_rate,
            block_efficiency=stats.block_efficiency,
            drafter_step=drafter_step / target_step,
            verify_step=verify / target_step,
            draft_len=stats.drafted / stats.rounds,
            longest_draft=max(_drafted(drafting)),
            repeats=len(laps),
        )

    def _speculative(self) -> Engine:
        """An engine with n-grams of its own, so that no run profits from those of the runs before it.

        What was measured of the machine and of the drafter holds on.
        """
        engine = self.model.engine
        fresh = replace(self.pair, cache=make_cache(self.pair.cache.table, engine.drafting))
        return Engine(engine.target, tuple(engine.eos), fresh, engine.drafting, engine.stopping)

    def _alone(self, prompt: list[int]) -> list[int]:
        """What `transformers` alone answers."""
        ids = torch.tensor([prompt])
        output = self.model.target.lm.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=self.new_tokens,
            pad_token_id=0,
        )
        return [int(token) for token in output[0, len(prompt) :]]

    def _rounds(self, engine: Engine, prompt: list[int]) -> Iterator[Round]:
        return engine.rounds(prompt, self.new_tokens, Sampling(), GeneratorSampler(torch.Generator()))

    def _race(self, expected: list[list[int]], repeats: int, budget_s: float) -> tuple[list[_Lap], bool]:
        """Plain and speculative decoding of all prompts in turns; whether every token is right."""
        laps: list[_Lap] = []
        same, began = True, time.perf_counter()
        for repeat in range(repeats):
            if repeat and (time.perf_counter() - began) * (repeat + 1) / repeat > budget_s:
                break
            engines = {"plain": self.plain, "speculative": self._speculative()}
            lap = _Lap()
            for number, prompt in enumerate(self.prompts):
                # whoever comes second finds warm caches: they take turns at that as well
                for kind in sorted(engines, reverse=(repeat + number) % 2 == 1):
                    start = time.perf_counter()
                    rounds = list(self._rounds(engines[kind], prompt))
                    lap.seconds[kind].append(time.perf_counter() - start)
                    lap.rounds[kind] += rounds
                    same = same and _tokens(rounds) == expected[number]
            laps.append(lap)
        return laps, same

    def _steps(self) -> tuple[float, float, float]:
        """Median seconds of one token through the target, of PROBED tokens, and of a draft step."""
        target, drafter, text = self.model.target.lm, self.pair.drafter.model, self.prompts[0]
        probes: list[tuple[LanguageModel, list[int]]] = [(target, text[:1]), (target, text[:PROBED]), (drafter, [0])]
        taken: list[list[float]] = [[] for _ in probes]
        for model, ids in ((target, text), (drafter, self.pair.translator.prompt(text))):
            model.crop(0)
            model.forward(ids, 1)
        for _ in range(PROBES):
            for (model, ids), times in zip(probes, taken, strict=True):
                length = model.length
                began = time.perf_counter()
                model.forward(ids, len(ids))
                times.append(time.perf_counter() - began)
                model.crop(length)
        one, whole, draft = (statistics.median(times) for times in taken)
        return one, whole, draft

    def _show(self, console: Console, engine: Engine, prompt: list[int]) -> list[Round]:
        """Answer one prompt in front of the viewer: accepted tokens in one color, the target's own in another."""
        text, rounds = self.model.text_after(prompt), []
        answer = Text().append(Detokenizer(self.model.vocab.tokens).feed(prompt), style="dim")
        with display(console) as live:
            for record in self._rounds(engine, prompt):
                rounds.append(record)
                if live is None:
                    continue
                for place, token in enumerate(record.emitted):
                    answer.append(text.feed([token]), style=ACCEPTED if place < record.accepted else OWN)
                state = f"{Stats.of(rounds).block_efficiency:.2f} tokens a pass of the target: "
                legend = Text.assemble(state, ("accepted drafts", ACCEPTED), " and ", ("the target's own", OWN))
                lengths = Text.assemble(
                    "draft tokens of the last rounds: ", (bars(_drafted(rounds), LENGTHS), ACCEPTED)
                )
                lines = answer.wrap(console, console.width)[-max(1, console.height - 3) :]
                live.update(Group(*lines, legend, lengths), refresh=True)
        return rounds


def _medians(laps: list[list[float]]) -> float:
    """Seconds for all prompts: for each the median over the laps."""
    return sum(float(statistics.median(times)) for times in zip(*laps, strict=True))


def _drafted(rounds: Sequence[Round]) -> list[int]:
    return [len(record.draft) for record in rounds]


def _tokens(rounds: Sequence[Round]) -> list[int]:
    return [token for record in rounds for token in record.emitted]
