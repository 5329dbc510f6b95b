"""`omnidraft inspect`: its verdicts against those of `load`, what it prints, and what it leaves alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import omnidraft
from omnidraft import zoo
from omnidraft.alignment.spelling_table import build_table
from omnidraft.cli import main as cli
from omnidraft.draft_length import cost_model
from omnidraft.draft_length.cost_model import CostModel, PassTimes
from omnidraft.errors import ModelError
from omnidraft.inspection import models, report
from omnidraft.inspection.models import Memory, memory, read_model
from omnidraft.inspection.report import Inspection, break_evens, inspect_pair
from omnidraft.inspection.vocabularies import Language
from omnidraft.models.language_model import NO_LIMIT, LanguageModel
from omnidraft.models.loading import load_model, load_skeleton
from omnidraft.models.transformers_model import TransformersModel, cache_argument
from support.command_line import one_error
from support.gguf_models import small_file
from support.hybrids import hybrid
from support.models import save_model
from support.project_files import shared
from support.small_tokenizers import byte_level, sentencepiece, wrap

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("home")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 98362432\n"


def look(target: object, drafter: object, **options: Any) -> Inspection:
    said: list[str] = []
    return inspect_pair(str(target), str(drafter), say=said.append, warn=said.append, **options)


def run(*arguments: object) -> int:
    return cli.main(["inspect", *map(str, arguments)])


def as_json(capsys: Captured, *arguments: object, code: int = 0) -> dict[str, Any]:
    assert run(*arguments, "--json") == code
    out, _ = capsys.readouterr()
    assert len(out.splitlines()) == 1
    return cast(dict[str, Any], json.loads(out))


def only_tokenizer(folder: Path, tokenizer: Tokenizer) -> Path:
    wrap(tokenizer).save_pretrained(folder)
    assert not (folder / "config.json").exists()
    return folder


# ------------------------------------------------------------ models


def language(folder: Path, *, drafts: bool = False) -> Language:
    found = read_model(folder, drafts=drafts).language
    assert found is not None
    return found


@pytest.mark.medium
def test_a_pair_is_what_load_makes_of_it(tmp_path: Path, drafter: Path) -> None:
    target = save_model(tmp_path / "target", byte_level(), seed=1)
    path = target / "generation_config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text(encoding="utf-8")), "eos_token_id": [5, 9]}), encoding="utf-8"
    )
    loaded = omnidraft.load(target, drafter)
    assert loaded.lane.attached is not None
    theirs, ours = language(target), language(drafter)
    assert theirs.vocab == loaded.vocab
    assert theirs.vocab.eos == (5, 9), "those of the generation config"
    assert language(target, drafts=True).vocab.eos == (loaded.target.tokenizer.eos_token_id, 5, 9)
    table = build_table(ours.vocab, theirs.vocab, ours.speller, theirs.speller)
    assert table.fingerprint == loaded.lane.attached.cache.table.fingerprint
    found = look(target, drafter)
    assert (found.works, found.reason, found.unchecked) == (True, None, ())
    assert (found.target.name, found.drafter.name) == (loaded.target.name, "drafter")
    assert found.spellings is not None
    assert found.spellings.table_bytes == table.nbytes


def memory_of(name: str | Path) -> Memory:
    found = read_model(name).figures.memory
    assert found is not None
    return found


SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 2},
    "qwen2": {"num_key_value_heads": 1},
    "gemma2": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 16},
    "gpt2": {},
}


@pytest.mark.medium
@pytest.mark.parametrize("kind", SHAPES)
def test_the_memory_is_that_of_the_loaded_model(kind: str, tmp_path: Path) -> None:
    shape: dict[str, Any] = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind != "gpt2":
        shape |= {"intermediate_size": 48, "max_position_embeddings": 128}
    config = transformers.CONFIG_MAPPING[kind](**shape, **SHAPES[kind])
    model = cast(Any, transformers.AutoModelForCausalLM).from_config(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    wrap(sentencepiece()).save_pretrained(tmp_path)
    found = memory_of(tmp_path)
    loaded = load_model(tmp_path)
    weights = list(loaded.lm.model.parameters())
    assert found.parameters == sum(p.numel() for p in weights)
    assert found.weight_bytes == sum(p.nbytes for p in weights)
    assert (found.dtype, found.dtype_reason) == (loaded.lm.precision, loaded.dtype_reason)
    assert (found.context, found.device) == (loaded.lm.context, loaded.lm.device.type)
    cache = transformers.DynamicCache()
    loaded.lm.model(torch.tensor([[1, 2, 3]]), use_cache=True, **{cache_argument(loaded.lm.model): cache})
    assert found.kv_bytes == sum(layer.keys.nbytes + layer.values.nbytes for layer in cast(Any, cache).layers) / 3


@pytest.mark.medium
def test_a_drafters_cache_is_its_window(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "WINDOW", 64)
    context = memory_of(drafter).context
    figures = read_model(drafter, drafts=True).figures.memory
    assert context is not None
    assert context > 64
    assert figures is not None
    assert figures.context == 64


@pytest.mark.medium
def test_what_cannot_be_counted_is_unknown(target: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    model = TransformersModel(load_skeleton(str(target)))
    model.context = NO_LIMIT

    # a model is judged by whether it takes a cache
    def fail(*_inputs: object, cache: object = None, **_options: object) -> None:  # noqa: ARG001
        raise ValueError("it looks at what it computed")

    monkeypatch.setattr(model.model, "forward", fail)
    model.model.config.dtype = None
    found = memory(model)
    assert found.kv_bytes is found.context is None
    assert found.weight_bytes > 0
    monkeypatch.setattr(LlamaForCausalLM, "forward", fail)
    assert run(target, "--drafter", target) == 0
    assert "unknown" in capsys.readouterr().out


def damaged(folder: Path) -> Path:
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    save_file({name: tensor for name, tensor in tensors.items() if name != min(tensors)}, weights)
    return folder


@pytest.mark.medium
def test_no_weights_are_read_unless_steps_are_timed(tmp_path: Path, drafter: Path, capsys: Captured) -> None:
    target = damaged(save_model(tmp_path / "target", byte_level(), seed=1))
    with pytest.raises(ModelError) as error:
        omnidraft.load(target, drafter)
    found = as_json(capsys, target, "--drafter", drafter)
    assert found["works"]
    assert found["target"]["memory"]["parameters"] > 0
    found = as_json(capsys, target, "--drafter", drafter, "--time", code=1)
    assert (found["works"], found["reason"]) == (False, str(error.value))
    assert found["spellings"]["spelled"] > 0
    assert found["break_even"] is None


@pytest.mark.medium
def test_steps_are_timed(target: Path, drafter: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_model, "SECONDS", 0.0)
    found = as_json(capsys, target, "--drafter", drafter, "--time")
    assert found["works"]
    assert set(found["steps"]["target"]) == {"1", "2", "3", "5", "9"}
    assert min(*found["steps"]["target"].values(), found["steps"]["drafter"]) > 0
    assert [one["length"] for one in found["break_even"]] == [1, 2, 4, 8]
    times = {int(size): seconds for size, seconds in found["steps"]["target"].items()}
    costs = CostModel.profiled(PassTimes(**{**found["steps"], "target": times}))
    assert found["break_even"] == [asdict(one) for one in break_evens(costs)]
    assert run(target, "--drafter", drafter, "--time") == 0
    out, _ = capsys.readouterr()
    assert "break-even" in out
    assert "drafter, 1 token" in out


@pytest.mark.medium
def test_a_gguf_target_is_timed_in_the_precision_that_load_takes(
    tmp_path: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_model, "SECONDS", 0.0)
    timed: list[str] = []

    def times(target: TransformersModel, drafter: LanguageModel) -> PassTimes:
        timed.append(target.precision)
        return cost_model.time_passes(target, drafter)

    monkeypatch.setattr(report, "time_passes", times)
    path = small_file(tmp_path / "model.gguf")
    found = look(path, drafter, time=True)
    assert found.works, found.reason
    assert found.target.memory is not None
    assert timed == [found.target.memory.dtype]
    assert timed == [omnidraft.load(path, None).target.lm.precision]


# ------------------------------------------------------------ verdicts


def stateful(folder: Path) -> None:
    transformers.RwkvConfig(vocab_size=600, hidden_size=16, num_hidden_layers=1).save_pretrained(folder)


def slow_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}', encoding="utf-8")


def too_few_rows(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = {name: config[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers")}
    LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, num_attention_heads=4, **shape)).save_pretrained(folder)


def ggufs(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    (folder / "model-q8_0.gguf").touch()


def weights(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(change(path.read_bytes()))

    return changed


def a_shard_less(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "stateful": (stateful, "cannot be rolled back"),
    "slow tokenizer": (slow_tokenizer, "no fast tokenizer"),
    "too few rows": (too_few_rows, "only 40 rows of logits"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
    "GGUF files": (ggufs, "holds GGUF files and no config.json: give a file"),
    "half of the weights": (weights(lambda data: data[: len(data) // 2]), "are damaged"),
    "a byte less": (weights(lambda data: data[:-1]), "are damaged"),
    "a byte more": (weights(lambda data: data + b" "), "are damaged"),
    "no header": (weights(lambda _: b"these are no weights"), "are damaged"),
    "a pointer": (weights(lambda _: POINTER), "is a git-lfs pointer, not the file: run"),
    "a shard less": (a_shard_less, "are missing"),
}


@pytest.mark.medium
def test_a_hybrid_is_a_target_and_no_drafter(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "hybrid", sentencepiece(), seed=3)
    hybrid("qwen3_5_text", vocab_size=600).config.save_pretrained(folder)
    target, drafter = read_model(folder), read_model(folder, drafts=True)
    assert target.problem is None
    assert drafter.problem is not None
    assert "no crop restores" in drafter.problem
    assert memory_of(folder).kv_bytes == 2 * 2 * 8 * 4  # keys and values of two heads in the one layer of attention


@pytest.mark.medium
@pytest.mark.parametrize(("damage", "role"), [*((damage, "target") for damage in REFUSED), ("stateful", "drafter")])
def test_what_load_refuses_does_not_work(
    damage: str, role: str, tmp_path: Path, drafter: Path, capsys: Captured
) -> None:
    change, part = REFUSED[damage]
    bad = save_model(tmp_path / "bad", sentencepiece(), seed=3)
    change(bad)
    pair = {"target": drafter, "drafter": drafter} | {role: bad}
    with pytest.raises(ModelError) as error:
        omnidraft.load(pair["target"], pair["drafter"])
    found = as_json(capsys, pair["target"], "--drafter", pair["drafter"], code=1)
    assert (found["works"], found["reason"], found["spellings"]) == (False, str(error.value), None)
    assert part in found["reason"]
    assert found["drafter" if role == "target" else "target"]["vocabulary"]["size"] > 0
    assert run(pair["target"], "--drafter", pair["drafter"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"does not work: {error.value}"
    assert err == ""


@pytest.mark.medium
def test_two_folders_with_a_tokenizer_alone(tmp_path: Path, capsys: Captured) -> None:
    target = only_tokenizer(tmp_path / "one", byte_level())
    drafter = only_tokenizer(tmp_path / "two", sentencepiece())
    found = as_json(capsys, target, "--drafter", drafter)
    assert found["works"]
    assert found["unchecked"] == ["one", "two"]
    assert found["target"]["memory"] is found["drafter"]["memory"] is None
    # of the special tokens, the end of text alone is spelled
    assert found["target"]["vocabulary"]["size"] - 2 == found["spellings"]["spelled"]
    assert found["target"]["vocabulary"]["size"] == byte_level().get_vocab_size()
    assert run(target, "--drafter", drafter) == 0
    out, _ = capsys.readouterr()
    assert out.startswith(
        "works as far as tokenizers tell: drafter 'two' is compatible with target 'one' (no config.json: one, two)\n"
    )
    assert out.count("unknown") == 8
    tied = as_json(capsys, target, "--drafter", zoo.PREFIX + "drafter")
    assert tied["unchecked"] == ["one"]
    assert tied["drafter"]["memory"]["parameters"] > 0


@pytest.mark.medium
def test_the_object_has_all_that_is_printed(capsys: Captured) -> None:
    name = zoo.TARGET
    found = as_json(capsys, name)
    assert found["drafter"]["name"] == "drafter"
    assert run(name) == 0
    out, _ = capsys.readouterr()
    spelled, vocabularies = found["spellings"], [found[role]["vocabulary"] for role in ("target", "drafter")]
    counts = [*(vocabulary["size"] for vocabulary in vocabularies), spelled["byte_matches"], spelled["spelled"]]
    for count in [*counts, spelled["ngrams"], spelled["overlong"], spelled["nodes"]]:
        assert f" {count:,} " in out
    for end in vocabularies[0]["eos"]:
        assert f"{end['text']} ({end['id']})" in out
    if found["target"]["step"]["how"] == "native":  # there is a compiler
        assert found["target"]["step"]["family"] == "Qwen2, Qwen2.5"
        assert "step on a CPU" in out
    else:
        assert found["target"]["step"]["code"] == "machine"


@pytest.mark.medium
def test_a_narrow_terminal(target: Path, drafter: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    assert run(target, "--drafter", drafter) == 0
    verdict, *tables = capsys.readouterr().out.splitlines()
    assert verdict.startswith("works: drafter 'drafter' is compatible with target 'target'")
    assert max(map(len, tables)) <= 24


@pytest.mark.parametrize("name", ["[INST]", "[/bold]", ":fish:", "a\nb"])
def test_tokens_that_look_like_markup_are_shown_as_they_are(name: str, tmp_path: Path, capsys: Captured) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([name])
    target = only_tokenizer(tmp_path / "target", tokenizer)
    assert run(target, "--drafter", only_tokenizer(tmp_path / "drafter", sentencepiece())) == 0
    shown = f"{name} ({tokenizer.token_to_id(name)})".replace("\n", "\\n")
    assert shown in capsys.readouterr().out


@pytest.mark.medium
def test_hundreds_of_special_tokens_are_shortened(tmp_path: Path, capsys: Captured) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens([f"<|reserved_{i}|>" for i in range(300)])
    target = only_tokenizer(tmp_path / "target", tokenizer)
    drafter = only_tokenizer(tmp_path / "drafter", sentencepiece())
    assert run(target, "--drafter", drafter) == 0
    out, _ = capsys.readouterr()
    table = out[out.index("special tokens of the target") :]
    assert "</s> (2)" in table
    assert table.count("<s> (1)") == 1, "and its own id in the target's vocabulary"
    assert "at its beginning" not in table, "its tokenizer puts nothing there"
    assert "<|reserved_0|>" in table
    assert "<|reserved_299|>" not in table
    assert "296 more" in table
    assert len(as_json(capsys, target, "--drafter", drafter)["specials"]) == 303


@pytest.mark.medium
def test_the_first_token_is_the_one_that_the_drafters_tokenizer_begins_with(
    tmp_path: Path, capsys: Captured, drafter: Path
) -> None:
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|begin|>"])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|begin|>").save_pretrained(tmp_path / "target")
    assert run(tmp_path / "target", "--drafter", drafter) == 0
    assert "<s> (1) at its beginning" in capsys.readouterr().out


# ------------------------------------------------------------ the command


@pytest.mark.medium
def test_mistakes_of_usage(tmp_path: Path, drafter: Path, capsys: Captured) -> None:
    alone = only_tokenizer(tmp_path / "alone", sentencepiece())
    mistakes: dict[tuple[object, ...], str] = {
        (): "TARGET",
        (drafter, "more"): "'more'",
        (drafter, "--tim"): "'--tim'",
        (tmp_path / "none",): "no file or folder that exists",
        (drafter, "--drafter", "a/b/c"): "'a/b/c'",
        ("zoo:nothing",): "zoo model 'nothing'",
        ("",): "no file or folder that exists",
        ("absent.gguf",): "no file or folder that exists",
        (drafter, "--drafter", "none"): "inspect needs two models",
        (alone, "--drafter", drafter, "--time"): "alone has no config.json",
    }
    for arguments, part in mistakes.items():
        assert part in one_error(capsys, "inspect", *arguments)


def test_a_hub_id_that_cannot_be_asked_for_says_nothing_of_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "check the name and the connection" in one_error(capsys, "inspect", "someone/something")


@pytest.mark.medium
def test_progress_is_for_someone_who_watches(
    target: Path, drafter: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(target, "--drafter", drafter) == 0
    out, err = capsys.readouterr()
    assert err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert run(target, "--drafter", drafter) == 0
    again, err = capsys.readouterr()
    assert again == out
    assert err.startswith("omnidraft: ")


# ------------------------------------------------------------ real tokenizers


@pytest.mark.slow
def test_the_figures_of_two_published_tokenizers(capsys: Captured) -> None:
    found = as_json(capsys, shared("tokenizers", "qwen2"), "--drafter", shared("tokenizers", "llama2"))
    assert found["works"]
    assert [found[role]["vocabulary"]["size"] for role in ("target", "drafter")] == [151_646, 32_000]
    counts = found["spellings"]
    assert (counts["byte_matches"], counts["spelled"]) == (26_438, 151_644)
    assert (counts["unspelled"], counts["duplicates"], len(found["specials"])) == (0, 0, 3)


@pytest.mark.medium
def test_the_keys_of_a_gguf_file_are_listed(tmp_path: Path, capsys: Captured) -> None:
    path = small_file(tmp_path / "model.gguf")
    assert cli.main(["inspect", str(path), "--drafter", "zoo:drafter"]) == 0
    table = capsys.readouterr().out.split("keys of model.gguf, architecture qwen2")[1]
    groups = {row.split("│")[1].strip() for row in table.splitlines() if row.count("│") > 2} - {""}
    assert groups == {"sizes", "rotation", "tokenizer", "file", "harmless"}
    assert "rope.freq_base" in table
