"""`generate` of transformers with our decoding in it, against `generate` alone."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from omnidraft import ConfigError
from omnidraft.config import Drafting
from omnidraft.decoding.drafter import Drafter
from omnidraft.hf.text import TextState
from omnidraft.verification.round import Round
from omnidraft.verification.sampling import GeneratorSampler
from support.generating import COUNT, OPTIONS, Ends, alone, helped, ids_of, load, new_tokens, tokenizer_of
from support.models import save_model

pytestmark = pytest.mark.medium

# ---------------------------------------------------------------- greedy identity


def first_met_within(text: list[int]) -> int:
    """A token that a text meets for the first time somewhere in its middle."""
    return next(token for place, token in enumerate(text) if place > COUNT // 3 and token not in text[:place])


def eos_within(model: PreTrainedModel, **options: Any) -> int:
    return first_met_within(new_tokens(model, alone(model, **options)))


CASES: dict[str, Callable[[list[int], int], dict[str, Any]]] = {  # of the greedy text, and of a token in its middle
    "plain": lambda _text, _end: {},
    "penalty": lambda _text, _end: {"repetition_penalty": 1.3},
    "no repeats": lambda _text, _end: {"no_repeat_ngram_size": 1},
    "bad words": lambda text, _end: {"bad_words_ids": [[text[0]], text[5:7]]},
    "suppressed first": lambda text, _end: {"begin_suppress_tokens": text[:1]},
    "eos": lambda _text, end: {"eos_token_id": [end, 7]},
    "late eos": lambda _text, end: {"eos_token_id": end, "min_new_tokens": COUNT - 4},
    "biased": lambda text, _end: {"sequence_bias": [[[text[0]], -9.0], [[9], 4.0]]},
    "guided": lambda _text, _end: {"guidance_scale": 1.5},  # a processor with a model and a cache of its own
    "all": lambda _text, end: {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 2,
        "eos_token_id": end,
        "forced_eos_token_id": end,
        "min_new_tokens": COUNT - 2,
        "renormalize_logits": True,
    },
}


@pytest.fixture(scope="module")
def plain(model: PreTrainedModel) -> torch.Tensor:
    ids: torch.Tensor = alone(model)
    return ids


@pytest.mark.parametrize("name", CASES)
def test_greedy_text_is_that_of_generate_alone(
    model: PreTrainedModel, twin: PreTrainedModel, drafter: Path, rounds: list[Round], name: str, plain: torch.Tensor
) -> None:
    text = new_tokens(model, plain)
    options = CASES[name](text, first_met_within(text))
    expected = alone(model, **options)
    assert name == "plain" or not torch.equal(expected, plain)
    forgets = {"reuse_answers": "nothing"}  # with memory, what is accepted depends on the tests before
    ways: list[tuple[object, dict[str, Any]]] = [(twin, forgets), (drafter, {"draft_length": 8, **forgets})]
    if name in ("plain", "all"):
        ways += [(twin, {}), (twin, {"mode": "paper"})]
        ways += [(twin, {"mode": "intersection", "drafter_temperature": 1.0})]
    for helper, more in ways:
        output = helped(model, helper, **options, omnidraft_options=Drafting(**OPTIONS | more))
        assert torch.equal(output, expected), (helper, more)
        assert output.dtype == expected.dtype
    assert sum(record.counts.accepted for record in rounds) > COUNT / 10
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


@pytest.mark.parametrize(
    ("sampled", "ending", "mode"),
    [
        (False, "length", "exact"),
        (True, "length", "paper"),
        (True, "criterion", "exact"),
        (False, "criterion", "paper"),
        (True, "eos", "exact"),
    ],
)
def test_processors_see_each_prefix_once_in_order_and_none_that_does_not_stay(
    model: PreTrainedModel, twin: PreTrainedModel, rounds: list[Round], sampled: bool, ending: str, mode: str
) -> None:
    watch, ends = Watch(0), Ends(*([eos_within(model)] if ending == "criterion" else []))
    options: dict[str, Any] = {"eos_token_id": eos_within(model)} if ending == "eos" else {}
    own = Drafting(draft_length=6, mode=mode)
    for seed in range(3 if sampled else 1):
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
    for end in list(dict.fromkeys(text))[::2]:  # wherever in a round that may be
        ours, theirs = Ends(end), Ends(end)
        expected = alone(model, stopping_criteria=StoppingCriteriaList([theirs]), **more)
        rounds.clear()
        output = helped(model, twin, stopping_criteria=StoppingCriteriaList([ours]), **more)
        assert torch.equal(output, expected)
        assert new_tokens(model, output) == text[: text.index(end) + 1]
        assert ours.seen == theirs.seen
        assert rounds[-1].finish == "stop"
        cut += len(rounds[-1].emitted) <= rounds[-1].counts.accepted
    assert cut > 1


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
    text = TextState(
        prompt, LogitsProcessorList([watch]), StoppingCriteriaList([MaxLengthCriteria(4)]), GenerationConfig()
    )
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
    own = Drafting(**OPTIONS, drafter_temperature=0.9)
    helped(model, twin, do_sample=True, temperature=0.3, omnidraft_options=own, **more)
    assert seen == {0.9}


def test_earlier_answers_are_counted_as_the_options_say(
    model: PreTrainedModel, drafter: Path, rounds: list[Round]
) -> None:
    expected = alone(model)
    remembered, forgotten = {"draft_length": 4}, {"draft_length": 4, "reuse_answers": "request"}
    accepted = []
    for options in (remembered, remembered, forgotten, forgotten):
        rounds.clear()
        assert torch.equal(helped(model, drafter, omnidraft_options=options), expected)
        accepted.append(sum(record.counts.accepted for record in rounds))
    assert accepted[1] > max(COUNT // 2, accepted[0], *accepted[2:]), "the second answer is drafted from the first"


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


@pytest.mark.parametrize(
    ("sampled", "more"),
    [(False, {"suppress_tokens": [3]}), (True, {}), (True, {"suppress_tokens": [3], "temperature": 0.5})],
)
def test_scores_and_logits_are_those_of_each_new_token(
    model: PreTrainedModel, twin: PreTrainedModel, rounds: list[Round], sampled: bool, more: dict[str, Any]
) -> None:
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
    threads = [threading.Thread(target=lambda: found.append(helped(model, twin).tolist())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


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


def test_no_sampled_answer_is_drawn_with_the_numbers_of_one_that_it_is_drafted_from(
    model: PreTrainedModel, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds: list[int] = []

    def noted(made: torch.Generator) -> GeneratorSampler:
        seeds.append(made.initial_seed())
        return GeneratorSampler(made)

    monkeypatch.setattr("omnidraft.hf.GeneratorSampler", noted)
    for reuse_answers in ("nothing", "memory"):
        seeds.clear()
        for _ in range(2):
            torch.manual_seed(3)
            options = Drafting(draft_length=3, reuse_answers=reuse_answers, verification="block")
            helped(model, drafter, do_sample=True, temperature=1.0, omnidraft_options=options)
        assert (seeds[0] == seeds[1]) is (reuse_answers == "nothing")
