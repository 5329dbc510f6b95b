"""Answers that end before a stop string, wherever in a round it comes up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnidraft.alignment.ngram_cache import NgramCache
from omnidraft.api import OmniDraft
from omnidraft.decoding.lane import Lane
from omnidraft.errors import ConfigError
from omnidraft.text.detokenizer import Detokenizer
from omnidraft.text.stop_strings import StopStrings
from support.assembling import load_with
from support.compilers import needs_the_8_bit_step

PROMPT = "hello world"
LENGTH = 40  # tokens of a greedy or sampled text that is ended at each of them


def tokens_of(text: str) -> tuple[bytes, ...]:
    return tuple(character.encode() for character in text)


@pytest.mark.parametrize("cuts", [[11], [1] * 11, [3, 3, 5], [6, 5]])
@pytest.mark.parametrize(
    ("strings", "expected", "count"),
    [
        (["lo"], "hel", 5),
        (["o w", "lo"], "hel", 5),
        (["o", "hello"], "", 5),  # both are complete with that token, and "hello" begins before its "o"
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


@pytest.mark.medium
@settings(max_examples=300)
@given(
    text=st.text("ab", max_size=12),
    strings=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3, unique=True),
    least=st.integers(0, 12),
    sizes=st.lists(st.integers(1, 4), min_size=12, max_size=12),
)
def test_no_stop_string_that_is_whole_within_the_first_tokens_ends_a_text(
    text: str, strings: list[str], least: int, sizes: list[int]
) -> None:
    ends = [
        (place + len(string), place)
        for string in strings
        for place in range(len(text))
        if text.startswith(string, place) and place + len(string) > least
    ]
    count, begin = min(ends, default=(len(text), len(text)))
    stops = StopStrings(Detokenizer(tokens_of(text)), strings, least)
    pieces, kept = [], 0
    for size in sizes:
        part = range(len(text))[kept : kept + size]
        piece, stay = stops.feed(part)
        pieces.append(piece)
        kept += len(part) if stay is None else stay
        if stay is not None:
            break
    assert "".join([*pieces, stops.end()]) == text[:begin]
    assert kept == count


def test_a_character_that_the_first_tokens_begin_may_end_a_text() -> None:
    words = ("é".encode()[:1], "é".encode()[1:], b"b")
    assert StopStrings(Detokenizer(words), ["é"], 1).feed([0, 1, 2]) == ("", 2)
    assert StopStrings(Detokenizer(words), ["é"], 2).feed([0, 1, 2]) == ("éb", None)
    assert StopStrings(Detokenizer((b"\n", b"b"), fallback=[0]), ["\n"], 1).feed([0, 1]) == ("\nb", None)


def test_many_stop_strings_are_as_few() -> None:
    text = "one two three"
    many = [f"{place} no" for place in range(500)] + [f"thr{place}" for place in range(500)] + ["two t"]
    for strings, expected in ((many, "one "), (many[:-1], text)):
        stops = StopStrings(Detokenizer(tokens_of(text)), strings)
        pieces = []
        for place in range(len(text)):
            piece, stay = stops.feed([place])
            pieces.append(piece)
            if stay is not None:
                break
        assert "".join([*pieces, stops.end()]) == expected


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


@pytest.mark.medium
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 4}])
def test_the_end_by_a_stop_string_is_the_same_at_every_place_of_a_round(
    target: Path, sampling: dict[str, Any], observed: list[int], lengths: list[int]
) -> None:
    # a drafter that is always right, so that texts end inside drafts
    options: dict[str, Any] = {"draft_length": 4, "reuse_answers": "nothing", "verification": "block"}
    model = load_with(target, target, dtype="float32", profile=None, **options)
    whole = model.generate(PROMPT, max_new_tokens=40, **sampling)
    assert len(whole.text) > 20
    places = set()
    for begin in range(0, len(whole.text) - 3, 3):
        stop = whole.text[begin : begin + 3]
        if "\ufffd" in stop:
            continue
        expected = whole.text[: whole.text.find(stop)]
        observed.clear()
        stream = model.stream(PROMPT, max_new_tokens=40, stop=stop, **sampling)
        pieces = list(stream)
        result = stream.result
        assert "".join(pieces) == result.text == expected
        assert result.finish_reason == "stop"
        assert whole.token_ids[: len(result.token_ids)] == result.token_ids
        assert tuple(observed) == result.token_ids, "what follows it is neither kept nor counted"
        assert lengths[-1] <= len(model.encode(PROMPT)) + len(result.token_ids)
        text = model.text_after(model.encode(PROMPT))
        before = text.feed(result.token_ids[:-1]) + text.ending()
        assert stop not in before, "it ends with the first token that completes the string"
        last = stream.rounds[-1]
        if last.counts.accepted == len(last.emitted):  # inside the draft, and what comes after it counts for nothing
            assert last.proposals == last.emitted
            assert last.counts.symbols == last.counts.symbols_accepted
            assert len(last.draft) == last.counts.draft_accepted
            assert last.counts.false_merges == 0
        places.add(len(last.emitted) - last.counts.accepted)
        assert result.stats.tokens == len(result.token_ids)
    assert places == {0, 1}, "inside a round, and with its last token"


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens that n-gram caches are told of."""
    seen: list[int] = []
    observe = NgramCache.observe

    def noting(self: NgramCache, tokens: Any, failed: int | None = None) -> None:
        seen.extend(tokens)
        observe(self, tokens, failed)

    monkeypatch.setattr(NgramCache, "observe", noting)
    return seen


@pytest.fixture
def lengths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens in the target's KV cache at the end of each request."""
    found: list[int] = []
    release = Lane.release

    def noting(self: Lane) -> None:
        found.append(self.target.length)
        release(self)

    monkeypatch.setattr(Lane, "release", noting)
    return found


@pytest.mark.medium
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}])
@pytest.mark.parametrize("ending", ["eos", "length"])
def test_a_text_that_ends_anywhere_in_a_round_is_the_beginning_of_the_whole(
    target: Path, sampling: dict[str, Any], ending: str, observed: list[int], lengths: list[int]
) -> None:
    if sampling:
        needs_the_8_bit_step()  # the seed is one whose drafts, by this step, lead to both ends
    backend = "auto" if sampling else "transformers"  # whose greedy drafts are the target's own
    options: dict[str, Any] = {"draft_length": 4, "reuse_answers": "nothing", "drafter_backend": backend}
    options["verification"] = "block"  # whose drafts are accepted often enough
    model = load_with(target, target, dtype="float32", profile=None, **options)
    prompt = model.encode(PROMPT)
    whole = model.generate(prompt, max_new_tokens=LENGTH, **sampling).token_ids
    places = set()
    for count in range(1, len(whole)):
        if ending == "eos":
            if whole[count - 1] in whole[: count - 1]:
                continue
            model.lane.eos = frozenset({whole[count - 1]})
        observed.clear()
        stream = model.stream(prompt, max_new_tokens=LENGTH if ending == "eos" else count, **sampling)
        list(stream)
        last = stream.rounds[-1]
        if sampling:  # an end of text is drafted in another way, and draws go on from there
            assert len(stream.result.token_ids) <= LENGTH
        else:
            assert stream.result.token_ids == whole[:count]
        assert stream.result.finish_reason in {ending, "length"}
        assert tuple(observed) == stream.result.token_ids
        assert len(prompt) <= lengths[-1] <= len(prompt) + len(observed)
        assert last.counts.accepted <= len(last.emitted)
        places.add((len(last.emitted), len(last.emitted) - last.counts.accepted))
    assert len(places) > 3, "at several places of a round, by an accepted token and by another one"


@pytest.mark.parametrize("stop", ["", b"", ["a", ""], [3], 5, {"a": 1}])
def test_stop_strings_that_are_none(model: OmniDraft, stop: Any) -> None:
    with pytest.raises(ConfigError, match="stop is"):
        model.generate(PROMPT, stop=stop)
