"""Write the prompts that the shipped drafter's teachers answer: what people ask, and texts and code to work on.

    python tools/training_prompts.py DATA [--code FOLDER ...] > prompts.jsonl

DATA holds gsm8k/train.jsonl, of which the last 1,000 lines are left out, mbpp/mbpp.jsonl, of which only MBPP's own
training split is read, and prompts/everyday.jsonl.  Functions, passages, documents and modules are of the standard
library of the Python that runs it; files in other languages, of the folders of `--code`.  No test question is
among them.  A line has `kind`, and `prompt` or the `messages` (and `tools`) of a chat.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import random
import re
import sysconfig
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

KEPT_OUT = 1_000  # last lines of GSM8K's training file: the stream of prompts for online learning
MBPP_TRAIN = range(601, 975)  # 11-510 are the test tasks
COUNTS = {
    "gsm8k": 2_500,
    "functions": 1_000,
    "passages": 1_000,
    "documents": 1_000,
    "modules": 1_000,
    "files": 1_200,
    "agents": 900,
    "json": 900,
    "tools": 700,
    "languages": 2_400,
}
GSM8K_FORMS = ("{question}", "Question: {question}\nAnswer:")
MBPP_FORMS = ("Task: {text}\n{test}\nSolution:\n", "{text}\nYour code should pass this test:\n{test}", "{text}")
FUNCTION_FORMS = (
    "What does this function do?\n\n{code}",
    "Add comments to this function:\n\n{code}",
    "Write a docstring for this function:\n\n{code}",
    "Rename the variables of this function so that they are easier to understand:\n\n{code}",
    "Rewrite this code so that it is shorter:\n\n```python\n{code}\n```",
    "Add type annotations to this code:\n\n```python\n{code}\n```",
    "Translate this function to {language}:\n\n```python\n{code}\n```",
)
PASSAGE_FORMS = (
    "Summarize the following text in two sentences:\n\n{text}",
    "Summarize this in one sentence.\n\n{text}",
    "{text}\n\nSummarize the text above in your own words.",
    "List the main points of this text:\n\n{text}",
    "Explain this to a beginner:\n\n{text}",
    "Rewrite this text so that it is friendlier:\n\n{text}",
)
DOCUMENT_FORMS = (
    "Summarize the following text:\n\n{text}",
    "{text}\n\nWhat are the three most important points of the text above?",
    "Read this documentation, then write an example of how it is used.\n\n{text}",
    "{text}\n\nWrite five questions and answers about this text.",
)
MODULE_FORMS = (
    "{code}\n\nWhat does this code do? Go through it function by function.",
    "Find mistakes in this code and fix them:\n\n```{fence}\n{code}\n```",
    "Rewrite this code with comments for everything that is public. Give the whole code.\n\n```{fence}\n{code}\n```",
    "```{fence}\n{code}\n```\n\nWrite unit tests for it.",
)
EDITS = (
    "Rename `{name}` to something clearer everywhere, and show the whole file.",
    "Add error handling to `{name}`, and show the changed function only.",
    "Write a test file for `{name}`.",
    "Explain step by step what `{name}` does, then suggest an improvement as a diff.",
    "Split `{name}` into two functions. Show the code that changes.",
)
CODE = {  # endings of files of other languages than Python, and the name of the language in a code block
    "js": "javascript",
    "ts": "typescript",
    "pl": "perl",
    "h": "c",
    "hpp": "cpp",
    "sql": "sql",
    "sh": "bash",
    "php": "php",
    "cmake": "cmake",
    "md": "markdown",
    "rst": "rst",
}
LANGUAGES = ("JavaScript", "TypeScript", "Java", "C", "C++", "C#", "Go", "Rust", "PHP", "Ruby")
SYSTEMS = (
    (
        "You are a coding agent in a terminal. Think about the task, then answer with the code that solves it. Keep to "
        "the style of the files that you are shown. Do not explain what was not asked for."
    ),
    (
        "You are a helpful assistant inside a code editor. The user's open files are below. Answer with complete code "
        "blocks; put the path of the file on the first line of each block."
    ),
    (
        "You are a careful reviewer. You read the files you are given, name the risks in them in order of weight, and "
        "propose the smallest change for each one."
    ),
)
RULES = (
    "Never delete a user's files.",
    "Ask before you run a command that changes the system.",
    "Prefer the standard library.",
    "Write tests for every function that you add.",
    "Keep lines below 100 characters.",
    "Use the tools when you need to look something up.",
    "Answer in the language of the user.",
    "Do not repeat the whole file when a part of it is enough.",
    "If a request is unclear, say what you assume.",
    "Name the file and the line when you refer to code.",
)
RECORDS = {
    "a customer": ("name", "email", "age", "city"),
    "a recipe": ("title", "ingredients", "minutes", "steps"),
    "a book": ("title", "author", "year", "genres"),
    "a flight": ("number", "from", "to", "departure", "arrival"),
    "a product": ("sku", "name", "price", "in_stock", "tags"),
    "a meeting": ("title", "date", "participants", "notes"),
    "a city": ("name", "country", "population", "sights"),
    "a film": ("title", "director", "year", "cast"),
    "an invoice": ("number", "customer", "items", "total"),
    "a bug report": ("title", "severity", "steps", "expected", "actual"),
    "a dog": ("name", "breed", "age", "weight_kg"),
    "a weather report": ("city", "temperature", "wind", "sky"),
}
JSON_FORMS = (
    "Make up {thing} and write it as a JSON object with the keys {keys}.",
    "Write a JSON array of {count} objects, each {thing} with the keys {keys}. Answer with JSON only.",
    "Write a JSON schema for {thing} with the keys {keys}.",
    "Convert this to JSON with the keys {keys}:\n\n{line}",
    "Write a YAML file with {count} entries, each {thing} with the keys {keys}.",
    "Write a CSV file with a header and {count} rows; the columns are {keys} of {thing}.",
)
TOOLS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "get_weather": (
        "The weather in a city.",
        {"city": "string", "unit": "string"},
        ("What is the weather in {place}?",),
    ),
    "search_web": ("Search the web.", {"query": "string"}, ("Find out who won the last election in {place}.",)),
    "read_file": ("Read a file.", {"path": "string"}, ("Look at src/{word}.py and tell me what it does.",)),
    "write_file": (
        "Write text to a file.",
        {"path": "string", "content": "string"},
        ("Create {word}.py with a function that sorts a list of {word}s by name.", "Write a README for {word}."),
    ),
    "run_command": ("Run a command in a shell.", {"command": "string"}, ("How much space is left on the disk?",)),
    "send_email": (
        "Send an email.",
        {"to": "string", "subject": "string", "body": "string"},
        ("Tell anna@example.com that the {word} arrives on Friday.",),
    ),
    "create_event": (
        "Put an event into the calendar.",
        {"title": "string", "date": "string", "minutes": "integer"},
        ("Plan a trip to {place} for next Monday, two hours.",),
    ),
    "convert": (
        "Convert money.",
        {"amount": "number", "from": "string", "to": "string"},
        ("How much is 40 USD in EUR?",),
    ),
    "query_database": ("Run a SQL query.", {"sql": "string"}, ("Which {word}s were sold most often last month?",)),
    "book_table": (
        "Book a table.",
        {"place": "string", "people": "integer"},
        ("A table for four in {place}, please.",),
    ),
}
PLACES = ("Paris", "Lagos", "Lima", "Oslo", "Kyoto", "Boston", "Cairo", "Sydney", "Porto", "Riga", "Quito", "Hanoi")
WORDS = ("order", "ticket", "parcel", "guitar", "recipe", "invoice", "sensor", "lamp", "user", "photo", "bike", "song")
TOPICS = {  # with commas in between
    "de": """
        Photosynthese,den Wasserkreislauf,Inflation,künstliche Intelligenz,das Immunsystem,Plattentektonik,
        eine Wärmepumpe,die Französische Revolution,Bluthochdruck,Programmieren in Python,gesundes Frühstück,
        einen Lebenslauf,Zeitmanagement,Solarzellen,Schach,das Sonnensystem,Demokratie,Fahrradreparatur""",
    "fr": """
        la photosynthèse,le cycle de l'eau,l'inflation,l'intelligence artificielle,le système immunitaire,
        la tectonique des plaques,la pompe à chaleur,la Révolution française,le sommeil,la programmation en Python,
        un petit déjeuner sain,un CV,la gestion du temps,les panneaux solaires,les échecs,le système solaire""",
    "es": """
        la fotosíntesis,el ciclo del agua,la inflación,la inteligencia artificial,el sistema inmunitario,
        las placas tectónicas,la bomba de calor,la Revolución francesa,el sueño,la programación en Python,
        un desayuno sano,un currículum,la gestión del tiempo,los paneles solares,el ajedrez,el sistema solar""",
    "zh": """
        光合作用,水循环,通货膨胀,人工智能,免疫系统,板块构造,热泵,法国大革命,睡眠,Python编程,健康的早餐,
        简历,时间管理,太阳能电池,国际象棋,太阳系,民主制度,自行车维修""",
}
FOREIGN = {
    "de": (
        "Erkläre {topic} in drei Sätzen.",
        "Schreibe einen kurzen Text über {topic}.",
        "Nenne fünf Tipps zu: {topic}.",
        "Was sollte man über {topic} wissen? Antworte als Liste.",
        "Schreibe ein Gedicht über {topic}.",
        "Stelle mir fünf Fragen über {topic} und gib die Antworten.",
        "Beantworte auf Deutsch: {prompt}",
    ),
    "fr": (
        "Explique {topic} en trois phrases.",
        "Écris un court texte sur {topic}.",
        "Donne cinq conseils sur {topic}.",
        "Que faut-il savoir sur {topic} ? Réponds sous forme de liste.",
        "Écris un poème sur {topic}.",
        "Pose-moi cinq questions sur {topic} avec les réponses.",
        "Réponds en français : {prompt}",
    ),
    "es": (
        "Explica {topic} en tres frases.",
        "Escribe un texto corto sobre {topic}.",
        "Da cinco consejos sobre {topic}.",
        "¿Qué hay que saber sobre {topic}? Responde con una lista.",
        "Escribe un poema sobre {topic}.",
        "Hazme cinco preguntas sobre {topic} con sus respuestas.",
        "Responde en español: {prompt}",
    ),
    "zh": (
        "用三句话解释{topic}。",
        "写一篇关于{topic}的短文。",
        "给出五条关于{topic}的建议。",
        "关于{topic}，应该了解什么？请用列表回答。",
        "写一首关于{topic}的诗。",
        "就{topic}提五个问题，并给出答案。",
        "请用中文回答：{prompt}",
    ),
}
FUNCTION, PASSAGE, DOCUMENT = range(150, 500), range(200, 700), range(1500, 9000)  # characters
FILE = range(3_000, 18_000)
Line = dict[str, Any]


def prompts(data: Path, library: Path, code: Sequence[Path]) -> Iterator[Line]:
    """All prompts of all kinds."""
    chance = random.Random(0)  # noqa: S311
    everyday = [row["prompt"] for row in _rows(data / "prompts/everyday.jsonl")]
    yield from ({"kind": "everyday", "prompt": text} for text in everyday)
    yield from _exercises(data, chance)
    yield from _library(library, chance)
    yield from _files_of_others(code, chance)
    for kind, write in {"agents": _agent, "json": _record, "tools": _tools}.items():
        yield from ({"kind": kind, **write(chance)} for _ in range(COUNTS[kind]))
    short = [text for text in everyday if len(text) < 200]
    for number in range(COUNTS["languages"]):
        language = list(FOREIGN)[number % len(FOREIGN)]
        form, topic = chance.choice(FOREIGN[language]), chance.choice(TOPICS[language].split(",")).strip()
        yield {"kind": language, "prompt": form.format(topic=topic, prompt=chance.choice(short))}


def _exercises(data: Path, chance: random.Random) -> Iterator[Line]:
    """Word problems, and tasks for code with a test."""
    gsm8k = chance.sample(_rows(data / "gsm8k/train.jsonl")[:-KEPT_OUT], COUNTS["gsm8k"])
    for row, form in zip(gsm8k, itertools.cycle(GSM8K_FORMS)):
        yield {"kind": "gsm8k", "prompt": form.format(**row)}
    tasks = [row for row in _rows(data / "mbpp/mbpp.jsonl") if row["task_id"] in MBPP_TRAIN]
    for row, form in zip(tasks, itertools.cycle(MBPP_FORMS)):
        yield {"kind": "mbpp", "prompt": form.format(text=row["text"], test=row["test_list"][0])}


def _library(library: Path, chance: random.Random) -> Iterator[Line]:
    """Work on functions and passages of docstrings, and on long ones."""
    functions, passages = (sorted(set(texts) - {""}) for texts in zip(*library_texts(library), strict=True))
    documents, modules = long_texts(library)
    for code in _some(chance, functions, "functions"):
        form = chance.choice(FUNCTION_FORMS)
        yield {"kind": "functions", "prompt": form.format(code=code, language=chance.choice(LANGUAGES))}
    for text in _some(chance, passages, "passages"):
        yield {"kind": "passages", "prompt": chance.choice(PASSAGE_FORMS).format(text=text)}
    for text in _some(chance, documents, "documents"):
        yield {"kind": "documents", "prompt": chance.choice(DOCUMENT_FORMS).format(text=text)}
    for code in _some(chance, modules, "modules"):
        yield {"kind": "modules", "prompt": chance.choice(MODULE_FORMS).format(code=code, fence="python")}


def _some(chance: random.Random, texts: list[str], kind: str) -> list[str]:
    return chance.sample(texts, min(COUNTS[kind], len(texts)))


def _files_of_others(folders: Sequence[Path], chance: random.Random) -> Iterator[Line]:
    """Work on whole files in other languages than Python."""
    for ending, fence in CODE.items():
        paths = [path for folder in folders for path in sorted(folder.rglob(f"*.{ending}"))]
        fit = [path for path in paths if path.is_file() and path.stat().st_size in FILE]
        forms = DOCUMENT_FORMS if ending in ("md", "rst") else MODULE_FORMS
        for path in chance.sample(fit, min(len(fit), COUNTS["files"] // len(CODE))):
            text = path.read_text(encoding="utf-8", errors="ignore")
            yield {"kind": "files", "prompt": chance.choice(forms).format(text=text, code=text, fence=fence)}


def _agent(chance: random.Random) -> Line:
    """A system text with rules and tools, files, and an edit that is asked for."""
    files = chance.sample(_sources(), chance.choice((1, 1, 2, 3)))
    tools = "\n".join(json.dumps(each) for each in _functions(chance.sample(list(TOOLS), 5)))
    rules = "\n".join(f"- {rule}" for rule in chance.sample(RULES, 6))
    shown = "\n\n".join(f"{path.name}:\n```python\n{text}\n```" for path, text, _ in files)
    system = f"{chance.choice(SYSTEMS)}\n\n{rules}\n\nTools:\n{tools}"
    wish = chance.choice(EDITS).format(name=chance.choice(files[0][2]))
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": f"{shown}\n\n{wish}"}]}


def _sources() -> list[tuple[Path, str, list[str]]]:
    """Modules of the standard library with the names of their functions."""
    if not _SOURCES:
        for path, text, tree in _modules(Path(sysconfig.get_path("stdlib"))):
            names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            if names and len(text) in range(2_000, 9_000):
                _SOURCES.append((path, text, names))
    return _SOURCES


_SOURCES: list[tuple[Path, str, list[str]]] = []


def _record(chance: random.Random) -> Line:
    thing, keys = chance.choice(list(RECORDS.items()))
    line = f"{thing.split()[-1]} {chance.choice(WORDS)}, {chance.choice(PLACES)}, {chance.randint(2, 90)}"
    form = chance.choice(JSON_FORMS)
    return {"prompt": form.format(thing=thing, keys=", ".join(keys), count=chance.randint(3, 9), line=line)}


def _tools(chance: random.Random) -> Line:
    """A question beside tools, by the template's own place for them."""
    names = chance.sample(list(TOOLS), chance.randint(1, 4))
    wish = chance.choice(TOOLS[names[0]][2]).format(place=chance.choice(PLACES), word=chance.choice(WORDS))
    tools = [{"type": "function", "function": each} for each in _functions(sorted(names))]
    return {"messages": [{"role": "user", "content": wish}], "tools": tools}


def _functions(names: list[str]) -> list[dict[str, Any]]:
    made = []
    for name in names:
        about, keys, _ = TOOLS[name]
        properties = {key: {"type": kind} for key, kind in keys.items()}
        schema = {"type": "object", "properties": properties, "required": list(keys)}
        made.append({"name": name, "description": about, "parameters": schema})
    return made


def long_texts(library: Path) -> tuple[list[str], list[str]]:
    """Long docstrings of a library, and long definitions."""
    documents, modules = set(), set()
    for _, text, tree in _modules(library):
        lines = text.splitlines(keepends=True)
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                code = "".join(lines[node.lineno - 1 : node.end_lineno])
                if len(code) in DOCUMENT:
                    modules.add(code)
        for each in ast.walk(tree):
            if isinstance(each, ast.FunctionDef | ast.ClassDef | ast.Module):
                document = ast.get_docstring(each) or ""
                if len(document) >= DOCUMENT.start:
                    documents.add(document[: DOCUMENT.stop])
    return sorted(documents), sorted(modules)


def _modules(library: Path) -> Iterator[tuple[Path, str, ast.Module]]:
    """The source files of a library with their syntax, tests left out."""
    for path in sorted(library.rglob("*.py")):
        if not {"test", "tests", "idle_test", "site-packages", "lib2to3"} & set(path.relative_to(library).parts):
            text = path.read_text(encoding="utf-8", errors="ignore")
            yield path, text, ast.parse(text)


def library_texts(library: Path) -> Iterator[tuple[str, str]]:
    """A short function and a passage of prose, or empty text for either, for each definition of a library."""
    for _, text, tree in _modules(library):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                code = ""
                if isinstance(node, ast.FunctionDef):
                    code = textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")
                yield code if len(code) in FUNCTION else "", _prose(ast.get_docstring(node) or "")


def _prose(docstring: str) -> str:
    """The first paragraphs of a docstring that are sentences."""
    paragraphs = [re.sub(r"\s+", " ", paragraph) for paragraph in docstring.split("\n\n")]
    sentences = [text for text in paragraphs if text.endswith(".") and text.count(" ") > 9 and ">>>" not in text]
    prose = ""
    for text in sentences:
        if len(prose) + len(text) < PASSAGE.stop:
            prose += f"{' ' * bool(prose)}{text}"
    return prose if len(prose) in PASSAGE else ""


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--code", type=Path, action="append", default=[], help="a folder of code; repeatable")
    options = parser.parse_args()
    for line in prompts(options.data, Path(sysconfig.get_path("stdlib")), options.code):
        print(json.dumps(line, ensure_ascii=False))


if __name__ == "__main__":
    main()
