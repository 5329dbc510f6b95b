"""Write docs/source.md: the files of the package, with the first sentence of each.

    python tools/write_source_docs.py

The tests compare the page with the code.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "omnidraft"
PAGE = ROOT / "docs" / "source.md"
HEAD = """# The source, file by file

Made by `python tools/write_source_docs.py` from the first sentence of each file. How a request passes through them:
[A request in eight steps](how-it-works.md#a-request-in-eight-steps). Folders may import only from those
[below them](../CONTRIBUTING.md#shape).
"""
C_COMMENT = re.compile(r"/\*(.*?)\*/", re.DOTALL)


def first_sentence(path: Path) -> str:
    """What a file says of itself, in a line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        about = ast.get_docstring(ast.parse(text)) or ""
    else:
        about = re.sub(r"\n \* ?", "\n", match[1]) if (match := C_COMMENT.match(text)) else ""
    line = " ".join(about.split("\n\n")[0].split())
    end = re.search(r"\.(?= |$)", line)
    return (line[: end.start()] if end else line).strip()


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    folders = sorted({path.parent for path in PACKAGE.rglob("*.py")})
    for folder in folders:
        if PACKAGE / "zoo" / "models" in folder.parents:
            continue
        files = sorted(path for path in folder.iterdir() if path.suffix in {".py", ".c", ".h"})
        name = folder.relative_to(PACKAGE).as_posix()
        begin = folder / "__init__.py"
        about = first_sentence(begin) if begin.exists() and name != "." else "The package"
        rows = [f"| `{each.name}` | {first_sentence(each)} |\n" for each in files if each.name != "__init__.py"]
        if rows:
            title = "omnidraft" if name == "." else f"{name}/"
            lines.append(f"\n## {title}\n\n{about}.\n\n| file | |\n| --- | --- |\n{''.join(rows)}")
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
