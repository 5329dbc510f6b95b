"""Write the tables of docs/models.md: which models the native step computes, and which transformers.

    python tools/write_model_docs.py

They are made from the table of the code; the tests compare the page with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from omnidraft.models.families import FAMILIES, OTHERS

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
BEGIN, END = "<!-- made by tools/write_model_docs.py -->", "<!-- end -->"
TEST = "tests/models/test_families.py"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table."""
    for row in (columns, ["---"] * len(columns), *rows):
        yield f"| {' | '.join(row)} |"


def tables() -> str:
    """All that stands between the marks."""
    native = [
        (family.name, family.sizes, f"`{family.model_type}`", ", ".join(f"`{each}`" for each in family.architectures))
        for family in FAMILIES
    ]
    reasons: dict[str, list[str]] = {}
    for other in OTHERS:
        reasons.setdefault(other.reason, []).append(f"{other.name} ({other.sizes})")
    others = [("; ".join(names), reason) for reason, names in reasons.items()]
    return "\n".join(
        [
            f"In the native step, tested by `{TEST}`; GGUF files by `general.architecture`:",
            "",
            *table(("family", "sizes", "`model_type`", "GGUF"), native),
            "",
            "Through `transformers`, because:",
            "",
            *table(("families", "reason"), others),
        ]
    )


def page(text: str) -> str:
    """The page with tables of now."""
    before, _, rest = text.partition(f"{BEGIN}\n")
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
