"""Write the prompts that the shipped drafter's teachers answer: training questions of GSM8K and MBPP.

    python tools/training_prompts.py DATA > prompts.jsonl

DATA holds gsm8k/train.jsonl, of which the last 1,000 lines are left out, and mbpp/mbpp.jsonl, of which only MBPP's own
training split is read.  No test question is among them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

KEPT_OUT = 1_000  # last lines of GSM8K's training file: the stream of prompts for online learning
MBPP_TRAIN = range(601, 975)  # 11-510 are the test tasks
GSM8K_FORMS = ("{question}", "Question: {question}\nAnswer:")  # in turns
MBPP_FORMS = ("Task: {text}\n{test}\nSolution:\n", "{text}\nYour code should pass this test:\n{test}", "{text}")


def prompts(data: Path) -> list[str]:
    """All prompts, those of GSM8K first."""
    gsm8k, mbpp = (
        [json.loads(line) for line in (data / name).read_bytes().splitlines()]
        for name in ("gsm8k/train.jsonl", "mbpp/mbpp.jsonl")
    )
    words = [GSM8K_FORMS[i % 2].format(**row) for i, row in enumerate(gsm8k[:-KEPT_OUT])]
    tasks = [row for row in mbpp if row["task_id"] in MBPP_TRAIN]
    return words + [form.format(text=row["text"], test=row["test_list"][0]) for row in tasks for form in MBPP_FORMS]


if __name__ == "__main__":
    for text in prompts(Path(sys.argv[1])):
        print(json.dumps({"prompt": text}))
