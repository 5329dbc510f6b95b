"""Goodput where rows are verified in one pass: a draft token of any row delays all of them.

Costs are those of the pass, in plain steps of a single row, so that they hold for any number of rows.  Acceptance and
gain are a row's own.  So the more rows there are, the more a draft token has to gain, and a loaded batch gets none.
"""

from __future__ import annotations

from omnidraft.draft_length.acceptance import DISCOUNT
from omnidraft.draft_length.acceptance_head import Head
from omnidraft.draft_length.cost_model import LEVEL_MEMORY, PREFILL, PRIOR_COST, STALL, CostModel, Linear
from omnidraft.draft_length.goodput_policy import EXPLORATION, Goodput
from omnidraft.verification.round import Round, RoundCounts, RoundTimes

SPREAD = 8  # rows that the costs before any measurement are for
SHORTEST_S = 1e-6  # for an id


class BatchCosts:
    """Cost and gain of a pass over several rows, measured outside the engines that verify.

    `row` is the cost of another row before any measurement, `most` how many there may be.
    """

    def __init__(self, row: float = 0.0, most: int = 2) -> None:
        self.costs, self.most = CostModel(row), most
        # of a batch, which a token or a step of one row delays by less than it would delay the row alone
        for each in (self.costs.steps, self.costs.tokens):
            each.weights = [PRIOR_COST / SPREAD] * 2
        self.costs.prefill.weights = [PRIOR_COST / PREFILL / SPREAD]
        self._rows = 1
        self._by_rows = {1: self.costs.tokens}  # by the binary digits of the number of rows
        self._tokens = self._time = 1.0  # of the latest passes: tokens a row, and passes without drafts
        self.prompt_id_s = 0.0  # seconds for an id of a prompt; 0 before any is measured
        self.unmeasured = 0  # passes in a row with ids of prompts, which say nothing of other costs
        self._chunks = 0

    @property
    def rows(self) -> int:
        """Rows of the present pass."""
        return self._rows

    @rows.setter
    def rows(self, rows: int) -> None:
        """Take the costs of draft tokens that were measured beside about as many rows.

        The more rows there are, the less of a token is hidden behind the reading of the weights.
        """
        self._rows, size = rows, rows.bit_length()
        if size not in self._by_rows:
            self._by_rows[size] = Linear(*self.costs.tokens.weights)
        self.costs.tokens = self._by_rows[size]

    @property
    def rate(self) -> float:
        """Target tokens of all rows, without drafts, per plain step of a single row."""
        return self.rows / self._plain(self.rows)

    @property
    def goodput(self) -> float:
        """Target tokens of all rows per plain step of a single row; no less than without drafts."""
        return max(1.0, self._tokens / self._time) * self.rate

    def learn(
        self, *, rows: int, emitted: int, proposed: int, passes: int, read: int, draft_s: float, verify_s: float
    ) -> None:
        """Update with a pass in which every row decoded: `proposed` tokens were verified in `verify_s`."""
        self.unmeasured = 0
        counts = RoundCounts(draft_passes=passes, draft_read=read)
        times = RoundTimes(draft_s=draft_s, verify_s=verify_s)
        self.costs.learn(Round(emitted=(), draft=(0,) * proposed, counts=counts, times=times), first=False, rows=rows)
        for each, count in ((self.costs.steps, passes), (self.costs.tokens, proposed)):
            if count and rows > 1:  # several rows have a first one: no first differs from the others
                each.weights = [each.of(count) / count] * 2
        if plain := self.costs.seconds * self._plain(rows):
            self._tokens = DISCOUNT * self._tokens + emitted / rows
            self._time = DISCOUNT * self._time + min((draft_s + verify_s) / plain, STALL * emitted / rows)

    def learn_prompt(self, count: int, seconds: float) -> None:
        """Update with the time of a pass that read `count` ids of prompts."""
        self.unmeasured += 1
        # what the rows beside it take would else count as that of few ids, and ever fewer were read
        added = max(0.0, seconds - self.costs.seconds * self._plain(self.rows)) / count
        if self._chunks:
            added = min(added, STALL * self.prompt_id_s)
        self._chunks = min(LEVEL_MEMORY, self._chunks + 1)
        self.prompt_id_s = max(SHORTEST_S, self.prompt_id_s + (added - self.prompt_id_s) / self._chunks)

    def _plain(self, rows: int) -> float:
        """Cost of a pass over this number of rows without drafts."""
        return 1 + self.costs.rows(rows - 1)


class RowGoodput(Goodput):
    """The policy of one row of a batch."""

    def __init__(self, longest: int, head: Head | None, batch: BatchCosts, *, alone: bool = False) -> None:
        super().__init__(longest, head, alone=alone)
        self.costs, self._batch = batch.costs, batch

    @property
    def goodput(self) -> float:
        return self._batch.goodput

    @property
    def _prefill(self) -> float:
        return super()._prefill * self._batch.rate

    def _learn_costs(self, record: Round) -> None:
        """Update the costs of the batch."""

    def _learn_goodput(self, record: Round) -> None:
        """Loss of the current exploration: the tokens of all rows without drafts, less the tokens gained."""
        passes = record.counts.draft_passes
        if passes and self._budget > 0:
            delay = self.costs.steps.of(passes) + self.costs.tokens.of(len(record.draft))
            gained = len(record.emitted) - 1
            self._budget = min(2 * EXPLORATION, self._budget - delay * self._batch.rate + gained)
