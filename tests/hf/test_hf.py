"""`generate` of transformers with our decoding in it, against `generate` alone."""

from __future__ import annotations

import copy
import gc
import json
import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from llguidance import LLMatcher
from llguidance.hf import from_tokenizer
from transformers import (
    AutoTokenizer,
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    T5Config,
    T5ForConditionalGeneration,
    TextIteratorStreamer,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

import omnidraft
from omnidraft import ConfigError, ModelError, OmniDraftError, PromptError, hf, zoo
from omnidraft.decoding.drafter import Drafter
from omnidraft.draft_length.goodput import Goodput
from omnidraft.hf import ready
from omnidraft.hf.ready import ready_drafters
from omnidraft.hf.text import Text
from omnidraft.verification.round import Round
from support.generating import (
    COUNT,
    OPTIONS,
    PROMPT,
    Ends,
    alone,
    helped,
    ids_of,
    load,
    new_tokens,
    noisy,
    recorded,
    tokenizer_of,
)
from support.models import save_model
from support.small_tokenizers import SPECIAL


@pytest.fixture(scope="module", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMNIDRAFT_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def model(target: Path) -> PreTrainedModel:
    return load(target)


@pytest.fixture(scope="module")
def twin(target: Path) -> PreTrainedModel:
    return noisy(load(target), 0.01)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    return recorded(monkeypatch)


# ---------------------------------------------------------------- greedy identity


def eos_within(model: PreTrainedModel, **options: Any) -> int:
    """A token that the greedy text meets for the first time somewhere in its middle."""
    text = new_tokens(model, alone(model, **options))
    return next(token for place, token in enumerate(text) if place > COUNT // 3 and token not in text[:place])


def case(name: str, model: PreTrainedModel) -> dict[str, Any]:
    text, end = new_tokens(model, alone(model)), eos_within(model)
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        "penalty": {"repetition_penalty": 1.3},
        "no repeats": {"no_repeat_ngram_size": 1},
        "bad words": {"bad_words_ids": [[text[0]], text[5:7]]},
        "suppressed": {"suppress_tokens": text[3:6]},
        "suppressed first": {"begin_suppress_tokens": text[:1]},
        "eos": {"eos_token_id": [end, 7]},
        "forced eos": {"forced_eos_token_id": 5},
        "late eos": {"eos_token_id": end, "min_new_tokens": COUNT - 4},
        "biased": {"sequence_bias": [[[text[0]], -9.0], [[9], 4.0]]},
        "guided": {"guidance_scale": 1.5},  # a processor with a model and a cache of its own
        "all": {
            "repetition_penalty": 1.2,
            "no_repeat_ngram_size": 2,
            "eos_token_id": end,
            "forced_eos_token_id": end,
            "min_new_tokens": COUNT - 2,
            "renormalize_logits": True,
        },
    }
    return cases[name]


NAMES = "plain penalty;no repeats;bad words;suppressed;suppressed first;eos;forced eos;late eos;biased;guided;all"


@pytest.mark.parametrize("name", NAMES.replace("plain ", "plain;").split(";"))
def test_greedy_text_is_that_of_generate_alone(
    model: PreTrainedModel, twin: PreTrainedModel, drafter: Path, rounds: list[Round], name: str
) -> None:
    options = case(name, model)
    expected = alone(model, **options)
    assert name == "plain" or not torch.equal(expected, alone(model))
    ways: list[tuple[object, dict[str, Any]]] = [(twin, {}), (drafter, {"draft_length": 8}), (twin, {"mode": "paper"})]
    ways += [(twin, {"mode": "intersection", "drafter_temperature": 1.0})]
    for helper, more in ways:
        output = helped(model, helper, **options, omnidraft_options=OPTIONS | more)
        assert torch.equal(output, expected), (helper, more)
        assert output.dtype == expected.dtype
    assert sum(record.counts.accepted for record in rounds) > COUNT / 4
    assert any(record.counts.accepted < len(record.proposals) for record in rounds)


def test_a_text_without_an_end(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    """The drafter's end of text is a token like any other where `generate` knows none."""
    end = eos_within(model)
    endless, drafter = copy.deepcopy(model), copy.deepcopy(twin)
    for each in (endless, drafter):
        each.generation_config.eos_token_id = each.config.eos_token_id = None
    expected = new_tokens(model, alone(endless))
    assert expected.index(end) < COUNT - 4
    drafter.generation_config.eos_token_id = end
    assert new_tokens(model, helped(endless, drafter)) == expected


# ---------------------------------------------------------------- what processors and criteria are shown


class Watch(LogitsProcessor):
    """Notes the prefixes it is shown; writes into the scores, as many a processor does."""

    def __init__(self, banned: int) -> None:
        self.seen: list[list[int]] = []
        self._banned = banned

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        scores[:, self._banned] = -torch.inf
        return scores


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("ending", ["length", "criterion", "eos"])
@pytest.mark.parametrize("mode", ["exact", "paper"])
def test_processors_see_each_prefix_once_in_order_and_none_that_does_not_stay(
    model: PreTrainedModel, twin: PreTrainedModel, rounds: list[Round], sampled: bool, ending: str, mode: str
) -> None:
    watch, ends = Watch(0), Ends(*([eos_within(model)] if ending == "criterion" else []))
    options: dict[str, Any] = {"eos_token_id": eos_within(model)} if ending == "eos" else {}
    own = OPTIONS | {"draft_length": 6, "mode": mode}
    for seed in range(4 if sampled else 1):
        watch.seen, ends.seen = [], []
        torch.manual_seed(seed)
        output = helped(
            model,
            twin,
            do_sample=sampled,
            temperature=0.3 if sampled else None,
            logits_processor=LogitsProcessorList([watch]),
            stopping_criteria=StoppingCriteriaList([ends]),
            omnidraft_options=own,
            **options,
        )
        text = output[0].tolist()
        first = ids_of(model).shape[1]
        assert watch.seen == [text[:length] for length in range(first, len(text))]
        assert ends.seen == [text[: length + 1] for length in range(first, len(text))]
    assert sum(record.counts.accepted for record in rounds) > 3


@pytest.mark.parametrize("processed", [False, True])
def test_a_criterion_ends_the_text_within_a_round(
    model: PreTrainedModel, twin: PreTrainedModel, rounds: list[Round], processed: bool
) -> None:
    more: dict[str, Any] = {"repetition_penalty": 1.02} if processed else {}
    text = new_tokens(model, alone(model, **more))
    cut = 0
    for end in dict.fromkeys(text):  # wherever in a round that may be
        ours, theirs = Ends(end), Ends(end)
        expected = alone(model, stopping_criteria=StoppingCriteriaList([theirs]), **more)
        rounds.clear()
        output = helped(model, twin, stopping_criteria=StoppingCriteriaList([ours]), **more)
        assert torch.equal(output, expected)
        assert new_tokens(model, output) == text[: text.index(end) + 1]
        assert ours.seen == theirs.seen
        assert rounds[-1].finish == "stop"
        cut += len(rounds[-1].emitted) <= rounds[-1].counts.accepted
    assert cut > 2


def test_stop_strings_and_times(model: PreTrainedModel, twin: PreTrainedModel, target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target)
    text = tokenizer.decode(new_tokens(model, alone(model)))
    stop = StopStringCriteria(tokenizer, [str(text[12:14]), str(text[20])])
    expected = alone(model, stopping_criteria=StoppingCriteriaList([stop]))
    assert 2 < len(new_tokens(model, expected)) < COUNT
    assert torch.equal(helped(model, twin, stopping_criteria=StoppingCriteriaList([stop])), expected)
    assert len(new_tokens(model, helped(model, twin, max_time=1e-9))) == 1


def test_the_shortest_of_several_lengths_counts(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    first = ids_of(model).shape[1]
    for lengths, new in (((first + 9, first + 5), 5), ((1,), 1)):  # one token comes before any criterion is asked
        criteria = StoppingCriteriaList([*map(MaxLengthCriteria, lengths), EosTokenCriteria(3)])
        expected = alone(model, stopping_criteria=criteria)
        assert len(new_tokens(model, expected)) == new
        assert torch.equal(helped(model, twin, stopping_criteria=criteria), expected)


def test_nothing_is_processed_beyond_the_length_asked_for() -> None:
    """A drafter token that stands for several target tokens may reach beyond it."""
    watch, row = Watch(0), torch.ones(1, 4)
    prompt: Any = torch.tensor([[1, 2]])
    text = Text(prompt, LogitsProcessorList([watch]), StoppingCriteriaList([MaxLengthCriteria(4)]), GenerationConfig())
    ids = torch.tensor([[1, 2, 3, 1, 2]])
    results = [text.process(ids[:, :length], row.clone()) for length in (2, 3, 4, 5)]
    assert watch.seen == [[1, 2], [1, 2, 3]]
    assert [float(result[0, 0]) for result in results] == [-torch.inf, -torch.inf, 1.0, 1.0]


def test_a_text_ends_where_the_context_does(tmp_path: Path, target: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = AutoTokenizer.from_pretrained(target).backend_tokenizer
    short = load(save_model(tmp_path / "short", tokenizer, seed=1, context=24))
    expected = alone(short, ids=ids_of(short), max_length=60, max_new_tokens=None)
    output = helped(short, target, ids=ids_of(short), max_length=60, max_new_tokens=None)
    assert 24 <= output.shape[1] < 60
    assert torch.equal(output, expected[:, : output.shape[1]])
    assert "context" in caplog.text


# ---------------------------------------------------------------- sampled texts


@pytest.mark.parametrize("more", [{}, {"suppress_tokens": [3]}])
def test_a_draft_is_as_warm_as_the_text(
    model: PreTrainedModel, twin: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    seen: set[float] = set()
    draft = Drafter.draft

    def noted(self: Any, length: int, temperature: float, *rest: Any) -> Any:
        seen.add(temperature)
        return draft(self, length, temperature, *rest)

    monkeypatch.setattr(Drafter, "draft", noted)
    helped(model, twin, do_sample=True, temperature=0.3, **more)
    assert seen == {0.3}
    seen.clear()
    own = OPTIONS | {"drafter_temperature": 0.9}
    helped(model, twin, do_sample=True, temperature=0.3, omnidraft_options=own, **more)
    assert seen == {0.9}


def test_torchs_seed_decides_every_draw(target: Path, twin: PreTrainedModel) -> None:
    def texts(seed: int) -> list[list[int]]:
        model = load(target)  # for which nothing was learned yet
        torch.manual_seed(seed)
        return [new_tokens(model, helped(model, twin, do_sample=True)) for _ in range(2)]

    first = texts(0)
    assert first[0] != first[1]
    assert texts(0) == first
    assert texts(1) != first
    model = load(target)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    helped(model, twin)
    assert torch.equal(torch.get_rng_state(), state), "a greedy text needs no random number"


# ---------------------------------------------------------------- what comes back


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("more", [{}, {"suppress_tokens": [3], "temperature": 0.5}])
def test_scores_and_logits_are_those_of_each_new_token(
    model: PreTrainedModel, twin: PreTrainedModel, rounds: list[Round], sampled: bool, more: dict[str, Any]
) -> None:
    more = {name: value for name, value in more.items() if sampled or name != "temperature"}
    asked: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    asked["min_new_tokens"] = COUNT if sampled else None  # which keeps the end of text away
    result: Any = helped(model, twin, do_sample=sampled, **asked, **more)
    assert {GenerateDecoderOnlyOutput} == {type(result)}
    assert len(result.sequences[0]) == ids_of(model).shape[1] + COUNT
    assert len(result.scores) == len(result.logits) == COUNT
    assert any(record.counts.accepted for record in rounds)

    class Follow(LogitsProcessor):
        """Has `generate` alone say the same text."""

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            one = torch.full_like(scores, -torch.inf)
            one[:, result.sequences[0, input_ids.shape[1]]] = 0.0
            return one

    expected = alone(model, **asked, logits_processor=LogitsProcessorList([Follow()]))
    assert torch.equal(expected.sequences, result.sequences)
    for ours, theirs in zip(result.logits, expected.logits, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)
    if not sampled:
        expected = alone(model, **asked, **more)
        for ours, theirs in zip(result.scores, expected.scores, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)
    else:
        cut = [int(torch.isfinite(row).sum()) for row in result.scores]
        assert cut == [50] * COUNT, "top-k of 50 is what transformers samples with"


def test_only_what_is_asked_comes_back(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    result = helped(model, twin, return_dict_in_generate=True, output_logits=True)
    assert result.scores is None
    assert len(result.logits) == COUNT
    assert torch.equal(result.sequences, helped(model, twin))
    assert set(helped(model, twin, return_dict_in_generate=True)) == {"sequences"}


class Unsure(StoppingCriteria):
    """Ends a text with a token of less probability than this."""

    def __init__(self, bound: float) -> None:
        self.seen: list[float] = []
        self._bound = bound

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        self.seen.append(float(scores[-1].softmax(-1)[0, input_ids[0, -1]]))
        return self.seen[-1] < self._bound


def test_criteria_may_look_at_the_scores(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    asked: dict[str, Any] = {"return_dict_in_generate": True, "output_scores": True}
    never = Unsure(-1.0)
    alone(model, **asked, stopping_criteria=StoppingCriteriaList([never]))
    bound = 1.01 * min(never.seen[8:])
    ours, theirs = Unsure(bound), Unsure(bound)
    expected = alone(model, **asked, stopping_criteria=StoppingCriteriaList([theirs]))
    result = helped(model, twin, **asked, stopping_criteria=StoppingCriteriaList([ours]))
    assert torch.equal(result.sequences, expected.sequences)
    assert len(result.scores) == len(ours.seen) == len(theirs.seen) == len(new_tokens(model, result.sequences)) < COUNT


def test_streamers_are_given_the_prompt_each_token_and_the_end(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    class Notes:
        def __init__(self) -> None:
            self.given: list[Any] = []

        def put(self, value: torch.Tensor) -> None:
            self.given.append((tuple(value.shape), value.tolist()))

        def end(self) -> None:
            self.given.append("end")

    theirs, ours = Notes(), Notes()
    alone(model, streamer=theirs)
    helped(model, twin, omnidraft_streamer=ours)
    assert ours.given == theirs.given


def test_texts_of_several_threads_queue(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    expected = helped(model, twin).tolist()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(helped(model, twin).tolist())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 6


def test_text_is_streamed_to_another_thread(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    tokenizer = tokenizer_of(model)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=30)
    thread = threading.Thread(target=helped, args=(model, twin), kwargs={"omnidraft_streamer": streamer})
    thread.start()
    pieces = list(streamer)
    thread.join()
    assert len(pieces) > 3
    assert "".join(pieces) == tokenizer.decode(new_tokens(model, alone(model)))


def test_a_streamer_that_would_wait_for_ever_is_refused(model: PreTrainedModel, twin: PreTrainedModel) -> None:
    streamer = TextIteratorStreamer(tokenizer_of(model), timeout=30)
    with pytest.raises(ConfigError, match="give it as omnidraft_streamer"):
        helped(model, twin, streamer=streamer)
    list(streamer)  # it has an end


def test_autocast_is_as_without_drafts(model: PreTrainedModel, twin: PreTrainedModel, drafter: Path) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = alone(model, max_new_tokens=4)
        for helper in (twin, drafter):
            assert helped(model, helper, max_new_tokens=4).shape == expected.shape


# ---------------------------------------------------------------- what is kept


def test_a_drafter_is_attached_once(target: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(target)
    assert torch.equal(helped(model, drafter, omnidraft_options={}), alone(model))
    (kept,) = ready_drafters(model).values()
    assert isinstance(kept.policy, Goodput)
    with monkeypatch.context() as patch:
        for name in ("attach_drafter", "load_model", "load_tokenizer", "SharedDrafter"):
            patch.setattr(ready, name, lambda *_, **__: pytest.fail("made again"))
        helped(model, drafter, omnidraft_options={})
        helped(model, drafter, omnidraft_options=None, do_sample=True)
    assert list(ready_drafters(model).values()) == [kept]

    with monkeypatch.context() as patch:  # other options: another pair of the same drafter
        patch.setattr(ready, "load_model", lambda *_, **__: pytest.fail("loaded again"))
        for count in range(2, 8):
            helped(model, drafter, omnidraft_options={"draft_length": count}, max_new_tokens=2)
    assert len(ready_drafters(model)) == ready.KEPT
    assert {id(each.side.adaptation.shared) for each in ready_drafters(model).values()} == {
        id(kept.side.adaptation.shared)
    }


def test_what_is_kept_goes_with_the_model(target: Path, drafter: Path) -> None:
    model, twin = load(target), load(target)
    own = omnidraft.load(target, drafter, draft_length=4)
    same = own.target.lm.model
    helped(model, twin, max_new_tokens=4)
    helped(same, own, max_new_tokens=4)  # the drafter of an OmniDraft, for that one's own target
    models: list[Any] = [weakref.ref(each) for each in (model, twin, same)]
    pairs = [
        weakref.ref(each.side.adaptation.attached)
        for each in (*ready_drafters(model).values(), *ready_drafters(same).values())
    ]
    del model, twin, same, own
    gc.collect()
    assert [each() for each in (*models, *pairs)] == [None] * 5


def test_a_model_that_changes_is_seen_as_it_is(target: Path, twin: PreTrainedModel) -> None:
    model: Any = load(target)
    before = helped(model, twin)
    noisy(model, 0.05)
    expected = alone(model)
    assert not torch.equal(before, expected)
    assert torch.equal(helped(model, twin), expected)
    model.double()
    assert torch.equal(helped(model, twin), alone(model))


# ---------------------------------------------------------------- drafters of every kind


def test_drafters_of_every_kind(model: PreTrainedModel, target: Path, drafter: Path, rounds: list[Round]) -> None:
    expected = alone(model)
    tokenizer = AutoTokenizer.from_pretrained(drafter)
    nameless = load(drafter)
    nameless.config._name_or_path = nameless.name_or_path = ""
    shared = omnidraft.load(target, drafter, **OPTIONS)
    for helper, options in (
        (drafter, {}),
        (str(drafter), {"omnidraft_options": OPTIONS | {"drafter_step": "transformers"}}),
        ("zoo:drafter", {}),
        (load(drafter), {}),
        (nameless, {"omnidraft_drafter_tokenizer": tokenizer}),
        (shared, {}),
    ):
        rounds.clear()
        assert torch.equal(helped(model, helper, **options), expected)
        assert any(record.draft for record in rounds)
    with pytest.raises(ConfigError, match="give omnidraft_drafter_tokenizer"):
        helped(model, nameless)

    lost = load(target)
    lost.config._name_or_path = lost.name_or_path = "no/such model"
    with pytest.raises(ConfigError, match="'no/such model': give omnidraft_tokenizer"):
        helped(lost, drafter, ids=ids_of(model))
    own = AutoTokenizer.from_pretrained(target)
    assert torch.equal(helped(lost, drafter, ids=ids_of(model), omnidraft_tokenizer=own), expected)


def test_a_drafter_that_learns_elsewhere_is_shared(
    model: PreTrainedModel, target: Path, drafter: Path, tmp_path: Path
) -> None:
    """What it learned for its own target stays that target's, and neither changes what the other says."""
    with omnidraft.load(
        target, drafter, **OPTIONS, adapt="inline", interval=1, learning_rate=0.1, profile=tmp_path / "profile"
    ) as learner:
        expected = alone(model)
        assert torch.equal(helped(model, learner), expected)
        answers = [learner.generate(f"{PROMPT} {i}", max_new_tokens=COUNT) for i in range(12)]
        assert learner.learned["updates"] > 0
        side = learner.side
        assert side is not None
        assert side.adaptation.shared.held_by(side.adaptation)
        assert torch.equal(helped(model, learner), expected)
        assert not side.adaptation.shared.held_by(side.adaptation)
        again = learner.generate(f"{PROMPT} 0", max_new_tokens=COUNT)
        assert again.token_ids == answers[0].token_ids
        assert side.adaptation.shared.held_by(side.adaptation)


def test_one_text_at_a_time(model: PreTrainedModel, target: Path, drafter: Path) -> None:
    shared = omnidraft.load(target, drafter, **OPTIONS)
    stream = shared.stream(PROMPT, max_new_tokens=COUNT)
    next(stream)
    helped(model, shared)
    with pytest.raises(OmniDraftError, match="another request was begun"):
        list(stream)

    class Inner:
        def put(self, value: torch.Tensor) -> None:
            if value.dim() == 1:
                helped(model, shared, max_new_tokens=3)

        def end(self) -> None:
            """Is not reached."""

    with pytest.raises(OmniDraftError, match="another request was begun"):
        helped(model, shared, omnidraft_streamer=Inner())
    assert torch.equal(helped(model, shared), alone(model)), "and the next text is as good as any"


# ---------------------------------------------------------------- what is refused

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "num_beams is 2.*use 1"),
    "sequences": ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is 2"),
    "attentions": ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions is True"),
    "hidden states": ({"output_hidden_states": True}, "output_hidden_states is True"),
    "no cache": ({"use_cache": False}, "use_cache is False.*use True"),
    "static cache": ({"cache_implementation": "static"}, "cache_implementation is 'static'"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "asks for contrastive_search"),
    "batch": ({"ids": torch.tensor([[3, 4], [5, 6]])}, "the batch has 2 texts"),
    "padding": (
        {"ids": torch.tensor([[3, 4]]), "attention_mask": torch.tensor([[0, 1]])},
        "attention_mask is given.*leave the padding out",
    ),
    "positions": ({"ids": torch.tensor([[3, 4]]), "position_ids": torch.tensor([[4, 5]])}, "position_ids is given"),
    "cache": ({"past_key_values": DynamicCache()}, "past_key_values is given"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 2, 32)}, "inputs_embeds is given"),
    "no drafter": ({"omnidraft_drafter": None}, "omnidraft_drafter is missing: give a folder"),
    "a number": ({"omnidraft_drafter": 7}, "omnidraft_drafter is of type int: give a folder"),
    "a lost tokenizer": ({"omnidraft_drafter_tokenizer": object()}, "omnidraft_drafter_tokenizer is for a drafter"),
    "typing error": ({"omnidraft_options": {"draft_lenght": 3}}, "'draft_lenght'.*did you mean 'draft_length'"),
    "bad option": ({"omnidraft_options": {"draft_length": -3}}, "draft_length is -3"),
    "no folder": ({"omnidraft_drafter": "no/such/folder"}, "no folder that exists"),
    "no zoo model": ({"omnidraft_drafter": "zoo:giraffe"}, "use one of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused(model: PreTrainedModel, drafter: Path, name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises((ConfigError, ModelError), match=message):
        helped(model, drafter, **options)


class Forgetful(LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        """Returns nothing."""


def test_a_processor_that_returns_nothing_is_named(model: PreTrainedModel, drafter: Path) -> None:
    with pytest.raises(ConfigError, match="'Forgetful' returns NoneType"):
        helped(model, drafter, logits_processor=LogitsProcessorList([Forgetful()]))


def test_what_says_no_more_than_the_ids_is_taken(model: PreTrainedModel, drafter: Path) -> None:
    ids = ids_of(model)
    positions = torch.arange(ids.shape[1])[None]
    assert torch.equal(helped(model, drafter, ids=ids, position_ids=positions), alone(model))


def test_ids_come_back_as_generate_gives_them(model: PreTrainedModel, drafter: Path) -> None:
    narrow = ids_of(model).int()
    found, expected = helped(model, drafter, ids=narrow), alone(model, ids=narrow)
    assert found.dtype == expected.dtype == torch.long
    assert torch.equal(found, expected)


def test_models_that_cannot_be_drafted_for_are_refused(model: PreTrainedModel, target: Path, drafter: Path) -> None:
    with pytest.raises(ConfigError, match="is the model itself"):
        helped(model, model)
    with pytest.raises(ConfigError, match="no drafter to share"):
        helped(model, omnidraft.load(target, None))
    with pytest.raises(ConfigError, match="drafter_step is that of the drafter"):
        helped(model, omnidraft.load(target, drafter), omnidraft_options={"drafter_step": "transformers"})
    training: Any = load(target)
    training.train()
    with pytest.raises(ConfigError, match=r"call model.eval\(\)"):
        helped(training, drafter)
    assert training.training
    config = T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=300)
    config.decoder_start_token_id = 0
    encoder = T5ForConditionalGeneration(config).eval()
    with pytest.raises(ModelError, match="has an encoder"):
        helped(encoder, drafter, ids=torch.tensor([[3, 4]]))
    with pytest.raises(PromptError, match="token id 99999 is not in"):
        helped(model, drafter, ids=torch.tensor([[5, 99999]]))
    with pytest.raises(PromptError, match="the prompt has"):
        helped(model, drafter, ids=torch.full((1, 4097), 5))
    with pytest.raises(ConfigError, match="omnidraft_streamer is of type int"):
        helped(model, drafter, omnidraft_streamer=3)
    with pytest.raises(ConfigError, match="omnidraft_options is of type str"):
        helped(model, drafter, omnidraft_options="draft_length")


def test_a_refused_call_puts_nothing_into_a_streamer(model: PreTrainedModel, drafter: Path) -> None:
    streamer = SimpleNamespace(put=lambda _: pytest.fail("given something"), end=lambda: None)
    for options in ({"omnidraft_options": {"mode": "none"}}, {"ids": torch.full((1, 4097), 5)}):
        with pytest.raises((ConfigError, PromptError)):
            helped(model, drafter, omnidraft_streamer=streamer, **options)


# ---------------------------------------------------------------- constrained decoding


class Grammar(LogitsProcessor):
    """Allows what a grammar does, in step with the text; it never goes back."""

    def __init__(self, tokenizer: Any, size: int, grammar: str, prompt: int) -> None:
        self._matcher = LLMatcher(from_tokenizer(tokenizer, n_vocab=size), grammar)
        self._length = prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert self._matcher.consume_tokens(input_ids[0, self._length :].tolist()), self._matcher.get_error()
        self._length = input_ids.shape[1]
        allowed = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)
        return scores.masked_fill(torch.from_numpy(allowed == 0), -torch.inf)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{2,12}$"},
        "rolls": {"type": "integer", "minimum": 0, "maximum": 999},
        "kind": {"enum": ["rye", "wheat"]},
        "sold": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    },
    "required": ["name", "rolls", "kind", "sold"],
    "additionalProperties": False,
}
REGEX = r"(red|green): [A-Za-z ]{24,48}[0-9]{3}!"


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedModel:
    """A random model with a tokenizer that was trained on text."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("target-a")).backend_tokenizer
    tokenizer.add_special_tokens(list(SPECIAL))
    return load(save_model(tmp_path_factory.mktemp("speaker"), tokenizer, seed=4))


@pytest.mark.slow
@pytest.mark.parametrize("grammar", ["schema", "regex"])
@pytest.mark.parametrize("helper", ["zoo:drafter", "noisy"])
def test_a_grammar_holds(speaker: PreTrainedModel, rounds: list[Round], grammar: str, helper: str) -> None:
    tokenizer = tokenizer_of(speaker)
    flat: Any = {"whitespace_flexible": False}
    rule = (
        LLMatcher.grammar_from_json_schema(SCHEMA, overrides=flat)
        if grammar == "schema"
        else LLMatcher.grammar_from_regex(REGEX)
    )
    drafter = noisy(load(Path(str(speaker.name_or_path))), 0.01) if helper == "noisy" else helper
    first = ids_of(speaker).shape[1]
    found = set()
    for seed in range(6):
        options: dict[str, Any] = {"do_sample": True, "temperature": 0.9, "top_k": 0} if seed else {}
        torch.manual_seed(seed)
        options |= {"max_new_tokens": 200}

        def own() -> LogitsProcessorList:
            return LogitsProcessorList([Grammar(tokenizer, speaker.config.vocab_size, rule, first)])

        output = helped(speaker, drafter, logits_processor=own(), **options)
        assert seed or torch.equal(output, alone(speaker, logits_processor=own(), **options))
        text = tokenizer.decode(new_tokens(speaker, output), skip_special_tokens=True)
        assert output[0, -1] == speaker.config.eos_token_id
        assert re.fullmatch(REGEX, text) if grammar == "regex" else valid(json.loads(text))
        found.add(text)
    assert len(found) == 6
    assert sum(record.counts.accepted for record in rounds) > (2 if helper == "noisy" else 0)


def valid(value: dict[str, Any]) -> bool:
    good = list(value) == list(SCHEMA["properties"]) and re.fullmatch("[a-z]{2,12}", value["name"]) is not None
    good &= type(value["rolls"]) is int and 0 <= value["rolls"] <= 999 and value["kind"] in ("rye", "wheat")
    return good and 2 <= len(value["sold"]) <= 4 and all(type(each) is bool for each in value["sold"])


# ---------------------------------------------------------------- the page about it


@pytest.mark.slow
def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "transformers.md"
    snippets = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(snippets) >= 3
    names: dict[str, object] = {}
    for snippet in snippets:
        exec(compile(snippet, page.name, "exec"), names)  # noqa: S102 (our own page)
    assert capsys.readouterr().out.strip()


def test_it_is_found_without_an_import_of_its_own() -> None:
    assert omnidraft.hf is hf
    assert "hf" in dir(omnidraft)
