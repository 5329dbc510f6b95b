"""What a folder or hub id holds that does not run here: adapters, custom code, quantized weights, other files."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from omnidraft.errors import ModelError
from omnidraft.models.gguf.config import SUFFIX
from omnidraft.models.gguf.not_gguf import is_pointer, pointer_fault


def check_no_adapter(folder: Path) -> None:
    """Raise ModelError for a folder with an adapter, which would be left out or put on the base model it names."""
    if not (folder / "adapter_config.json").exists():
        return
    try:
        base = json.loads((folder / "adapter_config.json").read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        base = None
    fix = "give the folder of the merged model, made with merge_and_unload and save_pretrained of peft"
    raise ModelError(f"folder {str(folder)!r} is a LoRA adapter of {base or 'a base model'!r}, not a model: {fix}")


def check_no_code(source: str, local: bool) -> None:
    """Raise ModelError for a model of a type that `transformers` has not, and that brings its own code instead."""
    from transformers import CONFIG_MAPPING, PreTrainedConfig

    values, _ = PreTrainedConfig.get_config_dict(source, local_files_only=local)
    if "auto_map" in values and (kind := values.get("model_type")) not in CONFIG_MAPPING:
        raise ModelError(
            f"config.json of model {source!r} is of type {kind!r} and names custom code, which is never run: use "
            "a model of a type that transformers has, or a GGUF file of this one"
        )


def check_class(config: Any, source: str) -> None:
    """Raise ModelError for a config whose `architectures` names a class of other models than its type is of.

    Its layers are not those of the type, or not computed so: such models bring code of their own.  Names that differ in
    signs or capitals are known ones, written otherwise.
    """
    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    mappings: tuple[Any, ...] = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING)
    mapped = [mapping[type(config)] for mapping in mappings if type(config) in mapping]
    classes = [kind for each in mapped for kind in (each if isinstance(each, tuple) else (each,))]
    known = {_letters(each.__name__) for each in classes}
    named = [name for name in getattr(config, "architectures", None) or () if isinstance(name, str)]
    for name in named:
        kind = getattr(transformers, name, None)
        known_config = kind is not None and getattr(kind, "config_class", None) is type(config) and kind.can_generate()
        if known_config or _letters(name) in known:
            return
    if named:
        raise ModelError(
            f"config.json of model {source!r} is of type {config.model_type!r} and names the class {named[0]!r}, which "
            f"is none of that type: use a model of class {classes[0].__name__!r}, or the config.json that belongs to it"
        )


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def check_quantizer(config: Any, source: str) -> None:
    """Raise ModelError for weights in a format that `transformers` cannot read on this machine."""
    quantization = getattr(config, "quantization_config", getattr(config, "quantization", None))
    if quantization is None:
        return
    from transformers.quantizers.auto import AutoHfQuantizer

    method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization.quant_method
    method = method or ("MLX" if hasattr(config, "quantization") else "a method without a name")
    try:
        AutoHfQuantizer.from_config(quantization, pre_quantized=True).validate_environment(
            device_map=None, weights_only=True
        )
    except Exception as error:  # of a package that is not installed, or of anything in the config
        reason = textwrap.shorten(str(error), 200, placeholder=" ...")
        raise ModelError(
            f"the weights of model {source!r} are quantized by {method}, which cannot be read here ({reason}): use a "
            "GGUF file of the model, or its weights without quantization"
        ) from error


def not_a_model(folder: Path) -> str | None:
    """Return what a folder holds instead of a model, with the fix; None if unknown."""
    if pointer := next((file for file in sorted(folder.glob("*")) if is_pointer(file)), None):
        return pointer_fault(str(pointer))
    there = {"config.json": (folder / "config.json").exists()}
    there["weights"] = any(next(folder.glob(f"*{suffix}"), None) for suffix in (".safetensors", ".bin"))
    # collections of GGUF files have configs
    lacking = next((name for name, exists in there.items() if not exists), None)
    if lacking and (files := sorted(folder.glob(f"*{SUFFIX}"))):
        return f"folder {str(folder)!r} holds GGUF files and no {lacking}: give a file, as {str(files[0])!r}"
    return None
