"""The files of the page: no other host, no inline code, and scripts of others as they were published."""

from __future__ import annotations

import hashlib
import re
import tomllib

import pytest

from support.fake_server import PAGE

VENDOR = PAGE / "vendor"
OWN = {path.name: path.read_text(encoding="utf-8") for path in PAGE.iterdir() if path.is_file()}
VENDORED = tomllib.loads((VENDOR / "vendored.toml").read_text(encoding="utf-8"))
READS_HTML = (
    r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|createContextualFragment|DOMParser|srcdoc"
    r"|\beval\b|new Function"
)
TERMS = {"MIT": "Permission is hereby granted", "Apache-2.0": "Apache License", "BSD-3-Clause": "BSD 3-Clause License"}
LIMIT = 700_000  # bytes of the whole page


def test_the_files_need_no_other_host_and_no_inline_code() -> None:
    assert re.findall(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=", OWN["index.html"]) == []
    hosts = {host for text in OWN.values() for host in re.findall(r"https?://([\w.]+)", text)}
    assert hosts <= {"www.w3.org"}  # the name of SVG
    code = "".join(text for name, text in OWN.items() if name.endswith(".js"))
    assert re.findall(READS_HTML, code) == []
    assert sum(map(len, OWN.values())) < 100_000


def test_html_is_read_by_dompurify_alone() -> None:
    assert [name for name, text in OWN.items() if "vendor/purify.js" in text] == ["sanitized.js"]
    for name in ("code.js", "maths.js"):  # where libraries make HTML
        assert 'from "./sanitized.js"' in OWN[name]


@pytest.mark.parametrize("name", VENDORED)
def test_scripts_of_others_are_as_they_were_published(name: str) -> None:
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == VENDORED[name]["sha256"]
    terms = (VENDOR / name).with_suffix(".LICENSE").read_text(encoding="utf-8")
    assert TERMS[VENDORED[name]["license"]] in terms


def test_there_are_no_others_and_all_are_small() -> None:
    files = list(VENDOR.iterdir())
    assert {path.name for path in files if path.suffix == ".js"} == set(VENDORED)
    assert {path.suffix for path in files} == {".js", ".LICENSE", ".toml"}
    assert sum(path.stat().st_size for path in PAGE.rglob("*") if path.is_file()) <= LIMIT
