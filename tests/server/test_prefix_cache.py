"""What one request has read of a prompt, another need not read: of the same users, after a restart, never of others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.compilers import needs_the_8_bit_step
from support.serving import At, serving, user

pytestmark = pytest.mark.medium

OPTIONS = {"dtype": "int8", "draft_length": 2}
WORDS = ("the", "moon", "shows", "one", "face", "as", "it", "turns", "once", "a", "month", "while", "stars", "rise")
KEYS = ("first-key", "second-key")


def system(seed: int, words: int = 400) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(words))


def asked(at: At, text: str, question: str, key: str | None = None, **options: Any) -> tuple[int, int, str]:
    """Tokens of the prompt, of them those that were held, and the answer."""
    body = {"messages": [{"role": "system", "content": text}, *user(question)], "max_tokens": 8, "temperature": 0}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answer = at.post("/v1/chat/completions", body | options, headers=headers).json()
    usage = answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return usage["prompt_tokens"], cached, answer["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def native(chat: Path) -> Iterator[At]:
    needs_the_8_bit_step()
    with serving([chat], options=OPTIONS, lanes=3) as at:
        yield at


def test_names_of_users_are_no_walls(native: At) -> None:
    text = system(1)
    prompt, cached, answer = asked(native, text, "Why?", prompt_cache_key="s1", user="a")
    assert (cached, prompt > 500) == (0, True)
    for options in ({"prompt_cache_key": "s1"}, {"prompt_cache_key": "s2"}, {"user": "b"}, {}):
        assert asked(native, text, "Why?", **options) == (prompt, prompt - 1, answer)
    other, cached, _ = asked(native, text, "Where is it now?")
    assert cached > other - 40, "of another conversation all but its question"


def test_a_salt_is_a_wall(native: At) -> None:
    text = system(2)
    prompt, _, answer = asked(native, text, "Why?", cache_salt="one")
    assert asked(native, text, "Why?", cache_salt="two") == (prompt, 0, answer)
    assert asked(native, text, "Why?") == (prompt, 0, answer)
    assert asked(native, text, "Why?", cache_salt="one") == (prompt, prompt - 1, answer)


def test_an_edit_keeps_what_comes_before_it(native: At) -> None:
    text = system(3)
    prompt, _, _ = asked(native, text, "Why?")
    words = text.split()
    edited = " ".join([*words[:300], "comet", *words[301:]])
    changed, cached, answer = asked(native, edited, "Why?")
    assert 0.4 * prompt < cached < 0.9 * prompt
    assert asked(native, edited, "Why?", cache_salt="anew") == (changed, 0, answer)


def test_a_key_finds_nothing_of_another_one(chat: Path, tmp_path: Path) -> None:
    needs_the_8_bit_step()
    text = system(4)
    folder = str(tmp_path / "blocks")
    with serving([chat], options=OPTIONS, api_key=KEYS, cache_dir=folder) as at:
        prompt, cached, answer = asked(at, text, "Why?", KEYS[0])
        assert cached == 0
        assert asked(at, text, "Why?", KEYS[1]) == (prompt, 0, answer)
        assert asked(at, text, "Why?", KEYS[0]) == (prompt, prompt - 1, answer)
    # keys at other places than before, and a new one
    with serving([chat], options=OPTIONS, api_key=("third-key", KEYS[0]), cache_dir=folder) as at:
        assert asked(at, text, "Why?", "third-key") == (prompt, 0, answer)
        assert asked(at, text, "Why?", KEYS[0]) == (prompt, prompt - 1, answer)


def test_a_restart_finds_what_is_in_the_folder_and_only_of_this_model(chat: Path, tmp_path: Path) -> None:
    needs_the_8_bit_step()
    text, folder = system(5), str(tmp_path / "blocks")
    with serving([chat], options=OPTIONS, cache_dir=folder) as at:
        prompt, _, answer = asked(at, text, "Why?")
    assert list(Path(folder).glob("*.kv"))
    with serving([chat], options=OPTIONS, cache_dir=folder) as at:
        assert asked(at, text, "Why?") == (prompt, prompt - 1, answer)
    for path in Path(folder).glob("*.kv"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    with serving([chat], options=OPTIONS, cache_dir=folder) as at:
        assert asked(at, text, "Why?") == (prompt, 0, answer), "damaged blocks are read anew"
        assert asked(at, text, "Why?") == (prompt, prompt - 1, answer)


def test_memory_has_a_limit_and_answers_stay_the_same(chat: Path) -> None:
    needs_the_8_bit_step()
    with serving([chat], options=OPTIONS, max_cache_mb=0) as at:
        first = asked(at, system(6), "Why?")
        assert asked(at, system(6), "Why?") == first
        assert first[1] == 0
        assert "omnidraft_kv_cache_bytes 0.0" in at.get("/metrics").text
    with serving([chat], options=OPTIONS) as at:
        assert asked(at, system(6), "Why?") == first
        assert asked(at, system(6), "Why?")[2] == first[2]
        assert "omnidraft_kv_cache_bytes 0.0" not in at.get("/metrics").text


def test_the_log_says_once_where_prompts_differ_early(
    chat: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_the_8_bit_step()
    monkeypatch.setattr("omnidraft.server.running.changed_heads.AGREE", 200)
    with serving([chat], options=OPTIONS) as at:
        for day in ("Monday", "Tuesday", "Wednesday"):
            asked(at, f"Today is {day}. {system(7)}", "Why?")
        asked(at, system(8), "Why?")
        assert 'omnidraft_changed_prompt_heads_total{model="chat"} 2.0' in at.get("/metrics").text
    said = [record.getMessage() for record in caplog.records if "differ at character" in record.getMessage()]
    assert len(said) == 1
    assert "Mon" in said[0]
    assert "Tue" in said[0]
