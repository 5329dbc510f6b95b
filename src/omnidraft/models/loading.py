"""Models and tokenizers from a folder, a GGUF file or the Hugging Face hub; device and dtype of a model."""

from __future__ import annotations

import logging
import os
import re
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

import torch
from tokenizers import Tokenizer

from omnidraft.errors import ConfigError, ModelError
from omnidraft.models import drafter_folder
from omnidraft.models.families import BY_CLASS
from omnidraft.models.fast_tokenizer import FastTokenizer
from omnidraft.models.folder_checks import check_class, check_no_adapter, check_no_code, check_quantizer, not_a_model
from omnidraft.models.gguf import tokenizer as gguf_tokenizer
from omnidraft.models.gguf.config import SUFFIX, is_gguf, load_config, load_light_skeleton, model_tensors
from omnidraft.models.gguf.native_weights import weights_of
from omnidraft.models.interpreter import check_docstrings
from omnidraft.models.memory import check_free, is_shortage, needing, thread_beside
from omnidraft.models.native import model as native_model
from omnidraft.models.native import step
from omnidraft.models.native.compared_times import compared_seconds
from omnidraft.models.native.model import EMBEDDING, HEAD, NativeModel, unsupported_config
from omnidraft.models.quiet import silenced
from omnidraft.models.readable import check_readable
from omnidraft.models.safetensors_files import Tensors, holds_weights, in_8_bits, lacks_metadata
from omnidraft.models.skeleton import Skeleton
from omnidraft.models.transformers_model import (
    SUPPORTED,
    PretrainedModel,
    TransformersModel,
    check_rotation,
    check_supported,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# by which attention is computed as a config asks: others need packages, code from the hub, or one device
ATTENTIONS = (None, "eager", "sdpa")
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
SLOWER = 1.25  # times the other's: two that are closer must not be chosen by the moment, or answers would be
BF16_PARAMETERS = 100_000_000  # below this, a token took as long in bfloat16 as in float32 on a CPU with AMX
HINT_PARAMETERS = 100_000_000  # below, a token takes milliseconds in any dtype, and most such models are for tests
HINT_TIMES = 2.0  # those of 8 bits: a dtype that takes fewer is no slow path
OF_DRAFTERS = "its answers do not depend on it"  # why their precision was chosen
# tensors that leave the logits of a text as they are: constants that were stored once, and weights for images or drafts
UNREAD = re.compile(
    r"(\.inv_freq|_positions\.weights|\batt(entio)?n\.((masked_)?bias|causal_mask))$|^(model\.)?(mtp|vis|audio|multi_m)"
)
_log = logging.getLogger("omnidraft")
_ONE_AT_A_TIME = RLock()  # models of transformers: it cannot be imported by two threads at once
PRECISIONS = ("float32", "bfloat16", "float16", "int8")  # the last of a target on a CPU


@dataclass(frozen=True)
class LoadedModel:
    """A language model with the tokenizer it came with."""

    lm: PretrainedModel
    tokenizer: Any  # a PreTrainedTokenizerBase of transformers, or a FastTokenizer
    name: str  # hub id, or the folder's own name
    dtype_reason: str  # why this dtype was chosen, a phrase
    sample: bytes = b""  # of a GGUF file: by which its weights are known in any dtype


def load_model(
    name: str | Path,
    dtype: str = "auto",
    device: str = "auto",
    say: Callable[[str], None] = _log.info,
    *,
    verifies: bool = False,
    graphs: bool = False,
) -> LoadedModel:
    """Load a causal language model and its tokenizer from a folder, a GGUF file or by its hub id.

    A folder or file is read without network access, and code that comes with a model is never run.  `dtype` is auto or
    one of PRECISIONS; `device` is auto, cpu, cuda, cuda:N or mps.  A model that only `verifies` drafts, a target, need
    not be one that can be trained: of a GGUF file, auto then takes 8 bits where it can and they are no slower.  With
    `graphs` its short passes are CUDA graphs.  `say` is told where a target is slower than it could be, or verifies no
    drafts.  Raises ConfigError for an unknown dtype or device, and for graphs on one that has none, ModelError for
    whatever is wrong with the model.
    """
    if dtype not in ("auto", *PRECISIONS):
        raise ConfigError(f"dtype {dtype!r} is not known: use auto, {', '.join(PRECISIONS)}")
    if dtype in step.PRECISIONS and not verifies:
        raise ConfigError(f"dtype is {dtype!r}, which is for targets alone: use auto, float32, bfloat16 or float16")
    place = _place(device, graphs=graphs)
    source = locate(name)[0]
    if verifies and dtype in ("auto", *step.PRECISIONS) and (light := _load_light(source, dtype, place)) is not None:
        return light
    with _ONE_AT_A_TIME:
        return _load_whole(name, dtype, place, say, verifies=verifies, graphs=graphs)


def _load_whole(
    name: str | Path, dtype: str, place: torch.device, say: Callable[[str], None], *, verifies: bool, graphs: bool
) -> LoadedModel:
    """The model by its class of transformers."""
    source, local = locate(name)
    shown = Path(source).resolve().name if local else source
    skeleton: Any = load_skeleton(name, say)  # checked before gigabytes of weights are read
    chosen, reason = dtype, "asked for"
    if chosen == "auto":
        chosen, reason = choose_precision(place, skeleton, rounds=verifies and is_gguf(source))
        slow = slow_path(skeleton, place, chosen, of_file=is_gguf(source)) if verifies else None
        if slow is not None:
            say(f"target {shown} {slow}")
    ours = chosen in step.PRECISIONS
    if ours and (unsupported := _unsupported_reason(skeleton, place)):
        raise ModelError(f"model {source!r} cannot be used in {chosen}, as {unsupported}: use dtype='auto'")
    tokenizer = load_tokenizer(source)
    _end_turns(skeleton, tokenizer)
    with _room_for_weights(skeleton, source, chosen, place):
        if ours:
            return LoadedModel(_native_model(skeleton, source, local), tokenizer, shown, reason)
        stored = weights_of(Path(source), skeleton, getattr(torch, chosen)) if is_gguf(source) else None
        model = _read_model(skeleton, source, local, getattr(torch, chosen), place, stored)
    _end_turns(model, tokenizer)
    lm = _graphed(model, to_host=not verifies) if graphs else TransformersModel(model)
    if verifies and lm.no_drafts:
        say(f"target {shown} is decoded without drafts: {lm.no_drafts}")
    return LoadedModel(lm, tokenizer, shown, reason, b"" if stored is None else stored.sample)


def _graphed(model: PreTrainedModel, *, to_host: bool) -> TransformersModel:
    from omnidraft.models.graphs.graphed_model import GraphedModel

    return GraphedModel(model, to_host=to_host)


def _load_light(source: str, dtype: str, place: torch.device) -> LoadedModel | None:
    """The model of a GGUF file for the native step, without a class of transformers.

    None where it is no such file, has no native step, or is no faster in it.
    """
    if (skeleton := _light_skeleton(source, place)) is None:
        return None
    reason = "asked for"
    if dtype == "auto":
        chosen, reason = _rounded(choose_dtype(place, None, skeleton.num_parameters())[0])
        if chosen != "int8":
            return None
    native = partial(NativeModel, load=partial(load_skeleton, source))
    return _read_light(source, skeleton, native, place, reason)


def _light_skeleton(source: str, place: torch.device) -> Skeleton | None:
    """The skeleton of a GGUF file's model; None where it is no such file, or has no native step."""
    if place.type != "cpu" or not is_gguf(source):
        return None
    skeleton = load_light_skeleton(Path(source))
    if skeleton is None or unsupported_config(skeleton.config, BY_CLASS[skeleton.model_class]) is not None:
        return None
    check_rotation(skeleton.config, source)
    return skeleton


def _read_light(
    source: str, skeleton: Skeleton, native: Callable[..., NativeModel], place: torch.device, reason: str
) -> LoadedModel:
    """The model of a GGUF file, of its weights as they are in the file."""
    make_tokenizer = gguf_tokenizer.fast_tokenizer(Path(source))
    with thread_beside() as pool:  # weights are read and packed outside of Python
        tokenizer = pool.submit(make_tokenizer)
        with _room_for_weights(skeleton, source, "int8", place), _reading("weights", source, local=True):
            weights = weights_of(Path(source), skeleton)
            lm = native(skeleton, weights, name=source)
        return LoadedModel(lm, tokenizer.result(), Path(source).resolve().name, reason, weights.sample)


def load_drafter(
    name: str | Path,
    dtype: str = "auto",
    device: str = "auto",
    say: Callable[[str], None] = _log.info,
    *,
    graphs: bool = False,
    native_step: bool = True,
) -> LoadedModel:
    """Load a drafter: as `load_model`, but for the native step alone where it has one and that is to be used.

    Then its weights are those of its GGUF file, else in 5 bits; the model of transformers is loaded if it is asked for.
    """
    source, local = locate(name)
    place = _place(device, graphs=graphs)
    alone = native_step and local and place.type == "cpu" and dtype == "auto"
    light = _light_drafter(Path(source), place) if alone else None
    return light or load_model(name, dtype, device, say, graphs=graphs)


def _light_drafter(source: Path, place: torch.device) -> LoadedModel | None:
    """A drafter without a class of transformers; None where its files say too little, or it has no native step."""
    if not is_gguf(source):
        return _light_folder(source, place)
    if (skeleton := _light_skeleton(str(source), place)) is None:
        return None
    native = partial(NativeModel, drafts=True, load=partial(_whole_model, source, "auto"))
    return _read_light(str(source), skeleton, native, place, OF_DRAFTERS)


def _light_folder(folder: Path, place: torch.device) -> LoadedModel | None:
    """A drafter of a folder."""
    try:
        skeleton, tokenizer = drafter_folder.read_skeleton(folder), drafter_folder.read_tokenizer(folder)
        if skeleton is None or tokenizer is None or unsupported_config(skeleton.config, BY_CLASS[skeleton.model_class]):
            return None
        precision, _ = choose_dtype(place, None, skeleton.num_parameters())
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return None  # a config of no use: whoever reads the folder in full says what is wrong
    source = str(folder)
    with _room_for_weights(skeleton, source, precision, place), _reading("weights", source, local=True):
        with Tensors(source, local=True) as tensors:
            weights = {name: tensors[name].to(getattr(torch, precision)) for name in tensors}
        if skeleton.config.tie_word_embeddings and EMBEDDING in weights:
            weights.setdefault(HEAD, weights[EMBEDDING])
        if {name: tuple(weight.shape) for name, weight in weights.items()} != skeleton.shapes:
            return None

        load = partial(_whole_model, folder, precision)
        native = NativeModel(skeleton, weights, drafts=True, name=source, load=load)
    return LoadedModel(native, tokenizer, folder.resolve().name, OF_DRAFTERS)


def _whole_model(source: Path, precision: str) -> PreTrainedModel:
    """The model of transformers of what drafts without it: a function that another process can be told to call."""
    return load_model(source, precision, "cpu").lm.model


def _room_for_weights(
    skeleton: PreTrainedModel | Skeleton, source: str, precision: str, place: torch.device
) -> AbstractContextManager[None]:
    """Want of memory for the weights inside is a ModelError; raises it at once where they cannot fit.

    That of GGUF files is looked at as they are read, and of quantized weights it is not known.
    """
    each = 1 if precision in step.PRECISIONS else getattr(torch, precision).itemsize
    count, what = skeleton.num_parameters() * each, f"the weights of model {source!r} in {precision}"
    if place.type == "cpu" and not is_gguf(source) and getattr(skeleton.config, "quantization_config", None) is None:
        check_free(count, what)
    return needing(count, what)


def _native_model(skeleton: PreTrainedModel, source: str, local: bool) -> NativeModel:
    """The model with the weights of safetensors in 8 bits."""
    with _reading("weights", source, local), Tensors(source, local) as weights:
        _check_read(source, set(weights) - set(skeleton.state_dict()))
        return NativeModel(skeleton, weights)


def _check_read(source: str, unread: Collection[str]) -> None:
    """Raise ModelError for tensors that the model has no place for: without them it would be another model."""
    if unread := sorted(name for name in unread if not UNREAD.search(name)):
        raise ModelError(
            f"the weights of model {source!r} have tensors that its config.json has no place for, {len(unread)} in "
            f"all, first {unread[0]!r}: get the config.json that belongs to them, or use another model"
        )


def _read_model(
    skeleton: PreTrainedModel,
    source: str,
    local: bool,
    dtype: torch.dtype,
    place: torch.device,
    stored: Mapping[str, torch.Tensor] | None,
) -> PreTrainedModel:
    """The model with its weights, or those `stored`, on a device; raises ModelError where they are not whole."""
    from transformers import AutoModelForCausalLM

    auto, kind = (cast(Any, each) for each in (AutoModelForCausalLM, type(skeleton)))
    options: dict[str, Any] = {"dtype": dtype, "ignore_mismatched_sizes": True, "output_loading_info": True}
    with _reading("weights", source, local):
        if stored is not None or (local and (in_8_bits(Path(source)) or lacks_metadata(Path(source)))):
            with Tensors(source, local) if stored is None else nullcontext(stored) as weights:
                model, report = kind.from_pretrained(None, config=skeleton.config, state_dict=dict(weights), **options)
            model.generation_config = skeleton.generation_config
            model.name_or_path = model.config.name_or_path = source  # as in the other case
        else:
            options |= {"local_files_only": local, "trust_remote_code": False, "return_dict": True}
            options["attn_implementation"] = skeleton.config._attn_implementation  # noqa: SLF001
            model, report = auto.from_pretrained(source, **options)
        model = model.to(place)
    # tensors that the files lack are initialized at random, which must not pass for a model
    lacking = sorted(report["missing_keys"]) + sorted(entry[0] for entry in report["mismatched_keys"])
    if lacking:
        raise ModelError(
            f"the weights of model {source!r} do not fit its config.json: {len(lacking)} tensors are missing or of "
            f"another shape, first {lacking[0]!r}: get the complete files"
        )
    _check_read(source, () if getattr(model, "hf_quantizer", None) else report["unexpected_keys"])
    return cast("PreTrainedModel", model)


def _end_turns(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have a chat model end at its tokenizer's end token, too, where only a config of its base model names others."""
    generation, end = model.generation_config, tokenizer.eos_token_id
    known = generation.eos_token_id
    known = known if isinstance(known, list) else [known]
    derived = getattr(generation, "_from_model_config", False)  # there is no generation_config.json
    if derived and getattr(tokenizer, "chat_template", None) and None not in (end, *known) and end not in known:
        generation.eos_token_id = [*known, end]


def _unsupported_reason(skeleton: PreTrainedModel, place: torch.device) -> str | None:
    """Return the reason why a model cannot be used in 8 bits, or None."""
    if place.type != "cpu":
        return f"it is on {place.type}"
    reason = native_model.unsupported_reason(skeleton)
    return None if reason is None else str(reason)


def load_skeleton(name: str | Path, say: Callable[[str], None] = _log.info) -> PreTrainedModel:
    """Build a model on the meta device, from its configs alone; raises ModelError where `load_model` would.

    `say` is told where attention is computed otherwise than the config asks.
    """
    check_docstrings()
    source, local = locate(name)
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, GenerationConfig

    generation = None
    if is_gguf(source):
        config, generation = load_config(Path(source))
    else:
        if local:
            check_no_adapter(Path(source))
        with _reading("config.json", source, local):
            try:
                config = AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=False)
            except ValueError:
                check_no_code(source, local)
                raise
            check_quantizer(config, source)
    # checked before a class is chosen: of some encoder-decoders the decoder alone would be loaded
    if config.is_encoder_decoder or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        kind = "an encoder-decoder" if config.is_encoder_decoder else "no causal language model"
        raise ModelError(f"model {source!r} of type {config.model_type!r} is {kind}: use {SUPPORTED}")
    check_rotation(config, source)
    with _reading("config.json", source, local):
        check_class(config, source)
    asked, auto = config._attn_implementation, cast("Any", AutoModelForCausalLM)  # noqa: SLF001
    if asked not in ATTENTIONS:
        config._attn_implementation = None  # noqa: SLF001  the class chooses
    with _reading("config.json", source, local), torch.device("meta"):
        skeleton: PreTrainedModel = auto.from_config(config)
    if asked not in ATTENTIONS:
        used = skeleton.config._attn_implementation  # noqa: SLF001
        say(f"config.json of model {source!r} asks for attention by {asked}, and it is computed by {used}")
    check_supported(skeleton)
    if generation is not None:
        model_tensors(Path(source), skeleton)
        skeleton.generation_config = generation
        return skeleton
    if local and holds_weights(Path(source)):
        with _reading("weights", source, local), Tensors(source, local) as weights:
            unread = set(weights) - set(skeleton.state_dict())
        # of other models, and without the prefix, transformers may rename tensors
        if native_model.unsupported_reason(skeleton) is None:
            _check_read(source, {name for name in unread if name.startswith("model.")})
    absent = () if (Path(source) / "generation_config.json").exists() else (OSError,)  # optional
    with _reading("generation_config.json", source, local), suppress(*absent):
        skeleton.generation_config = GenerationConfig.from_pretrained(source, local_files_only=local)
    return skeleton


def load_tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder, a GGUF file or a hub id, no model needed; raises ModelError."""
    check_docstrings()
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    source, local = locate(name)
    if is_gguf(source):
        return gguf_tokenizer.load_tokenizer(Path(source))
    with _reading("tokenizer.json", source, local):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, local_files_only=local, trust_remote_code=False
        )
    if not tokenizer.is_fast:
        raise ModelError(f"model {source!r} has no fast tokenizer, which is needed: add its tokenizer.json")
    if "__init__" in vars(type(tokenizer)) and type(tokenizer) is not PreTrainedTokenizerFast:
        with _reading("tokenizer.json", source, local):
            _restore_pipeline(tokenizer, source, local)
    return tokenizer


def pretrained_tokenizer(loaded: LoadedModel) -> PreTrainedTokenizerBase:
    """The tokenizer of a model as one of transformers."""
    known = loaded.tokenizer
    return (
        load_tokenizer(loaded.lm.name) if isinstance(known, FastTokenizer) else cast("PreTrainedTokenizerBase", known)
    )


def _restore_pipeline(tokenizer: PreTrainedTokenizerBase, source: str, local: bool) -> None:
    """Split and merge text as tokenizer.json says, of which classes of `transformers` take vocabulary and merges alone.

    Their steps are those of one family, and models are given the class of another, such as Phi-4's that of GPT-2.
    """
    from transformers.utils.hub import cached_file

    options: dict[str, Any] = {"local_files_only": local, "_raise_exceptions_for_missing_entries": False}
    if path := cached_file(source, "tokenizer.json", **options):
        complete, backend = Tokenizer.from_file(path), cast("Any", tokenizer).backend_tokenizer
        for component in ("model", "normalizer", "pre_tokenizer", "decoder"):
            setattr(backend, component, getattr(complete, component))
        backend.add_tokens([])  # those that are normalized before they are looked for are normalized anew


@contextmanager
def _reading(name: str, source: str, local: bool) -> Iterator[None]:
    """Turn any exception inside into a ModelError of one line, and silence the logging of `transformers`."""
    fix = "check the folder's files" if local else "check the name and the connection, or give a folder that exists"
    try:
        with silenced():
            yield
    except ModelError:
        raise
    except Exception as error:  # damaged files raise anything, KeyError and ZeroDivisionError included
        if is_shortage(error):
            raise
        reason = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
        others = ("*.model", "vocab.*", "*.tiktoken") if name == "tokenizer.json" else ()  # other forms of a tokenizer
        if local and (fault := not_a_model(Path(source))):
            raise ModelError(fault) from error
        if local and name.endswith(".json") and not any(any(Path(source).glob(each)) for each in (name, *others)):
            raise ModelError(f"folder {source!r} has no {name}: get the complete files of the model") from error
        raise ModelError(f"cannot read the {name} of model {source!r} ({reason}): {fix}") from error


def locate(name: str | Path) -> tuple[str, bool]:
    """Return the folder, GGUF file or hub id to load from, and whether it is on this disk; raises ModelError."""
    if not isinstance(name, str | Path):
        raise ConfigError(f"the model is {name!r}: give a folder, a hub id, or one that ships, zoo:NAME")
    folder = Path(os.path.expanduser(name))  # noqa: PTH111  that of Path raises where there is no such user
    check_readable(folder)
    if str(name) and folder.is_dir():  # an empty name would be the working directory
        return str(folder), True
    if is_gguf(name):
        return str(folder), True
    of_file = folder.exists() or folder.suffix.lower() == SUFFIX
    if isinstance(name, Path) or of_file or not HUB_ID.fullmatch(name):
        kind = "a file" if folder.is_file() else "no file or folder that exists"
        raise ModelError(
            f"model {str(name)!r} is {kind}: give a folder with a config.json, a GGUF file or a hub id, owner/name"
        )
    return name, False


def choose_device(asked: str) -> torch.device:
    """Return the device named by `asked`, for auto the GPU where there is one; raises ConfigError for a missing one."""
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    match = re.fullmatch(r"(cpu|cuda|mps)(?::(\d+))?", str(asked))
    if match is None or int(match[2] or 0) >= there[match[1]]:
        names = [kind for kind, count in there.items() if count]
        raise ConfigError(f"device {asked!r} is not available: use auto or {', '.join(names)}")
    return torch.device(asked)


def _place(device: str, *, graphs: bool) -> torch.device:
    """The device; raises ConfigError for one that has none of the graphs that are asked for."""
    place = choose_device(device)
    if graphs and place.type != "cuda":
        why = f"graphs is 'on' and the device {str(place)!r}, but CUDA devices alone have graphs"
        raise ConfigError(f"{why}: use device='cuda', or leave graphs out", option="graphs")
    return place


def choose_precision(device: torch.device, model: PreTrainedModel, *, rounds: bool) -> tuple[str, str]:
    """Return the precision for `auto` and the reason; with `rounds`, 8 bits are used unless they are slower."""
    dtype, reason = choose_dtype(device, getattr(model.config, "dtype", None), model.num_parameters())
    if not rounds or _unsupported_reason(model, device) is not None:
        return dtype, reason
    return _rounded(dtype)


def _rounded(dtype: str) -> tuple[str, str]:
    """The precision of a GGUF file's model and the reason: 8 bits, unless the dtype is faster on this machine."""
    ours, other = (1e3 * each for each in compared_seconds(dtype))
    measured = f"of a GGUF file, as this cpu takes {ours:.1f} ms for a matrix in 8 bits and {other:.1f} in {dtype}"
    return "int8" if ours < SLOWER * other else dtype, measured


def slow_path(model: PreTrainedModel, device: torch.device, dtype: str, *, of_file: bool) -> str | None:
    """Return how a target would be faster than in the dtype that `auto` chose, or None.

    `of_file` is of a GGUF file, for which 8 bits are chosen where they can be and are no slower.
    """
    if dtype in step.PRECISIONS or device.type != "cpu":
        return None
    unsupported, slow = _unsupported_reason(model, device), f"is decoded in {dtype} by transformers"
    if of_file:
        return f"{slow}, several times slower than in 8 bits: {unsupported}" if unsupported else None
    if unsupported or model.num_parameters() < HINT_PARAMETERS:
        return None
    ours, other = (1e3 * each for each in compared_seconds(dtype))
    if other < HINT_TIMES * ours:
        return None
    better = f"{ours:.1f} ms for a matrix and not {other:.1f}, and answers may differ from the unrounded model's"
    return f"{slow}: with dtype='int8' (--dtype int8) this cpu takes {better}"


def choose_dtype(device: torch.device, stored: torch.dtype | None, parameters: int) -> tuple[str, str]:
    """Return the name of the dtype to compute in and the reason; `stored` is the checkpoint's dtype."""
    small = parameters < BF16_PARAMETERS
    gpu = device.type == "cuda"
    if gpu and (stored == torch.float16 or (small and stored in {torch.float32, None})):
        return str(stored or torch.float32).removeprefix("torch."), "as stored"
    if not has_bfloat16(device):
        return "float32", f"this {device.type} does not compute in bfloat16"
    if small and not gpu:
        return "float32", f"bfloat16 is no faster below {BF16_PARAMETERS // 10**6}M parameters"
    return "bfloat16", f"this {device.type} computes in it, and half the bytes are read"


def has_bfloat16(device: torch.device) -> bool:
    """True if a device computes matrix products in bfloat16 faster than in float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    # older versions of PyTorch do not report the capabilities of a CPU
    able: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)() if device.type == "cpu" else {}
    return bool(able.get("amx_bf16") or able.get("avx512_bf16"))
