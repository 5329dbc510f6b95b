"""The n-gram cache: the spellings of several drafter tokens that are active, with their records of use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from omnidraft.alignment.spelling_table import ROOT, Probs, SpellingTable
from omnidraft.config import NGRAM_SEEDS
from omnidraft.errors import ModelError

Ints = npt.NDArray[np.int32]
_RECORDS = ("hits", "false_merges", "last_use")
FALSE_MERGES_BEFORE_OFF = 4  # number of failures from which on an n-gram needs at least as many hits


class NgramCache:
    """The active set over a spelling table: the trie as seen by the walk and verification.

    A target token whose spelling has one drafter token is always active; an n-gram is active or not.  A node is
    *live* while an active token lies at or below it.  Inactive tokens, and those that own no spelling, lie
    `outside` the trie: symbols of their own at the root, never proposed.

    `seed="vocabulary"` starts with every n-gram active, `seed="empty"` with none; an n-gram becomes active when
    the target emits it.  `frozen` never changes: with seed "empty" that is the plain vocabulary intersection.
    """

    def __init__(
        self,
        table: SpellingTable,
        *,
        seed: str = "vocabulary",
        frozen: bool = False,
    ) -> None:
        self.table = table
        self.seed = seed
        self.frozen = frozen
        lengths = np.diff(table.offsets)
        self._order = table.order.astype(np.intp)  # numpy gathers twice as fast by intp
        self._ngram = (table.node >= 0) & (lengths > 1)
        # drafter tokens that stand for whole target tokens, and the root child where the first of these begins
        self._long = np.flatnonzero(np.diff(table.long_offsets)).astype(np.int32)
        begins = table.long_flat[table.long_offsets[self._long]]
        self._long_root = table.root[table.flat[table.offsets[begins]]]
        self.hits: Ints = np.zeros(table.target_size, np.int32)
        self.false_merges: Ints = np.zeros(table.target_size, np.int32)
        self.last_use: Ints = np.zeros(table.target_size, np.int32)
        self._clock = 0
        active = (table.node >= 0) & ((lengths == 1) | (seed == "vocabulary"))
        self._set_active(active)

    # ------------------------------------------------------------ queries of the walk

    def child(self, node: int, draft: int) -> int:
        """The active child of `node` under a drafter token, or -1."""
        child = self.table.child(node, draft)
        return child if child >= 0 and self._live[child] > 0 else -1

    def children(self, node: int) -> Ints:
        """The active children of `node`, sorted by symbol."""
        nodes = np.arange(self.table.first[node], self.table.first[node + 1], dtype=np.int32)
        return nodes[self._live[nodes] > 0] if self._partial else nodes

    def token_at(self, node: int) -> int:
        """The active target token whose spelling ends at `node`, or -1."""
        token = int(self.table.ends[node])
        return token if token >= 0 and self.active[token] else -1

    def leaf(self, node: int) -> bool:
        """True if `node` has no active child, so that the token that ends there is complete."""
        return int(self._live[node]) == (self.token_at(node) >= 0)

    def long(self, draft: int) -> Ints:
        """The target tokens t₁ t₂ … proposed by a drafter token without root child; empty if there are none."""
        table = self.table
        tokens: Ints = table.long_flat[table.long_offsets[draft] : table.long_offsets[draft + 1]]
        return tokens if self._proposes[draft] >= 0 else tokens[:0]

    # ------------------------------------------------------------ masses

    def tokens(self, node: int) -> Ints:
        """The target tokens of a node's interval in spelling order, inactive ones left out."""
        low, high = int(self.table.lo[node]), int(self.table.hi[node])
        tokens: Ints = self.table.order[low:high]
        return tokens[self.active[tokens]] if self._partial else tokens

    def mass(self, p: Probs, node: int) -> float:
        """Mass of p (V_p,) under a node: the sum over its interval."""
        low, high = int(self.table.lo[node]), int(self.table.hi[node])
        weights = p.take(self._order[low:high])
        if self._partial:
            weights = weights[self._active_in_order[low:high]]
        return float(weights.sum(dtype=np.float64))

    def child_masses(self, p: Probs, node: int, children: Ints) -> npt.NDArray[np.float64]:
        """Masses of p under each of a node's active `children`, summed in float64 in one pass."""
        if not len(children):
            return np.empty(0)
        low, high = int(self.table.lo[children[0]]), int(self.table.hi[node])
        weights = p.take(self._order[low:high])
        if self._partial:
            weights *= self._active_in_order[low:high]
        # between one child and the next lie only inactive tokens, which weigh nothing
        masses: npt.NDArray[np.float64] = np.add.reduceat(weights, self.table.lo[children] - low, dtype=np.float64)
        return masses

    def root_proposals(self, q: Probs) -> npt.NDArray[np.float64]:
        """Q of every root child by node, (children + 1,): q (V_q,) summed over all drafter tokens that propose it."""
        size = int(self.table.first[1])  # root children are the nodes 1 … size-1
        masses = np.bincount(self._proposes[self._proposing], weights=q[self._proposing], minlength=size)
        return masses.astype(np.float64, copy=False)

    def root_child(self, token: int) -> int:
        """The root child above an active target token, or -1 for a token outside the trie."""
        if not self.active[token]:
            return -1
        return int(self.table.root[self.table.flat[self.table.offsets[token]]])

    def proposers(self, node: int) -> Ints:
        """The drafter tokens that propose a root child."""
        low, high = np.searchsorted(self._long_nodes, [node, node + 1])
        return np.append(self.table.symbol[node], self._long_tokens[low:high])

    # ------------------------------------------------------------ learning from rounds

    def observe(self, emitted: Iterable[int], false_merge: int | None = None) -> None:
        """Record a round: the tokens that the target emitted, and a merge that it rejected."""
        if self.frozen:
            return
        self._clock += 1
        changed = False
        for token in emitted:
            if self._ngram[token]:
                self.hits[token] += 1
                self.last_use[token] = self._clock
                if not self.active[token] and self._pays(token):
                    self._switch(token, on=True)
                    changed = True
        if false_merge is not None and self._ngram[false_merge]:
            self.false_merges[false_merge] += 1
            if self.active[false_merge] and not self._pays(false_merge):
                self._switch(false_merge, on=False)
                changed = True
        if changed:
            self._refresh()

    def _pays(self, token: int) -> bool:
        failures = int(self.false_merges[token])
        return failures < FALSE_MERGES_BEFORE_OFF or int(self.hits[token]) >= failures

    def _switch(self, token: int, *, on: bool) -> None:
        self.active[token] = on
        node = ROOT
        self._live[node] += 1 if on else -1
        for draft in self.table.spelling(token).tolist():
            node = self.table.child(node, draft)
            self._live[node] += 1 if on else -1

    def activate(self, active: npt.NDArray[np.bool_]) -> None:
        """Copy the active set (V_p,) of another cache of the same table."""
        if not np.array_equal(active, self.active):
            self._set_active(active.copy())

    # ------------------------------------------------------------ derived state

    def _set_active(self, active: npt.NDArray[np.bool_]) -> None:
        table = self.table
        self.active = active
        counts = np.concatenate([[0], np.cumsum(active[table.order], dtype=np.int64)])
        self._live = (counts[table.hi] - counts[table.lo]).astype(np.int32)
        self._refresh()

    def _refresh(self) -> None:
        """Recompute the arrays that depend on the whole active set: O(V), only when the set changes."""
        table = self.table
        self._partial = int(self._live[ROOT]) < len(table.order)
        self._active_in_order = self.active[self._order]
        self.outside: Ints = np.flatnonzero(~self.active).astype(np.int32)
        self._proposes = np.where((table.root >= 0) & (self._live[table.root] > 0), table.root, -1).astype(np.int32)
        # a drafter token that stands for several target tokens needs all of them to be active
        active = self.active[table.long_flat]
        usable = np.logical_and.reduceat(active, table.long_offsets[self._long]) if len(self._long) else active
        nodes, tokens = self._long_root[usable], self._long[usable]
        self._proposes[tokens] = nodes
        by_node = np.argsort(nodes, kind="stable")
        self._long_nodes, self._long_tokens = nodes[by_node], tokens[by_node]
        self._proposing = np.flatnonzero(self._proposes >= 0)

    @property
    def size(self) -> int:
        """Number of active n-grams."""
        return int(np.count_nonzero(self.active & self._ngram))

    # ------------------------------------------------------------ save and load

    def state(self) -> dict[str, Ints]:
        """The active set and the records of all n-grams that have any, as int32 arrays by name."""
        seeded = np.zeros_like(self.active) if self.seed == "empty" else self._ngram
        keep = self._ngram & ((self.hits > 0) | (self.false_merges > 0) | (self.active != seeded))
        token = np.flatnonzero(keep).astype(np.int32)
        return {
            "seed": np.array([NGRAM_SEEDS.index(self.seed)], np.int32),
            "clock": np.array([self._clock], np.int32),
            "token": token,
            "active": self.active[token].astype(np.int32),
            "hits": self.hits[token],
            "false_merges": self.false_merges[token],
            "last_use": self.last_use[token],
        }

    def resume(self, state: Mapping[str, Ints]) -> None:
        """Restore an earlier state; raises ModelError for one that does not fit, and then changes nothing."""
        table = self.table
        try:
            token = state["token"]
            fits = all(state[name].shape == token.shape for name in ("active", *_RECORDS))
            if not fits or not self._ngram[token].all() or token.min(initial=0) < 0:
                raise ValueError("it holds a token that is no n-gram of this pair")
            seeded = NGRAM_SEEDS[int(state["seed"][0])] == "vocabulary"
            clock = int(state["clock"][0])
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(f"the n-gram cache cannot be read ({error}): use another profile") from error
        active = (table.node >= 0) & (~self._ngram | seeded)
        active[token] = state["active"] != 0
        for name in _RECORDS:
            record = np.zeros(table.target_size, np.int32)
            record[token] = state[name]
            setattr(self, name, record)
        self._clock = clock
        self._set_active(active)
