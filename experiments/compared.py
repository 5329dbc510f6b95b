"""Ways of decoding on the same prompts: a row for each way and repeat, beside plain decoding in that repeat."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from omnidraft.bench.interleaved import EngineWay, Timed, take_turns
from omnidraft.decoding.stats import Stats

Row = dict[str, Any]
UNITS = {"speedup": "tokens_per_s", "speedup_cpu": "tokens_per_cpu_s"}


def compared(
    ways: Sequence[EngineWay],
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    repeats: Iterable[int] = (0,),
    *,
    restart: bool = False,
) -> Iterator[Row]:
    """Answer all prompts by all ways in each repeat, some tokens in turns; the first way is plain decoding.

    With `restart`, n-grams begin anew with each repeat.  Greedy answers are `identical` where all ways say the same.
    """
    for number in repeats:
        timed: list[list[Timed]] = []
        if restart:
            for way in ways:
                way.restart()
        for place, ids in enumerate(prompts):
            timed.append(take_turns(ways, list(ids), new_tokens, 1000 * number + place, turn=place))
        identical = all(each.answer.tokens == answers[0].answer.tokens for answers in timed for each in answers)
        rows = [_row([answers[place] for answers in timed]) for place in range(len(ways))]
        for way, row in zip(ways, rows, strict=True):
            yield {
                "way": way.name,
                "repeat": number,
                **row,
                **{f"plain_{unit}": rows[0][unit] for unit in UNITS.values()},
                **{name: round(row[unit] / rows[0][unit], 4) for name, unit in UNITS.items()},
                "ways": len(ways),
                "prompts": len(prompts),
                "identical": identical if way.sampling.greedy else None,
            }


def _row(timed: Sequence[Timed]) -> Row:
    """Speed and acceptance of one way in one repeat."""
    stats = Stats.sum(Stats.of(each.answer.rounds or ()) for each in timed)
    return {
        "tokens_per_s": round(stats.tokens / sum(each.seconds for each in timed), 3),
        "tokens_per_cpu_s": round(stats.tokens / sum(each.cpu_s for each in timed), 3),
        "acceptance_rate": round(stats.acceptance_rate, 4),
        "block_efficiency": round(stats.block_efficiency, 4),
        "ngram_hits": round(stats.ngrams_accepted / stats.rounds, 4),
        "drafted": round(stats.drafted / stats.rounds, 3),
        "without_draft": round(stats.rounds_without_draft / stats.rounds, 4),
        "no_draft_reason": stats.no_draft_reason,
    }


def medians(rows: Iterable[Row]) -> dict[str, Row]:
    """By way, the median over its repeats of each figure, and the last of what is no figure."""
    ways: dict[str, list[Row]] = {}
    for row in rows:
        ways.setdefault(row["way"], []).append(row)
    return {
        way: {
            name: round(statistics.median(each[name] for each in its), 4) if isinstance(value, float) else value
            for name, value in its[-1].items()
        }
        for way, its in ways.items()
    }
