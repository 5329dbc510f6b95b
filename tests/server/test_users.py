"""What one user was told makes nothing faster for another: memories, hit rates and KV caches are each user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from omnidraft.api import OmniDraft
from omnidraft.config import Drafting
from omnidraft.counts.answer_memory import AnswerMemory
from omnidraft.counts.token_index import BOUNDARY, LONGEST
from omnidraft.defaults import SMALL
from omnidraft.errors import ConfigError
from omnidraft.server import run
from omnidraft.server.running import user_memories
from omnidraft.server.running.served_model import ServedModel, load_all
from omnidraft.server.running.user_memories import Memories, User, digest
from support.serving import At, serving, user

FOUR: tuple[tuple[int, dict[str, str]], ...] = (
    (0, {}),
    (1, {}),
    (1, {"user": "ann"}),
    (1, {"prompt_cache_key": "ann"}),
)  # places of keys, and names
KEYS = ("the-first", "the-second")
PROMPTS = [f"Question: {name} has {n} bags of nuts. How many nuts?\nAnswer:" for n, name in enumerate("ABCD", 2)]
TOKENS = 24


@contextmanager
def shown(
    patch: pytest.MonkeyPatch, *targets: str | Path, drafter: str | None, reuse_answers: str = "memory", **more: Any
) -> Iterator[tuple[At, list[ServedModel]]]:
    """A server of one lane, and its targets."""
    found: list[ServedModel] = []

    def load(*given: Any, **options: Any) -> list[ServedModel]:
        found.extend(load_all(*given, **options))
        return found

    patch.setattr(run, "load_all", load)
    options = {"draft_length": 4, "reuse_answers": reuse_answers}
    with serving(targets, drafter, options, **{"lanes": 1, "api_key": KEYS, **more}) as at:
        yield at, found


def asked(at: At, key: int, prompt: str, **body: Any) -> Mapping[str, Any]:
    """An answer of the first target to a user with one of the keys."""
    whole = {"messages": user(prompt), "max_tokens": TOKENS, "temperature": 0, "omnidraft": {"trace": True}, **body}
    answer = at.post("/v1/chat/completions", whole, headers={"Authorization": f"Bearer {KEYS[key]}"})
    assert answer.status_code == 200, answer.text
    found: Mapping[str, Any] = answer.json()
    return found


def drafting(answer: Mapping[str, Any]) -> list[Any]:
    """What all that is kept of earlier requests would change: the prompt's tokens read, passes and proposals."""
    timings, own = answer["timings"], answer["omnidraft"]
    return [timings[name] for name in ("cache_n", "prompt_n", "draft_n", "draft_n_accepted")] + [own["tokens_per_pass"]]


@pytest.mark.slow
def test_a_memory_holds_the_answers_of_its_user_alone(
    chat: Path, model: OmniDraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shown(monkeypatch, chat, drafter=None) as (at, served):
        for (key, names), prompt in zip(FOUR, PROMPTS, strict=True):
            asked(at, key, prompt, **names)
        kept = served[0].memories
        for (key, names), prompt in zip(FOUR, PROMPTS, strict=True):
            memory = kept.of(User(key, digest(names.get("user"), names.get("prompt_cache_key"), None, None)))
            ids = model.encode(user(prompt))[-LONGEST:]
            told = model.generate(user(prompt), max_new_tokens=TOKENS, temperature=0).token_ids
            assert memory is not None
            assert memory.index.tokens() == [BOUNDARY, *ids, *told]
        assert served[0].model.memory is None


@pytest.mark.slow
@pytest.mark.parametrize(("drafter", "reuse_answers"), [(None, "memory"), (SMALL, "memory"), (SMALL, "request")])
def test_an_answer_is_made_for_a_new_user_as_if_nobody_had_asked(
    chat: Path, monkeypatch: pytest.MonkeyPatch, drafter: str | None, reuse_answers: str
) -> None:
    with shown(monkeypatch, chat, drafter=drafter, reuse_answers=reuse_answers) as (at, _):
        first, *others = [drafting(asked(at, key, PROMPTS[0], **names)) for key, names in FOUR]
        assert first[0] == 0
        assert [other[2:] for other in others] == [first[2:]] * 3
        keys = [key for key, _ in FOUR]
        read = [key in keys[:at] for at, key in enumerate(keys)]
        assert [each[0] > 0 for each in (first, *others)] == read, "what a key's users read is read once"
        key, names = FOUR[-1]
        more = drafting(asked(at, key, PROMPTS[0], **names))
        assert more[0] > 0, "one's own KV cache is used"
        if reuse_answers == "memory":
            assert more[-1] > first[-1], "one's own answer is counted"


@pytest.mark.slow
def test_without_keys_all_that_give_no_name_are_one_user(chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with shown(monkeypatch, chat, drafter=None, api_key=None) as (at, served):
        first = drafting(asked(at, 0, PROMPTS[0]))
        named = drafting(asked(at, 0, PROMPTS[0], user="ann"))
        again = drafting(asked(at, 1, PROMPTS[0]))
        assert named[2:] == first[2:]
        assert again[-1] > first[-1]
        assert served[0].memories.of(User()) is served[0].model.memory


@pytest.mark.medium
@pytest.mark.parametrize("drafter", [SMALL, None])
def test_targets_share_a_users_memory_where_they_share_the_drafter(
    chat: Path, monkeypatch: pytest.MonkeyPatch, drafter: str | None
) -> None:
    with shown(monkeypatch, chat, "zoo:target-a", drafter=drafter) as (_, served):
        assert (served[0].memories is served[1].memories) == (drafter is not None)


def test_users_that_asked_longest_ago_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_memories, "MAX_USERS", 2)
    kept, one, two, three = Memories(Drafting(), None), User(0), User(0, b"x"), User(1)
    first, second = kept.of(one), kept.of(two)
    assert kept.of(one) is first  # and so used last
    kept.of(three)
    assert kept.of(one) is first
    assert kept.of(two) is not second
    assert first is not None
    assert first.index.nbytes * 64 == 144 * 2**20


def test_a_key_with_many_names_has_no_other_keys_user_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_memories, "MAX_USERS", 3)
    kept = Memories(Drafting(), None)
    first = kept.of(User(0))
    for name in range(9):
        kept.of(User(1, bytes([name])))
    assert kept.of(User(0)) is first


def test_names_are_apart() -> None:
    assert digest(None, "") == b""
    assert len({digest("a", None), digest(None, "a"), digest("a", "a"), digest("aa", None)}) == 4


def test_no_memory_where_nothing_is_remembered() -> None:
    own = AnswerMemory(8)
    assert Memories(Drafting(reuse_answers="nothing"), own).of(User(0)) is None
    rates = Memories(Drafting(reuse_answers="request"), None)
    alone, other = rates.of(User(0)), rates.of(User(1))
    assert alone is not None is not other
    alone.index.extend([1, 2, 3, 1, 2])
    assert alone.index.followers([1, 2]) == []
    assert alone.rates is not other.rates


def test_a_profile_is_of_one_user(chat: Path) -> None:
    options = {"reuse_answers": "profile", "adapt": "background", "profile": "auto"}
    with (
        pytest.raises(ConfigError, match=r"answers of several users together.*: use reuse_answers='memory'") as raised,
        serving([chat], SMALL, options, api_key=KEYS),
    ):
        pass
    assert raised.value.option == "reuse_answers"
