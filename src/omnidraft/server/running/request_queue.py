"""The model thread: it drives the lanes of all targets in turns, a round of each in joint passes.

Requests wait in a bounded queue until a lane of their target is free.  Everything that touches the models happens in
this thread; it tells each request of its rounds, and never waits for a client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from omnidraft.decoding.request import NOTHING_ELSE
from omnidraft.decoding.schedule import Step, step_together
from omnidraft.errors import InputError, OmniDraftError
from omnidraft.models.prefix_cache import circle_of
from omnidraft.server.errors import ENDING, INTERNAL, LOADING, ApiError, of_input
from omnidraft.server.reading.choice import Reading
from omnidraft.server.running.metrics import Metrics
from omnidraft.server.running.served_model import LaneState, ServedModel
from omnidraft.server.running.user_memories import User
from omnidraft.server.server_settings import Serving

if TYPE_CHECKING:
    from omnidraft.api import Generation, Stream
    from omnidraft.verification.round import Round, TokenLogprobs

_log = logging.getLogger("omnidraft")
PROGRESS_S = 0.5  # between two events that tell how much of a prompt is read
OPENING = 4  # tokens fewer than these at the end of a prompt may be written otherwise in the next: "<think>" and such


@dataclass(frozen=True, kw_only=True)
class Told:
    """A round, and the text that it completes."""

    text: str
    record: Round
    prompt: Sequence[TokenLogprobs] = ()  # of its tokens but the first, with the first round, where they are asked for


@dataclass(frozen=True, kw_only=True)
class Done:
    """The end of an answer; `cached` tokens of the prompt were not read again, times are seconds.

    The first round both reads the prompt and makes tokens: its time is shared out by how many of each.
    """

    result: Generation
    cached: int
    prompt_s: float
    predicted_s: float
    speedup: float | None  # an estimate
    learned: Mapping[str, int | float]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How much of a prompt is read: tokens in all, those held before, and those that are done, with these."""

    total: int
    cached: int
    done: int
    seconds: float  # since its reading began


Event = Told | Done | Progress | ApiError


@dataclass(eq=False, kw_only=True)
class Task:
    """A request: what is asked of a target, with options of `Lane.stream`, and where its events go."""

    served: ServedModel
    ids: Sequence[int]
    options: Mapping[str, Any]
    greedy: bool = False
    reading: Reading = field(default_factory=Reading)  # how the answer is read
    trace: bool = False
    tells_logprobs: bool = False
    ignored: Sequence[str] = ()  # paths of parameters that have no effect on this answer
    n: int = 1  # answers to this prompt that are sent: the likeliest of `best_of`
    best_of: int = 1
    echo: str = ""  # the prompt, where it is to be repeated
    prompt_alone: bool = False  # no token of the answer is told
    tells_progress: bool = False  # while its prompt is read
    user: User = field(default_factory=User)
    send: Callable[[Event], object] = lambda _: None
    first: Task | None = None  # of the same prompt: once it is read there, this one begins with a copy
    cancelled: bool = False
    born: float = field(default_factory=time.perf_counter)

    @property
    def age(self) -> float:
        """Seconds since it came."""
        return time.perf_counter() - self.born

    @property
    def needs(self) -> int:
        """Bytes of KV caches that it may come to."""
        return self.served.needs(len(self.ids) + int(self.options["max_new_tokens"]))

    def tell(self, event: Event) -> None:
        """Send an event, if anybody waits for it."""
        if not self.cancelled:
            self.send(event)


@dataclass(eq=False, kw_only=True)
class _Running:
    task: Task
    state: LaneState
    stream: Stream
    began: float = field(default_factory=time.perf_counter)
    first: float | None = None  # when its first round was over
    made: int = 0  # tokens of its rounds so far
    told: float = field(default_factory=time.perf_counter)  # when its progress was told last

    @property
    def cached(self) -> int:
        """Tokens of the prompt that were not read, once its first turn is over."""
        return self.stream.request.cached


class Scheduler:
    """Runs requests on the lanes of some targets, from `start` to `stop`."""

    def __init__(self, settings: Serving, metrics: Metrics) -> None:
        self.served: list[ServedModel] = []
        self.failure: BaseException | None = None  # of the thread
        self.ready = threading.Event()
        self._settings, self._metrics = settings, metrics
        self._change = threading.Condition()
        self._queue: list[Task] = []
        self._running: list[_Running] = []
        self._stopping = False
        self._uses = 0
        self._thread: threading.Thread | None = None

    def start(self, load: Callable[[], list[ServedModel]], failed: Callable[[], None]) -> None:
        """Load the models and serve them, in a thread; `failed` is called where they cannot be loaded."""
        # the process may end while it loads; `stop` waits for whatever comes later
        self._thread = threading.Thread(target=self._run, args=(load, failed), name="models", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the round at hand, with the requests that are left; then close the models, which saves profiles.

        Models that are being loaded are not waited for.
        """
        self.end_requests()
        if self._thread is not None and self.ready.is_set():
            self._thread.join()

    @property
    def refusal(self) -> ApiError | None:
        """Why no request can be answered now; None where they are."""
        if self.failure is not None:
            kind = type(self.failure).__name__
            return ApiError(503, f"the models failed ({kind}), see the server's log: restart it", code="failed")
        if self._stopping:
            return ENDING
        return None if self.ready.is_set() else LOADING

    def submit(self, task: Task) -> None:
        """Queue a request; raises ApiError where no more may wait, or nothing is served now."""
        with self._change:
            if (error := self.refusal) is not None:
                raise error
            there = [*self._queue, *(run.task for run in self._running), task]
            taken = Counter(each.served.name for each in there if not each.cancelled)
            if sum(max(0, taken[one.name] - len(one.lanes)) for one in self.served) > self._settings.max_queue:
                self._metrics.refused()
                raise ApiError(429, "the queue is full: try again later", code="queue_full")
            self._queue.append(task)
            self._change.notify()

    def end_requests(self) -> None:
        """Refuse all requests that there are, and those that come; a prompt that is being read is not read to its end.

        It does not wait.
        """
        with self._change:
            self._stopping = True
            for task in [*self._queue, *(run.task for run in self._running)]:
                task.tell(ENDING)
                task.cancelled = True
            self._change.notify()

    def cancel(self, task: Task) -> None:
        """Have a request end with the round at hand, or before it where its prompt is read; it is sent nothing more."""
        task.cancelled = True
        with self._change:
            self._change.notify()

    def count(self, served: ServedModel) -> tuple[int, int]:
        """Numbers of active and of queued requests of a target."""
        with self._change:
            queued = sum(task.served is served for task in self._queue)
            return sum(run.task.served is served for run in self._running), queued

    # ------------------------------------------------------------ the thread

    def _run(self, load: Callable[[], list[ServedModel]], failed: Callable[[], None]) -> None:
        try:
            self.served = load()
        except BaseException as error:  # noqa: BLE001  raised again by who started the server
            self.failure = error
            failed()
            return
        self.ready.set()
        try:
            saved = time.perf_counter()
            while self._admit():
                self._turn(list(self._running))
                if time.perf_counter() - saved >= self._settings.save_every_s:
                    saved = time.perf_counter()
                    self._save()
        except BaseException as error:  # noqa: BLE001  raised again by who started the server
            _log.critical("the models failed", exc_info=True)
            self.failure = error
        finally:
            self._close()

    def _admit(self) -> bool:
        """Give free lanes to the requests that wait, or wait for one; False at the end."""
        with self._change:
            if not self._running and not self._queue and not self._stopping:
                self._change.wait(self._settings.save_every_s)
            if self._stopping:
                return False
            full = False
            for task in list(self._queue):
                if task.cancelled or self._late(task):
                    task.tell(ApiError(504, "no lane was free in time: try again later", code="timeout"))
                    self._metrics.ended(task.served.name, "cancelled" if task.cancelled else "timeout", task.age, None)
                elif full or self._reads(task) or (state := self._free_lane(task)) is None:
                    continue
                elif not self._room(task, state):
                    full = True  # none overtakes a request that waits for memory
                    continue
                else:
                    self._begin(task, state)
                self._queue.remove(task)
            self._metrics.queued.set(len(self._queue))
            self._metrics.active.set(len(self._running))
        return True

    def _reads(self, task: Task) -> bool:
        """True where another request has yet to read the prompt of this one, which then begins with a copy of it."""
        first = task.first
        if first is None or first.cancelled or not first.served.copies:
            return False
        run = next((run for run in self._running if run.task is first), None)
        return first in self._queue if run is None else run.first is None

    def _room(self, task: Task | None = None, state: LaneState | None = None) -> bool:
        """True where there is memory for this request, once idle lanes were cleared for it; always where none runs.

        Those that run are counted with all that they may still need; the prefix cache has the rest.
        """
        cache = self.served[0].prefix_cache
        limit = self._settings.cache_bytes(cache.nbytes + sum(one.nbytes for one in self.served))
        taken = {id(run.state): max(run.state.lane.nbytes, run.task.needs) for run in self._running}
        if task is not None and state is not None:
            taken[id(state)] = max(state.lane.nbytes, task.needs)
        total = sum(taken.values())
        if total > limit and self._running:
            return False
        idle = [each for one in self.served for each in one.lanes if id(each) not in taken]
        total += sum(each.lane.nbytes for each in idle)
        for each in sorted(idle, key=lambda each: each.used):
            if total > limit:
                total -= each.lane.nbytes
                each.clear()
        cache.trim(max(0, limit - sum(taken.values())))
        self._metrics.cache.set(sum(one.nbytes for one in self.served) + cache.nbytes)
        return True

    def _free_lane(self, task: Task) -> LaneState | None:
        """The free lane whose conversation the prompt goes on with, else that used longest ago; None for none.

        A beginning in common, as of one system prompt, is not enough: of what free lanes hold, only the oldest is lost.
        Lanes whose caches others can share hold nothing between requests: what they read is in the prefix cache.
        """
        busy = {id(run.state) for run in self._running}
        free = [state for state in task.served.lanes if id(state) not in busy]
        held = {id(state): state.lane.common(task.ids) for state in free if state.key == task.user.key}
        going_on = [state for state in free if held.get(id(state), 0) > max(0, state.prompt - OPENING)]
        if going_on:
            return max(going_on, key=lambda state: held[id(state)])
        return min(free, key=lambda state: state.used, default=None)

    def _begin(self, task: Task, state: LaneState) -> None:
        self._uses += 1
        try:
            if state.key != task.user.key:  # what another's prompt left would tell of it, by the time that it saves
                state.clear()
            run = next((run for run in self._running if run.task is task.first), None)
            if run is not None and run.first is not None:
                state.lane.copy(run.state.lane, len(task.ids) - 1)
            state.used, state.key, state.prompt = self._uses, task.user.key, len(task.ids)
            extras = task.options.get("extras", NOTHING_ELSE)
            extras = replace(extras, circle=circle_of(self._settings.circle(task.user.key), extras.circle))
            memory = task.served.memories.of(task.user)
            options = {**task.options, "extras": extras, "memory": memory}
            stream = state.lane.stream(task.ids, **options, should_stop=lambda: task.cancelled or self._late(task))
        except Exception as error:  # noqa: BLE001  one request's failure is no other's
            self._failed(task, state, error)
            return
        self._running.append(_Running(task=task, state=state, stream=stream))

    def _turn(self, runs: Sequence[_Running]) -> None:
        """A round of each request, in joint passes, or of a prompt a chunk; or its end."""
        try:
            steps = step_together([run.stream for run in runs])
        except Exception as error:  # noqa: BLE001  of no single request, so that all of them end
            steps = [Step(error=error)] * len(runs)
        for run, step in zip(runs, steps, strict=True):
            if step.error is not None:
                self._running.remove(run)
                self._failed(run.task, run.state, step.error)
            elif step.waits:
                self._tell_progress(run)
            else:
                self._stepped(run, step.text)

    def _tell_progress(self, run: _Running) -> None:
        now, task, lane = time.perf_counter(), run.task, run.stream.lane
        if task.tells_progress and now - run.told >= PROGRESS_S:
            run.told, total = now, len(task.ids)
            done = total - lane.behind(run.stream.request)
            task.tell(Progress(total=total, cached=run.cached, done=done, seconds=now - run.began))

    def _stepped(self, run: _Running, text: str | None) -> None:
        """Tell a request of its round, or None, of its end."""
        task, stream = run.task, run.stream
        now, rounds = time.perf_counter(), stream.records
        if text is None and not (rounds and rounds[-1].finish):  # it was stopped
            end = "cancelled" if task.cancelled else "timeout"
            task.tell(ApiError(504, "the answer took too long: ask for fewer tokens", code="timeout"))
            self._leave(run, end)
            return
        if text is not None:
            prompt: Sequence[TokenLogprobs] = ()
            if run.first is None:
                run.first, prompt = now, stream.prompt_logprobs
                self._metrics.began(task.served.name, len(task.ids), run.cached)
                self._look_at_head(run)
                self._metrics.first(task.served.name, now - task.born)
            else:
                task.served.estimate.measure(rounds[-1], len(task.ids) + run.made)
            run.made += len(rounds[-1].emitted)
            task.tell(Told(text=text, record=rounds[-1], prompt=prompt))
        if text is None or rounds[-1].finish is not None:
            self._done(run, now)

    def _look_at_head(self, run: _Running) -> None:
        """Say where a prompt differs early from one before, as nothing behind that can be found again."""
        served = run.task.served
        changed = served.heads.look(run.task.user.key, run.task.ids, run.cached)
        if changed is not None:
            self._metrics.changed_heads.labels(served.name).inc()
            if not served.told_of_head:
                served.told_of_head = True
                _log.warning("%s: %s", served.name, changed)

    def _done(self, run: _Running, now: float) -> None:
        task, result, rounds = run.task, run.stream.result, run.stream.records
        read, written = len(task.ids) - run.cached, len(rounds[0].emitted)
        prompt_s = ((run.first or now) - run.began) * read / (read + written)
        done = Done(
            result=result,
            cached=run.cached,
            prompt_s=prompt_s,
            predicted_s=now - run.began - prompt_s,
            speedup=task.served.estimate.speedup(rounds, len(task.ids)),
            learned=task.served.learned,
        )
        self._leave(run, result.finish_reason)
        task.served.note(time.time(), result.stats)
        task.tell(done)  # at last, so that who is told finds the answer counted

    def _leave(self, run: _Running, end: str) -> None:
        """Free the lane of a request; a complete answer is learned from."""
        self._running.remove(run)
        self._metrics.ended(run.task.served.name, end, run.task.age, run.stream.result.stats)
        try:
            run.stream.close()
        except Exception:  # noqa: BLE001  of an answer that is complete
            _log.exception("an answer could not be closed")
        self._room()

    def _failed(self, task: Task, state: LaneState, error: Exception) -> None:
        """Tell a request of its failure; what its lane holds is dropped."""
        if isinstance(error, InputError):
            task.tell(of_input(error))
        else:
            _log.error("a request failed: %s", error, exc_info=not isinstance(error, OmniDraftError))
            task.tell(ApiError(500, str(error)) if isinstance(error, OmniDraftError) else INTERNAL)
        self._metrics.ended(task.served.name, "error", task.age, None)
        with suppress(Exception):
            state.clear()

    def _late(self, task: Task) -> bool:
        return task.age > self._settings.timeout_s

    def _save(self) -> None:
        """Save what was learned since the last time, each profile in a thread; a failure is a warning."""
        for one in self.served:
            if one.model.save_later():
                one.learned = dict(one.model.learned)

    def _close(self) -> None:
        with self._change:
            self._stopping = True
            left, self._queue = [*self._queue, *(run.task for run in self._running)], []
        for task in left:
            task.tell(self.refusal or ENDING)
        with ExitStack() as stack:  # from the last to the first, and each whatever fails
            for one in self.served:
                stack.callback(one.model.close)
            if self.served:
                stack.callback(self.served[0].prefix_cache.close)
            for run in self._running:
                stack.callback(self._leave, run, "shutdown")
