"""Tables of `omnidraft inspect`.  PyTorch is not imported, which takes seconds that `--header` does not need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from omnidraft.cli.printer import Printer
from omnidraft.inspection.implementation import NATIVE, TRANSFORMERS, HeaderFigures, StepReport
from omnidraft.models.gguf.keys import KeyReport

if TYPE_CHECKING:
    from omnidraft.draft_length.cost_model import PassTimes
    from omnidraft.inspection.drafters import Comparison, DrafterFigures
    from omnidraft.inspection.models import Memory, Model
    from omnidraft.inspection.report import BreakEven, Inspection
    from omnidraft.inspection.vocabularies import Special, Spellings, Token, Vocabulary

SLOWER = "4 to 6 times slower"  # a token of models of 270M to 350M, by tools/measure_families.py
SHOWN = 4  # dropped special tokens that are named
ROWS = (  # of the table of models; "" is a rule
    *("tokenizer", "vocabulary", "tokens with bytes", "special tokens", "rows without a token", "begin of text"),
    *("end of text", "", "parameters", "weights", "KV cache", "step on a CPU"),
)
UNKNOWN = "unknown"
Rows = Iterable[Sequence[str]]


def show(inspection: Inspection) -> None:
    """Print the verdict and every figure of a pair."""
    console = _console(_verdict(inspection), works=inspection.works)
    pair = {"target": inspection.target, "drafter": inspection.drafter}
    # a target that is no GGUF file takes 8 bits only if asked
    figures = [_model(each, asked=role == "target" and each.keys is None) for role, each in pair.items()]
    rows: Rows = ((row, *(each.get(row, UNKNOWN) for each in figures)) if row else () for row in ROWS)
    console.print(_table("models", ("", *(f"{role}: {each.name}" for role, each in pair.items())), rows))
    target, drafter = inspection.target.vocabulary, inspection.drafter.vocabulary
    if target is not None and drafter is not None and inspection.spellings is not None:
        rows = _spellings(inspection.spellings, target, drafter)
        console.print(_table("the target's vocabulary in drafter tokens", ("", "tokens", ""), rows, right=(1,)))
        rows = _specials(inspection.specials or (), target, drafter)
        console.print(_table("special tokens of the target", ("token", "in the drafter's context"), rows))
    if inspection.steps is not None and inspection.break_even is not None:
        heads = (f"after {inspection.steps.context} tokens", "ms, median")
        console.print(_table("forward passes on this machine", heads, _steps(inspection.steps), right=(1,)))
        columns = ("draft length", *(str(one.length) for one in inspection.break_even))
        title, numbers = "break-even: the acceptance rate from which drafting pays", range(1, len(columns))
        console.print(_table(title, columns, _break_even(inspection.break_even), right=numbers))
    for model in pair.values():
        if model.keys is not None:
            title = f"keys of {model.name}, architecture {model.keys.architecture}"
            console.print(_table(title, ("group", "keys"), _keys(model.keys)))


def show_comparison(comparison: Comparison) -> None:
    """Print which drafter is the fastest, and the figures of each."""
    differ = "" if comparison.identical else "answers differ from those without drafts; "
    console = _console(f"{differ}{comparison.verdict}", works=comparison.identical)
    title = f"{comparison.answers} greedy answers of {comparison.target}, {comparison.tokens} tokens, no memory"
    each = (comparison.plain, *comparison.drafters)
    console.print(_table(title, ("", *(one.drafter for one in each)), _compared(each), right=range(1, 1 + len(each))))


def _compared(each: Sequence[DrafterFigures]) -> Rows:
    yield "tokens/s", *(f"{one.tokens_per_s:.1f}" for one in each)
    yield "speedup", *(f"{one.speedup:.2f}" for one in each)
    yield "tokens per pass of the target", *(f"{one.tokens_per_pass:.2f}" for one in each)
    yield "acceptance rate", *(f"{one.acceptance:.2f}" if one.drafts else "–" for one in each)
    yield "draft tokens a round", *(f"{one.drafts:.2f}" for one in each)
    yield "rounds without a draft", *(f"{100 * one.without_draft:.0f} %" for one in each)
    yield ()
    yield "ms of a draft step", *("–" if one.step_ms is None else f"{one.step_ms:.2f}" for one in each)
    yield "ms of a round: drafting", *(f"{one.draft_ms:.1f}" for one in each)
    yield "verification", *(f"{one.verify_ms:.1f}" for one in each)
    yield "rest", *(f"{one.rest_ms:.1f}" for one in each)


def show_header(header: HeaderFigures) -> None:
    """Print the figures of a GGUF header."""
    console = _console(f"{header.name}: {_step(header.step)}")
    figures = {
        "shard": header.first_of and f"1 of {header.first_of}: the tensors of the others are not looked at",
        "architecture": header.architecture,
        "layers": header.layers,
        "hidden": header.hidden,
        "heads": header.heads and f"{header.heads}, {header.key_heads} of keys",
        "vocabulary": header.vocabulary and f"{header.vocabulary:,}",
        "context": header.context and f"{header.context:,}",
        "weights": ", ".join(f"{size / 1e6:,.1f} MB in {kind}" for kind, size in header.weights.items()),
    }
    console.print(_table("header", ("", ""), ((name, str(value)) for name, value in figures.items() if value)))
    if header.keys is not None:
        console.print(_table("keys", ("group", "keys"), _keys(header.keys)))


def _console(line: str, *, works: bool = True) -> Printer:
    """A console, on which a first line is printed in bold."""
    console = Printer()  # tokens may look like markup
    console.print(line, style="bold" if works else "bold red", soft_wrap=True)
    return console


def _table(title: str, columns: Sequence[str], rows: Rows, right: Iterable[int] = ()) -> Table:
    """A table; an empty row is a rule, `right` are the right-aligned columns."""
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place in right else "left", overflow="fold")
    for row in rows:
        if row:
            table.add_row(*row)
        else:
            table.add_section()
    return table


def _verdict(inspection: Inspection) -> str:
    if not inspection.works:
        return f"does not work: {inspection.reason}"
    pair = f"drafter {inspection.drafter.name!r} is compatible with target {inspection.target.name!r}"
    if inspection.unchecked:
        return f"works as far as tokenizers tell: {pair} (no config.json: {', '.join(inspection.unchecked)})"
    return f"works: {pair}" + ("" if inspection.steps else "; speed is not measured (--time)")


def _model(model: Model, *, asked: bool) -> dict[str, str]:
    rows: dict[str, str] = {}
    if (vocabulary := model.vocabulary) is not None:
        rows |= {
            "tokenizer": vocabulary.kind,
            "vocabulary": f"{vocabulary.size:,}",
            "tokens with bytes": f"{vocabulary.writing:,}",
            "special tokens": f"{vocabulary.special:,}",
            "rows without a token": f"{vocabulary.unused:,}",
            "begin of text": _tokens([vocabulary.bos] if vocabulary.bos else []) or "none",
            "end of text": _tokens(vocabulary.eos) or "none",
        }
    if (memory := model.memory) is not None:
        rows |= {
            "parameters": f"{memory.parameters / 1e6:,.1f}M",
            "weights": f"{_size(memory.weight_bytes)} in {memory.dtype} on {memory.device} ({memory.dtype_reason})",
            "KV cache": _kv(memory),
        }
    if model.step is not None:
        rows["step on a CPU"] = _step(model.step, asked=asked)
    return rows


def _step(step: StepReport, *, asked: bool = False) -> str:
    """The implementation that computes a model on a CPU; `asked` if it takes `--dtype int8`."""
    if step.how == NATIVE:
        return f"native step{' with --dtype int8' if asked else ' of at most 8 bits'} ({step.family})"
    why = f"{step.reason} ({step.code}{f', {step.field}' if step.field else ''})"
    return f"transformers, {SLOWER}: {why}" if step.how == TRANSFORMERS else f"not yet: {step.reason}"


def _kv(memory: Memory) -> str:
    if memory.kv_bytes is None:
        return UNKNOWN
    full = "" if memory.context is None else f"; {_size(memory.kv_bytes * memory.context)} at {memory.context:,}"
    return f"{_size(memory.kv_bytes)} per token{full}"


def _spellings(spellings: Spellings, target: Vocabulary, drafter: Vocabulary) -> Rows:
    ours, theirs = f"of the drafter's {drafter.size:,}", f"of the target's {target.size:,}"
    examples = _tokens(spellings.unspelled_examples)
    missing = f": the drafter cannot write {examples}" if examples else ""
    unused = f"; {target.unused:,} rows have no token" if target.unused else ""
    matches, ngrams = _percent(spellings.byte_matches, drafter.size), _percent(spellings.ngrams, spellings.spelled)
    yield "byte matches", f"{spellings.byte_matches:,}", f"{ours} ({matches}) are single target tokens"
    yield "spelled", f"{spellings.spelled:,}", theirs
    yield "not spelled", f"{spellings.unspelled:,}", f"{theirs}{missing}{unused}"
    yield "n-grams", f"{spellings.ngrams:,}", f"of the spelled ({ngrams}) take several drafter tokens"
    yield "duplicates", f"{spellings.duplicates:,}", "of the spelled share another token's spelling: never proposed"
    yield "over-long", f"{spellings.overlong:,}", f"{ours} stand for several target tokens"
    yield "idle", f"{spellings.idle:,}", f"{ours} propose nothing"
    yield "mean length", f"{spellings.mean_length:.2f}", "drafter tokens per spelling"
    yield "table", _size(spellings.table_bytes), f"in memory, {spellings.nodes:,} nodes"


def _specials(specials: Sequence[Special], target: Vocabulary, drafter: Vocabulary) -> Rows:
    for special in specials:
        if special.becomes is not None:
            yield _tokens([special.token]), _tokens([special.becomes])
    dropped = [special.token for special in specials if special.becomes is None]
    if target.bos is not None and target.bos in dropped:
        dropped.remove(target.bos)
        first = " ".join(_tokens([token]) for token in drafter.first)
        yield _tokens([target.bos]), f"{first} at its beginning" if first else "dropped"
    if dropped:
        more = f" and {len(dropped) - SHOWN:,} more" if len(dropped) > SHOWN else ""
        yield _tokens(dropped[:SHOWN]) + more, "dropped"


def _steps(steps: PassTimes) -> Rows:
    for size, seconds in steps.target.items():
        yield f"target, {size} {'tokens' if size > 1 else 'token'}", f"{1e3 * seconds:.2f}"
    yield "drafter, 1 token", f"{1e3 * steps.drafter:.2f}"


def _break_even(lengths: Sequence[BreakEven]) -> Rows:
    yield "acceptance", *("never" if one.acceptance is None else f"{one.acceptance:.2f}" for one in lengths)
    yield "speedup if all are accepted", *(f"{one.best:.2f}" for one in lengths)


def _keys(report: KeyReport) -> Rows:
    for group, names in report.honoured.items():
        yield group, ", ".join(name.removeprefix(f"{report.architecture}.") for name in names)
    if report.harmless:
        yield "harmless", ", ".join(report.harmless)


def _tokens(tokens: Iterable[Token]) -> str:
    """Tokens with their ids, and with escapes for what cannot be printed."""
    texts = {
        token.id: "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in token.text)
        for token in tokens
    }
    return ", ".join(f"{text} ({number})" for number, text in texts.items())


def _percent(count: int, whole: int) -> str:
    return f"{100 * count / whole:.1f} %" if whole else "–"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
