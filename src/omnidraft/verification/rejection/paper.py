"""OmniDraft's own verification (arXiv 2507.02659, Algorithm 1, Eq. 1-2), kept by name for comparison: not exact."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.alignment.spelling_table import ROOT, Probs
from omnidraft.verification.rejection.symbols import PrefixProbs
from omnidraft.verification.sampling import Sampler


@dataclass(frozen=True, slots=True)
class Proposal:
    """A target token and the draft tokens that it merges."""

    token: int
    start: int
    length: int  # 1: mapped directly


class DirectMap:
    """Map from each drafter token to the target token with the same bytes, (V_q,); -1 where there is none."""

    def __init__(self, cache: NgramCache) -> None:
        table = cache.table
        ends = table.ends[table.root]
        self.target: npt.NDArray[np.int32] = np.where(table.root >= 0, ends, -1).astype(np.int32)
        self.mapped: npt.NDArray[np.bool_] = self.target >= 0


def merge(draft: Sequence[int], cache: NgramCache, direct: DirectMap) -> list[Proposal]:
    """Merge draft tokens left to right: the longest active n-gram, else the direct map (Algorithm 1)."""
    proposals = []
    start = 0
    while start < len(draft):
        best = Proposal(int(direct.target[draft[start]]), start, 1)
        node = ROOT
        for end in range(start, len(draft)):
            node = cache.child(node, draft[end])
            if node < 0:
                break
            token = cache.token_at(node)
            if end > start and token >= 0:
                best = Proposal(token, start, end - start + 1)
        proposals.append(best)
        start += best.length
    return proposals


def lifted(proposal: Proposal, draft: Sequence[int], qs: Sequence[Probs], direct: DirectMap, size: int) -> Probs:
    """Return q' over target tokens, (V_p,): the direct map of q, an n-gram by Eq. 1 and its first token by Eq. 2."""
    q = qs[proposal.start]
    result = np.zeros(size)
    result[direct.target[direct.mapped]] = q[direct.mapped]
    if proposal.length > 1:
        run = range(proposal.start, proposal.start + proposal.length)
        product = float(np.prod([qs[j][draft[j]] for j in run]))
        first = draft[proposal.start]
        result[proposal.token] = product
        result[direct.target[first]] = max(0.0, float(q[first]) - product)
    return result


def verify_paper(
    proposals: Sequence[Proposal],
    draft: Sequence[int],
    qs: Sequence[Probs],
    direct: DirectMap,
    p_after: PrefixProbs,
    draw: Sampler,
    eos: Collection[int],
) -> tuple[tuple[int, ...], int]:
    """Accept with min(1, p/q'), else draw from norm(max(0, p − q')).

    Returns the emitted tokens and how many were accepted.
    """
    emitted: list[int] = []
    for proposal in proposals:
        p = p_after(len(emitted))
        q = lifted(proposal, draft, qs, direct, len(p))
        accept = min(1.0, p[proposal.token] / q[proposal.token]) if q[proposal.token] > 0 else 1.0
        if accept < 1 and draw(np.array([accept, 1 - accept])) == 1:
            residual = np.maximum(0.0, p - q)
            emitted.append(draw(residual if residual.any() else p))
            return tuple(emitted), len(emitted) - 1
        emitted.append(proposal.token)
        if proposal.token in eos:
            return tuple(emitted), len(emitted)
    accepted = len(emitted)
    emitted.append(draw(p_after(accepted)))
    return tuple(emitted), accepted
