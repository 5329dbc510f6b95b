"""How a model is used: messages, stop strings, defaults of its own, the default drafter, several threads."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import omnidraft
from omnidraft import defaults
from omnidraft.api import OmniDraft
from omnidraft.config import Sampling
from omnidraft.detokenizer import Detokenizer, StopStrings
from omnidraft.errors import ConfigError, ModelError, NumericsError, OmniDraftError, PromptError
from omnidraft.prompting import encode

PROMPT = "hello world"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if tone is defined %}({{ tone }})\n{% endif %}{% if add_generation_prompt %}assistant:{% endif %}"
)
USER = {"role": "user", "content": "hello"}


@pytest.fixture
def model(target: Path, drafter: Path) -> OmniDraft:
    return omnidraft.load(target, drafter, dtype="float32", profile=None, draft_length=4)


@pytest.fixture
def chatting(model: OmniDraft) -> OmniDraft:
    model.target.tokenizer.chat_template = TEMPLATE
    return model


# ---------------------------------------------------------------- stop strings


def tokens_of(text: str) -> tuple[bytes, ...]:
    return tuple(character.encode() for character in text)


@pytest.mark.parametrize("cuts", [[11], [1] * 11, [3, 3, 5], [6, 5]])
@pytest.mark.parametrize(
    ("strings", "expected", "count"),
    [
        (["lo"], "hel", 5),
        (["o w", "lo"], "hel", 5),
        (["o", "hello"], "hell", 5),  # the one that is complete with that token and begins first, not the longest
        (["hello", "o"], "", 5),
        (["ld"], "hello wor", 11),
        (["xyz", "dd"], None, None),
        (["h"], "", 1),
    ],
)
def test_a_text_ends_before_a_stop_string(
    cuts: list[int], strings: list[str], expected: str | None, count: int | None
) -> None:
    text = "hello world"
    if strings == ["o", "hello"]:
        expected = ""  # "hello" begins before its "o", and both are complete with the fifth token
    ids, words = list(range(len(text))), tokens_of(text)
    stops = StopStrings(Detokenizer(words), strings)
    pieces, kept = [], 0
    for size in cuts:
        part = ids[kept : kept + size]
        piece, stay = stops.feed(part)
        kept += len(part) if stay is None else stay
        pieces.append(piece)
        if stay is not None:
            break
    pieces.append(stops.end())
    assert "".join(pieces) == (text if expected is None else expected)
    assert kept == (len(text) if count is None else count)


def test_what_may_begin_a_stop_string_is_held_back_and_no_more() -> None:
    words = tokens_of("ab<|x<|end")
    stops = StopStrings(Detokenizer(words), ["<|end|>"])
    given = []
    for token in range(len(words)):
        piece, stay = stops.feed([token])
        assert stay is None
        given.append(piece)
    assert given == ["a", "b", "", "", "<|x", "", "", "", "", ""]
    assert stops.end() == "<|end"


def test_a_stop_string_of_byte_tokens_is_seen_at_once() -> None:
    words = (b"a", b"\n", b"\xe2", b"\x82", b"\xac", b"b")
    stops = StopStrings(Detokenizer(words, fallback=[1, 2, 3, 4]), ["\n"])
    assert stops.feed([0, 1, 2, 3]) == ("a", 2)
    assert stops.end() == ""
    stops = StopStrings(Detokenizer(words, fallback=[1, 2, 3, 4]), ["€"])
    assert stops.feed([0, 2, 3]) == ("a", None)
    assert stops.feed([4, 5]) == ("", 1)
    assert stops.end() == ""


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_end_by_a_stop_string_is_the_same_at_every_place_of_a_round(target: Path, sampling: dict[str, Any]) -> None:
    # a drafter that is always right, so that texts end inside drafts
    model = omnidraft.load(target, target, dtype="float32", profile=None, draft_length=4)
    whole = model.generate(PROMPT, max_new_tokens=40, **sampling)
    assert len(whole.text) > 20
    places = set()
    for begin in range(0, len(whole.text) - 3, 2):
        stop = whole.text[begin : begin + 3]
        if "\ufffd" in stop:
            continue
        expected = whole.text[: whole.text.find(stop)]
        stream = model.stream(PROMPT, max_new_tokens=40, stop=stop, **sampling)
        pieces = list(stream)
        result = stream.result
        assert "".join(pieces) == result.text == expected
        assert result.finish_reason == "stop"
        assert whole.token_ids[: len(result.token_ids)] == result.token_ids
        text = model.text_after(model.encode(PROMPT))
        before = text.feed(result.token_ids[:-1]) + text.ending()
        assert stop not in before, "it ends with the first token that completes the string"
        last = stream.rounds[-1]
        if last.counts.accepted == len(
            last.emitted
        ):  # it ends inside the draft, and what comes after it counts for nothing
            assert last.proposals == last.emitted
            assert last.counts.symbols == last.counts.symbols_accepted
            assert len(last.draft) == last.counts.draft_accepted
            assert last.counts.false_merges == 0
        places.add(len(last.emitted) - last.counts.accepted)
        assert result.stats.tokens == len(result.token_ids)
    assert places == {0, 1}, "inside a round, and with its last token"


def test_what_follows_a_stop_string_is_neither_kept_nor_counted(
    model: OmniDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    pair = model.engine.attached
    assert pair is not None
    observe = pair.cache.observe

    def noting(tokens: Any, failed: int | None = None) -> None:
        seen.extend(tokens)
        observe(tokens, failed)

    monkeypatch.setattr(pair.cache, "observe", noting)
    whole = model.generate(PROMPT, max_new_tokens=40)
    seen.clear()
    lengths = []
    monkeypatch.setattr(model.engine, "release", lambda: lengths.append(model.target.lm.length))
    result = model.generate(PROMPT, max_new_tokens=40, stop=whole.text[9:12])
    assert result.finish_reason == "stop"
    assert tuple(seen) == result.token_ids
    assert lengths[0] <= len(model.encode(PROMPT)) + len(result.token_ids)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("ending", ["eos", "length"])
def test_a_text_that_ends_anywhere_in_a_round_is_the_beginning_of_the_whole(
    target: Path, sampling: dict[str, Any], ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = omnidraft.load(target, target, dtype="float32", profile=None, draft_length=4)
    pair = model.engine.attached
    assert pair is not None
    prompt = model.encode(PROMPT)
    whole = model.generate(prompt, max_new_tokens=30, **sampling).token_ids
    places, lengths = set(), []
    seen: list[int] = []
    monkeypatch.setattr(model.engine, "release", lambda: lengths.append(model.target.lm.length))
    observe = pair.cache.observe

    def noting(tokens: Any, failed: int | None) -> None:
        seen.extend(tokens)
        observe(tokens, failed)

    monkeypatch.setattr(pair.cache, "observe", noting)
    for count in range(1, len(whole)):
        if ending == "eos":
            if whole[count - 1] in whole[: count - 1]:
                continue
            model.engine.eos = frozenset({whole[count - 1]})
        seen.clear()
        stream = model.stream(prompt, max_new_tokens=30 if ending == "eos" else count, **sampling)
        list(stream)
        last = stream.rounds[-1]
        if sampling:  # an end of text is drafted in another way, and draws go on from there
            assert len(stream.result.token_ids) <= 30
        else:
            assert stream.result.token_ids == whole[:count]
        assert stream.result.finish_reason in {ending, "length"}
        assert tuple(seen) == stream.result.token_ids
        assert len(prompt) <= lengths[-1] <= len(prompt) + len(seen)
        assert last.counts.accepted <= len(last.emitted)
        places.add((len(last.emitted), len(last.emitted) - last.counts.accepted))
    assert len(places) > 3, "at several places of a round, by an accepted token and by another one"


@pytest.mark.parametrize("stop", ["", b"", ["a", ""], [3], 5, {"a": 1}])
def test_stop_strings_that_are_none(model: OmniDraft, stop: Any) -> None:
    with pytest.raises(ConfigError, match="stop is"):
        model.generate(PROMPT, stop=stop)


# ---------------------------------------------------------------- prompts


def test_messages_are_written_in_the_template_with_one_first_token(chatting: OmniDraft) -> None:
    tokenizer = chatting.target.tokenizer
    ids = chatting.encode([USER])
    assert ids == tokenizer("user: hello\nassistant:")["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids == chatting.encode_message("hello")
    told = chatting.encode([USER], {"tone": "brief"})
    assert str(tokenizer.decode(told, skip_special_tokens=True)).endswith("(brief)\nassistant:")
    begun = chatting.encode([USER, {"role": "assistant", "content": "well"}], {"continue_final_message": True})
    assert str(tokenizer.decode(begun)).endswith("assistant: well")
    answer = chatting.generate([USER], max_new_tokens=5, template={"tone": "brief"})
    assert answer.token_ids == chatting.generate(told, max_new_tokens=5).token_ids


def test_a_text_that_writes_the_first_token_has_it_once(model: OmniDraft) -> None:
    tokenizer = model.target.tokenizer
    once = model.encode(PROMPT)
    assert once[0] == tokenizer.bos_token_id
    written = encode(tokenizer, tokenizer.bos_token + PROMPT)
    assert written.count(tokenizer.bos_token_id) == 1
    assert written == tokenizer(tokenizer.bos_token + PROMPT, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("kind", [None, "pt", "np"])
def test_what_a_tokenizer_returns_is_a_prompt(chatting: OmniDraft, kind: str | None) -> None:
    tokenizer = chatting.target.tokenizer
    ids = chatting.encode(PROMPT)
    encoding = tokenizer([PROMPT], return_tensors=kind)
    assert chatting.encode(encoding) == chatting.encode(encoding["input_ids"]) == ids
    chat: Any = tokenizer.apply_chat_template([USER], add_generation_prompt=True, return_tensors=kind, return_dict=True)
    assert chatting.encode(chat) == chatting.encode([USER])


@pytest.mark.parametrize(
    ("prompt", "template", "words"),
    [
        ([{"role": "system", "content": "x"}], None, "refuses these messages .*no system"),
        ([USER, "hello"], None, "is no message"),
        ([{"content": "x"}], None, "is no message"),
        ([{"role": "user", "content": "\ud800"}], None, "no valid Unicode"),
        ("hello", {"tone": "brief"}, "template is for messages"),
    ],
)
def test_messages_that_cannot_be_used(chatting: OmniDraft, prompt: Any, template: Any, words: str) -> None:
    with pytest.raises(PromptError, match=words) as caught:
        chatting.generate(prompt, template=template)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["text", "messages", "ids"])
def test_a_token_that_the_model_has_no_row_for(chatting: OmniDraft, kind: str) -> None:
    chatting.target.tokenizer.add_tokens(["<more>"])
    beyond = chatting.vocab.size
    prompts: dict[str, Any] = {"text": "hello <more>", "messages": [USER | {"content": "<more>"}], "ids": [5, beyond]}
    with pytest.raises(PromptError, match=f"token id {beyond} is not in 0..{beyond - 1}, the model's vocabulary"):
        chatting.generate(prompts[kind])


def test_messages_without_a_template(model: OmniDraft) -> None:
    with pytest.raises(PromptError, match="no chat template"):
        model.generate([USER])


# ---------------------------------------------------------------- a model's own way to sample


def read(**config: Any) -> tuple[Sampling, list[str]]:
    warnings: list[str] = []
    return defaults.sampling_of(GenerationConfig(**config), warnings.append), warnings


def test_a_generation_config_says_how_to_sample() -> None:
    assert read() == (Sampling(), [])
    assert read(temperature=0.6, top_p=0.9) == (Sampling(), []), "without do_sample it is greedy"
    assert read(do_sample=True) == (Sampling(temperature=1.0, top_k=50), [])
    asked: dict[str, Any] = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}
    assert read(do_sample=True, **asked) == (Sampling(**asked), [])
    assert read(do_sample=False, repetition_penalty=1.1) == (Sampling(repetition_penalty=1.1), [])
    sampling, (warning,) = read(no_repeat_ngram_size=3, suppress_tokens=[5], num_beams=1)
    assert sampling == Sampling()
    assert "no_repeat_ngram_size, suppress_tokens" in warning
    assert "num_beams" not in warning


@pytest.mark.parametrize(
    ("asked", "followed", "words"),
    [
        ({"top_p": 7.0}, {"temperature": 1.0, "top_k": 50}, "config is left out, it is 1.0 instead: top_p is 7.0"),
        ({"temperature": -1.0, "top_k": 9}, {"temperature": 1.0, "top_k": 9}, "1.0 instead: temperature is -1"),
        (
            {"temperature": 0.6, "repetition_penalty": 0.0},
            {"temperature": 0.6, "top_k": 50},
            "1.0 instead: repetition_penalty is 0.0",
        ),
        ({"temperature": 1e-5}, {"temperature": 0.0, "top_k": 50}, "at temperature 1e-05, which is greedy decoding"),
        ({"temperature": 0.0}, {"temperature": 0.0, "top_k": 50}, "at temperature 0, which is greedy decoding"),
    ],
)
def test_what_a_generation_config_asks_for_in_vain(asked: Any, followed: Any, words: str) -> None:
    sampling, (warning,) = read(do_sample=True, **asked)
    assert sampling == Sampling(**followed)
    assert words in warning
    assert "\n" not in warning


def test_a_text_follows_the_generation_config_and_keywords_go_before_it(target: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 7, "repetition_penalty": 1.2}
    plain = omnidraft.load(target, None, dtype="float32")
    folder = tmp_path / "own"
    plain.target.lm.model.generation_config = GenerationConfig(**asked, eos_token_id=plain.target.lm.eos[0])
    plain.target.lm.model.save_pretrained(folder)
    plain.target.tokenizer.save_pretrained(folder)
    plain.target.lm.model.generation_config = GenerationConfig()
    own = omnidraft.load(folder, None, dtype="float32")
    del asked["do_sample"]
    assert own.sampling == Sampling(**asked)
    for keywords in ({}, {"temperature": 0.0}, {"top_k": 0, "top_p": 0.5}):
        expected = plain.generate(PROMPT, max_new_tokens=24, seed=5, **{**asked, **keywords})
        assert own.generate(PROMPT, max_new_tokens=24, seed=5, **keywords).token_ids == expected.token_ids
    assert own.generate(PROMPT, max_new_tokens=24).token_ids != plain.generate(PROMPT, max_new_tokens=24).token_ids


# ---------------------------------------------------------------- the default drafter


def test_a_drafter_that_is_not_named_is_said(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    loaded = omnidraft.load(target, dtype="float32", profile=None, warn=said.append)
    assert loaded.drafter is not None
    assert loaded.drafter.name == "drafter"
    assert any("using zoo:drafter, as JackFram/llama-68m cannot be reached" in line for line in said)
    monkeypatch.setattr(defaults, "at_hand", lambda _: True)
    assert defaults.drafter_for(target, said.append) == "JackFram/llama-68m"
    assert said[-1] == "no drafter is named: using JackFram/llama-68m, the default"
    assert defaults.drafter_for("zoo:target-a", said.append) == "zoo:drafter"


def test_a_default_drafter_that_cannot_be_loaded_is_replaced(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(defaults, "at_hand", lambda _: True)
    monkeypatch.setattr(defaults, "DRAFTER", "nobody/nothing")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    loaded = omnidraft.load(target, dtype="float32", profile=None, warn=said.append)
    assert loaded.drafter is not None
    assert loaded.drafter.name == "drafter"
    assert any(line.startswith("using zoo:drafter instead: ") for line in said)


def test_no_drafter_is_loaded_where_none_is_wanted(target: Path) -> None:
    for options in ({"drafter": None}, {"draft_length": 0}):
        alone = omnidraft.load(target, **options, warn=pytest.fail)
        assert alone.drafter is None


@pytest.mark.hub
def test_a_hub_out_of_reach_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    assert not defaults.at_hand("nobody/nothing-of-this-name")
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: object())
    assert defaults.at_hand("nobody/nothing-of-this-name")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert not defaults.at_hand("nobody/nothing-of-this-name")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: "config.json")
    assert defaults.at_hand("nobody/nothing-of-this-name")


# ---------------------------------------------------------------- one text at a time


def test_texts_of_several_threads_are_made_one_after_the_other(model: OmniDraft) -> None:
    prompts = ["hello world", "the world was", "don't", "ing 10"]
    expected = [model.generate(prompt, max_new_tokens=40).token_ids for prompt in prompts]
    found: list[Any] = [None] * len(prompts) * 3

    def answer(number: int) -> None:
        found[number] = model.generate(prompts[number % len(prompts)], max_new_tokens=40).token_ids

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(len(found))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected * 3


def test_streams_of_two_threads_are_never_mixed(model: OmniDraft) -> None:
    whole = model.generate(PROMPT, max_new_tokens=200).text
    errors, texts = [], []
    barrier = threading.Barrier(4)

    def read_it() -> None:
        barrier.wait()
        try:
            texts.append("".join(model.stream(PROMPT, max_new_tokens=200)))
        except OmniDraftError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=read_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) + len(texts) == 4
    assert texts, "the one that began last is read to its end"
    assert set(texts) == {whole}
    assert all("another text was begun" in error for error in errors)


def test_a_text_begun_inside_another_one_ends_that_one(model: OmniDraft) -> None:
    def meddling(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        model.generate("the world", max_new_tokens=2)
        return scores

    with pytest.raises(OmniDraftError, match="another text was begun"):
        model.generate(PROMPT, max_new_tokens=8, logits_processor=[meddling])
    assert model.generate(PROMPT, max_new_tokens=8).finish_reason == "length"


def test_a_logits_processor_decides_what_may_be_said(model: OmniDraft) -> None:
    allowed = model.encode("world")[-1]

    def only(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert ids.shape[0] == 1
        masked = torch.full_like(scores, -torch.inf)
        masked[:, allowed] = scores[:, allowed]
        return masked

    for sampling in ({}, {"temperature": 1.0}):
        answer = model.generate(PROMPT, max_new_tokens=8, logits_processor=[only], **sampling)
        assert answer.token_ids == (allowed,) * 8


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"repetition_penalty": 1.3}])
def test_a_logits_processor_may_write_into_its_scores(model: OmniDraft, sampling: dict[str, Any]) -> None:
    banned = list(model.generate(PROMPT, max_new_tokens=8, **sampling).token_ids)

    def aside(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.index_fill(1, torch.tensor(banned), -1e9)

    def in_place(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, banned] = -1e9
        return scores

    model.engine.teacher_temperature = 1.0  # so that the target's own laws are kept, as where they are learned from
    found = []
    for processor in (aside, in_place):
        stream = model.stream(PROMPT, max_new_tokens=8, logits_processor=[processor], **sampling)
        list(stream)
        found.append([(record.emitted, [law.tokens.tolist() for law in record.teacher]) for record in stream.rounds])
    assert found[0] == found[1]
    assert any(token in ids for _, laws in found[1] for ids in laws for token in banned), "and not in what is learned"


@pytest.mark.parametrize("ending", ["closed", "with", "forgotten", "left", "read"])
def test_a_stream_lets_go_of_its_state(model: OmniDraft, ending: str) -> None:
    gc.disable()  # what is left is let go of at once, not when cycles are collected
    try:
        stream = model.stream(PROMPT, max_new_tokens=40)
        next(stream)
        assert model.target.lm.length > 0
        if ending == "closed":
            stream.close()
        elif ending == "with":
            with stream:
                next(stream)
        elif ending == "read":
            list(stream)
        elif ending == "left":
            for _ in stream:
                break
        del stream
        assert model.target.lm.length == 0
    finally:
        gc.enable()
    assert model.engine.attached is not None
    assert model.engine.attached.drafter.model.length == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_precision_that_greedy_identity_depends_on_is_told(target: Path, drafter: Path, dtype: str) -> None:
    said: list[str] = []
    omnidraft.load(target, None, dtype=dtype, warn=said.append)
    assert said == [], "nothing is verified together"
    omnidraft.load(target, drafter, dtype=dtype, profile=None, warn=said.append)
    assert len(said) == (dtype != "float32")
    assert all("bfloat16" in line and "float32 keeps every token" in line for line in said)


def test_a_model_in_memory_is_refused_in_a_line(model: OmniDraft, target: Path) -> None:
    for arguments in ((model.target.lm.model,), (target, model.target.lm.model)):
        with pytest.raises(ConfigError, match="is of type LlamaForCausalLM: give a folder") as error:
            omnidraft.load(*arguments)
        assert len(str(error.value)) < 150


def test_a_drafter_of_nan_is_blamed_itself(target: Path, drafter: Path) -> None:
    model = omnidraft.load(target, drafter, profile=None, draft_length=4, drafter_step="transformers")
    assert model.drafter is not None
    with torch.no_grad():
        next(iter(model.drafter.lm.model.parameters())).fill_(torch.nan)
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericsError, match="drafter"):
            model.generate(PROMPT, max_new_tokens=4, temperature=temperature)


def test_a_stream_that_was_overtaken_leaves_the_later_one_alone(model: OmniDraft) -> None:
    whole = model.generate(PROMPT, max_new_tokens=40).text
    earlier = model.stream("the world", max_new_tokens=40)
    next(earlier)
    later = model.stream(PROMPT, max_new_tokens=40)
    pieces = [next(later)]
    earlier.close()
    del earlier
    gc.collect()
    pieces += later
    assert "".join(pieces) == whole


def test_a_stream_is_closed_by_another_thread(model: OmniDraft) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def waiting(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        begun.set()
        assert go_on.wait(60)
        return scores

    stream = model.stream(PROMPT, max_new_tokens=400, logits_processor=[waiting])
    pieces: list[str] = []
    reader = threading.Thread(target=lambda: pieces.extend(stream))
    reader.start()
    assert begun.wait(60)
    with pytest.raises(OmniDraftError, match="being read already"):
        next(stream)
    stream.close()
    go_on.set()
    reader.join(60)
    assert not reader.is_alive()
    result = stream.result
    assert (result.stats.rounds, result.finish_reason, result.text) == (1, "interrupted", "".join(pieces))
    assert list(stream) == []
    assert model.target.lm.length == 0


def test_a_closed_stream_waits_for_no_later_text(model: OmniDraft) -> None:
    read, later = threading.Event(), threading.Event()
    alive: list[bool] = []

    def in_a_round(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        read.set()
        assert later.wait(60)
        return scores

    def holding(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        reader.join(10)
        alive.append(reader.is_alive())
        return scores

    stream = model.stream(PROMPT, max_new_tokens=400, logits_processor=[in_a_round])
    pieces: list[str] = []
    reader = threading.Thread(target=lambda: pieces.extend(stream))
    reader.start()
    assert read.wait(60)
    stream.close()
    assert list(stream) == [], "and it is no error to read it, while another thread is at it"
    later.set()
    model.generate("the world", max_new_tokens=1, logits_processor=[holding])
    assert alive == [False]
    assert len(pieces) <= 1


def test_a_stream_that_is_closed_before_its_turn_ends_quietly(model: OmniDraft) -> None:
    stream = model.stream(PROMPT, max_new_tokens=40)
    found: list[list[str]] = []
    reader = threading.Thread(target=lambda: found.append(list(stream)))
    with model._slot.lock:
        reader.start()
        while not stream._busy.locked():
            pass
        stream.close()
        model.stream("the world")
        reader.join(10)
        assert found == [[]]


def test_a_stream_that_its_own_processor_reads_or_closes(model: OmniDraft) -> None:
    def closing(_: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        with pytest.raises(OmniDraftError, match="being read already"):
            next(stream)
        stream.close()
        return scores

    stream = model.stream(PROMPT, max_new_tokens=40, logits_processor=[closing])
    list(stream)
    assert (stream.result.stats.rounds, model.target.lm.length) == (1, 0)


def test_models_that_share_a_drafter_take_turns(target: Path, model: OmniDraft) -> None:
    other = omnidraft.load(target, model, dtype="float32", profile=None)
    expected = [m.generate(PROMPT, max_new_tokens=60).token_ids for m in (model, other)]
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n, m=m: found.update({n: m.generate(PROMPT, max_new_tokens=60).token_ids}))
        for n, m in enumerate((model, other))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[0], found[1]] == expected


def test_an_unknown_model_is_no_reason_for_a_default(tmp_path: Path, drafter: Path) -> None:
    with pytest.raises(ModelError):
        omnidraft.load(tmp_path / "none", drafter)
