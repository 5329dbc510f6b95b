"""Losses of online distillation: pure functions of the drafter's logits and a ready-made teacher.

acceptance  how likely a draft token is to be accepted, what an acceptance head learns
divergence  between q and the law r that the trie gives for a drafter position
hybrid      the paper's: reverse KL in the target's vocabulary, and the likelihood of n-grams (Eq. 3 and 4)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from omnidraft.verification.sparse_probs import OTHER

DIVERGENCES = ("forward", "forward+tv", "reverse", "tv")
FLOOR = 1e-5  # what a logarithm sees where the teacher gives nothing: it keeps only its likely tokens
TINY = 1e-12  # below any probability that matters: what a logarithm sees of a mass that is lost in rounding


@dataclass(frozen=True, eq=False)
class Laws:
    """Laws r over drafter tokens for some rows of logits, all other tokens having none.

    Where `coarse`, all other tokens together are one more option, of probability `rest`; elsewhere `rest` is the share
    of the target's law that is no drafter token's.
    """

    positions: torch.Tensor  # (N,) int64, rows of the logits
    rows: torch.Tensor  # (E,) int64, which law an entry belongs to
    symbols: torch.Tensor  # (E,) int64, drafter tokens
    probs: torch.Tensor  # (E,) float32
    rest: torch.Tensor  # (N,) float32
    coarse: torch.Tensor  # (N,) bool
    best: torch.Tensor  # (N,) int64, the symbol that a greedy target goes on with; OTHER: any without an entry; NONE


@dataclass(frozen=True, eq=False)
class Labels:
    """Single drafter tokens for some rows of logits."""

    positions: torch.Tensor  # (N,) int64, rows of the logits
    symbols: torch.Tensor  # (N,) int64, drafter tokens
    weights: torch.Tensor  # (N,) float32


def divergence(logits: torch.Tensor, laws: Laws, kind: str) -> torch.Tensor:
    """The divergence between q = softmax(logits) (T, V_q) and each law, (N,): natural logarithms, 0 where equal.

    `kind` is one of DIVERGENCES: "forward" KL(r‖q), "reverse" KL(q‖r), "tv" total variation, "forward+tv".
    """
    log_q = torch.log_softmax(_wide(logits[laws.positions]), dim=-1)  # (N, V_q)
    inside = log_q[laws.rows, laws.symbols]  # (E,)
    q = inside.exp()
    outside = (1 - _sum(q, laws)).clamp_min(TINY)  # (N,) q of all tokens without an entry
    if kind == "reverse":
        return _reverse(log_q, inside, outside, laws)
    if kind == "forward":
        return _forward(inside, outside, laws)
    distance = _total_variation(q, outside, laws)
    return distance if kind == "tv" else distance + _forward(inside, outside, laws)


@torch.no_grad()
def acceptance(logits: torch.Tensor, laws: Laws, temperature: float) -> torch.Tensor:
    """How likely a token drawn from q = softmax(logits) (T, V_q) is to be accepted, (N, 2): greedily, and Σ min(q, r).

    The laws are those at `temperature`; the second column is for a temperature of 1, at which a token's probability is
    taken to be in proportion to its power `temperature`.  What no drafter token can propose is accepted of none.
    """
    log_q = torch.log_softmax(_wide(logits[laws.positions]), dim=-1)
    mass = torch.where(laws.coarse, 1.0, 1 - laws.rest)  # of what the entries share
    probs, rest = (laws.probs * mass[laws.rows]) ** temperature, laws.rest**temperature
    total = (_sum(probs, laws) + rest).clamp_min(TINY)
    q = log_q[laws.rows, laws.symbols].exp()
    outside = torch.where(laws.coarse, (1 - _sum(q, laws)).clamp_min(0.0), 0.0)
    sampled = _sum(torch.minimum(q, probs / total[laws.rows]), laws) + torch.minimum(outside, rest / total)
    first = log_q.argmax(-1)
    known = _sum((laws.symbols == first[laws.rows]).to(q.dtype), laws) > 0
    greedy = torch.where(laws.best == OTHER, ~known, first == laws.best)
    return torch.stack([greedy.to(q.dtype), sampled.clamp(0.0, 1.0)], -1)


def _wide(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _sum(entries: torch.Tensor, laws: Laws) -> torch.Tensor:
    """(E,) -> (N,)."""
    return entries.new_zeros(len(laws.rest)).index_add(0, laws.rows, entries)


def _forward(inside: torch.Tensor, outside: torch.Tensor, laws: Laws) -> torch.Tensor:
    rest = torch.where(laws.coarse, laws.rest, 0.0)
    entries = torch.xlogy(laws.probs, laws.probs) - laws.probs * inside
    return _sum(entries, laws) + torch.xlogy(rest, rest) - rest * outside.log()


def _reverse(log_q: torch.Tensor, inside: torch.Tensor, outside: torch.Tensor, laws: Laws) -> torch.Tensor:
    entries = _sum(inside.exp() * (inside - laws.probs.clamp_min(FLOOR).log()), laws)
    coarse = outside * (outside.log() - laws.rest.clamp_min(FLOOR).log())
    # of the other tokens each is an option of its own: their entropy is what is left of the whole row's
    # (-inf of masked tokens times their probability 0 is nothing)
    row = (log_q.exp() * log_q.clamp_min(-1e4)).sum(-1)
    fine = row - _sum(inside.exp() * inside, laws) - outside * math.log(FLOOR)
    return entries + torch.where(laws.coarse, coarse, fine)


def _total_variation(q: torch.Tensor, outside: torch.Tensor, laws: Laws) -> torch.Tensor:
    """½ Σ|q − r| = 1 − Σ min(q, r), both summing to 1."""
    rest = torch.where(laws.coarse, torch.minimum(outside, laws.rest), 0.0)
    return 1 - _sum(torch.minimum(q, laws.probs), laws) - rest


def hybrid(
    logits: torch.Tensor, direct: Laws, shared: torch.Tensor, ngrams: Labels, kind: str = "reverse"
) -> torch.Tensor:
    """The paper's loss, (N,): L_DM at directly mapped tokens, then λ·L_N-gram at the rest (Eq. 3 and 4).

    `logits` (T, V_q).  `direct` are the target's laws where a directly mapped token follows, a target token being
    written as the drafter token of the same bytes; `shared` (V_q,) bool are the drafter tokens that have one, over
    which q is renormalized.  `ngrams` are the sub-tokens of n-grams, each with the weight λ.  `kind` is the divergence
    at directly mapped tokens: "reverse", the paper's; "forward", what their likelihood is on average; or "none".
    """
    log_q = torch.log_softmax(_wide(logits[ngrams.positions]), dim=-1)
    unlikely = -ngrams.weights * log_q.gather(-1, ngrams.symbols[:, None])[:, 0]
    if kind == "none":
        return torch.cat([unlikely.new_zeros(len(direct.positions)), unlikely])
    mapped = _wide(logits[direct.positions]).masked_fill(~shared, -torch.inf)
    own = replace(direct, positions=torch.arange(len(direct.positions), device=logits.device))
    return torch.cat([divergence(mapped, own, kind), unlikely])
