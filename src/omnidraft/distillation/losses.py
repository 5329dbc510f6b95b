"""Losses of online distillation: pure functions of the drafter's logits and the teacher's distributions.

divergence  KL, reverse KL or total variation between q and the exact teacher distribution r
acceptance  acceptance probabilities of draft tokens, the labels of the acceptance head
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from omnidraft.verification.sparse_probs import OTHER

DIVERGENCES = ("forward", "forward+tv", "reverse", "tv")
FLOOR = 1e-5  # stands for probability 0 of the teacher in a logarithm: only its likely tokens are kept
TINY = 1e-12  # stands for probability mass of the drafter that rounding lost


@dataclass(frozen=True, eq=False)
class TeacherDistributions:
    """Sparse distributions r over drafter tokens for N positions, with E entries in all.

    Where `coarse`, the tokens without an entry are one outcome together, of probability `rest`; elsewhere they have
    probability 0, and `rest` is the target's mass on tokens that no draft can propose, which r leaves out.
    """

    positions: torch.Tensor  # (N,) int, rows of the logits
    rows: torch.Tensor  # (E,) int, the distribution of an entry
    symbols: torch.Tensor  # (E,) int, drafter tokens
    probs: torch.Tensor  # (E,) float32
    rest: torch.Tensor  # (N,) float32
    coarse: torch.Tensor  # (N,) bool
    best: torch.Tensor  # (N,) int, the drafter token that greedy decoding accepts; OTHER: any without an entry; or NONE


def divergence(logits: torch.Tensor, teacher: TeacherDistributions, kind: str) -> torch.Tensor:
    """Divergence between q = softmax(logits) (T, V_q) and each teacher distribution r, (N,), in nats.

    `kind` is one of DIVERGENCES: "forward" KL(r‖q), "reverse" KL(q‖r), "tv" total variation, "forward+tv".
    """
    log_q = torch.log_softmax(_at_least_fp32(logits[teacher.positions]), dim=-1)  # (N, V_q)
    inside = log_q[teacher.rows, teacher.symbols]  # (E,)
    q = inside.exp()
    outside = (1 - _sum(q, teacher)).clamp_min(TINY)  # (N,) q of all tokens without an entry
    if kind == "reverse":
        return _reverse(log_q, inside, outside, teacher)
    if kind == "forward":
        return _forward(inside, outside, teacher)
    distance = _total_variation(q, outside, teacher)
    return distance if kind == "tv" else distance + _forward(inside, outside, teacher)


@torch.no_grad()
def acceptance(logits: torch.Tensor, teacher: TeacherDistributions, temperature: float) -> torch.Tensor:
    """Acceptance probability of a token drawn from q = softmax(logits) (T, V_q), (N, 2): greedy, and Σ min(q, r).

    `temperature` is that of the teacher; the second column is for temperature 1, reached by raising the teacher's
    probabilities to the power `temperature`.  Target tokens that no draft can propose accept nothing.
    """
    log_q = torch.log_softmax(_at_least_fp32(logits[teacher.positions]), dim=-1)
    mass = torch.where(teacher.coarse, 1.0, 1 - teacher.rest)  # (N,) of the entries
    probs, rest = (teacher.probs * mass[teacher.rows]) ** temperature, teacher.rest**temperature
    total = (_sum(probs, teacher) + rest).clamp_min(TINY)
    q = log_q[teacher.rows, teacher.symbols].exp()
    outside = torch.where(teacher.coarse, (1 - _sum(q, teacher)).clamp_min(0.0), 0.0)
    overlap = _sum(torch.minimum(q, probs / total[teacher.rows]), teacher) + torch.minimum(outside, rest / total)
    first = log_q.argmax(-1)
    known = _sum((teacher.symbols == first[teacher.rows]).to(q.dtype), teacher) > 0
    greedy = torch.where(teacher.best == OTHER, ~known, first == teacher.best)
    return torch.stack([greedy.to(q.dtype), overlap.clamp(0.0, 1.0)], -1)


def _at_least_fp32(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def _sum(entries: torch.Tensor, teacher: TeacherDistributions) -> torch.Tensor:
    """Sum entries (E,) over each distribution, (N,)."""
    return entries.new_zeros(len(teacher.rest)).index_add(0, teacher.rows, entries)


def _forward(inside: torch.Tensor, outside: torch.Tensor, teacher: TeacherDistributions) -> torch.Tensor:
    rest = torch.where(teacher.coarse, teacher.rest, 0.0)
    entries = torch.xlogy(teacher.probs, teacher.probs) - teacher.probs * inside
    return _sum(entries, teacher) + torch.xlogy(rest, rest) - rest * outside.log()


def _reverse(
    log_q: torch.Tensor, inside: torch.Tensor, outside: torch.Tensor, teacher: TeacherDistributions
) -> torch.Tensor:
    entries = _sum(inside.exp() * (inside - teacher.probs.clamp_min(FLOOR).log()), teacher)
    coarse = outside * (outside.log() - teacher.rest.clamp_min(FLOOR).log())
    # every other token is an outcome of its own: their entropy is that of the row less that of the entries
    # (the clamp turns the -inf of a masked token, times its probability 0, into 0)
    row = (log_q.exp() * log_q.clamp_min(-1e4)).sum(-1)
    fine = row - _sum(inside.exp() * inside, teacher) - outside * math.log(FLOOR)
    return entries + torch.where(teacher.coarse, coarse, fine)


def _total_variation(q: torch.Tensor, outside: torch.Tensor, teacher: TeacherDistributions) -> torch.Tensor:
    """½ Σ|q − r| = 1 − Σ min(q, r), both summing to 1."""
    rest = torch.where(teacher.coarse, torch.minimum(outside, teacher.rest), 0.0)
    return 1 - _sum(torch.minimum(q, teacher.probs), teacher) - rest
