"""The n-gram cache with a bound (Table 14): at most so many n-grams are active, the most used or the latest."""

from __future__ import annotations

import numpy as np

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import SpellingTable


class BoundedCache(NgramCache):
    """At most `bound` n-grams are active: the most used (`"lfu"`), or the most recently used (`"lru"`).

    Of those alike, low ids stay: they were merged first, as the frequent ones.
    """

    def __init__(self, table: SpellingTable, bound: int, eviction: str, *, seed: str = "vocabulary") -> None:
        self.bound, self.eviction = bound, eviction
        super().__init__(table, seed=seed)

    def _refresh(self) -> None:
        active = np.flatnonzero(self.active & self._ngram)
        first, second = (self.hits, self.last_use) if self.eviction == "lfu" else (self.last_use, self.hits)
        worst = np.lexsort((-active, second[active], first[active]))[: max(0, len(active) - self.bound)]
        for token in active[worst]:
            self._switch(int(token), on=False)
        super()._refresh()
