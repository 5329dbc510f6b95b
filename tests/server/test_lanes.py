"""Many requests at once: their answers, the queue, clients that go away or do not read, and time limits."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from omnidraft.api import Lane, OmniDraft
from omnidraft.decoding.engine import Engine
from support.serving import QUESTION, At, serving, until, user

LONG: dict[str, Any] = {
    "messages": user(QUESTION),
    "temperature": 2.0,
    "max_tokens": 1500,
    "seed": 1,
}  # without drafts, whose length depends on the clock, it does not end by itself soon


@pytest.fixture(scope="module")
def narrow(chat: Path) -> Iterator[At]:
    """One lane, and room for one request to wait."""
    with serving([chat], options={"draft_length": 0}, lanes=1, max_queue=1, max_tokens=1500) as at:
        yield at


@contextmanager
def streamed(at: At, **body: Any) -> Iterator[Iterator[str]]:
    """The lines of an answer of which the first has come."""
    with httpx.stream(
        "POST", at.url + "/v1/chat/completions", json={**LONG, "stream": True, **body}, timeout=60
    ) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        yield lines


def test_answers_of_many_at_once_are_those_of_each_alone(server: At, model: OmniDraft) -> None:
    prompts = [f"Question: Ann has {n} bags of {n + 2} nuts. How many nuts has she?\nAnswer:" for n in range(8)]
    alone = [model.generate(user(prompt), max_new_tokens=24, temperature=0).text for prompt in prompts]

    def ask(place: int) -> str:
        body = {"messages": user(prompts[place]), "max_tokens": 24, "temperature": 0}
        if place % 2:
            return str(server.chat(**body).json()["choices"][0]["message"]["content"])
        with streamed(server, **body) as lines:
            found = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return "".join(each["choices"][0]["delta"].get("content", "") for each in found)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == alone
    assert len(set(alone)) > 4


def test_conversations_are_not_read_again(server: At) -> None:
    begun = [
        user("Question: Eva buys 3 red pens and 12 blue ones. How many pens has she?\nAnswer:"),
        user("Name birds. " * 9),
    ]
    said = [server.chat(messages=first, max_tokens=8, temperature=0).json() for first in begun]
    for first, answer in zip(begun, said, strict=True):  # each has a lane of its own
        more = [*first, {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, *user("Why?")]
        again = server.chat(messages=more, max_tokens=8, temperature=0).json()
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert answer["usage"]["prompt_tokens"] <= cached < again["usage"]["prompt_tokens"]
        assert again["timings"]["prompt_n"] == again["usage"]["prompt_tokens"] - cached
        assert again["timings"]["predicted_n"] == again["usage"]["completion_tokens"]


def test_a_full_queue_sends_away(narrow: At) -> None:
    with ThreadPoolExecutor(1) as pool:
        with streamed(narrow):
            waits = pool.submit(narrow.chat, temperature=0)
            until(lambda: narrow.figures()["queued"] == 1)
            refused = narrow.chat()
            assert refused.status_code == 429
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert narrow.counter("omnidraft_refused_requests_total") == 1
            assert narrow.get("/v1/models").status_code == 200
            assert not waits.done()
        assert waits.result().status_code == 200


def test_a_client_that_goes_away_frees_its_lane(narrow: At) -> None:
    for stream in (True, False):
        before = narrow.counter("omnidraft_generated_tokens_total")
        ended = narrow.counter('omnidraft_answers_total{end="cancelled"')
        if stream:
            with streamed(narrow):
                pass
        else:
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(narrow.url + "/v1/chat/completions", json=LONG, timeout=1)
        until(lambda: narrow.figures()["active"] == 0, 5)
        assert narrow.counter('omnidraft_answers_total{end="cancelled"') == ended + 1
        assert narrow.counter("omnidraft_generated_tokens_total") - before < 300  # of 1500
        assert narrow.chat(temperature=0).status_code == 200


def test_a_lane_is_free_with_the_round_at_hand(narrow: At, monkeypatch: pytest.MonkeyPatch) -> None:
    verify, begun = Engine.verify, 0

    def slow(engine: Engine, request: Any) -> Any:
        nonlocal begun
        begun += 1
        time.sleep(0.3)
        return verify(engine, request)

    monkeypatch.setattr(Engine, "verify", slow)
    with streamed(narrow) as lines:
        for _ in range(6):
            next(lines)
        before = begun
    until(lambda: narrow.figures()["active"] == 0, 5)
    assert begun <= before + 1  # the next round may have begun before the client was gone


def test_a_client_that_does_not_read_stalls_nobody(chat: Path) -> None:
    with serving([chat], lanes=2, max_tokens=150) as at:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", int(at.url.rsplit(":", 1)[1])))
        body = json.dumps({**LONG, "max_tokens": 150, "stream": True, "logprobs": True, "top_logprobs": 20})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        slow.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        until(lambda: at.figures()["active"] == 1)
        began = time.monotonic()
        assert at.chat(temperature=0, max_tokens=8).status_code == 200
        assert time.monotonic() - began < 20
        until(lambda: at.counter("omnidraft_answers_total") == 2)  # what nobody reads is made all the same
        slow.close()


def test_late_answers_are_ended(chat: Path) -> None:
    with serving([chat], options={"draft_length": 0}, lanes=1, timeout_s=1.0, max_tokens=1500) as at:
        assert at.chat(**LONG).status_code == 504
        with streamed(at) as lines:
            last = [line for line in lines if line.startswith("data: {")][-1]
        assert json.loads(last[6:])["error"]["code"] == "timeout"
        assert at.chat(temperature=0).status_code == 200


def test_a_failure_is_one_requests_own(server: At, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = Engine.verify

    def failing(engine: Engine, request: Any) -> Any:
        if request.sampling.top_k == 7:
            raise RuntimeError("planted")
        return verify(engine, request)

    expected = server.chat(temperature=0, max_tokens=24).json()["choices"]
    monkeypatch.setattr(Engine, "verify", failing)
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(server.chat, temperature=0, max_tokens=24)
        failed = server.chat(top_k=7)
        assert failed.status_code == 500
        assert "planted" not in failed.text
        assert good.result().json()["choices"] == expected
    assert server.chat(temperature=0, max_tokens=24).json()["choices"] == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the server ends with it
def test_a_failure_of_the_models_ends_all_requests(chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> int:
        raise RuntimeError("planted")

    with serving([chat], lanes=2, max_tokens=1500) as at, streamed(at) as lines:
        until(lambda: at.figures()["active"] == 1)
        monkeypatch.setattr(Lane, "common", failing)
        for refused in (at.chat(), at.chat(), at.get("/health")):
            assert refused.status_code == 503
            assert "the models failed (RuntimeError)" in refused.json()["error"]["message"]
        last = [line for line in lines if line.startswith("data: {")][-1]
        assert json.loads(last[6:])["error"]["code"] == "failed"


def test_caches_are_held_to_their_limit(chat: Path) -> None:
    with serving([chat], lanes=3, max_cache_mb=0, max_tokens=64) as at:
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: at.chat(temperature=0, max_tokens=16).json()["choices"], range(3)))
        assert answers[0] == answers[1] == answers[2]
        assert at.chat(temperature=0, max_tokens=16).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_seed_decides_every_draw(chat: Path) -> None:
    with serving([chat], None, {"draft_length": 0}, lanes=2) as at:
        asked: dict[str, Any] = {"temperature": 1.0, "max_tokens": 24}
        texts = [at.chat(**asked, seed=seed).json()["choices"][0] for seed in (1, 1, -1, -1)]
        assert texts[0] == texts[1] != texts[2] == texts[3]
        unseeded = {str(at.chat(**asked).json()["choices"][0]) for _ in range(4)}
        assert len(unseeded) > 1


def test_a_trace_says_where_tokens_come_from(server: At) -> None:
    with streamed(server, temperature=0, max_tokens=48, omnidraft={"trace": True}) as lines:
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    *rounds, last = chunks
    for each in rounds:
        tokens = each["omnidraft"]["tokens"]
        assert "".join(token["text"] for token in tokens) == each["choices"][0]["delta"]["content"]
        assert {token["source"] for token in tokens} <= {"target", "drafted", "retrieved"}
        assert each["omnidraft"]["accepted"] <= each["omnidraft"]["draft"]
    accepted = sum(each["omnidraft"]["accepted"] for each in rounds)
    sources = [token["source"] for each in rounds for token in each["omnidraft"]["tokens"]]
    assert accepted == last["timings"]["draft_n_accepted"] == len(sources) - sources.count("target")
    assert accepted > 0
    assert last["omnidraft"]["tokens"] == len(sources)
    assert last["omnidraft"]["tokens_per_pass"] == pytest.approx(len(sources) / len(rounds))
    assert "trace" not in server.chat().text
    assert "omnidraft" not in server.chat().json()


def test_no_piece_waits_for_the_one_before(server: At) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:  # on one connection
        times = sorted(client.post("/tokenize", json={"content": "x"}).elapsed.total_seconds() for _ in range(60))
    assert times[20] < 0.035, times


@pytest.mark.parametrize("tokens", [1, 40])
def test_timings_are_of_all_tokens_and_of_all_the_time(server: At, tokens: int) -> None:
    began = time.monotonic()
    body = server.chat(temperature=0, max_tokens=tokens, stop=["zzz"], omnidraft={"trace": True}).json()
    passed = 1e3 * (time.monotonic() - began)
    found, usage = body["timings"], body["usage"]
    assert found["predicted_n"] == usage["completion_tokens"]
    assert found["cache_n"] + found["prompt_n"] == usage["prompt_tokens"]
    for name in ("prompt", "predicted"):
        count, took = found[f"{name}_n"], found[f"{name}_ms"]
        assert took > 0
        assert found[f"{name}_per_token_ms"] == pytest.approx(took / count)
        assert found[f"{name}_per_second"] == pytest.approx(1e3 * count / took)
    whole = found["prompt_ms"] + found["predicted_ms"]
    assert whole == pytest.approx(1e3 * body["omnidraft"]["seconds"])
    assert whole < passed
    if tokens == 1:  # read and made in one round: as long for each
        assert found["predicted_per_token_ms"] == pytest.approx(found["prompt_per_token_ms"])
        assert found["draft_n_accepted"] == 0
    else:
        assert 0 < found["draft_n_accepted"] < found["draft_n"]
        assert found["predicted_ms"] > found["prompt_ms"]


def answered(at: At, *said: str, system: str = "") -> tuple[list[dict[str, str]], int]:
    """A conversation that has gone on for so many questions, and how much of its last prompt was held."""
    talk = [{"role": "system", "content": system}] if system else []
    cached = 0
    for text in said:
        found = at.chat(messages=[*talk, *user(text)], temperature=0, max_tokens=8).json()
        talk += [*user(text), {"role": "assistant", "content": found["choices"][0]["message"]["content"]}]
        cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
    return talk, cached


def again(at: At, talk: list[dict[str, str]]) -> tuple[int, int]:
    """How much of a conversation is held when it goes on, and how much of it is new."""
    found = at.chat(messages=[*talk, *user("Why?")], temperature=0, max_tokens=8).json()["timings"]
    return found["cache_n"], found["prompt_n"]


def test_the_conversation_used_longest_ago_is_forgotten(chat: Path) -> None:
    with serving([chat], options={"draft_length": 0}, lanes=2) as at:
        first, second = (answered(at, f"{name} has 3 pens.")[0] for name in ("Ann", "Bob"))
        held, new = again(at, first)
        assert held > new
        answered(at, "Name birds, please, as many as you can.")  # in the lane of the second
        assert again(at, first)[0] > new
        held, new = again(at, second)
        assert held < new


def test_a_common_beginning_costs_no_conversation(chat: Path) -> None:
    system = "You count things, and say how many there are. " * 8
    with serving([chat], options={"draft_length": 0}, lanes=3) as at:
        talks = [answered(at, f"{name} has 3 pens.", system=system)[0] for name in ("Ann", "Bob", "Eva")]
        for talk in talks:
            assert again(at, talk)[1] < 30  # what is new: all three are held
        answered(at, "And Tim?", system=system)  # in the lane of the first, the oldest
        assert [again(at, talk)[1] < 30 for talk in reversed(talks)] == [True, True, False]


def test_requests_wait_for_the_memory_that_they_may_need(chat: Path) -> None:
    long: dict[str, Any] = {**LONG, "max_tokens": 900}  # may come to more than half of what there is
    with serving([chat], None, {"draft_length": 0}, lanes=3, max_cache_mb=30, max_tokens=900) as at:
        with ThreadPoolExecutor(1) as pool:
            with streamed(at, **long):
                assert at.chat(temperature=0).status_code == 200  # a short one goes beside it
                waits = pool.submit(at.chat, **long, stop=["a", "e", "i", "o", " "])
                until(lambda: at.figures()["queued"] == 1)
                time.sleep(0.3)
                assert (at.figures()["active"], waits.done()) == (1, False)
            assert waits.result().status_code == 200
        assert 0 < at.counter("omnidraft_kv_cache_bytes") <= 30 * 2**20
