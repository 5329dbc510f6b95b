"""A trainer in the background: what a reply takes beside it, and whether it learns as much as one between replies."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from operator import truediv

from experiments.adaptation.setup import Row, Study, rounds, taught
from omnidraft.attach import make_cache
from omnidraft.bench.interleaved import drafter_of, engine_for
from omnidraft.config import Learning
from omnidraft.decoding.engine import Engine
from omnidraft.distillation.adaptation import Adaptation
from omnidraft.distillation.background import BackgroundTrainer

THINKING_S = 1.0  # between a reply and the next prompt


def background(study: Study, count: int, pause_s: float = THINKING_S) -> Row:
    """Reply times with a trainer beside them and without, at the same drafts; and what it learned, beside inline.

    The trainer learns at a rate too small to change a draft in the first half, so that both sides do the same work.
    """
    prompts = study.stream[:count]
    still = replace(study.learning, learning_rate=1e-12)
    off = study.student(None)
    beside, learner = _beside(study, still)
    replies: dict[str, list[float]] = {"off": [], "background": []}
    try:
        for number, ids in enumerate(prompts):
            times = {}
            names = ("off", "background") if number % 2 else ("background", "off")
            for name in names:
                engine, adaptation = (off.engine(), off.adaptation) if name == "off" else beside
                if name == "off":
                    learner.pause()  # as if there were none; beside the other, that is part of what is timed
                adaptation.load_weights()
                began = time.perf_counter()
                for record_ in adaptation.following(rounds(engine, ids, study)):
                    if record_.finish:
                        times[name] = time.perf_counter() - began
                learner.resume()
            for name, seconds in times.items():
                replies[name].append(seconds)
            time.sleep(pause_s)
        updates = learner.counters.updates
    finally:
        learner.close()
    beside, learner = _beside(study, study.learning)
    engine, adaptation = beside
    try:
        for ids in prompts:
            list(adaptation.following(rounds(engine, ids, study)))
            time.sleep(pause_s)
        learner.flush()  # of the last answer too, as the trainer between replies
        adaptation.load_weights()
        tests = study.recorded("tests")
        found = study.student(None)
        found.attached.cache.resume(adaptation.attached.cache.state())
        found.adaptation = Adaptation(found.attached, study.serving, None, adaptation.state)
        after = found.examine(tests)
        learned = learner.counters.updates
    finally:
        learner.close()
    inline = study.student(study.learning)
    taught(inline, study.recorded("stream", count))
    wanted = inline.examine(tests)
    return {
        "target": study.name,
        "prompts": count,
        "pause_s": pause_s,
        "reply_time_ratio": round(statistics.median(map(truediv, replies["background"], replies["off"])), 4),
        "slowest_ratio": round(_slowest(replies["background"]) / _slowest(replies["off"]), 4),
        "updates_while_timed": updates,
        "updates": learned,
        "acceptance_rate": round(after.acceptance_rate, 4),
        "acceptance_rate_inline": round(wanted.acceptance_rate, 4),
    }


def _slowest(seconds: Sequence[float]) -> float:
    """What one reply in twenty takes at least."""
    return statistics.quantiles(seconds, n=20, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]


def _beside(study: Study, learning: Learning) -> tuple[tuple[Engine, Adaptation], BackgroundTrainer]:
    pair = drafter_of(study.model)
    own = replace(pair, cache=make_cache(pair.cache.table, study.drafting()))
    learner = BackgroundTrainer(study.serving.source.model, learning, own.cache.table, settings=study.trainer)
    learner.flush()  # until it is up, which is no part of what is measured
    adaptation = Adaptation(own, study.serving, learner)
    engine = engine_for(study.model, study.drafting(), attached=own)
    engine.teacher_temperature = learning.teacher_temperature
    return (engine, adaptation), learner
