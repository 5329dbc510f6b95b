"""A recipe of two small models, and the tasks of all studies in a few lines each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from experiments import recipe
from experiments import tasks as parted
from experiments.evaluation import Evaluation
from support.texts import QUESTIONS

SMALL = """
drafter = "DRAFTER"
targets = ["TARGET"]
new_tokens = 8
[tasks]
gsm8k = { train = 4, test = 2 }
code = { train = 3, test = 2 }
[learning]
update_every = 2
learning_rate = 3e-3
replay_steps = 1
"""


@pytest.fixture
def tasks(data: Path) -> Path:
    """A folder of all tasks, of a few lines each."""
    rows: dict[str, list[dict[str, str]]] = {
        "humaneval/HumanEval.jsonl": [{"prompt": f"def {text[:3]}():"} for text in QUESTIONS],
        "alpaca/train.jsonl": [{"instruction": text, "input": text[: i % 2]} for i, text in enumerate(QUESTIONS)],
        "xsum/train.jsonl": [{"document": text} for text in QUESTIONS],
        "xsum/test.jsonl": [{"document": text[::-1]} for text in QUESTIONS],
    }
    for name, its in rows.items():
        (data / name).parent.mkdir(exist_ok=True)
        (data / name).write_text("".join(json.dumps(row) + "\n" for row in its), encoding="utf-8")
    return data


@pytest.fixture
def small(tmp_path: Path, target: Path, drafter: Path) -> Path:
    """A recipe of two small models."""
    path = tmp_path / "small.toml"
    path.write_text(SMALL.replace("TARGET", str(target)).replace("DRAFTER", str(drafter)), encoding="utf-8")
    return path


@pytest.fixture
def evaluation(small: Path, tasks: Path) -> Evaluation:
    """The target of that recipe, loaded with its drafter."""
    found = recipe.read(small)
    texts = {name: parted.parts(name, tasks) for name in found.tasks}
    return Evaluation(found, found.targets[0], texts, "cpu", Console(quiet=True))
