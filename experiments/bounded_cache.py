"""The n-gram cache with a bound (Table 14): at most so many n-grams are active, the most used or the latest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from omnidraft.alignment.ngram_cache import Ints, NgramCache
from omnidraft.alignment.spelling_table import SpellingTable


class BoundedCache(NgramCache):
    """At most `bound` n-grams are active: the most used (`"lfu"`), or the most recently used (`"lru"`)."""

    def __init__(self, table: SpellingTable, bound: int, eviction: str, *, seed: str = "vocabulary") -> None:
        super().__init__(table, seed=seed)
        self.bound = bound
        self.eviction = eviction
        if seed == "vocabulary":
            active = self.active.copy()
            active[np.flatnonzero(self._ngram)[bound:]] = False  # low ids were merged first: the frequent ones
            self._set_active(active)

    def observe(self, emitted: Iterable[int], false_merge: int | None = None) -> None:
        super().observe(emitted, false_merge)
        self._evict()

    def resume(self, state: Mapping[str, Ints]) -> None:
        super().resume(state)
        self._evict()

    def _evict(self) -> None:
        active = np.flatnonzero(self.active & self._ngram)
        excess = len(active) - self.bound
        if excess > 0:
            first, second = (self.hits, self.last_use) if self.eviction == "lfu" else (self.last_use, self.hits)
            worst = np.lexsort((-active, second[active], first[active]))[:excess]
            for token in active[worst]:
                self._switch(int(token), on=False)
            self._refresh()
