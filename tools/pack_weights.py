#!/usr/bin/env python3
"""Pack a model's weights into 8 bits: half the bytes of a file in bfloat16.

    python tools/pack_weights.py FOLDER OUT

FOLDER holds a model in safetensors files; OUT, another one, gets `model.int8.safetensors` and copies of what else a
model needs.  Each matrix becomes integers and one scale a row (src/omnidraft/models/int8_format.py), those to which
the 8-bit step rounds it, so that what that step computes stays the same, bit by bit; in other precisions the
weights are the rounded ones.  OmniDraft takes such a folder wherever it takes one; `transformers` does not read it.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from omnidraft.errors import OmniDraftError
from omnidraft.models.int8_format import FILE, INT8_FORMAT, packed
from omnidraft.models.safetensors_files import Tensors
from omnidraft.storage import replace_file

COPIED = (".json", ".jinja", ".model", ".txt")  # configs and tokenizers; what training left behind is not


def pack(folder: Path, out: Path) -> None:
    """Write the folder `out`."""
    from safetensors.torch import save

    with Tensors(str(folder), local=True) as weights:
        data = save(packed(weights), metadata={"format": INT8_FORMAT})
    out.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.name == "tokenizer.json":  # more than half of it is spaces
            content = json.loads(path.read_text(encoding="utf-8"))
            shown = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
            (out / path.name).write_text(shown + "\n", encoding="utf-8")
        elif path.suffix in COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, out / path.name)
    replace_file(out / FILE, data)


if __name__ == "__main__":
    if len(sys.argv) != 3 or Path(sys.argv[1]).resolve() == Path(sys.argv[2]).resolve():
        sys.exit("give two folders: python tools/pack_weights.py FOLDER OUT")
    try:
        pack(Path(sys.argv[1]), Path(sys.argv[2]))
    except (OmniDraftError, OSError) as error:
        sys.exit(str(error))
