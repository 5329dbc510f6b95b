"""The snippets of the client in the README and in the page about serving run as they stand; its table is the code's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from omnidraft.api import OmniDraft
from support.project_files import tool
from support.serving import At

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["README.md", "docs/serve.md"])
def test_the_client_is_shown_as_it_works(
    server: At, model: OmniDraft, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (snippet,) = [snippet for snippet in snippets if "OpenAI" in snippet]
    page = name.startswith("docs")
    named, tokens = (
        ("zoo:target-b", 64) if page else ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", 256)
    )  # the server's most
    assert snippet.count("http://localhost:8080") == snippet.count(named) == 1
    here = snippet.replace("http://localhost:8080", server.url).replace(named, "chat")
    names: dict[str, object] = {}
    exec(compile(here, name, "exec"), names)  # noqa: S102 (our own page)
    answer = model.generate(names["messages"], max_new_tokens=tokens).text  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"{answer}\n"


def test_the_table_of_parameters_is_the_servers() -> None:
    page = tool("write_parameter_docs")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python tools/write_parameter_docs.py"
    assert all(name in page.table() for name in ("`messages`", "`previous_response_id`", "use tool_calls"))


def test_the_tables_of_a_server_under_load_are_the_results() -> None:
    page = tool("write_load_docs")
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run python tools/write_load_docs.py"


def test_tables_of_load_compare_eight_clients_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tool("write_load_docs")
    lines: list[dict[str, object]] = [{"kind": "setting"}]
    for clients, speed in ((1, 10.0), (8, 35.0), (16, 36.0)):
        row = {"target": "t", "method": "drafts", "clients": clients, "answers": clients, "identical": clients}
        took = {"tokens_per_s": speed, "first_p50_s": 0.1 * clients, "first_p95_s": 0.2 * clients}
        lines.append({"kind": "rows", "key": f"t|{clients}", "rss_end_mb": 100.0, **row, **took})
    times = {"read_s": 9.0, "alone_gap_s": 0.02, "gap_s": 0.25, "left_s": 0.15}
    lines.append({"kind": "beside", "key": "t", "target": "t", "method": "drafts", "prompt": 4000, **times})
    monkeypatch.setattr(page, "RESULTS", tmp_path / "serve.jsonl")
    page.RESULTS.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    load, beside = page.tables().split("\n\n")
    assert load.splitlines()[2] == (
        "| t | with drafts | 10.0 | 35.0 | 36.0 | 3.50x | 1.6 and 3.2 s | 100 MB | 25 of 25 |"
    )
    assert beside.splitlines()[2] == "| t | with drafts | 4000 | 9.00 s | 0.02 s | 0.25 s | 0.15 s |"
