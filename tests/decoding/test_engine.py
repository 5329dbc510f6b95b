"""Verification and commit of a round as two steps: whoever reads the answer's text decides what stays in between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.cache_study import BoundedCache
from omnidraft.config import Sampling
from omnidraft.decoding.round import commit
from omnidraft.decoding.stream import decode
from omnidraft.verification.round import RoundTimes
from omnidraft.verification.sampling import GeneratorSampler
from support.rounds import begun, verified
from support.table_models import PROMPT, make_world

SAMPLED = Sampling(temperature=1.0)


@pytest.mark.medium
@pytest.mark.parametrize("mode", ["exact", "intersection", "paper"])
@pytest.mark.parametrize("shape", ["full", "nested", "long nested"])
def test_what_is_cut_off_a_round_leaves_no_trace(shape: str, mode: str) -> None:
    cut = 0
    for seed in range(12):
        for kept in range(6):
            world = make_world(shape, seed)
            cache, plain = (BoundedCache(world.table, 2, "lru", seed="empty") for _ in range(2))
            lane = world.lane(cache, mode=mode)
            lane.teacher_temperature = 1.0
            request = begun(lane, [PROMPT], 20, SAMPLED, GeneratorSampler(torch.Generator().manual_seed(seed)))
            outcome = verified(lane, request)
            assert request.ids == [PROMPT], "nothing counts before it is committed"
            if kept >= len(outcome.emitted):
                break
            record = commit(lane, request, outcome, kept)
            assert record.emitted == outcome.emitted[:kept]
            assert (record.finish, request.open) == ("stop", False)
            assert request.ids == [PROMPT, *record.emitted]
            assert lane.target.length <= len(request.ids)
            assert len(record.teacher) == len(record.proposals) == record.counts.accepted == kept
            assert record.counts.symbols == record.counts.symbols_accepted >= kept
            assert len(record.draft) == record.counts.draft_accepted
            assert record.counts.false_merges == 0
            plain.observe(record.emitted, None)
            for name in ("active", "hits", "false_merges", "last_use"):
                assert np.array_equal(getattr(cache, name), getattr(plain, name))
            cut += len(outcome.emitted) - kept
    assert cut > 10


def test_rounds_are_verified_and_committed_one_after_the_other() -> None:
    lanes = [make_world("nested").lane(draft_length=3) for _ in range(2)]
    samplers = [GeneratorSampler(torch.Generator().manual_seed(1)) for _ in range(2)]
    request, records = begun(lanes[0], [PROMPT], 12, SAMPLED, samplers[0]), []
    while request.open:
        records.append(commit(lanes[0], request, verified(lanes[0], request)))
    for one, other in zip(records, decode(lanes[1], [PROMPT], 12, SAMPLED, samplers[1]), strict=True):
        assert replace(one, times=RoundTimes()) == replace(other, times=RoundTimes())
    assert sum(len(record.emitted) for record in records) == 12 or records[-1].finish == "eos"
