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
from omnidraft.models.loading import load_model
from support.project_files import shared

SOURCE = Path(zoo.__file__).parents[1]
LARGEST_MB = 90


def rows(count: int) -> list[dict[str, str]]:
    lines = (shared("data") / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def test_names() -> None:
    assert zoo.names("drafter")
    assert zoo.names("target")
    assert set(zoo.names()) == {*zoo.names("drafter"), *zoo.names("target")}
    with pytest.raises(ModelError, match="use one of"):
        zoo.path("nothing")


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
            assert {file.get_slice(key).get_dtype() for key in file.keys()}  # noqa: SIM118 == {"BF16"}
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
    assert f"{record['loss_gsm8k_test_answers']:.3f}" in row


def test_the_targets_differ_in_what_an_engine_must_cope_with() -> None:
    first, second = (load_model(zoo.path(name), dtype="float32") for name in zoo.names("target"))
    assert (first.lm.model.config.model_type, second.lm.model.config.model_type) == ("llama", "qwen2")
    config = second.lm.model.config
    assert config.num_key_value_heads < config.num_attention_heads
    assert (len(first.lm.eos), len(second.lm.eos)) == (1, 2)
    assert len(first.tokenizer) == first.lm.vocab_size
    assert len(second.tokenizer) < second.lm.vocab_size
    assert first.tokenizer.bos_token_id is not None
    assert second.tokenizer.bos_token_id is None
    assert first.tokenizer.chat_template is None
    chat = [{"role": "user", "content": " Hello "}]
    text = second.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.slow
def test_targets_have_learned_the_task() -> None:
    """Held-out loss below 1.9 a token on GSM8K test answers; most greedy answers end by themselves."""
    for name in zoo.names("target"):
        loaded = omnidraft.load(zoo.path(name), dtype="float32")
        model, eos = loaded.target.lm.model, sorted(loaded.engine.eos)
        total, count = 0.0, 0
        for row in rows(100):
            question = loaded.encode_message(f"Question: {row['question']}\nAnswer:")
            answer = row["answer"] if loaded.target.tokenizer.chat_template else f" {row['answer']}"
            text = [
                *question,
                *loaded.target.tokenizer(answer, add_special_tokens=False)["input_ids"],
                loaded.vocab.eos[0],
            ]
            ids = torch.tensor([text])
            labels = ids.clone()
            labels[:, : len(question)] = -100
            with torch.no_grad():
                answer_tokens = ids.shape[1] - len(question)
                total += float(model(input_ids=ids, labels=labels).loss) * answer_tokens
                count += answer_tokens
        assert total / count < 1.9, name

        prompts = [loaded.encode_message(f"Question: {row['question']}\nAnswer:") for row in rows(40)]
        longest = max(map(len, prompts))
        ids = torch.tensor([[eos[0]] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        output = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=256, do_sample=False, pad_token_id=eos[0]
        )
        ended = torch.isin(output[:, longest:], torch.tensor(eos)).any(dim=1).float().mean()
        assert float(ended) >= 0.65, name
