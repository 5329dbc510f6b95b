"""The web application: its routes, and how answers go out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from omnidraft.errors import InputError
from omnidraft.server import anthropic, anthropic_bodies, errors, ollama, ollama_bodies, tasks
from omnidraft.server import protocol as p
from omnidraft.server import protocol_base as base
from omnidraft.server.answers import Answer
from omnidraft.server.batch import Batch, Wanted
from omnidraft.server.bodies import Received, described, receive, taking
from omnidraft.server.chat import Chat, Completion
from omnidraft.server.errors import ApiError, Json, of_input
from omnidraft.server.guard import USED_KEY, Guard
from omnidraft.server.memories import KEYLESS
from omnidraft.server.metrics import CONTENT_TYPE, Metrics
from omnidraft.server.responses import Response as ResponseForm
from omnidraft.server.scheduler import Scheduler, Task
from omnidraft.server.served import Say, Served
from omnidraft.server.settings import MEGABYTE, Serving

PAGE = Path(__file__).parent / "page"
GONE = 499  # nobody reads it
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
AnyT = TypeVar("AnyT", bound=base.Body)
Form = Chat | Completion | ResponseForm | anthropic.Messages | ollama.Lines
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "a parameter that cannot be, by its name"},
    401: {"description": "no or a wrong API key"},
    403: {"description": "a Host or a web page that may not be"},
    404: {"description": "no such model"},
    408: {"description": "the request came too slowly"},
    413: {"description": "the request is too large"},
    415: {"description": "the body is no JSON by its type, or packed in an unknown way"},
    429: {"description": "the queue is full: see Retry-After"},
    503: {"description": "loading, failed, or shutting down"},
}


class Server:
    """The routes of one server, over its scheduler; `log` receives a line for each answer."""

    def __init__(self, settings: Serving, scheduler: Scheduler, metrics: Metrics, log: Say, *, prompts: bool) -> None:
        self.settings, self.scheduler, self.metrics = settings, scheduler, metrics
        self._log, self._prompts = log, prompts
        self._born = time.time()

    def model(self, name: str | None) -> Served:
        """The target of this name, or the first; raises ApiError."""
        if (error := self.scheduler.refusal) is not None:
            raise error
        found = [one for one in self.scheduler.served if name is None or one.name in (name, ollama.plain_name(name))]
        if not found:
            known = ", ".join(one.name for one in self.scheduler.served)
            raise ApiError(404, f"no such model: use one of {known}", param="model", code="model_not_found")
        return found[0]

    async def received(self, request: Request, kind: type[AnyT]) -> Received[AnyT]:
        """The body of a request; raises ApiError."""
        return await receive(request, kind, int(self.settings.max_body_mb * MEGABYTE))

    async def begin(
        self, request: Request, asked: Received[AnyT], make: Callable[[AnyT, Served, Serving], Sequence[Task]]
    ) -> Batch:
        """Queue a request; raises ApiError."""
        served = self.model(getattr(asked.body, "model", None))
        queued = _naming(await run_in_threadpool(make, asked.body, served, self.settings), asked.ignored)
        for each in queued:
            each.user = each.user._replace(key=request.scope.get(USED_KEY, KEYLESS))
            if self._prompts:
                self._log(f"prompt: {served.model.target.tokenizer.decode(list(each.ids))}")
        return Batch(queued, self.scheduler, Wanted(queued[0].told, queued[0].made))

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        asked = await self.received(request, p.ChatRequest)
        batch = await self.begin(request, asked, tasks.chat_tasks)
        form = Chat(batch, batch.task.served.name, usage=_usage(asked.body))
        return await self._out(request, batch, form, stream=bool(asked.body.stream))

    async def complete(self, request: Request) -> Response:
        """Go on with texts."""
        asked = await self.received(request, p.CompletionRequest)
        batch = await self.begin(request, asked, tasks.completion_tasks)
        form = Completion(batch, batch.task.served.name, usage=_usage(asked.body))
        return await self._out(request, batch, form, stream=bool(asked.body.stream))

    async def respond(self, request: Request) -> Response:
        """Answer a conversation, all of which is in the request."""
        asked = await self.received(request, p.ResponseRequest)
        batch = await self.begin(request, asked, tasks.response_tasks)
        form = ResponseForm(batch.answers[0], batch.task.served.name, asked)
        return await self._out(request, batch, form, stream=bool(asked.body.stream))

    async def messages(self, request: Request) -> Response:
        """Answer a conversation in Anthropic's form."""
        asked = await self.received(request, anthropic_bodies.MessagesRequest)
        batch = await self.begin(request, asked, anthropic.messages_tasks)
        form = anthropic.Messages(batch.answers[0], batch.task.served.name)
        return await self._out(request, batch, form, stream=bool(asked.body.stream))

    async def count_tokens(self, request: Request) -> Json:
        """How many tokens a conversation in Anthropic's form has."""
        asked = await self.received(request, anthropic_bodies.CountRequest)
        served = self.model(asked.body.model)
        (task,) = await run_in_threadpool(anthropic.messages_tasks, asked.body, served, self.settings)
        return Json({"input_tokens": len(task.ids)})

    async def ollama_chat(self, request: Request) -> Response:
        """Answer a conversation in Ollama's form; without messages, say that the model is loaded."""
        asked = await self.received(request, ollama_bodies.OllamaChat)
        if not asked.body.messages:
            return Json(ollama.loaded(self.model(asked.body.model).name, chat=True))
        batch = await self.begin(request, asked, ollama.chat_of)
        form = ollama.Lines(batch.answers[0], asked.body.model, chat=True)
        return await self._out(request, batch, form, stream=asked.body.stream is not False)

    async def ollama_generate(self, request: Request) -> Response:
        """Answer a prompt in Ollama's form; without one, say that the model is loaded."""
        asked = await self.received(request, ollama_bodies.OllamaGenerate)
        if not asked.body.prompt:
            return Json(ollama.loaded(self.model(asked.body.model).name, chat=False))
        batch = await self.begin(request, asked, ollama.generate_of)
        form = ollama.Lines(batch.answers[0], asked.body.model, chat=False)
        return await self._out(request, batch, form, stream=asked.body.stream is not False)

    async def ollama_show(self, request: Request) -> Json:
        """A target in Ollama's form."""
        asked = await self.received(request, ollama_bodies.OllamaShow)
        return Json(ollama.shown(self.model(asked.body.model or asked.body.name)))

    async def ollama_tags(self) -> Json:
        """The targets in Ollama's form."""
        self.model(None)
        return Json({"models": [ollama.listed(one) for one in self.scheduler.served]})

    async def ollama_ps(self) -> Json:
        """The targets that are loaded, which are all."""
        self.model(None)
        return Json({"models": [ollama.listed(one, running=True) for one in self.scheduler.served]})

    async def version_of(self) -> Json:
        """The version, where clients of Ollama look for one."""
        return Json({"version": version("omnidraft")})

    async def props(self) -> Json:
        """What llama-server tells of its model."""
        served = self.model(None)
        target = served.model.target
        return Json(
            {
                "model_alias": served.name,
                "model_path": served.source,
                "chat_template": str(target.tokenizer.chat_template or ""),
                "default_generation_settings": {"n_ctx": target.lm.context},
                "total_slots": self.settings.lanes,
                "modalities": {"vision": False, "audio": False},
                "build_info": f"omnidraft {version('omnidraft')}",
            }
        )

    async def apply_template(self, request: Request) -> Json:
        """The text that the chat template makes of a conversation."""
        asked = await self.received(request, p.ChatRequest)
        served = self.model(asked.body.model)
        (task,) = await run_in_threadpool(tasks.chat_tasks, asked.body, served, self.settings)
        with served.lock:
            return Json({"prompt": str(served.model.target.tokenizer.decode(list(task.ids)))})

    async def models(self) -> Json:
        """The targets."""
        self.model(None)
        return Json({"object": "list", "data": [self._model(one) for one in self.scheduler.served]})

    async def one_model(self, model: str) -> Json:
        """A target."""
        return Json(self._model(self.model(model)))

    async def tokenize(self, request: Request) -> Json:
        """Token ids of a text."""
        body = (await self.received(request, p.TokenizeRequest)).body
        served = self.model(body.model)
        tokenizer = served.model.target.tokenizer

        def tokens() -> list[Any]:
            with served.lock:
                found = list(tokenizer(body.content, add_special_tokens=bool(body.add_special))["input_ids"])
            if not body.with_pieces:
                return found
            return [{"id": token, "piece": served.text_of(token)[0]} for token in found]

        return Json({"tokens": await run_in_threadpool(tokens)})

    async def detokenize(self, request: Request) -> Json:
        """The text of token ids."""
        body = (await self.received(request, p.DetokenizeRequest)).body
        served = self.model(body.model)
        size = len(served.model.vocab.tokens)
        if wrong := [place for place, token in enumerate(body.tokens) if token >= size]:
            where = f"tokens[{wrong[0]}]"
            fix = f"the target has ids below {size}: use those of /tokenize"
            raise ApiError(400, f"{where} is {body.tokens[wrong[0]]}; {fix}", param=where, code="invalid_value")

        def text() -> str:
            with served.lock:
                return str(served.model.target.tokenizer.decode(body.tokens))

        return Json({"content": await run_in_threadpool(text)})

    async def health(self) -> Json:
        """Whether requests are answered: 503 while models are loaded, and when they cannot be used any more."""
        self.model(None)
        return Json({"status": "ok"})

    async def prometheus(self) -> Response:
        """Metrics for Prometheus."""
        return Response(self.metrics.text(), headers={"content-type": CONTENT_TYPE})

    async def stats(self) -> Json:
        """Figures of the targets and of their last answers."""
        models = []
        for one in self.scheduler.served:
            active, queued = self.scheduler.count(one)
            models.append(one.figures() | {"active": active, "queued": queued})
        return Json({"models": models, "uptime_s": time.time() - self._born})

    async def report(self, model: Annotated[str | None, Query()] = None) -> Json:
        """What `omnidraft inspect` says of a target and its drafter."""
        try:
            return Json(await run_in_threadpool(self.model(model).report))
        except InputError as error:
            raise of_input(error, "model") from error

    async def _out(self, request: Request, batch: Batch, form: Form, *, stream: bool) -> Response:
        if stream:
            return Events(form.events(), batch, self._note, LINES if isinstance(form, ollama.Lines) else EVENTS)
        try:
            if not await _read(request, batch):
                return Response(status_code=GONE)
            return Json(form.whole())
        finally:
            batch.close()
            self._note(batch)

    def _note(self, batch: Batch) -> None:
        for answer in batch.answers:
            self._log(_line(answer))

    def _model(self, one: Served) -> dict[str, Any]:
        return {"id": one.name, "object": "model", "created": int(self._born), "owned_by": "omnidraft"}


class Events(StreamingResponse):
    """An answer piece by piece; a client that goes away ends it."""

    def __init__(
        self, events: AsyncIterator[bytes], batch: Batch, note: Callable[[Batch], None], media_type: str
    ) -> None:
        super().__init__(events, media_type=media_type)
        self._batch, self._note = batch, note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._batch.close()
            self._note(self._batch)


async def _read(request: Request, batch: Batch) -> bool:
    """Read answers to their end; False where the client goes away before.  Raises ApiError."""

    async def read() -> None:
        async for _ in batch.deltas():
            pass

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    reading, leaving = asyncio.ensure_future(read()), asyncio.ensure_future(leave())
    try:
        await asyncio.wait({reading, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
        return reading.done()
    finally:
        reading.cancel()
        leaving.cancel()


def _naming(made: Sequence[Task], ignored: Sequence[str]) -> list[Task]:
    """Tasks that name, too, what was ignored of their body before; what is within another is not named again."""
    whole = tuple(f"{path}." for path in made[0].ignored)
    parts = [path for path in ignored if not path.startswith(whole)]
    for task in made:
        task.ignored = [*parts, *task.ignored]
    return list(made)


def _line(answer: Answer) -> str:
    """The line of the log for an answer."""
    task, done = answer.task, answer.done
    made = "no answer" if done is None else f"{len(done.result.token_ids)} tokens, ended by {done.result.finish_reason}"
    return f"{task.served.name}: a prompt of {len(task.ids)} tokens, {made}"


def _usage(body: base.Options) -> bool:
    return bool(body.stream_options and body.stream_options.include_usage)


def _answering(server: Server) -> Iterator[tuple[str, Any, type[base.Body]]]:
    """The routes that take a body; OpenAI's and Anthropic's without /v1, too."""
    for path, endpoint, kind in (
        ("/chat/completions", server.chat, p.ChatRequest),
        ("/completions", server.complete, p.CompletionRequest),
        ("/responses", server.respond, p.ResponseRequest),
        ("/messages", server.messages, anthropic_bodies.MessagesRequest),
        ("/messages/count_tokens", server.count_tokens, anthropic_bodies.CountRequest),
    ):
        yield f"/v1{path}", endpoint, kind
        yield path, endpoint, kind
    yield "/api/chat", server.ollama_chat, ollama_bodies.OllamaChat
    yield "/api/generate", server.ollama_generate, ollama_bodies.OllamaGenerate
    yield "/api/show", server.ollama_show, ollama_bodies.OllamaShow
    yield "/tokenize", server.tokenize, p.TokenizeRequest
    yield "/detokenize", server.detokenize, p.DetokenizeRequest
    yield "/apply-template", server.apply_template, p.ChatRequest


def _telling(server: Server) -> Iterator[tuple[str, Any]]:
    """The routes that only tell something."""
    for start in ("/v1", ""):
        yield f"{start}/models", server.models
        yield f"{start}/models/{{model:path}}", server.one_model
        yield f"{start}/health", server.health
    yield "/metrics", server.prometheus
    yield "/stats", server.stats
    yield "/report", server.report
    yield "/props", server.props
    yield "/api/tags", server.ollama_tags
    yield "/api/ps", server.ollama_ps
    yield "/api/version", server.version_of


def make_app(server: Server, start: Callable[[], None], most: int) -> FastAPI:
    """The application, for at most so many requests at once; `start` begins to load the models when it is up."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        start()
        yield

    # its own pages of documentation load scripts of other hosts
    app = FastAPI(title="OmniDraft", docs_url=None, redoc_url=None, lifespan=lifespan)
    errors.install(app)
    app.openapi = described(app.openapi)  # type: ignore[method-assign]
    post: dict[str, Any] = {"methods": ["POST"], "responses": REFUSALS}
    get: dict[str, Any] = {"methods": ["GET"], "responses": {code: REFUSALS[code] for code in (401, 403, 404, 503)}}
    for path, endpoint, kind in _answering(server):
        app.add_api_route(path, endpoint, **post, openapi_extra=taking(kind))
    for path, endpoint in _telling(server):
        app.add_api_route(path, endpoint, **get)
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    if PAGE.is_dir():
        page: dict[str, Any] = {"methods": ["GET", "HEAD"], "include_in_schema": False}
        app.add_api_route("/", lambda: FileResponse(PAGE / "index.html"), **page)
        app.mount("/page", StaticFiles(directory=PAGE))
    app.add_middleware(Guard, settings=server.settings, most=most)
    if server.settings.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origin_regex=server.settings.origins,
            allow_methods=["GET", "HEAD", "POST"],
            allow_headers=["*"],
            expose_headers=["retry-after"],
        )
    return app
