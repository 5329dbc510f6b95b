"""Counts, times and rates of decoding, summed over the records of rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnidraft.verification.round import Round


COUNTS = (
    *("accepted", "counted", "symbols", "symbols_accepted"),
    *("ngrams_proposed", "ngrams_accepted", "false_merges"),
)
TIMES = ("draft_s", "verify_s", "overhead_s", "policy_s")


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Counts and times (seconds) of any number of rounds; each round is one forward pass of the target.

    The first round of a request holds the prefill, in `verify_s` for the target and `draft_s` for the drafter.
    """

    rounds: int = 0
    tokens: int = 0  # target tokens emitted
    drafted: int = 0  # draft tokens
    counted: int = 0  # of them, drawn from the counts alone, without a pass of the drafter
    proposed: int = 0  # target tokens put to the target
    accepted: int = 0
    symbols: int = 0
    symbols_accepted: int = 0
    ngrams_proposed: int = 0
    ngrams_accepted: int = 0
    false_merges: int = 0
    rounds_without_draft: int = 0  # rounds in which the stop policy wanted no draft
    no_draft_reason: str | None = None  # a phrase: the reason that came up most
    draft_s: float = 0.0
    verify_s: float = 0.0
    overhead_s: float = 0.0
    policy_s: float = 0.0

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Stats:
        """Fold the records of rounds, in any order and of any number of texts."""
        rounds = list(rounds)
        reasons = Counter(r.no_draft_reason for r in rounds if r.no_draft_reason)
        return cls(
            rounds=len(rounds),
            tokens=sum(len(r.emitted) for r in rounds),
            drafted=sum(len(r.draft) for r in rounds),
            proposed=sum(len(r.proposals) for r in rounds),
            rounds_without_draft=reasons.total(),
            no_draft_reason=_commonest(reasons),
            **{name: sum(getattr(r.counts, name) for r in rounds) for name in COUNTS},
            **{name: sum(getattr(r.times, name) for r in rounds) for name in TIMES},
        )

    @classmethod
    def sum(cls, several: Iterable[Stats]) -> Stats:
        """The counts and times of several texts together."""
        several = list(several)
        reasons: Counter[str] = Counter()
        for each in several:
            if each.no_draft_reason is not None:
                reasons[each.no_draft_reason] += each.rounds_without_draft
        sums = {
            f.name: sum(getattr(each, f.name) for each in several) for f in fields(cls) if f.name != "no_draft_reason"
        }
        return cls(**sums, no_draft_reason=_commonest(reasons))

    @property
    def seconds(self) -> float:
        return self.draft_s + self.verify_s + self.overhead_s + self.policy_s

    @property
    def tokens_per_s(self) -> float:
        return _ratio(self.tokens, self.seconds)

    @property
    def draft_length(self) -> float:
        """Mean number of draft tokens in a round, rounds without a draft included."""
        return _ratio(self.drafted, self.rounds)

    @property
    def acceptance_rate(self) -> float:
        """Accepted / proposed target tokens; 0 where nothing was proposed."""
        return _ratio(self.accepted, self.proposed)

    @property
    def symbol_acceptance_rate(self) -> float:
        """Accepted / proposed symbols; 0 where nothing was proposed."""
        return _ratio(self.symbols_accepted, self.symbols)

    @property
    def block_efficiency(self) -> float:
        """Target tokens emitted per forward pass of the target: 1 for plain decoding."""
        return _ratio(self.tokens, self.rounds)

    def as_dict(self) -> dict[str, int | float | str | None]:
        """Every count, time and ratio by name, for JSON."""
        ratios = (
            *("seconds", "tokens_per_s", "draft_length", "acceptance_rate"),
            *("symbol_acceptance_rate", "block_efficiency"),
        )
        return asdict(self) | {name: getattr(self, name) for name in ratios}


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


def _commonest(reasons: Counter[str]) -> str | None:
    return reasons.most_common(1)[0][0] if reasons else None
