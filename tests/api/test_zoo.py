"""The embedded models are what their card says, and good enough for what they are for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

import omnidraft
from omnidraft import zoo
from omnidraft.errors import ModelError
from support.project_files import shared

SOURCE = Path(zoo.__file__).parents[1]
LARGEST_MB = 110


def rows(count: int) -> list[dict[str, str]]:
    lines = (shared("data") / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def test_names_and_places() -> None:
    assert set(zoo.names()) == {*zoo.names("target"), *zoo.names("drafter")}
    assert zoo.names("drafter") == ("drafter", "general")
    with pytest.raises(ModelError, match="use one of"):
        zoo.path("nothing")
    assert zoo.resolve("owner/name") == "owner/name"
    assert zoo.resolve(Path("zoo:drafter")) == Path("zoo:drafter")  # a folder of that name
    assert zoo.resolve("zoo:drafter") == zoo.path("drafter")


def test_only_the_zoo_knows_its_models_by_name() -> None:
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.parent.name != "zoo" and file.name != "__init__.py":  # the package's docstring shows a call
            assert not [name for name in zoo.names("target") if name in text], file


def test_weights_are_bfloat16_and_small() -> None:
    size = 0
    for name in zoo.names():
        weights = zoo.path(name) / "model.safetensors"
        size += sum(file.stat().st_size for file in zoo.path(name).iterdir())
        with safe_open(weights, "pt") as file:
            kinds = {file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118  no dict: it has no __iter__
        assert kinds == {"BF16"}
    assert size <= LARGEST_MB * 2**20


@pytest.mark.parametrize("name", zoo.names())
def test_tokenizers_keep_every_text(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path(name))
    for text in ("def f(x):\n\treturn x  # 12345\n", "naïve 你好 🙂\n\n", "1234567 and 0.5"):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text
    digits = [token for token in tokenizer.get_vocab() if sum(c.isdigit() for c in token) > 1 and "<0x" not in token]
    longest = max((sum(c.isdigit() for c in token) for token in digits), default=1)
    assert longest == (3 if name == "target-a" else 1)


@pytest.mark.parametrize("name", zoo.names())
def test_the_card_states_the_record(name: str) -> None:
    record = json.loads((zoo.path(name) / "training.json").read_text(encoding="utf-8"))
    card = (SOURCE / "zoo" / "README.md").read_text(encoding="utf-8")
    row = next(line for line in card.splitlines() if line.startswith(f"| `{name}` "))
    assert f"{record['parameters']:,}" in row
    assert f"{record['tokens']:,}" in row
    if name == "general":
        for teacher, found in record["acceptance_of_held_out_text"].items():
            of_teacher = next(line for line in card.splitlines() if line.startswith(f"| {teacher} "))
            assert f"{found['greedy']:.3f} | {found['temperature_1']:.3f} |" in of_teacher
            assert f"{found['text_tokens']:,} " in card
    else:
        assert f"{record['loss_gsm8k_test_answers']:.3f}" in row


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names("target"))
def test_targets_have_learned_the_task(name: str) -> None:
    """Held-out loss below 1.9 a token on GSM8K test answers; most greedy answers end by themselves."""
    loaded = omnidraft.load(zoo.path(name), None, dtype="float32")
    model, total, count = loaded.target.lm.model, 0.0, 0
    for row in rows(10):
        question = loaded.encode_message(f"Question: {row['question']}\nAnswer:")
        answer = row["answer"] if loaded.target.tokenizer.chat_template else f" {row['answer']}"
        text = [*question, *loaded.target.tokenizer(answer, add_special_tokens=False)["input_ids"], loaded.vocab.eos[0]]
        ids = torch.tensor([text])
        labels = ids.clone()
        labels[:, : len(question)] = -100
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=labels).loss) * (len(text) - len(question))
        count += len(text) - len(question)
    assert total / count < 1.9
    prompts = [f"Question: {row['question']}\nAnswer:" for row in rows(3)]
    ends = [loaded.generate(loaded.encode_message(prompt), max_new_tokens=256).finish_reason for prompt in prompts]
    assert ends.count("eos") >= 2, ends
