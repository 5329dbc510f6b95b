"""Teacher text: what is kept is what the model says, nothing of the tests is asked, and a stopped run goes on."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from omnidraft import zoo
from support.project_files import ROOT

MODEL = "zoo:target-b"


@pytest.fixture
def text(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    module = importlib.import_module("teacher_text")
    monkeypatch.setattr(module, "ANSWER", 24)
    return module


@pytest.fixture
def data(tmp_path: Path) -> Path:
    gsm8k: list[dict[str, object]] = [
        {"question": f"Ann has {i} bags of 12 nuts. How many nuts has she?"} for i in range(1_004)
    ]
    tasks: list[dict[str, object]] = [
        {"task_id": i, "text": f"Add {i}.", "test_list": [f"assert add(1, {i})"]} for i in range(1, 975)
    ]
    for name, rows in {"gsm8k/train.jsonl": gsm8k, "mbpp/mbpp.jsonl": tasks}.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return tmp_path / "data"


def test_only_training_questions_are_asked(text: ModuleType, data: Path) -> None:
    questions = text.Questions(data)
    plans = [questions.plan(number) for number in range(3_400)]
    lines = {source: {index for which, index, *_ in plans if which == source} for source in range(3)}
    assert lines[0] == {-1}
    assert lines[1] == set(range(4))
    assert lines[2] <= set(range(600, 974))
    assert all(questions.asked(*plan[:3]) for plan in plans if plan[0])
    assert 0.4 < np.mean([plan[3] == 0 for plan in plans]) < 0.6


@pytest.mark.slow
def test_what_is_kept_is_what_the_model_says(
    text: ModuleType, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = zoo.path("target-b"), tmp_path / "out"
    for tokens in ("100", "200"):  # the second goes on after the first
        monkeypatch.setattr(
            sys, "argv", ["", str(folder), "--out", str(out), "--data", str(data), "--rows", "6", "--tokens", tokens]
        )
        text.main()
    shards = sorted(out.iterdir())
    assert [path.name for path in shards] == ["shard-00000.npz", "shard-00001.npz"]
    answers = [answer for path in shards for answer in text.load(path)]
    assert len({each.number for each in answers}) == len(answers)
    assert sum(len(each.tokens) for each in answers) >= 200

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    questions = text.Questions(data)
    for each in answers:
        words = questions.asked(each.source, each.index, each.form)
        message = [{"role": "user", "content": words.strip() + "\0"}]
        before, after = str(tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)).split(
            "\0"
        )
        asked = tokenizer(before)["input_ids"] + each.tokens[: each.question].tolist()
        turn = tokenizer(after)["input_ids"][1 if each.question else 0 :]
        own, answer = each.tokens[: each.question].tolist(), each.tokens[each.question :].tolist()
        if each.temperature == 0:
            assert answer == each.top_ids[each.question :, 0].tolist()
        with torch.inference_mode():
            logprobs = model(torch.tensor([asked + turn + answer])).logits[0].log_softmax(-1)
        places = [*range(len(asked) - len(own) - 1, len(asked) - 1)]
        places += [*range(len(asked + turn) - 1, len(asked + turn + answer) - 1)]
        expected = logprobs[places].gather(1, torch.tensor(each.top_ids, dtype=torch.long))
        assert np.allclose(each.top_logprobs, expected, atol=0.02)
