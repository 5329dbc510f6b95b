"""Demonstration on the embedded models: plain `generate` of transformers and drafting, timed in turns.

Greedy decoding in fp32, so every token can be compared; the command line prints the figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from omnidraft.api import OmniDraft, load
from omnidraft.decoding.stats import Stats

NEW_TOKENS = 96
REPEATS = 3
BUDGET_S = 30.0  # for one target: fewer repeats on a slow machine
# Written for this demonstration, in the two forms that the embedded targets were trained on.
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


Decode = Callable[[list[int], int], list[int]]  # prompt ids, new tokens -> answer ids


@dataclass(frozen=True, kw_only=True)
class Result:
    """Figures of one target; tokens per second are end to end, prefill included."""

    name: str
    identical: bool  # every token of every run
    plain_tokens_per_s: float  # plain `generate` of transformers
    tokens_per_s: float
    speedup: float
    acceptance_rate: float
    block_efficiency: float
    draft_length: float  # mean draft tokens per round, rounds without a draft included
    repeats: int


def run(
    name: str,
    target: Path,
    drafter: Path,
    say: Callable[[str], None],
    *,
    prompts: Sequence[str] = PROMPTS,
    new_tokens: int = NEW_TOKENS,
    repeats: int = REPEATS,
) -> Result:
    """Time both ways on one target, alternating which comes first; `say` receives one line per prompt.

    Times are the sums over the prompts of the median of the repeats.
    """
    model = load(target, drafter, dtype="float32", profile=None, warn=say)
    stats: list[Stats] = []
    ways = (partial(_plain, model), partial(_with_drafts, model, stats))
    ids = [model.encode_message(prompt) for prompt in prompts]
    for way in ways:
        way(ids[0], 2)  # the first call allocates
    stats.clear()
    seconds: list[list[tuple[float, float]]] = [[] for _ in ids]
    count, identical, began, repeat = 0, True, time.perf_counter(), 0
    while repeat < repeats and (repeat == 0 or (time.perf_counter() - began) * (repeat + 1) / repeat <= BUDGET_S):
        for number, prompt in enumerate(ids):
            (expected, plain_s), (given, drafted_s) = _in_turns(ways, prompt, new_tokens, (repeat + number) % 2 == 1)
            seconds[number].append((plain_s, drafted_s))
            identical = identical and given == expected
            if repeat == 0:
                count += len(expected)
                say(
                    f"{name}, prompt {number + 1} of {len(ids)}: {len(expected)} tokens in {plain_s:.2f} s by plain "
                    f"generate, {drafted_s:.2f} s with drafts, {'identical' if given == expected else 'NOT IDENTICAL'}"
                )
        repeat += 1
    plain_s, drafted_s = (sum(statistics.median(times[i] for times in prompt) for prompt in seconds) for i in (0, 1))
    total = Stats.sum(stats)
    return Result(
        name=name,
        identical=identical,
        plain_tokens_per_s=count / plain_s,
        tokens_per_s=count / drafted_s,
        speedup=plain_s / drafted_s,
        acceptance_rate=total.acceptance_rate,
        block_efficiency=total.block_efficiency,
        draft_length=total.drafted / total.rounds,
        repeats=repeat,
    )


def _in_turns(
    ways: Sequence[Decode], prompt: list[int], new_tokens: int, swapped: bool
) -> list[tuple[list[int], float]]:
    """The answer and seconds of each way; `swapped` runs the last one first, as the second finds warm caches."""
    results = []
    for way in reversed(ways) if swapped else ways:
        start = time.perf_counter()
        results.append((way(prompt, new_tokens), time.perf_counter() - start))
    return results[::-1] if swapped else results


def _plain(model: OmniDraft, prompt: list[int], new_tokens: int) -> list[int]:
    """Answer with `generate` of transformers, the target alone."""
    ids = torch.tensor([prompt])
    output = model.target.lm.model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new_tokens, pad_token_id=0
    )
    return [int(token) for token in output[0, len(prompt) :]]


def _with_drafts(model: OmniDraft, stats: list[Stats], prompt: list[int], new_tokens: int) -> list[int]:
    answer = model.generate(prompt, max_new_tokens=new_tokens, temperature=0.0)
    stats.append(answer.stats)
    return list(answer.token_ids)
