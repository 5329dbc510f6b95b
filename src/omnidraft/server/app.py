"""The web application: its routes, and how answers go out."""

from __future__ import annotations

import asyncio
import mimetypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from omnidraft.errors import InputError
from omnidraft.server import errors
from omnidraft.server.access import USED_KEY, Guard
from omnidraft.server.answers.answer import Answer
from omnidraft.server.answers.request_answers import Reply, RequestAnswers
from omnidraft.server.apis import anthropic, anthropic_bodies, llama_server, ollama, ollama_bodies
from omnidraft.server.apis.chat import Chat, Completion
from omnidraft.server.apis.llama_server_bodies import LlamaCompletion, LlamaInfill
from omnidraft.server.apis.responses import Response as ResponseForm
from omnidraft.server.apis.tokenizing import detokenized, templated, tokenized, tokenizer_info
from omnidraft.server.errors import REQUEST_ID, ApiError, Json, of_input, to_json
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests import fields as base
from omnidraft.server.requests import response_bodies as r
from omnidraft.server.requests import tasks
from omnidraft.server.requests.bodies import Received, described, read, receive, taking
from omnidraft.server.running.metrics import CONTENT_TYPE, Metrics
from omnidraft.server.running.request_queue import Scheduler, Task
from omnidraft.server.running.served_model import Log, ServedModel
from omnidraft.server.running.user_memories import KEYLESS
from omnidraft.server.server_settings import MEGABYTE, Serving

PAGE = Path(__file__).parent / "page"
# of its files: Windows asks its registry, where other programs may have called scripts plain text
KINDS = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}
GONE = 499  # nobody reads it
AnyT = TypeVar("AnyT", bound=base.Body)
Make = Callable[[Any, ServedModel, Serving], Sequence[Task]]
Endpoint = Callable[..., Awaitable[Response]]
REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "a parameter that cannot be, by its name"},
    401: {"description": "no or a wrong API key"},
    403: {"description": "a Host or a web page that may not be"},
    404: {"description": "no such model"},
    408: {"description": "the request came too slowly"},
    413: {"description": "the request is too large"},
    415: {"description": "the body is packed in an unknown way"},
    429: {"description": "the queue is full: see Retry-After"},
    503: {"description": "loading, failed, or shutting down"},
}


class Server:
    """The routes of one server, over its scheduler; `log` receives a line for each answer."""

    def __init__(self, settings: Serving, scheduler: Scheduler, metrics: Metrics, log: Log, *, prompts: bool) -> None:
        self.settings, self.scheduler, self.metrics = settings, scheduler, metrics
        self._log, self._prompts = log, prompts
        self._limit = int(settings.max_body_mb * MEGABYTE)
        self._born = time.time()
        self._since = datetime.fromtimestamp(int(self._born), UTC).isoformat()

    def model(self, name: str | None) -> ServedModel:
        """The target of this name, or the first; the only one whatever its name.  Raises ApiError."""
        if (error := self.scheduler.refusal) is not None:
            raise error
        targets = self.scheduler.served
        served = [one for one in targets if not name or len(targets) == 1 or _is_called(one, name)]
        if not served:
            known = ", ".join(one.name for one in targets)
            raise ApiError(404, f"no such model: use one of {known}", param="model", code="model_not_found")
        return served[0]

    def chosen(self, asked: Received[Any]) -> tuple[ServedModel, list[str]]:
        """The target that a body asks for, and what of the body is ignored; raises ApiError.

        The name is, too, where it is another one's and there is but one target.
        """
        name, served = asked.body.model, self.model(asked.body.model)
        other = bool(name) and not _is_called(served, str(name))
        return served, [*(["model"] if other else ()), *asked.ignored]

    async def received(self, request: Request, kind: type[AnyT]) -> Received[AnyT]:
        """The body of a request; raises ApiError."""
        return await receive(request, self._limit, lambda raw: read(raw, kind))

    async def begin(self, request: Request, asked: Received[Any], make: Make) -> RequestAnswers:
        """Queue a request; raises ApiError."""
        served, ignored = self.chosen(asked)
        queued = _naming(await run_in_threadpool(make, asked.body, served, self.settings), ignored)
        for each in queued:
            each.user = each.user._replace(key=request.scope.get(USED_KEY, KEYLESS))
            if self._prompts:
                self._log(f"prompt: {served.model.target.tokenizer.decode(list(each.ids))}")
        return RequestAnswers(queued, self.scheduler)

    def answering(self, usual: Api, native: Api | None = None) -> Endpoint:
        """The endpoint of an API, and of llama-server's `native` one for bodies that have its name of the length."""

        def take(raw: Any) -> tuple[Api, Received[Any]]:
            api = native if native and isinstance(raw, dict) and raw.get("n_predict") is not None else usual
            return api, read(raw, api.body)

        async def answer(request: Request) -> Response:
            api, asked = await receive(request, self._limit, take)
            if api.idle is not None and (said := api.idle(asked)) is not None:
                return _told(said, self.chosen(asked)[1])
            batch = await self.begin(request, asked, api.make)
            reply = api.reply(batch, asked)
            if api.streams if asked.body.stream is None else asked.body.stream:
                return Events(reply, self._note)
            try:
                if not await _read(request, batch):
                    return Response(status_code=GONE)
                return Json(reply.whole())
            finally:
                batch.close()
                self._note(batch)

        return answer

    async def count_tokens(self, request: Request) -> Json:
        """Count the tokens of a conversation in Anthropic's form."""
        asked = await self.received(request, anthropic_bodies.CountRequest)
        served, ignored = self.chosen(asked)
        count = await run_in_threadpool(anthropic.count, asked.body, served, self.settings)
        return _told({"input_tokens": count}, ignored)

    async def ollama_show(self, request: Request) -> Json:
        """A target in Ollama's form."""
        asked = await self.received(request, ollama_bodies.OllamaShow)
        asked.body.model = asked.body.model or asked.body.name
        served, ignored = self.chosen(asked)
        return _told(await run_in_threadpool(ollama.shown, served), ignored)

    async def ollama_pull(self, request: Request) -> Response:
        """Say that a target is here, as Ollama does at the end of a download."""
        body = (await self.received(request, ollama_bodies.OllamaPull)).body
        self.model(None)
        known = [one.name for one in self.scheduler.served]
        steps = ollama.pulled(body.model or body.name or "", known)
        if body.stream is False:
            return Json(steps[-1])
        return Response(b"".join(to_json(step) + b"\n" for step in steps), media_type=ollama.Lines.media_type)

    async def home(self, request: Request) -> Response:
        """The page for browsers, and for Ollama's clients that the server is there."""
        if PAGE.is_dir() and "text/html" in request.headers.get("accept", ""):
            return FileResponse(PAGE / "index.html", headers={"vary": "accept"})
        return PlainTextResponse(ollama.RUNNING, headers={"vary": "accept"})

    def listing(self, key: str, tell: Callable[[ServedModel], dict[str, Any]], **beside: str) -> Endpoint:
        """An endpoint that lists the targets."""

        async def listed() -> Json:
            self.model(None)
            return Json({**beside, key: [await run_in_threadpool(tell, one) for one in self.scheduler.served]})

        return listed

    async def version_of(self) -> Json:
        """The version of Ollama that its clients look for."""
        return Json({"version": ollama.VERSION})

    async def props(self) -> Json:
        """The model's properties, as llama-server has them."""
        served = self.model(None)
        target = served.model.target
        return Json(
            {
                "model_alias": served.name,
                "model_path": served.source,
                "chat_template": served.template,
                "default_generation_settings": {"n_ctx": target.lm.context},
                "total_slots": self.settings.lanes,
                "modalities": {"vision": False, "audio": False},
                "build_info": f"omnidraft {version('omnidraft')}",
            }
        )

    async def apply_template(self, request: Request) -> Json:
        """The text that the chat template makes of a conversation."""
        asked = await self.received(request, p.ChatRequest)
        served, ignored = self.chosen(asked)
        return _told(await run_in_threadpool(templated, asked.body, served, self.settings), ignored)

    async def one_model(self, model: str) -> Json:
        """A target."""
        return Json(self.one(self.model(model)))

    async def lm_studio_model(self, model: str) -> Json:
        """A target in LM Studio's form."""
        return Json(await run_in_threadpool(_in_lm_studio, self.model(model)))

    async def tokenize(self, request: Request) -> Json:
        """Token ids of a text or a conversation."""
        asked = await self.received(request, p.TokenizeRequest)
        served, ignored = self.chosen(asked)
        return _told(await run_in_threadpool(tokenized, asked.body, served, self.settings), ignored)

    async def detokenize(self, request: Request) -> Json:
        """The text of token ids."""
        asked = await self.received(request, p.DetokenizeRequest)
        served, ignored = self.chosen(asked)
        return _told(await run_in_threadpool(detokenized, asked.body, served), ignored)

    async def tokenizer_info(self, model: Annotated[str | None, Query()] = None) -> Json:
        """Special tokens and chat template of a target, as vLLM has them."""
        return Json(tokenizer_info(self.model(model)))

    async def health(self) -> Json:
        """The state of the server: 503 while models are loaded, and when they cannot be used any more."""
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
        """The report of `omnidraft inspect` on a target and its drafter."""
        try:
            return Json(await run_in_threadpool(self.model(model).report))
        except InputError as error:
            raise of_input(error, "model") from error

    def _note(self, batch: RequestAnswers) -> None:
        for answer in batch.answers:
            self._log(_line(answer))

    def one(self, one: ServedModel) -> dict[str, Any]:
        """A target as OpenAI's and Anthropic's lists have it."""
        entry = {"id": one.name, "object": "model", "created": int(self._born), "owned_by": "omnidraft"}
        entry |= {"max_model_len": one.model.target.lm.context}  # as vLLM has it: agents look for it
        return entry | {"type": "model", "display_name": one.name, "created_at": self._since}


class Events(StreamingResponse):
    """An answer piece by piece; a client that goes away ends it."""

    def __init__(self, reply: Reply, note: Callable[[RequestAnswers], None]) -> None:
        super().__init__(reply.stream(), media_type=reply.media_type)
        self._batch, self._note = reply.batch, note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._batch.close()
            self._note(self._batch)


async def _read(request: Request, batch: RequestAnswers) -> bool:
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


def _is_called(served: ServedModel, name: str) -> bool:
    return name in (served.name, f"{served.name}:latest")


def _in_lm_studio(served: ServedModel) -> dict[str, Any]:
    """A target as LM Studio's list has it."""
    lm: Any = served.model.target.lm
    own = {"id": served.name, "object": "model", "type": "llm", "publisher": "omnidraft", "state": "loaded"}
    own |= {"arch": lm.skeleton.config.model_type, "compatibility_type": served.files.format}
    lengths = dict.fromkeys(("max_context_length", "loaded_context_length"), lm.context)
    return own | {"quantization": served.files.weights} | lengths


def _told(body: Mapping[str, Any], ignored: Sequence[str]) -> Json:
    """An answer without an answer of a model, with what was ignored of its request."""
    return Json({**body, "omnidraft": {"ignored": ignored}} if ignored else body)


def _naming(tasks: Sequence[Task], ignored: Sequence[str]) -> list[Task]:
    """Tasks that name, too, what was ignored of their body before; what is within another is not named again."""
    whole = tuple(f"{path}." for path in tasks[0].ignored)
    others = [path for path in ignored if not path.startswith(whole)]
    for task in tasks:
        task.ignored = [*others, *task.ignored]
    return list(tasks)


def _line(answer: Answer) -> str:
    """The line of the log for an answer."""
    task, done = answer.task, answer.done
    tokens = 0 if done is None else len(done.result.token_ids)
    outcome = "no answer" if done is None else f"{tokens} tokens, ended by {done.result.finish_reason}"
    return f"{task.served.name}: a prompt of {len(task.ids)} tokens, {outcome}"


class Api(NamedTuple):
    """An endpoint that answers: its body, the tasks of one, and the reply."""

    about: str
    body: type[base.Body]
    make: Make
    reply: Callable[[RequestAnswers, Received[Any]], Reply]
    streams: bool = False  # where the body does not say
    idle: Callable[[Received[Any]], dict[str, Any] | None] | None = None  # what a body is told that asks nothing


APIS = {
    "/chat/completions": Api("Answer a conversation", p.ChatRequest, tasks.chat_tasks, Chat),
    "/completions": Api("Continue texts", p.CompletionRequest, tasks.completion_tasks, Completion),
    "/responses": Api(
        "Answer a conversation, all of which is in the request", r.ResponseRequest, tasks.response_tasks, ResponseForm
    ),
    "/messages": Api(
        "Answer a conversation in Anthropic's form",
        anthropic_bodies.MessagesRequest,
        anthropic.messages_tasks,
        anthropic.Messages,
    ),
}
OLLAMA = {
    "/api/chat": Api(
        "Answer a conversation in Ollama's form; without messages, say that the model is loaded",
        *(ollama_bodies.OllamaChat, ollama.chat_of, ollama.Lines, True, ollama.loaded),
    ),
    "/api/generate": Api(
        "Answer a prompt in Ollama's form; without one, say that the model is loaded",
        *(ollama_bodies.OllamaGenerate, ollama.generate_of, ollama.Lines, True, ollama.loaded),
    ),
}
LLAMA_SERVER = {
    "/completion": Api(
        "Continue texts in llama-server's form", LlamaCompletion, llama_server.completion_of, llama_server.LlamaReply
    ),
    "/infill": Api("Write what stands between two texts", LlamaInfill, llama_server.infill_of, llama_server.LlamaReply),
}


def _answering(server: Server) -> Iterator[tuple[str, Any, type[base.Body], str | None]]:
    """The routes that take a body; OpenAI's and Anthropic's without /v1, too."""
    for start in ("/v1", ""):
        for path, api in APIS.items():
            native = LLAMA_SERVER["/completion"] if f"{start}{path}" == "/completions" else None
            yield f"{start}{path}", server.answering(api, native), api.body, api.about
        yield f"{start}/messages/count_tokens", server.count_tokens, anthropic_bodies.CountRequest, None
    for path in ("/chat/completions", "/completions"):
        yield f"{errors.LM_STUDIO}{path}", server.answering(APIS[path]), APIS[path].body, APIS[path].about
    for path, api in (OLLAMA | LLAMA_SERVER).items():
        yield path, server.answering(api), api.body, api.about
    yield "/api/show", server.ollama_show, ollama_bodies.OllamaShow, None
    yield "/api/pull", server.ollama_pull, ollama_bodies.OllamaPull, None
    yield "/tokenize", server.tokenize, p.TokenizeRequest, None
    yield "/detokenize", server.detokenize, p.DetokenizeRequest, None
    yield "/apply-template", server.apply_template, p.ChatRequest, None


def _telling(server: Server) -> Iterator[tuple[str, Any]]:
    """The routes that only tell something."""
    for start in ("/v1", ""):
        yield f"{start}/models", server.listing("data", server.one, object="list")
        yield f"{start}/models/{{model:path}}", server.one_model
        yield f"{start}/health", server.health
    yield f"{errors.LM_STUDIO}/models", server.listing("data", _in_lm_studio, object="list")
    yield f"{errors.LM_STUDIO}/models/{{model:path}}", server.lm_studio_model
    yield "/metrics", server.prometheus
    yield "/stats", server.stats
    yield "/report", server.report
    yield "/props", server.props
    yield "/tokenizer_info", server.tokenizer_info
    yield "/api/tags", server.listing("models", ollama.listed)
    yield "/api/ps", server.listing("models", partial(ollama.listed, running=True))
    yield "/api/version", server.version_of


def make_app(server: Server, start: Callable[[], None], most: int) -> FastAPI:
    """The application, for at most `most` requests at once; `start` begins to load the models when it is up."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        start()
        yield

    # its own pages of documentation load scripts of other hosts
    app = FastAPI(title="OmniDraft", docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=lifespan)
    errors.install(app)
    answering = [*_answering(server)]
    app.openapi = described(app.openapi, {kind for _, _, kind, _ in answering})  # type: ignore[method-assign]
    post: dict[str, Any] = {"methods": ["POST"], "responses": REFUSALS}
    get: dict[str, Any] = {"methods": ["GET"], "responses": {code: REFUSALS[code] for code in (401, 403, 404, 503)}}
    for path, endpoint, kind, about in answering:
        app.add_api_route(path, endpoint, **post, summary=about, openapi_extra=taking(kind))
    for path, endpoint in _telling(server):
        app.add_api_route(path, endpoint, **get)
        app.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False)
    app.add_api_route("/", server.home, methods=["GET", "HEAD"], include_in_schema=False)
    if PAGE.is_dir():
        for ending, medium in KINDS.items():
            mimetypes.add_type(medium, ending)
        app.mount("/page", StaticFiles(directory=PAGE))
    app.add_middleware(Guard, settings=server.settings, most=most)
    app.add_middleware(
        CORSMiddleware,
        allow_origin_regex=server.settings.origins,
        allow_methods=["GET", "HEAD", "POST"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=["retry-after", REQUEST_ID],
    )
    return app
