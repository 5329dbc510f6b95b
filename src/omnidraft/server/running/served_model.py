"""A target that is served: its name, its lanes, and what its last answers were like."""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnidraft import zoo
from omnidraft.api import OmniDraft, load
from omnidraft.config import LearningOptions, names
from omnidraft.defaults import AUTO, drafter_for
from omnidraft.errors import ConfigError, ModelError
from omnidraft.models.block_files import BlockFiles
from omnidraft.models.chat_template import DEFAULT
from omnidraft.models.language_model import ROOM, copies
from omnidraft.models.model_files import ModelFiles, content_of, files_of
from omnidraft.models.native.model import NativeModel
from omnidraft.models.prefix_cache import PrefixCache
from omnidraft.server.grammars.grammar import tokens_of
from omnidraft.server.reading.marks import RegionMarks, marks_of
from omnidraft.server.running.changed_heads import ChangedHeads
from omnidraft.server.running.gain_estimate import Estimate
from omnidraft.server.running.user_memories import Memories
from omnidraft.server.server_settings import Serving
from omnidraft.text.prompting import templates_of

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from omnidraft.api import Lane
    from omnidraft.decoding.stats import Stats

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
GIGABYTE = 10**9
SERIES = 300  # answers whose figures are kept
Log = Callable[[str], None]


@dataclass
class LaneState:
    """A lane, when it was last used, with which API key, and how many tokens its last prompt had."""

    lane: Lane
    used: int = 0  # 0: it holds nothing
    key: int | None = None
    prompt: int = 0

    def clear(self) -> None:
        """Forget its conversation."""
        self.used, self.key, self.prompt = 0, None, 0
        self.lane.clear()


class ServedModel:
    """A target with its lanes, which share a prefix cache with those of other targets; figures are of this process.

    All that touches the lanes is for the model thread; `lock` is held by whoever uses the tokenizer.
    """

    def __init__(
        self,
        name: str,
        model: OmniDraft,
        lanes: int,
        sources: tuple[str, str | None],
        memories: Memories,
        prefix_cache: PrefixCache,
    ) -> None:
        self.name, self.model, self.memories, self.prefix_cache = name, model, memories, prefix_cache
        self._sources = sources  # target and drafter, as they can be loaded
        self.failure: str | None = None  # of the drafter, where it could not be loaded
        self.lanes = [LaneState(lane) for lane in model.lanes(lanes, prefix_cache)]
        self._target_bytes = model.target.lm.token_bytes  # of a token
        self._drafter = model.lane.attached.drafter if model.lane.attached else None
        self._drafter_bytes = self._drafter.model.token_bytes if self._drafter else 0.0
        self.lock = threading.Lock()
        self.longest_token = max((len(token) for token in model.vocab.tokens if token), default=1)  # in bytes
        self.answers = 0
        self.series: dict[str, deque[float | None]] = {
            key: deque(maxlen=SERIES) for key in ("t", "acceptance", "tokens_per_pass", "draft_length", "updates")
        }
        self.learned: dict[str, int | float] = dict(model.learned)
        self.estimate = Estimate()
        self.told_of_head = False  # that differs early, in the log
        self.heads = ChangedHeads(self.decoded)
        self._reporting = threading.Lock()
        self._report: dict[str, Any] | None = None

    def decoded(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""
        with self.lock:
            return str(self.model.target.tokenizer.decode(list(ids)))

    def know_models(self) -> None:
        """Give the models that run natively the identity of their files, by which later runs know them."""
        drafter = None if self.model.adaptive is None else self.model.adaptive.shared.model
        for model, source in zip((self.model.target.lm, drafter), self._sources, strict=True):
            if isinstance(model, NativeModel) and source is not None:
                model.know_by(content_of(zoo.resolve(source)))

    @property
    def source(self) -> str:
        """The target as it can be loaded."""
        return self._sources[0]

    @cached_property
    def files(self) -> ModelFiles:
        """What the target's files say of themselves; the precision in memory where they cannot be read any more."""
        try:
            return files_of(zoo.resolve(self.source))
        except (ModelError, OSError):
            return ModelFiles("safetensors", self.model.target.lm.precision)

    def undrafted(self, reason: str | None) -> str:
        """Why an answer has no drafts; `reason` is what the answer itself knows of it."""
        if self.failure is not None:
            return f"the drafter failed to load: {self.failure}"
        if reason or self.model.lane.drafting.longest == 0:
            return reason or "off"
        return "the answer is too short" if self.drafter or self.model.lane.counts else "no drafter"

    @property
    def drafter(self) -> str | None:
        return None if self.model.drafter is None else self.model.drafter.name

    @property
    def profile(self) -> Path | None:
        """File of what was learned, where there is one."""
        return self.model.profile

    @property
    def nbytes(self) -> int:
        """Bytes of all KV caches."""
        return sum(state.lane.nbytes for state in self.lanes)

    def needs(self, tokens: int) -> int:
        """Bytes of KV caches that a lane needs for so many tokens; a drafter has twice as many, or its window."""
        tokens = min(tokens, self.model.target.lm.context + 1)
        tokens += max(ROOM, tokens // 2)  # room to grow
        drafted = min(2 * tokens, self._drafter.window + ROOM) if self._drafter else 0
        return round(self._target_bytes * tokens + self._drafter_bytes * drafted)

    @cached_property
    def copies(self) -> bool:
        """True where a lane can begin with a copy of what another has read."""
        return copies(self.model.target.lm.new_sequence())

    @cached_property
    def marks(self) -> RegionMarks:
        """The marks between which the target writes reasoning and calls."""
        tokenizer: Any = self.model.target.tokenizer
        return marks_of(self.templates, self.model.vocab.special, tokenizer.get_added_vocab())

    @property
    def template(self) -> str:
        """The chat template for chats without tools, empty where there is none."""
        return templates_of(self.model.target.tokenizer).get(DEFAULT, "")

    @property
    def templates(self) -> str:
        """All chat templates, one after the other."""
        return "\n".join(templates_of(self.model.target.tokenizer).values())

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of the chat templates, among which is the name of whatever they read."""
        return frozenset(re.findall(r"\w+", self.templates))

    @cached_property
    def takes_tools(self) -> bool:
        """True where the chat template writes the tools that it is given."""
        name = "find_place"
        function = {"name": name, "description": "Find a place.", "parameters": NO_PARAMETERS}
        try:
            with self.lock:
                text = self.model.target.tokenizer.apply_chat_template(
                    [{"role": "user", "content": "x"}],
                    tools=[{"type": "function", "function": function}],
                    tokenize=False,
                    add_generation_prompt=True,
                )
        except Exception:  # noqa: BLE001  a template is a program: it raises anything
            return False
        return name in str(text)

    @cached_property
    def tokens(self) -> LLTokenizer:
        """The target's tokens for grammars; raises ConfigError where it has none that a grammar can follow."""
        return tokens_of(self.model)

    def text_of(self, token: int) -> tuple[str, list[int] | None]:
        """A token's text, and its bytes where it has any."""
        data = self.model.vocab.tokens[token]
        if data is not None:
            return data.decode("utf-8", "replace"), list(data)
        return str(self.model.target.tokenizer.convert_ids_to_tokens(token)), None

    def note(self, at: float, stats: Stats) -> None:
        """Keep the figures of a complete answer; `at` is the time of day in seconds."""
        self.answers += 1
        self.learned = dict(self.model.learned)
        row = {
            "t": at,
            "acceptance": stats.acceptance_rate if stats.proposed else None,
            "tokens_per_pass": stats.block_efficiency,
            "draft_length": stats.draft_length,
            "updates": self.learned.get("updates", 0),
        }
        for key, value in row.items():
            self.series[key].append(value)

    def figures(self) -> dict[str, Any]:
        """The target's figures in `/stats`."""
        return {
            "id": self.name,
            "drafter": self.drafter,
            "requests": self.answers,
            "profile": None if self.profile is None else str(self.profile),
            "learned": self.learned,
            "precision": self.model.target.lm.precision,
            "series": {key: list(values) for key, values in self.series.items()},
        }

    def report(self) -> dict[str, Any]:
        """The report of `omnidraft inspect` on the pair; made once.  Raises ConfigError where there is no drafter."""
        target, drafter = self._sources
        if self.drafter is None or drafter is None:
            raise ConfigError(f"model {self.name!r} has no drafter to report on: serve it with one")
        from omnidraft.inspection.report import inspect_pair

        with self._reporting:
            if self._report is None:
                quiet: Log = lambda _: None  # noqa: E731  the server is not told of progress
                inspection = inspect_pair(target, drafter, say=quiet, warn=quiet)
                self._report = asdict(inspection)
        return self._report


def name_of(target: str) -> str:
    """The name by which requests ask for a target: a folder's or a file's own, or the whole of `zoo:` and hub names."""
    path = Path(os.path.expanduser(target))  # noqa: PTH111  this and the next raise nothing, as those of Path do
    there = os.path.exists(path)  # noqa: PTH110
    return path.resolve().name if there and not target.startswith(zoo.PREFIX) else target


def load_all(
    targets: Sequence[str], drafter: str | None, settings: Serving, *, warn: Log, options: Mapping[str, Any]
) -> list[ServedModel]:
    """Load targets that share one drafter, and with it the memory of each user.  Raises InputError and its kinds."""
    called = [name_of(target) for target in targets]
    if twice := {name for name in called if called.count(name) > 1}:
        raise ConfigError(f"two targets are called {twice.pop()!r}: give each folder a name of its own")
    source = drafter_for(targets[0], lambda _: None) if drafter == AUTO else drafter
    loaded: list[ServedModel] = []
    prefix_cache = _prefix_cache(settings, warn)
    for name, target in zip(called, targets, strict=True):
        first = loaded[0] if loaded and loaded[0].model.adaptive is not None else None
        model, failure = _load(target, drafter if first is None else first.model, warn, options)
        if settings.api_key:
            model.memory = None  # that of all users together
        memories = Memories(model.lane.drafting, model.memory) if first is None else first.memories
        loaded.append(ServedModel(name, model, settings.lanes, (target, source), memories, prefix_cache))
        loaded[-1].failure = failure
        if settings.cache_dir is not None:
            loaded[-1].know_models()
    return loaded


def _prefix_cache(settings: Serving, warn: Log) -> PrefixCache:
    """The prefix cache, in memory and in the folder of the settings; raises ConfigError for that."""
    files = None
    if settings.cache_dir is not None:
        folder = Path(os.path.expanduser(settings.cache_dir))  # noqa: PTH111  as above
        files = BlockFiles(folder, int(settings.cache_gb * GIGABYTE), warn)
    return PrefixCache(settings.cache_bytes(), files)


def _load(
    target: str, drafter: str | OmniDraft | None, warn: Log, options: Mapping[str, Any]
) -> tuple[OmniDraft, str | None]:
    """A target, with the drafter where that can be loaded, and else why it cannot; raises what `load` does."""
    try:
        return load(target, drafter, warn=warn, **options), None
    except ModelError as error:
        options_of_load = {"adapt", "profile", *names(LearningOptions)}
        rest = {name: value for name, value in options.items() if name not in options_of_load}
        if drafter is None or rest.get("reuse_answers") == "profile":
            raise
        model = load(target, None, warn=warn, **rest)  # raises where it is the target's fault
        warn(f"drafts come from earlier text alone, as the drafter failed to load: {error}")
        return model, str(error)
