"""Measure a drafter on teacher text that it was not trained on: how often a draft token is accepted, and where.

    python tools/measure_drafter.py FOLDER --teacher MODEL [--teacher MODEL ...] [--drafter DRAFTER ...] [--all]

FOLDER is a folder of `omnidraft make-drafter` with the text of each teacher.  Measured are the conversations that
training leaves out, or with `--all` every one, as of a teacher that no training has seen.  A row is a teacher, a kind
of place in its text, and the number of places; a drafter has two columns: the acceptance of a single draft token in
greedy decoding and at temperature 1, teacher-forced.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from omnidraft import zoo
from omnidraft.distillation.losses import acceptance
from omnidraft.distillation.teacher import TrainingExample
from omnidraft.make_drafter import shards
from omnidraft.make_drafter.make import HELD_OUT, text_folder
from omnidraft.make_drafter.settings import Training
from omnidraft.make_drafter.training import DrafterTrainer, Examples
from omnidraft.models.loading import LoadedModel, load_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONG = 1000  # drafter tokens before a place, from which on the context is long
PROSE = 200  # characters of prose before a block of code, at least
TURN, FENCE = "assistant\n", "```"  # what begins an answer in the drafter's view of a template; a block of code

Mask = npt.NDArray[np.bool_]


def kinds(tokenizer: PreTrainedTokenizerBase, example: TrainingExample) -> dict[str, Mask]:
    """For each kind, which of an example's places are of it (N,)."""
    places = (example.first + example.teacher.positions).tolist()
    ids, wanted = example.ids.tolist(), set(places)
    text, found = "", {}
    for place, token in enumerate(ids):
        text += str(tokenizer.decode([token]))
        if place in wanted:
            before, fence, _ = text.rpartition(FENCE)
            code = bool(fence) and text.count(FENCE) % 2 == 1 and len(before.rpartition(FENCE)[2]) >= PROSE
            found[place] = (True, place < LONG, place >= LONG, text.count(TURN) >= 3, code)
    names = "all", f"below {LONG} tokens", f"from {LONG} tokens on", "third turn and later", "code after prose"
    return dict(zip(names, np.array([found[place] for place in places], np.bool_).T, strict=True))


def accepted(drafter: LoadedModel, examples: Sequence[TrainingExample]) -> npt.NDArray[np.float64]:
    """Acceptance at the places of all examples in turn (N, 2): greedy, and at temperature 1."""
    trainer = DrafterTrainer(drafter.lm.model, Training())
    with torch.no_grad():
        return np.concatenate([acceptance(*trainer.read([each]), 1.0).double().numpy() for each in examples])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--teacher", action="append", required=True, help="a model whose text lies in the folder")
    parser.add_argument("--drafter", action="append", help="repeatable; of one vocabulary (default: zoo:general)")
    parser.add_argument("--all", action="store_true", help="measure every conversation")
    options = parser.parse_args()
    torch.set_num_threads(1)
    drafters = [load_model(zoo.resolve(name), "float32", "cpu") for name in options.drafter or ["zoo:general"]]
    print("| text of | place | places |" + "".join(f" {each.name}, greedy | at temperature 1 |" for each in drafters))
    print("| --- | --- | ---: |" + " ---: | ---: |" * len(drafters))
    tokenizer = drafters[0].tokenizer
    for name in options.teacher:
        teacher = load_model(zoo.resolve(name), "auto", "cpu", verifies=True)
        read = Examples(tokenizer, teacher.tokenizer, teacher.lm.vocab_size, teacher.lm.eos)
        texts = [each for path in shards.find(text_folder(options.folder, teacher)) for each in shards.load(path)]
        examples = [read.of(each) for each in texts if options.all or not each.number % HELD_OUT]
        examples = [each for each in examples if each.positions]
        masks = [kinds(tokenizer, each) for each in examples]
        rates = [accepted(each, examples) for each in drafters]
        for kind in masks[0]:
            mask = np.concatenate([each[kind] for each in masks])
            cells = [f"{value:.3f}" if mask.any() else "–" for rate in rates for value in rate[mask].mean(0).tolist()]
            print(f"| {teacher.name} | {kind} | {mask.sum():,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
