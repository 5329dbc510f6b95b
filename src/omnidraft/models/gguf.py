"""GGUF files as models: what their header says, and their weights as safetensors, dequantized once and kept.

The header gives tokenizer, chat template, end tokens and sizes in seconds.  Weights take longer, so a folder that
`transformers` loads is kept in the cache under the file's SHA-256 and the dtype.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from omnidraft.config import cache_folder
from omnidraft.errors import ModelError

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

SUFFIX = ".gguf"
KEPT_BYTES = 64 * 2**30  # of all conversions together; the one used longest ago is removed first
SPARE_BYTES = 2**30  # of disk and memory, left free by a conversion
CONTROL = 3  # type of a token in the header
# end-of-turn markers of known chat formats: a header names one end token, where models stop at several
ENDS = (
    "</s>",
    "<|endoftext|>",
    "<|im_end|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<|eom_id|>",
)
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
PLAIN = ("llama", "qwen2", "qwen3")  # architectures whose config is a renaming of the header's keys


@dataclass(frozen=True)
class Kept:
    """A conversion in the cache."""

    folder: Path
    name: str  # of the file that it was made of, and the dtype
    size: int  # bytes
    used: float  # seconds since the epoch


def is_gguf(name: str | Path) -> bool:
    """True for the name of an existing file with the suffix of GGUF files."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111  that of Path raises where there is no such user
    return path.suffix.lower() == SUFFIX and path.is_file()


def load_config(path: Path) -> tuple[PreTrainedConfig, GenerationConfig]:
    """The config of a file's model and its end tokens, by the header alone; raises ModelError."""
    from transformers import AutoConfig, GenerationConfig

    with _reading(path):
        metadata, tensors = _header(path)
        architecture = metadata["general.architecture"]
        if architecture in PLAIN:
            config = _plain_config(architecture, metadata, tensors)
        else:
            config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        config.eos_token_id = _ends(metadata)
        return config, GenerationConfig(eos_token_id=config.eos_token_id, bos_token_id=config.bos_token_id)


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a file, with its chat template; raises ModelError."""
    from transformers import PreTrainedTokenizerFast

    with _reading(path):
        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(path.parent, gguf_file=path.name)
        return tokenizer


def converted(path: Path, dtype: torch.dtype, say: Callable[[str], None]) -> Path:
    """The folder of a file's model in safetensors of a dtype, made where the cache has none.

    `say` is told of a conversion before it begins.  Raises ModelError, also where disk or memory is too small.
    """
    from filelock import FileLock

    with _reading(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    cache = cache_folder() / "gguf"
    folder = cache / f"{digest[:16]}-{str(dtype).removeprefix('torch.')}"
    with _writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if not folder.is_dir():
                _check_room(path, dtype, cache)
                say(f"{path.name} is converted to safetensors once, kept in {folder} (see `omnidraft cache`)")
                _convert(path, dtype, folder)
            os.utime(folder)
    _bound(spared=folder)
    return folder


def kept() -> list[Kept]:
    """All conversions in the cache, the one used last first."""
    found = []
    for folder in sorted((cache_folder() / "gguf").glob("*-*")):
        if folder.is_dir() and (folder / "NAME").is_file():
            size = sum(file.stat().st_size for file in folder.iterdir())
            found.append(Kept(folder, (folder / "NAME").read_text(encoding="utf-8"), size, folder.stat().st_mtime))
    return sorted(found, key=lambda each: -each.used)


def clear() -> int:
    """Remove all conversions, and what was left of unfinished ones; returns the bytes freed."""
    freed = sum(each.size for each in kept())
    with _writing(cache_folder() / "gguf"):
        if (cache_folder() / "gguf").is_dir():
            shutil.rmtree(cache_folder() / "gguf")
    return freed


# ---------------------------------------------------------------- header


@lru_cache(maxsize=4)
def _header_of(path: Path, _modified: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    from transformers.integrations.gguf.reader import read_gguf_metadata

    metadata, tensors = read_gguf_metadata(str(path), ("tokenizer.ggml.tokens",))
    return metadata, tensors


def _header(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Metadata and names of the tensors."""
    return _header_of(path, path.stat().st_mtime_ns)


def _plain_config(architecture: str, metadata: dict[str, Any], tensors: tuple[str, ...]) -> PreTrainedConfig:
    """The config by the names that `transformers` has for the header's keys."""
    from transformers import AutoConfig
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    mapping: Any = GGUF_CONFIG_MAPPING
    names = {f"{architecture}.{key}": name for key, name in mapping[architecture].items()}
    values = {name: metadata[key] for key, name in names.items() if name and key in metadata}
    values.setdefault("vocab_size", len(metadata["tokenizer.ggml.tokens"]))
    for name in ("bos", "eos"):
        values[f"{name}_token_id"] = metadata.get(f"tokenizer.ggml.{name}_token_id")
    tied = "output.weight" not in tensors
    config: PreTrainedConfig = AutoConfig.for_model(architecture, tie_word_embeddings=tied, **values)
    return config


def _ends(metadata: dict[str, Any]) -> list[int]:
    """Ids of the tokens that end an answer: those the header names, and control tokens known to end a turn."""
    named = [metadata[key] for each in END_KEYS if (key := f"tokenizer.ggml.{each}") in metadata]
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata.get("tokenizer.ggml.token_type", [])
    markers = (i for i, kind in enumerate(types) if kind == CONTROL and tokens[i] in ENDS)
    return list(dict.fromkeys([*named, *markers]))


# ---------------------------------------------------------------- conversion


def _convert(path: Path, dtype: torch.dtype, folder: Path) -> None:
    """Write the model to `folder`, whole or not at all."""
    from safetensors.torch import save_model
    from transformers import AutoModelForCausalLM, GgufConfig

    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
    part.mkdir()
    try:
        with _reading(path):
            config, generation = load_config(path)
            model: Any = AutoModelForCausalLM.from_pretrained(
                path.parent,
                config=config,
                gguf_file=path.name,
                dtype=dtype,
                quantization_config=GgufConfig(dequantize=True),
                device_map=None,
            )
            config.dtype = dtype
            config.architectures = [type(model).__name__]
            save_model(model, str(part / "model.safetensors"), metadata={"format": "pt"})
            config.save_pretrained(part)
            generation.save_pretrained(part)
            load_tokenizer(path).save_pretrained(part)
        (part / "NAME").write_text(f"{path.name} in {str(dtype).removeprefix('torch.')}", encoding="utf-8")
        part.rename(folder)
    except BaseException:  # Ctrl-C, too
        shutil.rmtree(part, ignore_errors=True)
        raise


def _check_room(path: Path, dtype: torch.dtype, cache: Path) -> None:
    import psutil
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        auto: Any = AutoModelForCausalLM
        needed = auto.from_config(load_config(path)[0]).num_parameters() * dtype.itemsize
    places = {"memory": psutil.virtual_memory().available, f"disk space in {cache}": shutil.disk_usage(cache).free}
    for place, free in places.items():
        if free < needed + SPARE_BYTES:
            raise ModelError(
                f"{path.name} takes {needed / 2**30:.1f} GiB as safetensors, and there are {free / 2**30:.1f} GiB of "
                f"{place}: use a smaller model, or free some"
            )


def _bound(spared: Path) -> None:
    """Remove the conversions used longest ago while all together exceed KEPT_BYTES."""
    found = kept()
    total = sum(each.size for each in found)
    for each in reversed(found):
        if total > KEPT_BYTES and each.folder != spared:
            shutil.rmtree(each.folder, ignore_errors=True)
            total -= each.size


# ---------------------------------------------------------------- errors


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn any exception inside into a ModelError of one line, and silence `transformers`."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    except ModelError:
        raise
    except ImportError as error:
        raise ModelError(f"reading {path.name} takes the gguf package: pip install 'omnidraft[gguf]'") from error
    except Exception as error:  # truncated files raise anything
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        raise ModelError(
            f"cannot read GGUF file {path.name} ({reason}): get the complete file of a text model"
        ) from error
    finally:
        logging.set_verbosity(level)


@contextmanager
def _writing(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"cannot write to {cache} ({error}): set OMNIDRAFT_HOME to a writable folder") from error
