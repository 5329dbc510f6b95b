"""The embedded models are what their card says, and good enough for what they are for."""

from __future__ import annotations

import json
import shutil
from importlib.util import module_from_spec, spec_from_file_location
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

import omnidraft
from omnidraft import defaults, zoo
from omnidraft.errors import ModelError
from omnidraft.models.int8_format import FILE, INT8_FORMAT, SCALE
from support.models import one_line
from support.project_files import shared

SOURCE = Path(zoo.__file__).parents[1]
LARGEST_MB = 58


def rows(count: int) -> list[dict[str, str]]:
    lines = (shared("data") / "gsm8k" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[:count]]


def test_names_and_places() -> None:
    assert set(zoo.names()) == {*zoo.names("target"), *zoo.names("drafter")}
    assert zoo.names("drafter") == ("general", "drafter")
    assert zoo.resolve(zoo.TARGET) == zoo.path(zoo.names("target")[0])
    with pytest.raises(ModelError, match="use one of"):
        zoo.path("nothing")
    assert zoo.resolve("owner/name") == "owner/name"
    assert zoo.resolve(Path("zoo:drafter")) == Path("zoo:drafter")  # a folder of that name
    assert zoo.resolve("zoo:drafter") == zoo.path("drafter")


def test_only_the_zoo_knows_its_models_by_name() -> None:
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        if file.parent.name != "zoo" and file.name != "__init__.py":  # the package's docstring shows a call
            assert not [name for name in zoo.names("target") if name in text], file


def as_in_a_wheel(folder: Path) -> ModuleType:
    """The module of the zoo, in a folder without the models that pip does not install."""
    away = shutil.ignore_patterns("drafter", "target-a", "*.safetensors", "__pycache__")
    shutil.copytree(SOURCE / "zoo", folder / "zoo", ignore=away)
    spec = spec_from_file_location("installed_zoo", folder / "zoo" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    installed = module_from_spec(spec)
    spec.loader.exec_module(installed)
    return installed


def test_what_only_a_checkout_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = as_in_a_wheel(tmp_path)
    assert installed.names() == ("general", "target-b")
    assert (installed.names("drafter"), installed.names("target")) == (("general",), ("target-b",))
    assert installed.resolve(zoo.TARGET) == tmp_path / "zoo" / "models" / "target-b"
    for name in ("drafter", "target-a"):
        with pytest.raises(ModelError) as error:
            installed.path(name)
        one_line(error, name, "checkout", "use one of general, target-b")
    with pytest.raises(ModelError) as error:
        installed.path("nothing")
    one_line(error, "nothing", "use one of general, target-b")
    shutil.rmtree(tmp_path / "zoo" / "models" / "general")
    with pytest.raises(ModelError, match="install the package again"):
        installed.path("general")
    monkeypatch.setattr(defaults, "zoo", installed)
    monkeypatch.setattr(defaults, "DRAFTER", "zoo:general")
    assert defaults.drafter_for(zoo.TARGET, pytest.fail) == "zoo:general"


def test_the_first_look_is_at_a_chat_model() -> None:
    assert (Path(zoo.resolve(zoo.TARGET)) / "chat_template.jinja").is_file()


def test_weights_are_in_8_bits_and_small() -> None:
    size = 0
    for name in zoo.names():
        size += sum(file.stat().st_size for file in zoo.path(name).iterdir())
        assert [file.name for file in zoo.path(name).glob("*.safetensors")] == [FILE]
        with safe_open(zoo.path(name) / FILE, "pt") as file:
            assert file.metadata() == {"format": INT8_FORMAT}
            for key in file.keys():  # noqa: SIM118  no dict: it has no __iter__
                part = file.get_slice(key)
                matrix = len(part.get_shape()) == 2
                assert part.get_dtype() == ("F32" if key.endswith(SCALE) else "I8" if matrix else "BF16"), key
    assert size <= LARGEST_MB * 10**6


@pytest.mark.parametrize("name", zoo.names())
def test_tokenizers_keep_every_text(name: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(zoo.path(name))
    for text in ("def f(x):\n\treturn x  # 12345\n", "naïve 你好 🙂\n\n", "1234567 and 0.5"):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text
    digits = [token for token in tokenizer.get_vocab() if sum(c.isdigit() for c in token) > 1 and "<0x" not in token]
    longest = max((sum(c.isdigit() for c in token) for token in digits), default=1)
    assert longest == (3 if name == "target-a" else 1)


@pytest.mark.parametrize("name", zoo.names())
def test_the_card_states_the_record(name: str) -> None:
    record = json.loads((zoo.path(name) / "training.json").read_text(encoding="utf-8"))
    card = (SOURCE / "zoo" / "README.md").read_text(encoding="utf-8")
    row = next(line for line in card.splitlines() if line.startswith(f"| `{name}` "))
    assert f"{record['parameters']:,}" in row
    assert f"{record['tokens']:,}" in row
    if name == "general":
        last = next(line for line in card.splitlines() if line.startswith(f"| {record['tokens']:,} |"))  # of the curve
        for found in record["acceptance_of_held_out_text"].values():
            assert f"{found['greedy']:.3f} | {found['temperature_1']:.3f} |" in last
            assert f"{found['text_tokens']:,} " in card
    else:
        assert f"{record['loss_gsm8k_test_answers']:.3f}" in row


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names("target"))
def test_targets_have_learned_the_task(name: str) -> None:
    """Held-out loss below 1.9 a token on GSM8K test answers; most greedy answers end by themselves."""
    loaded = omnidraft.load(zoo.path(name), None, dtype="float32")
    model, total, count = loaded.target.lm.model, 0.0, 0
    for row in rows(10):
        question = loaded.encode_message(f"Question: {row['question']}\nAnswer:")
        answer = row["answer"] if loaded.target.tokenizer.chat_template else f" {row['answer']}"
        text = [*question, *loaded.target.tokenizer(answer, add_special_tokens=False)["input_ids"], loaded.vocab.eos[0]]
        ids = torch.tensor([text])
        labels = ids.clone()
        labels[:, : len(question)] = -100
        with torch.no_grad():
            total += float(model(input_ids=ids, labels=labels).loss) * (len(text) - len(question))
        count += len(text) - len(question)
    assert total / count < 1.9
    prompts = [f"Question: {row['question']}\nAnswer:" for row in rows(3)]
    ends = (loaded.generate(loaded.encode_message(prompt), max_new_tokens=256).finish_reason for prompt in prompts)
    assert len(list(islice((end for end in ends if end == "eos"), 2))) == 2
