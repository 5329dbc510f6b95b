"""llama-server's own API: a request as that of a completion, and its answer as one object or in events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from omnidraft.server.answers.answer import Answer, Delta, TokenInfo
from omnidraft.server.answers.request_answers import Reply, RequestAnswers, event
from omnidraft.server.apis.chat import as_llama_server
from omnidraft.server.apis.llama_server_bodies import ExtraText, LlamaCompletion, LlamaInfill
from omnidraft.server.errors import ApiError, as_json
from omnidraft.server.grammars.json_schemas import encodable
from omnidraft.server.requests import chat_bodies as p
from omnidraft.server.requests.bodies import Received
from omnidraft.server.requests.fill_in_middle import filling
from omnidraft.server.requests.tasks import tasks_of
from omnidraft.server.running.request_queue import Progress, Task
from omnidraft.server.running.served_model import ServedModel
from omnidraft.server.server_settings import Serving

STOPS = {"eos": "eos", "stop": "word"}  # by the library's reason for the end; all others are limits
NO_SLOT = -1  # lanes have no numbers
FILES = (  # marks of a repository's name and of a file's, of families that were trained on several files
    ("<|repo_name|>", "<|file_sep|>"),  # Qwen2.5-Coder
    ("<repo_name>", "<file_sep>"),  # StarCoder2
    ("<reponame>", "<filename>"),  # StarCoder, Granite Code
    ("", "<|file_separator|>"),  # CodeGemma
)
REPOSITORY, UNNAMED = "repository", "file"


def completion_of(body: LlamaCompletion, served: ServedModel, settings: Serving) -> list[Task]:
    """The tasks of prompts to go on with; raises ApiError."""
    prompt = body.prompt
    several = isinstance(prompt, list) and bool(prompt) and not any(isinstance(each, int) for each in prompt)
    places = {f"prompt[{at}]": each for at, each in enumerate(prompt)} if several else {"prompt": prompt}
    prompts = [_prompt(each, served, where) for where, each in places.items()]
    if not all(isinstance(each, str) for each in prompts):
        prompts = [_ids([each], served, "prompt") if isinstance(each, str) else each for each in prompts]
    return _tasks(body, prompts if several else prompts[0], served, settings)


def infill_of(body: LlamaInfill, served: ServedModel, settings: Serving) -> list[Task]:
    """The task of what stands between two texts; raises ApiError."""
    try:
        ids = filling(served, body.input_prefix + body.prompt, body.input_suffix)
    except ApiError as error:
        why = "the target has no tokens to fill in between two texts: use another target, or /completion"
        raise ApiError(400, why, code=error.code) from error
    first = len(served.model.vocab.first)
    extra = _files(body.input_extra, served) if body.input_extra else []
    return _tasks(body, [*ids[:first], *extra, *ids[first:]], served, settings)


def _tasks(body: LlamaCompletion, prompt: Any, served: ServedModel, settings: Serving) -> list[Task]:
    sent = body.model_dump(by_alias=True, exclude_none=True)
    fields = {name: sent[name] for name in p.CompletionRequest.model_fields if name in sent} | {"prompt": prompt}
    if body.n_predict is None and body.max_tokens is None:
        fields["n_predict"] = -1  # as many as fit
    if body.n_probs:
        fields["logprobs"] = body.n_probs
    if isinstance(body.logit_bias, list):
        fields["logit_bias"] = _biases(body.logit_bias, served)
    return tasks_of(fields, p.CompletionRequest, (("logprobs", "n_probs"),), served, settings)


def _prompt(prompt: Any, served: ServedModel, where: str) -> str | list[int]:
    """A prompt as text or as token ids; raises ApiError for any other kind."""
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            where = f"{where}.multimodal_data"
            raise ApiError(400, f"{where} is not supported: leave it out", param=where, code="unsupported_value")
        prompt = prompt.get("prompt_string")
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list):
        message = f"{where} is {as_json(prompt)}; it must be text or a list of token ids and texts"
        raise ApiError(400, message, param=where, code="invalid_type")
    return _ids(prompt, served, where)


def _ids(pieces: Sequence[Any], served: ServedModel, where: str) -> list[int]:
    """Token ids of a prompt of ids and texts; a text at its beginning has the token that begins a text."""
    ids: list[int] = []
    for place, each in enumerate(pieces):
        at = f"{where}[{place}]"
        if isinstance(each, str):
            ids += _tokens(each, served, at, begins=place == 0)
        elif isinstance(each, int) and not isinstance(each, bool):
            ids.append(each)
        else:
            raise ApiError(
                400, f"{at} is {as_json(each)}; it must be a token id or text", param=at, code="invalid_type"
            )
    return ids


def _biases(pairs: Sequence[Any], served: ServedModel) -> list[Any]:
    """Pairs of token ids and biases; that of a text is that of each of its tokens."""
    biases: list[Any] = []
    for place, pair in enumerate(pairs):
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str):
            biases += ([token, pair[1]] for token in _tokens(pair[0], served, f"logit_bias[{place}][0]"))
        else:
            biases.append(pair)
    return biases


def _files(files: Sequence[ExtraText], served: ServedModel) -> list[int]:
    """Token ids of other files, before the one that is filled in: between marks where the target has such."""
    with served.lock:
        words: Mapping[str, int] = served.model.target.tokenizer.get_vocab()
    repository, file = next((pair for pair in FILES if all(mark in words for mark in pair if mark)), ("", ""))
    ids = [words[repository], *_tokens(f"{REPOSITORY}\n", served, "input_extra")] if repository else []
    for place, each in enumerate(files):
        text = f"{each.filename or UNNAMED}\n{each.text}" + ("" if each.text.endswith("\n") else "\n")
        ids += [*([words[file]] if file else []), *_tokens(text, served, f"input_extra[{place}]")]
    return [*ids, words[file], *_tokens(f"{UNNAMED}\n", served, "input_extra")] if file else ids


def _tokens(text: str, served: ServedModel, where: str, *, begins: bool = False) -> list[int]:
    """Token ids of a text, at its beginning with the token that begins one; raises ApiError for invalid Unicode."""
    try:
        encodable(text)
    except ValueError as error:
        raise ApiError(400, f"{where} is not usable: {error}", param=where, code="invalid_value") from error
    with served.lock:
        return list(served.model.target.tokenizer(text, add_special_tokens=begins)["input_ids"])


# ---------------------------------------------------------------- what is answered


class LlamaReply(Reply):
    """The form of the answers to a request, each an object with a number; several are a list."""

    def __init__(self, batch: RequestAnswers, asked: Received[Any]) -> None:
        super().__init__(batch, asked)
        self._told = batch.choices  # of a stream
        self._made: Counter[int] = Counter()  # tokens so far, by the numbers of the answers

    def whole(self) -> Any:
        bodies = [self._last(at, answer) for at, answer in enumerate(self.batch.choices)]
        return bodies[0] if len(bodies) == 1 else bodies

    def add(self, answer: Answer, delta: Delta) -> Iterator[bytes]:
        if not (delta.content or delta.tokens):
            return
        for at, told in enumerate(self._told):
            if told is answer:
                self._made[at] += len(delta.tokens)
                chunk = self._head(at, answer, delta.content, delta.tokens, self._made[at]) | {"stop": False}
                trace = {} if delta.trace is None else {"omnidraft": delta.trace}
                yield event(chunk | _probabilities(answer, delta.logprobs) | trace)

    def progress(self, progress: Progress) -> Iterator[bytes]:
        head = self._head(0, self.answer, "", (), 0)
        yield event(head | {"stop": False, "prompt_progress": as_llama_server(progress)})

    def end(self) -> Iterator[bytes]:
        for at, answer in enumerate(self._told):
            yield event(self._last(at, answer, streamed=True))

    def fail(self, error: ApiError) -> bytes:
        return event(error.body)

    def _head(self, at: int, answer: Answer, content: str, tokens: Sequence[int], written: int) -> dict[str, Any]:
        counts = {"tokens_predicted": written, "tokens_evaluated": len(answer.task.ids)}
        return {"index": at, "content": content, "tokens": list(tokens), "id_slot": NO_SLOT, **counts}

    def _last(self, at: int, answer: Answer, *, streamed: bool = False) -> dict[str, Any]:
        """A complete answer; of one that was streamed, without what was told before."""
        reason, task = answer.finished.result.finish_reason, answer.task
        tokens = answer.tokens if self.asked.body.return_tokens and not streamed else ()
        with task.served.lock:
            prompt = str(task.served.model.target.tokenizer.decode(list(task.ids)))
        body = self._head(at, answer, "" if streamed else answer.content, tokens, answer.made) | {
            "stop": True,
            "model": self.model,
            "generation_settings": self._settings(task),
            "prompt": prompt,
            "has_new_line": "\n" in answer.content,
            "truncated": reason == "context",
            "stop_type": STOPS.get(reason, "limit"),
            "stopping_word": _word(answer) if reason == "stop" else "",
            "tokens_cached": answer.usage["cached"],
        }
        body |= ({} if streamed else _probabilities(answer, answer.logprobs)) | answer.beside
        fields = self.asked.body.response_fields
        return _chosen(body, fields) if fields else body

    def _settings(self, task: Task) -> dict[str, Any]:
        """The sampling of an answer, by llama-server's names."""
        options = asdict(task.served.model.sampling) | dict(task.options)
        settings = {name: options[name] for name in ("seed", "temperature", "top_k", "top_p", "min_p")}
        return settings | {
            "repeat_penalty": options["repetition_penalty"],
            "repeat_last_n": options["repetition_window"] or -1,
            "presence_penalty": options["presence_penalty"],
            "frequency_penalty": options["frequency_penalty"],
            "n_predict": 0 if task.prompt_alone else options["max_new_tokens"],
            "n_probs": self.asked.body.n_probs or 0,
            "stop": list(options["stop"] or ()),
            "stream": bool(self.asked.body.stream),
        }


def _probabilities(answer: Answer, infos: Sequence[TokenInfo]) -> dict[str, Any]:
    told = answer.task.tells_logprobs and infos
    return {"completion_probabilities": [_probability(each) for each in infos]} if told else {}


def _probability(info: TokenInfo) -> dict[str, Any]:
    entry = {"id": info.token, "token": info.text, "bytes": info.data or [], "logprob": info.logprob}
    return entry | ({"top_logprobs": [_probability(each) for each in info.top]} if info.top else {})


def _word(answer: Answer) -> str:
    """The stop string that an answer ended before."""
    text = answer.task.served.model.text_after(answer.task.ids)
    rest = (text.feed(answer.finished.result.token_ids) + text.end())[len(answer.content) :]
    return next((each for each in answer.task.options["stop"] or () if rest.startswith(each)), "")


def _chosen(body: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Fields of an answer by their paths, which are their names, too; those that it has not are left out."""
    chosen: dict[str, Any] = {}
    for field in fields:
        value: Any = body
        for name in field.split("/"):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is not None:
            chosen[field] = value
    return chosen
