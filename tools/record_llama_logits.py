#!/usr/bin/env python3
"""Record llama.cpp's logits for the small GGUF files of the tests.

    python tools/record_llama_logits.py PYTHON [NAME ...]

PYTHON is an interpreter that has llama-cpp-python, which no test needs: what it gives is kept in
`tests/models/llama_logits.json`.  NAME is one of the models or rotations; without any, all are recorded.  Run this
again, and look at the difference, where `tests/support/gguf_models.py` changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
KEPT = ROOT / "tests" / "models" / "llama_logits.json"
# keys and values in 32 bits, as those of the tests' models
READ = """
import json, sys, llama_cpp
text = json.loads(sys.argv[2])
model = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_batch=256, logits_all=True, type_k=0, type_v=0, flash_attn=False,
                        n_gpu_layers=0, n_threads=1, verbose=False)
model.eval(text)
rows = model.scores[: len(text)]
print(json.dumps({"best": rows.argmax(-1).tolist(), "last": [round(float(each), 5) for each in rows[-1][:24]]}))
"""


def main(interpreter: str, names: list[str]) -> None:
    """Write KEPT, or these rows of it."""
    from support.gguf_models import HEADERS, LONG_TEXT, MODELS, rotated_file, write_model

    kept = json.loads(KEPT.read_text(encoding="utf-8")) if names else {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names or (*MODELS, *HEADERS):
            path = Path(folder) / "m.gguf"
            if name in MODELS:
                write_model(path, name)
            else:
                rotated_file(path, HEADERS[name])
            command = [interpreter, "-c", READ, str(path), json.dumps(LONG_TEXT)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
            if result.returncode:
                print(f"{name}: {result.stderr.strip().splitlines()[-1]}")
                continue
            kept[name] = json.loads(result.stdout)
    rows = (f"  {json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept))
    KEPT.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
