"""Tables of `omnidraft inspect`: the verdict, then one table per question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.table import Table

from omnidraft.cli.inspect_header import keys, sentence
from omnidraft.draft_length.cost_model import PassTimes
from omnidraft.inspection.break_even import BreakEven
from omnidraft.inspection.models import Memory
from omnidraft.inspection.report import Inspection, Model
from omnidraft.inspection.vocabularies import Special, Spellings, Token, Vocabulary

SHOWN = 4  # dropped special tokens that are named
UNKNOWN, UNDEFINED = "unknown", "–"
Rows = Iterable[Sequence[str]]


def show(found: Inspection) -> None:
    """Print the verdict and every figure."""
    console = Console(highlight=False, markup=False, emoji=False)  # tokens may look like any of them
    console.print(_verdict(found), style="bold" if found.works else "bold red", soft_wrap=True)
    names = (f"target: {found.target.name}", f"drafter: {found.drafter.name}")
    console.print(_table("models", ("", *names), _models(found.target, found.drafter), right=()))
    target, drafter = found.target.vocabulary, found.drafter.vocabulary
    if target is not None and drafter is not None and found.spellings is not None:
        title = "the target's vocabulary in drafter tokens"
        console.print(_table(title, ("", "tokens", ""), _spellings(found.spellings, target, drafter), right=(1,)))
        title = "special tokens of the target"
        rows = _specials(found.specials or (), target, drafter)
        console.print(_table(title, ("token", "in the drafter's context"), rows, right=()))
    if found.steps is not None and found.break_even is not None:
        columns = (f"after {found.steps.context} tokens", "ms, median")
        console.print(_table("forward passes on this machine", columns, _steps(found.steps)))
        lengths = (str(one.length) for one in found.break_even)
        title = "break-even: the acceptance rate from which drafting pays"
        console.print(_table(title, ("draft length", *lengths), _break_even(found.break_even)))
    for model in (found.target, found.drafter):
        if model.keys is not None:
            title = f"keys of {model.name}, architecture {model.keys.architecture}"
            console.print(_table(title, ("group", "keys"), keys(model.keys), right=()))


def _verdict(found: Inspection) -> str:
    if not found.works:
        return f"does not work: {found.reason}"
    pair = f"drafter {found.drafter.name!r} is compatible with target {found.target.name!r}"
    if found.unchecked:
        return f"works as far as tokenizers tell: {pair} (no config.json: {', '.join(found.unchecked)})"
    return f"works: {pair}" + ("" if found.steps else "; speed is not measured (--time)")


def _table(title: str, columns: Sequence[str], rows: Rows, right: Sequence[int] | None = None) -> Table:
    """A table; an empty row is a rule, `right` are the right-aligned columns (default: all but the first)."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        numbers = place > 0 if right is None else place in right
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        if row:
            table.add_row(*row)
        else:
            table.add_section()
    return table


def _models(*models: Model) -> Rows:
    by_vocabulary: dict[str, Callable[[Vocabulary], str]] = {
        "tokenizer": lambda v: v.kind,
        "vocabulary": lambda v: f"{v.size:,}",
        "tokens with bytes": lambda v: f"{v.writing:,}",
        "special tokens": lambda v: f"{v.special:,}",
        "rows without a token": lambda v: f"{v.unused:,}",
        "begin of text": lambda v: _token(v.bos) if v.bos else "none",
        "end of text": lambda v: ", ".join(map(_token, v.eos)) or "none",
    }
    by_memory: dict[str, Callable[[Memory], str]] = {
        "parameters": lambda m: f"{m.parameters / 1e6:,.1f}M",
        "weights": _weights,
        "KV cache": _kv,
    }
    for row, figure in by_vocabulary.items():
        yield row, *(figure(m.vocabulary) if m.vocabulary else UNKNOWN for m in models)
    yield ()
    for row, text in by_memory.items():
        yield row, *(text(m.memory) if m.memory else UNKNOWN for m in models)
    of_files = [m.keys is not None or place > 0 for place, m in enumerate(models)]  # and drafters: 8 bits by default
    steps = zip(models, of_files, strict=True)
    yield "step on a CPU", *(sentence(m.step, asked=not default) if m.step else UNKNOWN for m, default in steps)


def _weights(memory: Memory) -> str:
    text = f"{_size(memory.weight_bytes)} in {memory.dtype} on {memory.device}"
    if memory.stored_bytes is None or memory.stored == memory.dtype:
        return text
    return f"{text} ({memory.dtype_reason}); {_size(memory.stored_bytes)} as stored, in {memory.stored}"


def _kv(memory: Memory) -> str:
    if memory.kv_bytes is None:
        return UNKNOWN
    text = f"{_size(memory.kv_bytes)} per token"
    return (
        text if memory.context is None else f"{text}; {_size(memory.kv_bytes * memory.context)} at {memory.context:,}"
    )


def _spellings(found: Spellings, target: Vocabulary, drafter: Vocabulary) -> Rows:
    ours, theirs = f"of the drafter's {drafter.size:,}", f"of the target's {target.size:,}"
    examples = ", ".join(map(_token, found.unspelled_examples))
    counts: dict[str, tuple[int, str]] = {
        "byte matches": (
            found.byte_matches,
            f"{ours} ({_percent(found.byte_matches, drafter.size)}) are single target tokens",
        ),
        "spelled": (found.spelled, theirs),
        "not spelled": (
            found.unspelled,
            (f"{theirs}: the drafter cannot write {examples}" if examples else theirs)
            + (f"; {target.unused:,} rows have no token" if target.unused else ""),
        ),
        "n-grams": (
            found.ngrams,
            f"of the spelled ({_percent(found.ngrams, found.spelled)}) take several drafter tokens",
        ),
        "duplicates": (found.duplicates, "of the spelled share another token's spelling: never proposed"),
        "over-long": (found.overlong, f"{ours} stand for several target tokens"),
        "idle": (found.idle, f"{ours} propose nothing"),
    }
    for row, (count, text) in counts.items():
        yield row, f"{count:,}", text
    yield "mean length", f"{found.mean_length:.2f}", "drafter tokens per spelling"
    yield "table", _size(found.table_bytes), f"in memory, {found.nodes:,} nodes"


def _specials(found: Sequence[Special], target: Vocabulary, drafter: Vocabulary) -> Rows:
    for special in found:
        if special.becomes is not None:
            yield _token(special.token), _token(special.becomes)
    dropped = [special.token for special in found if special.becomes is None]
    if target.bos in dropped:
        dropped.remove(target.bos)
        first = " ".join(map(_token, drafter.first))
        yield _token(target.bos), f"{first} at its beginning" if first else "dropped"
    if dropped:
        more = f" and {len(dropped) - SHOWN:,} more" if len(dropped) > SHOWN else ""
        yield ", ".join(map(_token, dropped[:SHOWN])) + more, "dropped"


def _steps(steps: PassTimes) -> Rows:
    for size, seconds in steps.target.items():
        yield f"target, {size} {'tokens' if size > 1 else 'token'}", f"{1e3 * seconds:.2f}"
    yield "drafter, 1 token", f"{1e3 * steps.drafter:.2f}"


def _break_even(found: Sequence[BreakEven]) -> Rows:
    yield "acceptance", *("never" if one.acceptance is None else f"{one.acceptance:.2f}" for one in found)
    yield "speedup if all are accepted", *(f"{one.best:.2f}" for one in found)


def _token(token: Token) -> str:
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in token.text)
    return f"{text} ({token.id})"


def _percent(count: int, whole: int) -> str:
    return f"{100 * count / whole:.1f} %" if whole else UNDEFINED


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
