"""Make a drafter in a folder that holds teacher text: cut the source, distill it, and go on where that was stopped."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from omnidraft import systems
from omnidraft.distillation.teacher import TrainingExample
from omnidraft.errors import ConfigError, InputError
from omnidraft.make_drafter import shards
from omnidraft.make_drafter.cut import copy_trained, cut_model
from omnidraft.make_drafter.settings import DrafterShape, Training
from omnidraft.make_drafter.training import DrafterTrainer, Examples, batches
from omnidraft.make_drafter.vocabulary import choose_tokens, count_tokens, cut_tokenizer
from omnidraft.storage import replace_file

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from omnidraft.models.loading import LoadedModel

HELD_OUT = 50  # one conversation in 50 is never trained on
MINUTES = 10  # between two checkpoints
Say = Callable[[str], None]


@dataclass
class _Text:
    """The training examples of a teacher's text, which may still grow."""

    examples: Examples
    folder: Path
    training: list[TrainingExample] = field(default_factory=list)
    held_out: list[TrainingExample] = field(default_factory=list)
    read: int = 0  # shards

    def refresh(self) -> None:
        """Read the shards that are new."""
        paths = shards.find(self.folder)
        for path in paths[self.read :]:
            for each in shards.load(path):
                example = self.examples.of(each)
                if example.positions:
                    (self.training if each.number % HELD_OUT else self.held_out).append(example)
        self.read = len(paths)


def text_folder(out: Path, teacher: LoadedModel) -> Path:
    """Where the text of a teacher lies."""
    return out / "text" / systems.file_name(teacher.name.replace("/", "--"))


def text_folders(out: Path, teachers: Sequence[LoadedModel]) -> list[Path]:
    """Where the text of each teacher lies; raises InputError for two that have the same name."""
    folders = [text_folder(out, each) for each in teachers]
    for teacher, folder in zip(teachers, folders, strict=True):
        if folders.count(folder) > 1:
            raise InputError(f"two teachers are called {teacher.name}: rename the folder or file of one of them")
    return folders


def train(
    source: LoadedModel,
    teachers: Sequence[LoadedModel],
    shape: DrafterShape,
    training: Training,
    out: Path,
    say: Say,
    begin: LoadedModel | None = None,
) -> None:
    """Cut the source by the teachers' text and distill it; the drafter is written to `out` at each checkpoint.

    `begin` is a drafter of the same layers, whose weights a new one begins with.

    Training takes place on the device of the first teacher.  Raises ConfigError for a shape that the source does not
    have, InputError where there is no text to learn from, and where it is not the teachers'.
    """
    for teacher, folder in zip(teachers, text_folders(out, teachers), strict=True):
        shards.check_vocabulary(folder, teacher)
        paths = shards.find(folder)
        if not any(each.number % HELD_OUT for path in paths for each in shards.load(path)):
            raise InputError(f"there is no text of {teacher.name} in {folder} but what is held out: write it first")
    if begin is not None and (out / "config.json").exists():
        say(f"{out} holds a drafter already, which is trained on: it does not begin with the weights of {begin.name}")
    tokenizer, model = _begin(source, teachers, shape, out, begin)
    place: Any = teachers[0].lm.device
    model.to(place)
    texts = [
        _Text(Examples(tokenizer, each.tokenizer, each.lm.vocab_size, each.lm.eos), text_folder(out, each))
        for each in teachers
    ]
    trainer = DrafterTrainer(model, training)
    if (checkpoint := out / "checkpoint.pt").exists():
        trainer.resume(torch.load(checkpoint, map_location="cpu", weights_only=True))
        say(f"going on after {trainer.tokens:,} tokens")
    saved = time.perf_counter()
    rng = np.random.default_rng([training.seed, trainer.tokens])
    for batch in _endless(texts, training.batch_tokens, rng, say):
        if trainer.finished:
            break
        trainer.step(batch)
        if time.perf_counter() - saved > 60 * MINUTES:
            _save(trainer, tokenizer, texts, out, say)
            saved = time.perf_counter()
    _save(trainer, tokenizer, texts, out, say)


def _begin(
    source: LoadedModel, teachers: Sequence[LoadedModel], shape: DrafterShape, out: Path, begin: LoadedModel | None
) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """The drafter as the last run left it, or the source cut."""
    from omnidraft.models.loading import load_model

    if (out / "config.json").exists():
        begun = load_model(out, "float32", "cpu")
        config: Any = begun.lm.model.config
        if (config.num_hidden_layers, config.vocab_size) != (len(shape.layers), shape.vocab):
            raise ConfigError(f"{out} holds a drafter of another shape: give its layers and vocab, or another folder")
        return begun.tokenizer, begun.lm.model
    counts = count_tokens(source.tokenizer, (text for each in teachers for text in _words(each, out)))
    kept = choose_tokens(source.tokenizer, counts, shape.vocab)
    tokenizer = cut_tokenizer(source.tokenizer, kept)
    model = cut_model(source.lm.model, shape.layers, kept, tokenizer.eos_token_id)
    if begin is not None:
        copy_trained(model, tokenizer.get_vocab(), begin.lm.model, begin.tokenizer.get_vocab())
    save_drafter(model, tokenizer, out)  # the vocabulary stays as it is when the text grows
    return tokenizer, model


def _words(teacher: LoadedModel, out: Path) -> Iterator[str]:
    for path in shards.find(text_folder(out, teacher)):
        for each in shards.load(path):
            yield str(teacher.tokenizer.decode(each.ids, skip_special_tokens=True))


def _endless(
    texts: Sequence[_Text], tokens: int, rng: np.random.Generator, say: Say
) -> Iterator[list[TrainingExample]]:
    """Batches of all texts mixed, one pass after another, each with the text that is there when it begins."""
    while True:
        for text in texts:
            text.refresh()
        examples = [example for text in texts for example in text.training]
        if not examples:
            raise InputError("no conversation has anything to learn from: write more text")
        say(f"a pass over {sum(len(each.ids) for each in examples):,} tokens of text begins")
        yield from batches(examples, tokens, rng)


def _save(
    trainer: DrafterTrainer, tokenizer: PreTrainedTokenizerBase, texts: Sequence[_Text], out: Path, say: Say
) -> None:
    """Write the checkpoint, the drafter, and a record with its acceptance on held-out text, which is said, too."""
    data = io.BytesIO()
    torch.save(trainer.state(), data)
    replace_file(out / "checkpoint.pt", data.getvalue())
    save_drafter(trainer.model, tokenizer, out)
    record: dict[str, Any] = {
        "parameters": trainer.model.num_parameters(),
        "tokens": trainer.tokens,
        "settings": asdict(trainer.training),
        "acceptance_of_held_out_text": {},
    }
    for text in texts:
        rates = trainer.evaluate(text.held_out) if text.held_out else (None, None)
        read = sum(len(each.ids) for each in text.training)
        figures = {"text_tokens": read, "greedy": rates[0], "temperature_1": rates[1]}
        record["acceptance_of_held_out_text"][text.folder.name] = figures
    replace_file(out / "training.json", (json.dumps(record, indent=2) + "\n").encode())
    shown = json.dumps(record["acceptance_of_held_out_text"])
    say(f"{trainer.tokens:,} tokens, loss {trainer.loss:.3f}; accepted of held-out text: {shown}")


def save_drafter(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path) -> None:
    """Write a drafter in bfloat16 as a folder that `transformers` loads."""
    from safetensors.torch import save

    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in state.items()}
    config: Any = model.config.to_dict() | {"dtype": "bfloat16", "architectures": [type(model).__name__]}
    type(model.config).from_dict(config).save_pretrained(out)
    model.generation_config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    replace_file(out / "model.safetensors", save(weights, metadata={"format": "pt"}))
