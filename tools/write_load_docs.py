"""Write the tables of a server under load in docs/serve.md from results/serve.jsonl.

    python tools/write_load_docs.py

The tests compare the page with the results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "serve.md", ROOT / "results" / "serve.jsonl"
BEGIN, END = "<!-- load: made by tools/write_load_docs.py -->", "<!-- end of load -->"
NAMES = {"drafts": "with drafts", "no drafts": "without"}
Row = dict[str, Any]


def _table(heads: list[str], lines: list[list[str]], text: int) -> str:
    rule = ["---"] * text + ["---:"] * (len(heads) - text)
    return "".join(f"| {' | '.join(line)} |\n" for line in (heads, rule, *lines))


def _load(rows: list[Row]) -> str:
    """A line for each target and method: tokens a second of all clients together."""
    counts = sorted({row["clients"] for row in rows})
    lines = []
    for target, method in dict.fromkeys((row["target"], row["method"]) for row in rows):
        own = {row["clients"]: row for row in rows if (row["target"], row["method"]) == (target, method)}
        most = own[max(own)]
        said = sum(row["identical"] for row in own.values()), sum(row["answers"] for row in own.values())
        lines.append([
            target, NAMES[method],
            *(f"{own[count]['tokens_per_s']:.1f}" if count in own else "–" for count in counts),
            f"{own[8]['tokens_per_s'] / own[1]['tokens_per_s']:.2f}x" if {1, 8} <= own.keys() else "–",
            f"{most['first_p50_s']:.1f} and {most['first_p95_s']:.1f} s", f"{most['rss_end_mb']:.0f} MB",
            f"{said[0]} of {said[1]}",
        ])  # fmt: skip
    heads = ["target", "", *(f"{count} clients" if count > 1 else "1 client" for count in counts), "8 over 1"]
    heads += ["first text with the most clients, median and 95th percentile", "memory then", "answers as alone"]
    return _table(heads, lines, 2)


def _beside(rows: list[Row]) -> str:
    """A line for each target and method: what an answer waits for beside a long prompt."""
    lines = [
        [row["target"], NAMES[row["method"]], str(row["prompt"])]
        + [f"{row[name]:.2f} s" for name in ("read_s", "alone_gap_s", "gap_s", "left_s")]
        for row in rows
    ]
    heads = ["target", "", "tokens of the prompt", "read in", "longest wait for a piece, alone", "beside it"]
    return _table([*heads, "reading goes on without a client"], lines, 2)


def tables() -> str:
    """The tables of all rows, of which a later one replaces an earlier one of the same key."""
    found: dict[str, dict[str, Row]] = {"rows": {}, "beside": {}}
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["kind"] in found:
            found[row["kind"]][row["key"]] = row
    load, beside = (list(found[kind].values()) for kind in ("rows", "beside"))
    return _load(load) + (f"\n{_beside(beside)}" if beside else "")


def page() -> str:
    """The page with the tables as they are to be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
