"""Record the golden traces of greedy decoding: JSON files for each target that ships, with the drafter that ships.

    python tools/record_traces.py [FOLDER]

A trace holds the token ids of each answer and, for a fixed draft length, the proposals and accepted tokens of each
round, in fp32 on one thread.  Record them anew only for a change that is meant to change them: of the embedded models,
the drafter's context, the n-gram cache, the counts or how a draft is read.  The token ids depend on the target alone.
One trace of each target counts the request's text alone; the other remembers answers, and asks twice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from omnidraft.api import assemble
from omnidraft.config import Drafting, Sampling
from omnidraft.decoding.stream import decode
from omnidraft.verification.sampling import GeneratorSampler

GOLDEN = Path(__file__).parents[1] / "tests" / "decoding" / "golden"
TARGETS = ("zoo:target-a", "zoo:target-b")
DRAFTER = "zoo:drafter"
DRAFT_LENGTH, TOKENS = 4, 48
ASKED = {"request": 1, "memory": 2}  # of what drafts count, how often each prompt is given
PROMPTS = (
    "A baker makes 12 rolls an hour for 8 hours. How many rolls does she make?",
    "def is_even(n):\n    return",
    "Once upon a time there was a",
)


def trace(target: str, reuse_answers: str = "request") -> dict[str, Any]:
    """Decode all prompts greedily; ids of the answers, and what each round proposed and accepted."""
    drafting = Drafting(draft_length=DRAFT_LENGTH, drafter_backend="transformers", reuse_answers=reuse_answers)
    model = assemble(target, DRAFTER, drafting, {}, dtype="float32", profile=None)
    answers = []
    for prompt in PROMPTS * ASKED[reuse_answers]:
        draw = GeneratorSampler(torch.Generator())
        records = list(decode(model.lane, model.encode(prompt), TOKENS, Sampling(), draw, memory=model.memory))
        answers.append(
            {
                "prompt": prompt,
                "ids": [token for record in records for token in record.emitted],
                "rounds": [[list(record.proposals), record.counts.accepted] for record in records],
            }
        )
    head = {"target": target, "drafter": DRAFTER, "draft_length": DRAFT_LENGTH, "reuse_answers": reuse_answers}
    return head | {"answers": answers}


def path_of(target: str, reuse_answers: str = "request", folder: Path = GOLDEN) -> Path:
    return folder / f"{target.removeprefix('zoo:')}{'-memory' if reuse_answers == 'memory' else ''}.json"


def lines_of(found: dict[str, Any]) -> str:
    """JSON with one line for each list of ids and each round."""
    answers = []
    for answer in found["answers"]:
        rounds = ",\n   ".join(json.dumps(each) for each in answer["rounds"])
        parts = f'"prompt": {json.dumps(answer["prompt"])},\n  "ids": {json.dumps(answer["ids"])}'
        answers.append(f' {{{parts},\n  "rounds": [\n   {rounds}\n  ]}}')
    head = json.dumps({key: value for key, value in found.items() if key != "answers"})[:-1]
    return f'{head}, "answers": [\n' + ",\n".join(answers) + "\n]}\n"


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in TARGETS:
        for remembered in ASKED:
            path = path_of(name, remembered, Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)
            path.write_text(lines_of(trace(name, remembered)), encoding="utf-8")
