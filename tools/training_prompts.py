"""Write the prompts that the shipped drafter's teachers answer: training questions, Python functions and passages.

    python tools/training_prompts.py DATA > prompts.jsonl

DATA holds gsm8k/train.jsonl, of which the last 1,000 lines are left out, and mbpp/mbpp.jsonl, of which only MBPP's own
training split is read.  Functions, and passages of docstrings, are of the standard library of the Python that runs it.
No test question is among them.
"""

from __future__ import annotations

import ast
import json
import random
import re
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

KEPT_OUT = 1_000  # last lines of GSM8K's training file: the stream of prompts for online learning
MBPP_TRAIN = range(601, 975)  # 11-510 are the test tasks
GSM8K_FORMS = ("{question}", "Question: {question}\nAnswer:")  # in turns
MBPP_FORMS = ("Task: {text}\n{test}\nSolution:\n", "{text}\nYour code should pass this test:\n{test}", "{text}")
FUNCTION_FORMS = (
    "What does this function do?\n\n{code}",
    "Add comments to this function:\n\n{code}",
    "Write a docstring for this function:\n\n{code}",
    "Rename the variables of this function so that they are easier to understand:\n\n{code}",
    "Rewrite this code so that it is shorter:\n\n```python\n{code}\n```",
    "Add type annotations to this code:\n\n```python\n{code}\n```",
)
PASSAGE_FORMS = (
    "Summarize the following text in two sentences:\n\n{text}",
    "Summarize this in one sentence.\n\n{text}",
    "{text}\n\nSummarize the text above in your own words.",
    "List the main points of this text:\n\n{text}",
    "Explain this to a beginner:\n\n{text}",
)
FUNCTIONS = 2_000
LONG_FORMS = (
    "Summarize the following text:\n\n{text}",
    "{text}\n\nWhat are the three most important points of the text above?",
    "Read this documentation, then write an example of how it is used.\n\n{text}",
    "{text}\n\nWrite five questions and answers about this text.",
)
MODULE_FORMS = (
    "{code}\n\nWhat does this code do? Go through it function by function.",
    "Find mistakes in this code and fix them:\n\n```python\n{code}\n```",
    "Rewrite this code with type annotations and docstrings. Give the whole code.\n\n```python\n{code}\n```",
    "```python\n{code}\n```\n\nWrite unit tests for it.",
)
LONG = 500  # prompts of each kind with a long text
CODE, PASSAGE, DOCUMENT = range(150, 500), range(200, 700), range(1500, 5000)  # characters


def prompts(data: Path, library: Path) -> list[str]:
    """All prompts, those of GSM8K first."""
    gsm8k, mbpp = (
        [json.loads(line) for line in (data / name).read_bytes().splitlines()]
        for name in ("gsm8k/train.jsonl", "mbpp/mbpp.jsonl")
    )
    words = [GSM8K_FORMS[i % 2].format(**row) for i, row in enumerate(gsm8k[:-KEPT_OUT])]
    tasks = [row for row in mbpp if row["task_id"] in MBPP_TRAIN]
    words += [form.format(text=row["text"], test=row["test_list"][0]) for row in tasks for form in MBPP_FORMS]
    functions, passages = (sorted(set(part) - {""}) for part in zip(*library_parts(library), strict=True))
    chance = random.Random(0)  # noqa: S311
    words += [chance.choice(FUNCTION_FORMS).format(code=code) for code in chance.sample(functions, FUNCTIONS)]
    words += [chance.choice(PASSAGE_FORMS).format(text=text) for text in passages]
    documents, modules = long_texts(library)
    words += [
        chance.choice(LONG_FORMS).format(text=text) for text in chance.sample(documents, min(LONG, len(documents)))
    ]
    return words + [
        chance.choice(MODULE_FORMS).format(code=code) for code in chance.sample(modules, min(LONG, len(modules)))
    ]


def long_texts(library: Path) -> tuple[list[str], list[str]]:
    """Long docstrings of a library, and long definitions."""
    documents, modules = set(), set()
    for text, tree in _files(library):
        lines = text.splitlines(keepends=True)
        for part in tree.body:
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                code = "".join(lines[part.lineno - 1 : part.end_lineno])
                if len(code) in DOCUMENT:
                    modules.add(code)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                document = ast.get_docstring(node) or ""
                if len(document) >= DOCUMENT.start:
                    documents.add(document[: DOCUMENT.stop])
    return sorted(documents), sorted(modules)


def _files(library: Path) -> Iterator[tuple[str, ast.Module]]:
    """The source files of a library with their syntax, tests left out."""
    for path in sorted(library.rglob("*.py")):
        if not {"test", "tests", "idle_test", "site-packages", "lib2to3"} & set(path.relative_to(library).parts):
            text = path.read_text(encoding="utf-8", errors="ignore")
            yield text, ast.parse(text)


def library_parts(library: Path) -> Iterator[tuple[str, str]]:
    """A short function and a passage of prose, or empty text for either, for each definition of a library."""
    for text, tree in _files(library):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                code = ""
                if isinstance(node, ast.FunctionDef):
                    code = textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")
                yield code if len(code) in CODE else "", _prose(ast.get_docstring(node) or "")


def _prose(docstring: str) -> str:
    """The first paragraphs of a docstring that are sentences."""
    paragraphs = [re.sub(r"\s+", " ", part) for part in docstring.split("\n\n")]
    sentences = [part for part in paragraphs if part.endswith(".") and part.count(" ") > 9 and ">>>" not in part]
    text = ""
    for part in sentences:
        if len(text) + len(part) < PASSAGE.stop:
            text += f"{' ' * bool(text)}{part}"
    return text if len(text) in PASSAGE else ""


if __name__ == "__main__":
    for text in prompts(Path(sys.argv[1]), Path(sysconfig.get_path("stdlib"))):
        print(json.dumps({"prompt": text}))
