"""Record what llama.cpp makes of texts by the headers in `tests/support/gguf_tokenizers.py`.

    python tools/record_llama_tokens.py

It takes the packages gguf and llama-cpp-python, and writes `tests/models/llama_tokens.json`: for each header the
tokens of its texts, special tokens parsed and added, and the tokens that end an answer.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1] / "tests"
llama_cpp: Any = importlib.import_module("llama_cpp")


def record(metadata: Mapping[str, Any], texts: Iterable[str]) -> dict[str, Any]:
    """Token ids of each text as one string, and the ids that end an answer."""
    from support.gguf_tokenizers import write_header

    with tempfile.TemporaryDirectory() as folder:
        path = write_header(Path(folder) / "header.gguf", metadata)
        model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(model.model)
    ends = [token for token in range(model.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocab, token)]
    tokens = [model.tokenize(text.encode(), add_bos=True, special=True) for text in texts]
    return {"ends": ends, "tokens": [" ".join(map(str, ids)) for ids in tokens]}


def main() -> None:
    sys.path.append(str(TESTS))
    from support import gguf_tokenizers as made

    found: dict[str, Any] = {"version": llama_cpp.__version__, "splits": {}, "alike": {}, "cases": {}, "ends": {}}
    for name in made.SPLITS:
        found["splits"][name] = record(made.byte_level(name), made.TEXTS)["tokens"]
        for other in made.ALIKE.get(name, "").split():
            same = record(made.byte_level(other), made.TEXTS)["tokens"] == found["splits"][name]
            found["alike"][other] = name if same else "another"
    for name, metadata in made.cases().items():
        found["cases"][name] = record(metadata, (*made.MARKED, *made.TEXTS))["tokens"]
    for name, metadata in made.ends().items():
        found["ends"][name] = record(metadata, ())["ends"]
    (TESTS / "models" / "llama_tokens.json").write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
