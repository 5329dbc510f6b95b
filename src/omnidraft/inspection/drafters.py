"""Several drafters for one target: which of them gives more tokens a second on this machine, and by what."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from omnidraft import zoo
from omnidraft.alignment.vocab import read_vocab
from omnidraft.api import OmniDraft
from omnidraft.attach import attach_drafter
from omnidraft.bench.interleaved import LaneMethod, Timed, interleave
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.shared_drafter import SharedDrafter
from omnidraft.decoding.stats import Stats
from omnidraft.errors import ConfigError, ModelError
from omnidraft.models.loading import load_drafter, load_model
from omnidraft.verification.round import Round

Say = Callable[[str], None]
PLAIN = "no drafts"
SECONDS = 45.0  # of answers, after which no further question is asked
TOKENS = 48  # of an answer, at most
ALIKE = 0.03  # differences in speed that such a short measurement does not show
QUESTIONS = (
    "Write a Python function that counts the vowels of a word.",
    "How do I keep cut flowers fresh for longer?",
    "Explain in three sentences what a fuse in a house is for.",
    "Write a SQL query that gives the average price of the items of each shop.",
    "Write a short e-mail that asks a hotel for a later check-out.",
    "Write a JavaScript function that removes duplicates from an array.",
    "What should I look at before I rent a flat?",
    "Tell a short story about a boy who finds a key in the snow.",
)


@dataclass(frozen=True, kw_only=True)
class DrafterFigures:
    """What came of the questions with a drafter; times are milliseconds a round, without those that read a prompt."""

    drafter: str
    tokens_per_s: float
    speedup: float  # over no drafts
    tokens_per_pass: float
    acceptance: float  # accepted / proposed target tokens
    drafts: float  # draft tokens a round
    without_draft: float  # share of the rounds
    step_ms: float | None  # a pass of the drafter; None if it made none
    draft_ms: float
    verify_ms: float
    rest_ms: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Drafters of one target, the fastest first; all answers are those without drafts, `plain`, if `identical`."""

    target: str
    plain: DrafterFigures
    drafters: tuple[DrafterFigures, ...]
    answers: int
    tokens: int
    identical: bool
    verdict: str


def compare_drafters(
    target: str | Path, drafters: Sequence[str], *, say: Say, warn: Say, clock: Callable[[], float] = time.perf_counter
) -> Comparison:
    """Let each drafter draft the target's greedy answers to the same questions, in turns with no drafts.

    Takes a minute at most, beside loading and the first question.  Raises ConfigError for a drafter that is given
    twice, ModelError for a model that does not load, or a target whose answers end at once.
    """
    for name in drafters:
        if drafters.count(name) > 1:
            raise ConfigError(f"drafter {name} is given twice: give each once")
    say(f"loading {target}")
    loaded = load_model(zoo.resolve(target), say=warn, verifies=True)
    vocab = read_vocab(loaded.tokenizer, loaded.lm.vocab_size, loaded.lm.eos)
    model = OmniDraft(loaded, vocab, Lane(loaded.lm, vocab.eos))
    methods = [LaneMethod(PLAIN, model.lane, Sampling())]
    drafting = Drafting(reuse_answers="nothing")
    for name in drafters:
        say(f"loading {name}")
        drafter = load_drafter(zoo.resolve(name), say=warn)
        shared = SharedDrafter(drafter.lm)
        attached = attach_drafter(loaded, vocab, drafter, drafting, warn, shared)
        methods.append(LaneMethod(name, Lane(loaded.lm, vocab.eos, attached, drafting), Sampling()))
    say("answering questions")
    ids = [model.encode_message(question) for question in QUESTIONS]
    interleave(methods, ids[0], 8)  # the first passes allocate memory
    answers: list[list[Timed]] = []
    began = now = clock()
    while len(answers) < len(ids) and (not answers or now + (now - began) / len(answers) <= began + SECONDS):
        answers.append(interleave(methods, ids[len(answers)], TOKENS, turn=len(answers)))
        now = clock()
    return comparison_of(loaded.name, [PLAIN, *drafters], answers)


def comparison_of(target: str, names: Sequence[str], answers: Sequence[Sequence[Timed]]) -> Comparison:
    """The comparison of answers to each question, (questions, names), of which the first name is that of no drafts."""
    ways = list(zip(*answers, strict=True))
    rounds = [[record for each in way for record in (each.answer.rounds or [])[1:]] for way in ways]
    if not rounds[0]:
        raise ModelError(f"target {target!r} ends its answers with the first token, so nothing is measured: check it")
    tokens_per_s = Stats.of(rounds[0]).tokens_per_s
    plain, *drafted = (_figures(name, each, tokens_per_s) for name, each in zip(names, rounds, strict=True))
    rows = sorted(drafted, key=lambda row: -row.tokens_per_s)
    said, *others = ([each.answer.tokens for each in way] for way in ways)
    return Comparison(
        target=target,
        plain=plain,
        drafters=tuple(rows),
        answers=len(answers),
        tokens=sum(map(len, said)),
        identical=all(each == said for each in others),
        verdict=verdict(rows),
    )


def _figures(name: str, rounds: Sequence[Round], plain_tokens_per_s: float) -> DrafterFigures:
    stats, passes = Stats.of(rounds), sum(record.counts.draft_passes for record in rounds)
    count = max(1, stats.rounds)  # drafts may have made the whole answer in the first
    return DrafterFigures(
        drafter=name,
        tokens_per_s=stats.tokens_per_s,
        speedup=stats.tokens_per_s / plain_tokens_per_s,
        tokens_per_pass=stats.block_efficiency,
        acceptance=stats.acceptance_rate,
        drafts=stats.draft_length,
        without_draft=stats.rounds_without_draft / count,
        step_ms=1e3 * stats.draft_s / passes if passes else None,
        draft_ms=1e3 * stats.draft_s / count,
        verify_ms=1e3 * stats.verify_s / count,
        rest_ms=1e3 * (stats.overhead_s + stats.policy_s) / count,
    )


def verdict(rows: Sequence[DrafterFigures]) -> str:
    """Which of the drafters, the fastest first, to take, and why."""
    first, second = rows[:2]
    if first.speedup < 1 - ALIKE:
        return (
            f"none of them pays here: the best, {first.drafter}, makes {first.speedup:.2f}x the tokens/s of no drafts"
        )
    why = (
        f"{first.tokens_per_pass:.2f} in place of {second.tokens_per_pass:.2f} tokens a pass of the target, "
        f"for {first.draft_ms:.1f} in place of {second.draft_ms:.1f} ms of drafting a round"
    )
    gain = first.tokens_per_s / second.tokens_per_s if second.tokens_per_s else float("inf")
    if gain < 1 + ALIKE:
        return f"{first.drafter} and {second.drafter} are equally fast within {ALIKE:.0%}, with {why}"
    return f"take {first.drafter}: {gain:.2f}x the tokens/s of {second.drafter}, with {why}"
