"""Goodput where rows are verified in one batch: a draft token of any row delays all of them.

Costs and goodput are those of the batch, in plain steps of the batch; acceptance and gain are a row's own.  So the more
rows there are, the more a draft token has to gain, and a loaded batch gets none.
"""

from __future__ import annotations

from omnidraft.draft_length.acceptance import DISCOUNT
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.cost_model import PREFILL, PRIOR, STALL, CostModel
from omnidraft.draft_length.goodput import EXPLORATION, Goodput
from omnidraft.verification.round import Round, RoundCounts, RoundTimes

SPREAD = 8  # rows that the costs before any measurement are for


class BatchCosts:
    """What a step of the batch costs and brings, measured from outside the engine that verifies."""

    def __init__(self) -> None:
        self.costs = CostModel()
        # of a batch, which a token or a step of one row delays by less than it would delay the row alone
        for each in (self.costs.steps, self.costs.tokens):
            each.weights = [PRIOR / SPREAD] * 2
        self.costs.prefill.weights = [PRIOR / PREFILL / SPREAD]
        self.rows = 1  # of the present step
        self._tokens = self._time = 1.0  # of the latest steps

    @property
    def goodput(self) -> float:
        """Target tokens of all rows per plain step of the batch; plain decoding has one for each row."""
        return max(float(self.rows), self._tokens / self._time)

    def learn(
        self, *, rows: int, emitted: int, proposed: int, passes: int, read: int, draft_s: float, verify_s: float
    ) -> None:
        """Take in a step in which every row decoded: `proposed` tokens were verified in `verify_s`."""
        counts = RoundCounts(draft_passes=passes, draft_read=read)
        times = RoundTimes(draft_s=draft_s, verify_s=verify_s)
        self.costs.learn(Round(emitted=(), draft=(0,) * proposed, counts=counts, times=times), first=False)
        for each, count in ((self.costs.steps, passes), (self.costs.tokens, proposed)):
            if count:  # several rows have a first one: no first differs from the others
                each.weights = [each.of(count) / count] * 2
        if plain := self.costs.seconds:
            self._tokens = DISCOUNT * self._tokens + emitted
            self._time = DISCOUNT * self._time + min((draft_s + verify_s) / plain, STALL * emitted / rows)


class RowGoodput(Goodput):
    """The policy of one row of a batch."""

    def __init__(self, longest: int, head: Head | None, batch: BatchCosts) -> None:
        super().__init__(longest, head)
        self.costs, self._batch = batch.costs, batch

    @property
    def goodput(self) -> float:
        return self._batch.goodput

    @property
    def _prefill(self) -> float:
        return super()._prefill * self._batch.rows

    def _learn_costs(self, record: Round) -> None:
        """The batch learns them."""

    def _learn_goodput(self, record: Round) -> None:
        """What the present exploration has lost: the delay of all rows, less the tokens gained."""
        passes = record.counts.draft_passes
        if passes and self._budget > 0:
            delay = self.costs.steps.of(passes) + self.costs.tokens.of(len(record.draft))
            gained = len(record.emitted) - 1
            self._budget = min(2 * EXPLORATION, self._budget - delay * self._batch.rows + gained)
