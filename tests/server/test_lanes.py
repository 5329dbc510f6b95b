"""Many requests at once: their answers, the queue, clients that go away or do not read, and time limits."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from omnidraft.api import OmniDraft
from omnidraft.decoding.lane import Lane
from omnidraft.decoding.round import verify
from omnidraft.models import transformers_model
from omnidraft.models.language_model import ROOM, Read
from omnidraft.models.transformers_model import TransformersModel, TransformersSequence
from omnidraft.server.running.served_model import ServedModel
from support.reads import watch
from support.serving import PATIENT, QUESTION, At, Rounds, events, serving, user
from support.waiting import until

pytestmark = pytest.mark.medium

LONG: dict[str, Any] = {
    "messages": user(QUESTION),
    "temperature": 2.0,
    "max_tokens": 1500,
    "seed": 1,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def narrow(chat: Path) -> Iterator[At]:
    """One lane, and room for one request to wait."""
    with serving([chat], options={"draft_length": 0}, lanes=1, max_queue=1, max_tokens=1500) as at:
        yield at


def place_of(at: At) -> tuple[str, int]:
    return "127.0.0.1", int(at.url.rsplit(":", 1)[1])


def ask(connection: socket.socket, **body: Any) -> None:
    """Send a request whose answer nobody reads."""
    data = json.dumps({**LONG, **body})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    connection.sendall(f"{head}Content-Type: application/json\r\n\r\n{data}".encode())


class Clock:
    """The server's clock, which is late by so many seconds, and goes on by more with each round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rounds: Rounds, per_round: float = 0.0) -> None:
        self.late = 0.0

        def perf_counter() -> float:
            return time.perf_counter() + self.late + per_round * rounds.begun

        clock = SimpleNamespace(perf_counter=perf_counter, time=time.time)
        monkeypatch.setattr("omnidraft.server.running.request_queue.time", clock)


@contextmanager
def streamed(at: At, **body: Any) -> Iterator[Iterator[str]]:
    """The lines of an answer of which the first has come."""
    with httpx.stream(
        "POST", at.url + "/v1/chat/completions", json={**LONG, "stream": True, **body}, **PATIENT
    ) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        next(lines)
        yield lines


@pytest.mark.slow
def test_answers_of_many_at_once_are_those_of_each_alone(server: At, model: OmniDraft) -> None:
    prompts = [f"Question: Ann has {n} bags of {n + 2} nuts. How many nuts has she?\nAnswer:" for n in range(8)]
    alone = [model.generate(user(prompt), max_new_tokens=24, temperature=0).text for prompt in prompts]

    def answer(place: int) -> str:
        body = {"messages": user(prompts[place]), "max_tokens": 24, "temperature": 0}
        if place % 2:
            return str(server.chat(**body).json()["choices"][0]["message"]["content"])
        with streamed(server, **body) as lines:
            return "".join(each["choices"][0]["delta"].get("content", "") for each in events(lines))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer, range(8))) == alone
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


@pytest.mark.parametrize(("path", "many"), [("chat/completions", "n"), ("completions", "best_of")])
def test_answers_that_could_never_wait_together_are_no_matter_of_time(narrow: At, path: str, many: str) -> None:
    body = {"messages": user("x")} if path == "chat/completions" else {"prompt": "x"}
    refused = narrow.post(f"/v1/{path}", body | {many: 3, "temperature": 1, "max_tokens": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, many)
    assert "at most 2" in refused.json()["error"]["message"]


def test_a_full_queue_sends_away(narrow: At, rounds: Rounds) -> None:
    with ThreadPoolExecutor(1) as pool:
        with streamed(narrow):
            rounds.wait(2)
            waits = pool.submit(narrow.chat, temperature=0)
            until(lambda: narrow.figures()["queued"] == 1)
            refused = narrow.chat()
            assert refused.status_code == 429
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
            assert narrow.counter("omnidraft_refused_requests_total") == 1
            assert narrow.get("/v1/models").status_code == 200
            assert not waits.done()
        rounds.let()
        assert waits.result().status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_lane_with_the_round_at_hand(
    narrow: At, rounds: Rounds, stream: bool
) -> None:
    ended = narrow.counter('omnidraft_answers_total{end="cancelled"')
    told = len(narrow.lines)
    with socket.create_connection(place_of(narrow)) as client:
        ask(client, stream=stream)
        rounds.wait(5)
    until(lambda: any("no answer" in line for line in narrow.lines[told:]))  # the server knows that it has gone
    begun = rounds.begun
    rounds.let()
    until(lambda: narrow.figures()["active"] == 0)
    assert rounds.begun == begun
    assert narrow.counter('omnidraft_answers_total{end="cancelled"') == ended + 1
    assert narrow.chat(temperature=0).status_code == 200


def test_a_client_that_goes_away_while_its_prompt_is_read_frees_its_lane(
    narrow: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, parts = threading.Event(), 0

    def slow(read: Read) -> None:
        nonlocal parts
        if read.keep == 0:
            parts += 1
            began.set()
            time.sleep(0.2)

    monkeypatch.setattr(TransformersModel, "chunk", 4)
    watch(monkeypatch, TransformersModel, slow)
    messages = user(f"{QUESTION} And one more. " * 20)  # read in about 100 parts
    with socket.create_connection(("127.0.0.1", int(narrow.url.rsplit(":", 1)[1]))) as client:
        body = json.dumps({"messages": messages, "max_tokens": 4})
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n{body}".encode())
        assert began.wait(60)
    until(lambda: narrow.figures()["active"] == 0)
    assert parts < 50
    assert narrow.chat(temperature=0).status_code == 200


@pytest.mark.slow
def test_a_client_that_does_not_read_stalls_nobody(chat: Path, rounds: Rounds) -> None:
    with serving([chat], lanes=2, max_tokens=150) as at:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(place_of(at))
        ask(slow, max_tokens=150, stream=True, logprobs=True, top_logprobs=20)
        rounds.wait(2)
        rounds.let()
        assert at.chat(temperature=0, max_tokens=8).status_code == 200  # what is stalled gets no answer
        until(lambda: at.counter("omnidraft_answers_total") == 2)  # what nobody reads is made all the same
        slow.close()


TALK: dict[str, Any] = {"model": "chat", "messages": user(QUESTION)}


@pytest.mark.parametrize(
    ("path", "body", "alive"),
    [
        ("/v1/chat/completions", {**TALK, "max_tokens": 2}, ": alive"),
        ("/v1/responses", {"input": QUESTION, "max_output_tokens": 2}, ": alive"),
        ("/v1/messages", {**TALK, "max_tokens": 2}, '{"type":"ping"}'),
        ("/api/chat", {**TALK, "options": {"num_predict": 2}}, '"content":""},"done":false'),
    ],
)
def test_a_stream_that_waits_says_that_it_is_alive(
    server: At, rounds: Rounds, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], alive: str
) -> None:
    monkeypatch.setattr("omnidraft.server.answers.request_answers.QUIET_S", 0.01)
    rounds.let(0)
    with httpx.stream("POST", server.url + path, json=body | {"stream": True}, **PATIENT) as answer:
        lines = answer.iter_lines()
        assert all(any(alive in line for line in lines) for _ in range(3))
        rounds.let()
        assert list(lines)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**TALK, "max_tokens": 3, "n": 2, "temperature": 1}),
        (
            "/v1/completions",
            {"model": "zoo:target-a", "prompt": "def mean(values):", "max_tokens": 3, "temperature": 0},
        ),
    ],
)
def test_the_first_chunk_comes_with_the_first_token(
    server: At, rounds: Rounds, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    monkeypatch.setattr("omnidraft.server.answers.request_answers.QUIET_S", 0.01)
    rounds.let(0)
    with httpx.stream("POST", server.url + path, json=body | {"stream": True}, **PATIENT) as answer:
        lines = answer.iter_lines()
        assert {next(lines) for _ in range(6)} == {": alive", ""}
        rounds.let()
        told = [choice for each in events(lines) for choice in each["choices"]]
    for index in range(body.get("n", 1)):
        deltas = [choice.get("delta", {"content": choice.get("text")}) for choice in told if choice["index"] == index]
        role = "assistant" if "messages" in body else None
        assert [delta.get("role") for delta in deltas] == [role, *[None] * (len(deltas) - 1)]
        assert any(delta.get("content") for delta in deltas)


def test_an_empty_answer_has_a_role(server: At) -> None:
    first = server.chat(temperature=0).json()["choices"][0]["message"]["content"][0]
    told = events(server.chat(temperature=0, stop=[first], stream=True))
    deltas = [each["choices"][0]["delta"] for each in told]
    assert deltas == [{"role": "assistant", "content": ""}, {}]


def test_late_answers_are_ended(chat: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, rounds)
    with (
        serving([chat], options={"draft_length": 0}, lanes=1, timeout_s=1000, max_tokens=1500) as at,
        ThreadPoolExecutor(1) as pool,
    ):
        for stream in (False, True):
            answer = pool.submit(at.chat, **LONG, stream=stream)
            rounds.wait(2)
            clock.late = 2000
            rounds.let()
            assert events(answer.result())[-1]["error"]["code"] == "timeout"
            assert answer.result().status_code == (200 if stream else 504)
            clock.late = 0
        assert at.chat(temperature=0).status_code == 200


def test_a_failure_is_one_requests_own(server: At, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(lane: Lane, request: Any) -> Any:
        verified = yield from verify(lane, request)
        if request.sampling.top_k == 7:
            raise RuntimeError("planted")
        return verified

    expected = server.chat(temperature=0, max_tokens=24).json()["choices"]
    monkeypatch.setattr("omnidraft.decoding.stream.verify", failing)
    with ThreadPoolExecutor(2) as pool:
        good = pool.submit(server.chat, temperature=0, max_tokens=24)
        failed = server.chat(top_k=7)
        assert failed.status_code == 500
        assert "planted" not in failed.text
        assert good.result().json()["choices"] == expected
    assert server.chat(temperature=0, max_tokens=24).json()["choices"] == expected


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the server ends with it
def test_a_failure_of_the_models_ends_all_requests(chat: Path, rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> int:
        raise RuntimeError("planted")

    with (
        serving([chat], options={"draft_length": 0}, lanes=2, max_tokens=1500) as at,
        streamed(at) as lines,
        ThreadPoolExecutor(1) as pool,
    ):
        rounds.wait(2)
        monkeypatch.setattr(ServedModel, "needs", failing)
        waits = pool.submit(at.chat)
        until(lambda: at.figures()["queued"] == 1)
        rounds.let()
        for refused in (waits.result(), at.chat(), at.get("/health")):
            assert refused.status_code == 503
            assert "the models failed (RuntimeError)" in refused.json()["error"]["message"]
        assert events(lines)[-1]["error"]["code"] == "failed"


@pytest.mark.slow
def test_caches_are_held_to_their_limit(chat: Path) -> None:
    with serving([chat], lanes=3, max_cache_mb=0, max_tokens=64) as at:
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda _: at.chat(temperature=0, max_tokens=16).json()["choices"], range(3)))
        assert answers[0] == answers[1] == answers[2]
        assert at.chat(temperature=0, max_tokens=16).json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_trace_says_where_tokens_come_from(server: At) -> None:
    with streamed(server, temperature=0, max_tokens=48, omnidraft={"trace": True}) as lines:
        *rounds, last = events(lines)
    for each in rounds:
        tokens = each["omnidraft"]["tokens"]
        assert "".join(token["text"] for token in tokens) == each["choices"][0]["delta"]["content"]
        assert {token["source"] for token in tokens} <= {"target", "drafted", "counted"}
        assert each["omnidraft"]["accepted"] <= each["omnidraft"]["draft"]
    accepted = sum(each["omnidraft"]["accepted"] for each in rounds)
    sources = [token["source"] for each in rounds for token in each["omnidraft"]["tokens"]]
    assert accepted == last["timings"]["draft_n_accepted"] == len(sources) - sources.count("target")
    assert accepted > 0
    assert last["omnidraft"]["tokens"] == len(sources)
    assert last["omnidraft"]["tokens_per_pass"] == pytest.approx(len(sources) / len(rounds))
    assert "trace" not in server.chat().text
    assert "omnidraft" not in server.chat().json()


@pytest.mark.slow
def test_counted_tokens_are_drafted_ones_in_the_figures(chat: Path) -> None:
    text = user("Say it again and again: one pen, two pens, three pens, four pens. " * 6)
    with serving([chat], None, {"draft_length": 4}) as at:
        body = at.chat(messages=text, temperature=0, max_tokens=40, omnidraft={"trace": True}).json()
        until(lambda: at.figures()["series"]["draft_length"])
        (length,) = at.figures()["series"]["draft_length"]
    rounds = body["omnidraft"]["tokens"] / body["omnidraft"]["tokens_per_pass"]
    assert body["timings"]["draft_n"] > 4
    assert length * rounds == pytest.approx(body["timings"]["draft_n"])


def test_no_piece_waits_for_the_one_before(server: At) -> None:
    """As the system has them wait otherwise, until what was sent before is acknowledged."""
    with socket.create_connection(place_of(server)) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(1)
        connections = psutil.Process().net_connections("tcp")
        numbers = [each.fd for each in connections if each.raddr == client.getsockname()]
        # on macOS and Windows connections take after the one that listens
        numbers += [each.fd for each in connections if each.laddr == client.getpeername() and not each.raddr]
        assert len(numbers) == 2
        for number in numbers:
            with socket.socket(fileno=os.dup(number)) as theirs:
                assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("tokens", [1, 40])
def test_timings_are_of_all_tokens_and_of_all_the_time(
    server: At, rounds: Rounds, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    Clock(monkeypatch, rounds, per_round=10)
    began = time.monotonic()
    asked = user("Ann has 5 bags of 7 nuts. How many nuts has she?")  # whose answer nobody has asked for before
    body = server.chat(messages=asked, temperature=0, max_tokens=tokens, stop=["zzz"], omnidraft={"trace": True}).json()
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
    assert 1e4 * rounds.begun < whole < 1e4 * rounds.begun + passed
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


@pytest.fixture
def unshared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches that others cannot have copies of, as those of hybrids."""
    monkeypatch.setattr(transformers_model, "AttentionSequence", TransformersSequence)


@pytest.mark.slow
@pytest.mark.usefixtures("unshared")
def test_the_conversation_used_longest_ago_is_forgotten(chat: Path) -> None:
    with serving([chat], options={"draft_length": 0}, lanes=2) as at:
        first, second = (answered(at, f"{name}: {QUESTION}")[0] for name in ("Ann", "Bob"))
        held, new = again(at, first)
        assert held > new
        answered(at, "Name birds, please, as many as you can.")  # in the lane of the second
        assert again(at, first)[0] > new
        held, new = again(at, second)
        assert held < new


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_a_common_beginning_costs_no_conversation(chat: Path, shared: bool, request: pytest.FixtureRequest) -> None:
    if not shared:
        request.getfixturevalue("unshared")
    system = "You count things, and say how many there are. " * 8
    with serving([chat], options={"draft_length": 0}, lanes=3) as at:
        talks = [answered(at, f"{name} has 3 pens.", system=system)[0] for name in ("Ann", "Bob", "Eva")]
        for talk in talks:
            assert again(at, talk)[1] < 30  # what is new: all three are held
        answered(at, "And Tim?", system=system)  # in the lane of the first, the oldest
        assert [again(at, talk)[1] < 30 for talk in reversed(talks)] == [True, True, shared]


def test_a_lane_needs_memory_for_the_drafters_window_alone() -> None:
    target = SimpleNamespace(lm=SimpleNamespace(context=100_000))
    served: Any = SimpleNamespace(model=SimpleNamespace(target=target), _target_bytes=10.0, _drafter_bytes=1.0)
    served._drafter = SimpleNamespace(window=1024)  # noqa: SLF001
    assert ServedModel.needs(served, 100) == 10 * (100 + ROOM) + 2 * (100 + ROOM)
    assert ServedModel.needs(served, 4000) == 10 * 6000 + 1024 + ROOM
    served._drafter = None  # noqa: SLF001
    assert ServedModel.needs(served, 4000) == 10 * 6000


@pytest.mark.slow
def test_requests_wait_for_the_memory_that_they_may_need(chat: Path, rounds: Rounds) -> None:
    long: dict[str, Any] = {**LONG, "max_tokens": 900}  # may come to more than half of what there is
    with serving([chat], None, {"draft_length": 0}, lanes=3, max_cache_mb=11, max_tokens=900) as at:
        with ThreadPoolExecutor(1) as pool:
            with streamed(at, **long):
                rounds.wait(2)
                short = pool.submit(at.chat, temperature=0)
                until(lambda: at.figures()["queued"] == 1)
                rounds.let()
                assert short.result().status_code == 200  # it goes beside the long one
                rounds.let(0)
                waits = pool.submit(at.chat, **long, stop=["a", "e", "i", "o", " "])
                until(lambda: at.figures()["queued"] == 1)
                rounds.wait(20)
                assert (at.figures()["active"], at.figures()["queued"], waits.done()) == (1, 1, False)
            rounds.let()
            assert waits.result().status_code == 200
        assert 0 < at.counter("omnidraft_kv_cache_bytes") <= 11 * 2**20
