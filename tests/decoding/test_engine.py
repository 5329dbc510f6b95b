"""Verification and commit of a round as two steps: whoever reads the answer's text decides what stays in between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.cache_study import BoundedCache
from omnidraft.config import Sampling
from omnidraft.verification.round import RoundTimes
from omnidraft.verification.sampling import GeneratorSampler
from support.table_models import PROMPT, make_world

SAMPLED = Sampling(temperature=1.0)


@pytest.mark.parametrize("mode", ["exact", "intersection", "paper"])
@pytest.mark.parametrize("shape", ["full", "nested", "long nested"])
def test_what_is_cut_off_a_round_leaves_no_trace(shape: str, mode: str) -> None:
    cut = 0
    for seed in range(12):
        for kept in range(6):
            world = make_world(shape, seed)
            cache, plain = (BoundedCache(world.table, 2, "lru", seed="empty") for _ in range(2))
            engine = world.engine(cache, mode=mode)
            engine.teacher_temperature = 1.0
            request = engine.begin([PROMPT], 20, SAMPLED, GeneratorSampler(torch.Generator().manual_seed(seed)))
            verified = engine.verify(request)
            assert request.ids == [PROMPT], "nothing counts before it is committed"
            if kept >= len(verified.emitted):
                break
            record = engine.commit(request, verified, kept)
            assert record.emitted == verified.emitted[:kept]
            assert (record.finish, request.open) == ("stop", False)
            assert request.ids == [PROMPT, *record.emitted]
            assert engine.target.length <= len(request.ids)
            assert len(record.teacher) == len(record.proposals) == record.counts.accepted == kept
            assert record.counts.symbols == record.counts.symbols_accepted >= kept
            assert len(record.draft) == record.counts.draft_accepted
            assert record.counts.false_merges == 0
            plain.observe(record.emitted, None)
            for name in ("active", "hits", "false_merges", "last_use"):
                assert np.array_equal(getattr(cache, name), getattr(plain, name))
            cut += len(verified.emitted) - kept
    assert cut > 10


def test_rounds_are_verified_and_committed_one_after_the_other() -> None:
    engines = [make_world("nested").engine(draft_length=3) for _ in range(2)]
    samplers = [GeneratorSampler(torch.Generator().manual_seed(1)) for _ in range(2)]
    request, records = engines[0].begin([PROMPT], 12, SAMPLED, samplers[0]), []
    while request.open:
        records.append(engines[0].commit(request, engines[0].verify(request)))
    for one, other in zip(records, engines[1].rounds([PROMPT], 12, SAMPLED, samplers[1]), strict=True):
        assert replace(one, times=RoundTimes()) == replace(other, times=RoundTimes())
    assert sum(len(record.emitted) for record in records) == 12 or records[-1].finish == "eos"
