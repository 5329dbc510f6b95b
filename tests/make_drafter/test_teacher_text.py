"""Teacher text is what the model writes, with its own probabilities, however many conversations are written at once."""

from __future__ import annotations

import copy
import itertools
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from omnidraft import zoo
from omnidraft.errors import InputError, ModelError
from omnidraft.make_drafter import make, shards, teacher_text
from omnidraft.make_drafter.settings import DrafterShape, Training, Writing
from omnidraft.make_drafter.shards import TeacherConversation
from omnidraft.make_drafter.teacher_text import write_text
from omnidraft.models.loading import LoadedModel, load_model
from support.texts import QUESTIONS

pytestmark = pytest.mark.slow
ENOUGH = Writing(text_tokens=300, batch_size=6, self_asked=0.5)


@pytest.fixture(scope="module")
def teacher() -> LoadedModel:
    return load_model(zoo.path("target-b"), "float32", "cpu")


@pytest.fixture(scope="module")
def native() -> LoadedModel:
    return load_model(zoo.path("target-b"), "int8", "cpu", verifies=True)


@pytest.fixture(scope="module")
def written(teacher: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TeacherConversation]]:
    folder = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:  # so that some conversations end in time
        patch.setattr(teacher_text, "ANSWERS", {40: 1.0})
        write_text(teacher, QUESTIONS, ENOUGH, folder, lambda _: None)
    return folder, [each for path in shards.find(folder) for each in shards.load(path)]


def test_probabilities_are_those_of_the_model_reading_the_conversation(
    teacher: LoadedModel, written: tuple[Path, list[TeacherConversation]]
) -> None:
    for each in written[1]:
        with torch.inference_mode():
            logits = teacher.lm.model(torch.tensor(each.ids)[None], use_cache=False).logits[0]
        logprobs = logits.log_softmax(-1)[np.flatnonzero(each.written) - 1]
        top, ids = logprobs.topk(teacher_text.TOP)
        np.testing.assert_allclose(each.top_logprobs, top.numpy(), atol=2e-2)
        assert (ids[:, 0].numpy() == each.top_ids[:, 0]).all()


def test_greedy_answers_are_the_likeliest_tokens_and_others_are_not_all(
    written: tuple[Path, list[TeacherConversation]],
) -> None:
    answers = []
    for each in written[1]:
        begun = len(each.ids) - int(each.written[::-1].argmin())  # after the last token that was given
        answers.append((each.ids[begun:] == each.top_ids[begun - len(each.ids) :, 0]).all())
    assert 0 < sum(answers) < len(answers)


def test_questions_are_given_or_written_by_the_teacher(
    teacher: LoadedModel, written: tuple[Path, list[TeacherConversation]]
) -> None:
    asked = {"given": 0, "own": 0}
    for each in written[1]:
        turns = str(teacher.tokenizer.decode(each.ids)).split("<|im_start|>")
        words = turns[-2].removeprefix("user\n").removesuffix("<|im_end|>\n")
        given = int(each.written[::-1].argmin()) == each.written.sum()  # one run at the end
        asked["given" if given else "own"] += 1
        assert (words in {text.strip() for text in QUESTIONS}) == given
        assert turns[-1].startswith("assistant\n")
    assert min(asked.values()) > 0


def test_conversations_go_on_for_some_turns(
    native: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_text, "TURNS", {3: 1.0})
    monkeypatch.setattr(teacher_text, "ANSWERS", {60: 1.0})
    monkeypatch.setattr(teacher_text, "FOLLOWED", 0.25)
    write_text(native, QUESTIONS, Writing(text_tokens=3000, batch_size=16, self_asked=0.2), tmp_path, lambda _: None)
    several, followed = 0, 0
    for each in itertools.chain.from_iterable(map(shards.load, shards.find(tmp_path))):
        turns = str(native.tokenizer.decode(each.ids)).split("<|im_start|>")
        roles = [turn.split("\n")[0] for turn in turns if turn and not turn.startswith("system")]
        assert roles == ["user", "assistant"] * (len(roles) // 2)  # it ends with an answer, whatever began after that
        assert len(each.top_ids) == each.written.sum()
        assert each.written[-1]
        words = [turn.removeprefix("user\n").removesuffix("<|im_end|>\n") for turn in turns if turn.startswith("user")]
        for said in words[1:]:
            several, followed = several + 1, followed + (said in teacher_text.FOLLOW_UPS)
    assert 0 < followed < several


def test_a_second_run_goes_on_where_the_first_ended(
    teacher: LoadedModel, written: tuple[Path, list[TeacherConversation]]
) -> None:
    folder, before = written
    write_text(teacher, QUESTIONS, ENOUGH, folder, lambda _: None)  # there is enough
    assert len(shards.find(folder)) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher_text, "ANSWERS", {40: 1.0})
        more = Writing(text_tokens=sum(int(each.written.sum()) for each in before) + 1, batch_size=2)
        write_text(teacher, QUESTIONS, more, folder, lambda _: None)
    after = [each for path in shards.find(folder) for each in shards.load(path)]
    assert len(shards.find(folder)) == 2
    assert len({each.number for each in after}) == len(after) > len(before)


def test_a_chat_with_a_system_text_is_answered_as_its_template_writes_it(
    teacher: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_text, "ANSWERS", {8: 1.0})
    chat = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Who are you?"}]}
    write_text(teacher, [chat], Writing(text_tokens=20, batch_size=2, self_asked=0.0), tmp_path, lambda _: None)
    expected = teacher.tokenizer.apply_chat_template(chat["messages"], tokenize=False, add_generation_prompt=True)
    for each in itertools.chain.from_iterable(map(shards.load, shards.find(tmp_path))):
        assert str(teacher.tokenizer.decode(each.ids)).startswith(str(expected))


def test_a_shard_comes_back_as_it_was_saved(written: tuple[Path, list[TeacherConversation]], tmp_path: Path) -> None:
    shards.save(tmp_path / "shard-00000.npz", written[1])
    for one, other in zip(written[1], shards.load(tmp_path / "shard-00000.npz"), strict=True):
        assert one.number == other.number
        for name in ("ids", "written", "top_ids", "top_logprobs"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_model_without_chat_template_is_refused(tmp_path: Path) -> None:
    plain = load_model(zoo.path("target-a"), "float32", "cpu")
    with pytest.raises(ModelError, match="target-a has no chat template"):
        write_text(plain, [], ENOUGH, tmp_path / "text", lambda _: None)


def test_a_teacher_that_ends_no_question_of_its_own_is_refused(
    teacher: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_text, "TRIED", 2)
    monkeypatch.setattr(teacher_text, "ANSWERS", {5: 1.0})
    torch.manual_seed(0)
    own = teacher_text.Teacher(teacher, [], Writing(batch_size=1))
    ends = itertools.accumulate(len(some) for some in own.write(itertools.count()))
    assert any(ended > 1 for ended in itertools.islice(ends, 400))  # the first question and the fourth are not ended
    monkeypatch.setattr(teacher_text, "QUESTION", 1)
    with pytest.raises(ModelError, match="target-b ends no question of its own"):
        write_text(teacher, [], ENOUGH, tmp_path / "alone", lambda _: None)
    # prompts beside its own questions are answered
    write_text(teacher, QUESTIONS, replace(ENOUGH, text_tokens=50), tmp_path / "beside", lambda _: None)


def test_prompts_that_are_all_too_long_are_refused(
    teacher: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="each of the prompts takes more than 767 tokens of target-b"):
        write_text(teacher, ["word " * 1500], ENOUGH, tmp_path, lambda _: None)
    monkeypatch.setattr(teacher_text, "ANSWERS", {9: 1.0})
    given = Writing(text_tokens=9, batch_size=2, self_asked=0)
    write_text(teacher, ["word " * 1500, QUESTIONS[0]], given, tmp_path, lambda _: None)


def test_text_of_another_vocabulary_is_not_gone_on_with(
    teacher: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher_text, "ANSWERS", {9: 1.0})
    few = Writing(text_tokens=9, batch_size=2, self_asked=0)
    folder = make.text_folder(tmp_path, teacher)
    write_text(teacher, QUESTIONS, few, folder, lambda _: None)
    (folder / shards.VOCABULARY).unlink()  # text of earlier versions
    write_text(teacher, QUESTIONS, few, folder, lambda _: None)
    other = replace(teacher, tokenizer=copy.deepcopy(teacher.tokenizer))
    other.tokenizer.add_tokens(["<more>"])
    said = f"the text in {re.escape(str(folder))} is of another model that is called target-b: rename"
    for enough in (few, replace(few, text_tokens=1000)):
        with pytest.raises(InputError, match=said):
            write_text(other, QUESTIONS, enough, folder, lambda _: None)
    with pytest.raises(InputError, match=said):
        make.train(teacher, [other], DrafterShape(layers=(0,), vocab=500), Training(), tmp_path, lambda _: None)
    assert len(shards.find(folder)) == 1


@pytest.mark.parametrize("own", [0, 1])
def test_a_long_header_is_no_part_of_the_prompt(
    teacher: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: float
) -> None:
    loaded = replace(teacher, tokenizer=copy.deepcopy(teacher.tokenizer))
    loaded.tokenizer.chat_template = "word " * 520 + str(loaded.tokenizer.chat_template)
    monkeypatch.setattr(teacher_text, "ANSWERS", {9: 1.0})
    write_text(loaded, QUESTIONS, Writing(text_tokens=9, batch_size=2, self_asked=own), tmp_path, lambda _: None)
    (each,) = itertools.islice(shards.load(tmp_path / "shard-00000.npz"), 1)
    assert str(loaded.tokenizer.decode(each.ids)).startswith("word " * 520)


@pytest.mark.parametrize("kind", ["teacher", "native"])
def test_what_a_row_writes_does_not_depend_on_the_rows_beside_it(request: pytest.FixtureRequest, kind: str) -> None:
    """Rows of all lengths; those of the native one are one pass of step.c."""
    loaded: LoadedModel = request.getfixturevalue(kind)
    prompts = [QUESTIONS[0], "Hi", QUESTIONS[1] * 2]

    def greedy(rows: int, count: int) -> dict[int, list[int]]:
        own = teacher_text.Teacher(loaded, prompts, Writing(batch_size=rows, self_asked=0))
        numbers = (i for i in itertools.count() if np.random.default_rng([0, i]).random() < teacher_text.GREEDY)
        found: dict[int, list[int]] = {}
        for some in own.write(numbers):
            found |= {each.number: each.ids.tolist() for each in some}
            if len(found) >= count:
                return found
        raise AssertionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher_text, "ANSWERS", {24: 1.0})
        alone, together = greedy(1, 3), greedy(7, 7)
    both = alone.keys() & together.keys()
    assert len(both) >= 2
    assert all(together[number] == alone[number] for number in both)
