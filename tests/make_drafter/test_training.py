"""Distillation from teacher text: the teacher's distributions, batches like single examples, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import omnidraft
from omnidraft import zoo
from omnidraft.distillation.losses import divergence
from omnidraft.distillation.teacher import TrainingExample
from omnidraft.errors import ConfigError, InputError
from omnidraft.make_drafter import make, shards, training
from omnidraft.make_drafter.cut import cut_model
from omnidraft.make_drafter.settings import DrafterShape, Training
from omnidraft.make_drafter.shards import TeacherConversation
from omnidraft.make_drafter.training import DrafterTrainer, Examples
from omnidraft.make_drafter.vocabulary import choose_tokens, cut_tokenizer
from omnidraft.models.loading import LoadedModel, load_model, load_tokenizer

pytestmark = pytest.mark.medium

SHAPE = DrafterShape(layers=(0, 1), vocab=500)
SHORT = Training(tokens=4000, batch_tokens=300, learning_rate=0.003)


@pytest.fixture(scope="module")
def teacher() -> LoadedModel:
    return load_model(zoo.path("target-b"), "float32", "cpu")


def conversations(teacher: LoadedModel, first: int, count: int) -> list[TeacherConversation]:
    """Sums and their results, of which the teacher is made to be sure."""
    rng, made = np.random.default_rng(first), []
    for number in range(first, first + count):
        a, b = rng.integers(1, 50, 2).tolist()
        question = [{"role": "user", "content": f"What is {a} + {b}?"}]
        text = teacher.tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
        prompt = teacher.tokenizer(text, add_special_tokens=False).input_ids
        answer = teacher.tokenizer(f"{a} + {b} = {a + b}<|im_end|>", add_special_tokens=False).input_ids
        ids = np.array(prompt + answer, np.int32)
        others = rng.integers(100, 6000, (len(answer), 2)).astype(np.int32)
        top = np.concatenate([np.array(answer, np.int32)[:, None], others], 1)
        logprobs = np.log(np.tile([0.9, 0.06, 0.03], (len(answer), 1))).astype(np.float16)
        made.append(TeacherConversation(number, ids, np.arange(len(ids)) >= len(prompt), top, logprobs))
    return made


def small(teacher: LoadedModel) -> tuple[DrafterTrainer, list[TrainingExample]]:
    """A trainer of a small drafter, the same one each time, and its examples."""
    kept = choose_tokens(teacher.tokenizer, {}, SHAPE.vocab)
    tokenizer = cut_tokenizer(teacher.tokenizer, kept)
    examples = Examples(tokenizer, teacher.tokenizer, teacher.lm.vocab_size, teacher.lm.eos)
    model = cut_model(teacher.lm.model, SHAPE.layers, kept, tokenizer.eos_token_id)
    return DrafterTrainer(model, SHORT), [examples.of(each) for each in conversations(teacher, 0, 12)]


def write(teacher: LoadedModel, out: Path, first: int, count: int) -> None:
    folder = make.text_folder(out, teacher)
    folder.mkdir(parents=True, exist_ok=True)
    shards.save(folder / f"shard-{first:05d}.npz", conversations(teacher, first, count))


def test_with_one_vocabulary_the_drafter_is_taught_the_distributions_of_the_teacher(teacher: LoadedModel) -> None:
    tokenizer = teacher.tokenizer
    examples = Examples(tokenizer, tokenizer, teacher.lm.vocab_size, teacher.lm.eos)
    (conversation,) = conversations(teacher, 3, 1)
    example = examples.of(conversation)
    taught = example.teacher
    begun = int(conversation.written.argmax())
    assert example.ids[-2:].tolist() == conversation.ids[-2:].tolist()
    (first,) = (taught.positions + example.first == len(example.ids) - len(conversation.ids) + begun - 1).nonzero()[0]
    entries = taught.rows == first
    found = dict(zip(taught.symbols[entries].tolist(), taught.probs[entries].tolist(), strict=True))
    # 0.9, 0.06 and 0.03 of what is kept
    assert found[int(conversation.ids[begun])] == pytest.approx(0.9 / 0.99, abs=2e-3)
    assert sum(found.values()) == pytest.approx(1, abs=1e-5)


def test_the_end_of_a_turn_is_the_drafters_own_and_markers_are_dropped(teacher: LoadedModel) -> None:
    trainer, examples = small(teacher)
    end = trainer.model.config.eos_token_id
    for example in examples:
        assert example.ids.tolist().count(end) == 2  # of the user's turn and of the answer
        assert example.ids[-1] == end


def test_a_padded_batch_has_the_loss_of_its_examples_one_by_one(teacher: LoadedModel) -> None:
    trainer, examples = small(teacher)
    with torch.no_grad():
        assert len({len(example.ids) for example in examples[:6]}) > 1
        logits, taught = trainer.read(examples[:6])
        together = divergence(logits, taught, "forward+tv")
        alone = [divergence(*trainer.read([example]), "forward+tv") for example in examples[:6]]
    torch.testing.assert_close(together, torch.cat(alone), atol=0.05, rtol=0.02)  # products may be in bfloat16


@pytest.mark.parametrize("able", [False, True])
def test_products_are_in_bfloat16_where_the_device_has_it(
    teacher: LoadedModel, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    monkeypatch.setattr(training, "has_bfloat16", lambda _: able)
    trainer, examples = small(teacher)
    with torch.no_grad():
        logits, _ = trainer.read(examples[:1])
    assert torch.equal(logits, logits.bfloat16().float()) == able


def test_training_raises_the_acceptance_of_held_out_text(teacher: LoadedModel) -> None:
    trainer, examples = small(teacher)
    before = trainer.evaluate(examples[8:])
    rng = np.random.default_rng(0)
    while not trainer.finished:
        for batch in training.batches(examples[:8], SHORT.batch_tokens, rng):
            trainer.step(batch)
    after = trainer.evaluate(examples[8:])
    assert after[0] > before[0] + 0.2
    assert after[1] > before[1] + 0.15


def test_a_resumed_trainer_takes_the_steps_of_one_that_was_never_stopped(teacher: LoadedModel) -> None:
    whole, examples = small(teacher)
    halves = [examples[:4], examples[4:8]]
    for half in halves:
        whole.step(half)
    first, _ = small(teacher)
    first.step(halves[0])
    second, _ = small(teacher)
    second.resume(first.state())
    second.step(halves[1])
    assert second.tokens == whole.tokens
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, second.model.state_dict()[name]), name


def test_every_example_is_in_one_batch_of_a_pass(teacher: LoadedModel) -> None:
    _, examples = small(teacher)
    found = [example for batch in training.batches(examples, 100, np.random.default_rng(1)) for example in batch]
    assert sorted(map(id, found)) == sorted(map(id, examples))


@pytest.mark.slow
def test_a_drafter_is_made_stopped_and_finished(teacher: LoadedModel, tmp_path: Path) -> None:
    said: list[str] = []
    write(teacher, tmp_path, 1, 20)
    make.train(teacher, [teacher], SHAPE, Training(tokens=500, batch_tokens=300), tmp_path, said.append)
    vocabulary = load_tokenizer(tmp_path).get_vocab()
    write(teacher, tmp_path, 40, 20)  # text may grow; number 50 is held out
    make.train(teacher, [teacher], SHAPE, Training(tokens=1200, batch_tokens=300), tmp_path, said.append)
    assert load_tokenizer(tmp_path).get_vocab() == vocabulary
    assert any(line.startswith("going on after") for line in said)
    record = json.loads((tmp_path / "training.json").read_text(encoding="utf-8"))
    assert record["tokens"] >= 1200
    make.train(
        teacher, [teacher], SHAPE, Training(tokens=1200, batch_tokens=300), tmp_path, said.append
    )  # it is finished
    assert said[-1] == next(line for line in reversed(said[:-1]) if "loss" in line)
    assert 0 < record["acceptance_of_held_out_text"]["target-b"]["greedy"] <= 1
    with omnidraft.load(zoo.PREFIX + "target-b", drafter=tmp_path) as model:
        drafted = model.generate("What is 3 + 4?", max_new_tokens=12)
    with omnidraft.load(zoo.PREFIX + "target-b", drafter=None) as model:
        assert model.generate("What is 3 + 4?", max_new_tokens=12).text == drafted.text


def test_another_shape_than_the_folder_holds_is_refused(teacher: LoadedModel, tmp_path: Path) -> None:
    write(teacher, tmp_path, 1, 4)
    make.train(teacher, [teacher], SHAPE, Training(tokens=1), tmp_path, lambda _: None)
    other = DrafterShape(layers=(0,), vocab=500)
    with pytest.raises(ConfigError, match="holds a drafter of another shape"):
        make.train(teacher, [teacher], other, SHORT, tmp_path, lambda _: None)


def test_training_takes_place_on_the_device_of_the_teacher(
    teacher: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = load_model(zoo.path("target-b"), "float32", "cpu")
    elsewhere.lm.device = torch.device("meta")
    write(teacher, tmp_path, 1, 4)
    devices = []

    def finished(trainer: DrafterTrainer) -> bool:
        devices.append(trainer.model.device.type)
        return True

    monkeypatch.setattr(DrafterTrainer, "finished", property(finished))
    monkeypatch.setattr(make, "_save", lambda *_: None)
    for _ in range(2):  # a new drafter, and one that is there
        make.train(teacher, [elsewhere], SHAPE, SHORT, tmp_path, lambda _: None)
    assert devices == ["meta", "meta"]


def test_text_that_is_all_held_out_is_said(teacher: LoadedModel, tmp_path: Path) -> None:
    write(teacher, tmp_path, make.HELD_OUT, 1)
    with pytest.raises(InputError, match=r"there is no text of target-b in .* but what is held out"):
        make.train(teacher, [teacher], SHAPE, SHORT, tmp_path, lambda _: None)
    assert not (tmp_path / "config.json").exists()  # more text will choose the vocabulary


def test_text_without_anything_to_learn_is_said(
    teacher: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(teacher, tmp_path, 1, 2)
    monkeypatch.setattr(TrainingExample, "positions", property(lambda _: 0))
    with pytest.raises(InputError, match="no conversation has anything to learn from"):
        make.train(teacher, [teacher], SHAPE, SHORT, tmp_path, lambda _: None)


def test_no_text_is_said(teacher: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no text of target-b"):
        make.train(teacher, [teacher], SHAPE, SHORT, tmp_path, lambda _: None)
