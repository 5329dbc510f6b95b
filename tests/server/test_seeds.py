"""A seed gives one text: asked again, with and without drafts, beside others, as one of several, after a restart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from support.serving import QUESTION, At, user

pytestmark = pytest.mark.medium

DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 42, "max_tokens": 24}
OPTIONS: dict[str, Any] = {"stream": False, "options": {"temperature": 1.0, "seed": 42, "num_predict": 24}}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": user(QUESTION), **DRAWN},
    "/v1/completions": {"prompt": QUESTION, "ignore_eos": True, **DRAWN},
    "/api/chat": {"messages": user(QUESTION), **OPTIONS},
    "/api/generate": {"prompt": QUESTION, **OPTIONS},
}
OPENAI = [path for path in PATHS if path.startswith("/v1")]


def said(at: At, path: str, **changes: Any) -> list[str]:
    """The texts of all choices of the first target's answer."""
    name = at.get("/v1/models").json()["data"][0]["id"]
    body = at.post(path, {"model": name, **PATHS[path], **changes}).json()
    if "choices" in body:
        return [each["message"]["content"] if "message" in each else each["text"] for each in body["choices"]]
    return [body["message"]["content"] if "message" in body else body["response"]]


@pytest.mark.parametrize("path", PATHS)
def test_a_seed_repeats_a_text_that_is_remembered(server: At, plain: At, path: str) -> None:
    """The second time the answer lies in memory, so that all of it can be drafted; `plain` drafts nothing."""
    expected = said(plain, path)
    assert [said(server, path) for _ in range(4)] == [expected] * 4
    assert expected != [""]


@pytest.mark.parametrize("path", OPENAI)
def test_a_seed_gives_the_same_text_with_other_drafts(server: At, path: str) -> None:
    ways = [{"draft_length": 0}, {"draft_length": 1}, {"draft_length": 16}, {"sources": ["drafter"]}]
    found = [said(server, path, seed=7, omnidraft=way) for way in ways]
    assert found == [found[0]] * len(ways)


@pytest.mark.parametrize("path", OPENAI)
def test_a_seed_gives_the_same_text_beside_others(server: At, path: str) -> None:
    expected = [said(server, path, seed=seed)[0] for seed in range(20, 26)]
    assert len(set(expected)) > 1
    with ThreadPoolExecutor(6) as pool:
        together = [pool.submit(partial(said, server, path, seed=seed)) for seed in range(20, 26)]
    assert [each.result()[0] for each in together] == expected
    assert said(server, path, seed=20, n=3) == expected[:3]
