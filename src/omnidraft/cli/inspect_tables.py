"""What `omnidraft inspect` prints: the verdict, then a table for each question."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from omnidraft.inspection.report import Inspection, Model
from omnidraft.inspection.texts import TextFigures
from omnidraft.inspection.timing import LENGTHS, Steps
from omnidraft.inspection.vocabularies import Special, Spellings, Token, Vocabulary

SHOWN = 4  # dropped special tokens that are named
UNKNOWN = "unknown"


def show(found: Inspection) -> None:
    """Print all that is known of a pair."""
    console = Console(highlight=False, markup=False, emoji=False)  # tokens may look like any of them
    console.print(_verdict(found), style="bold" if found.works else "bold red", soft_wrap=True)
    console.print(_models(found.target, found.drafter))
    target, drafter = found.target.vocabulary, found.drafter.vocabulary
    if target is not None and drafter is not None and found.spellings is not None:
        console.print(_spellings(found.spellings, target, drafter))
        console.print(_specials(found.specials or (), target, drafter))
    if found.texts is not None:
        console.print(_texts(found.texts))
        for line in _said(found.texts):
            console.print(line)
    if found.steps is not None:
        console.print(_steps(found.steps))
        console.print(_break_even(found))
        console.print(
            "The acceptance of each draft token from which on drafting pays, by what the models' own passes cost; "
            "in brackets the gain where everything is accepted."
        )


def _verdict(found: Inspection) -> str:
    if not found.works:
        return f"does not work: {found.reason}"
    names = f"{found.drafter.name} can draft for {found.target.name}"
    if not found.unchecked:
        return f"works: {names}"
    return f"works as far as tokenizers tell: {names} (without a config.json: {', '.join(found.unchecked)})"


def _table(title: str, *columns: str, numbers: bool = True) -> Table:
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and place else "left", overflow="fold")
    return table


def _models(target: Model, drafter: Model) -> Table:
    table = _table("the models", "", f"target: {target.name}", f"drafter: {drafter.name}", numbers=False)
    of_vocabulary: dict[str, Callable[[Vocabulary], str]] = {
        "tokenizer": lambda v: v.kind,
        "vocabulary": lambda v: f"{v.size:,}",
        "tokens that write bytes": lambda v: f"{v.writing:,}",
        "special tokens": lambda v: f"{v.special:,}",
        "rows without a token": lambda v: f"{v.unused:,}",
        "a text begins with": lambda v: _token(v.bos) if v.bos else "nothing",
        "a text ends with": lambda v: ", ".join(map(_token, v.eos)) or "nothing",
    }
    for row, figure in of_vocabulary.items():
        table.add_row(row, *(figure(m.vocabulary) if m.vocabulary else UNKNOWN for m in (target, drafter)))
    table.add_section()
    of_memory: dict[str, Callable[[Model], str]] = {
        "parameters": lambda m: f"{m.memory.parameters / 1e6:,.1f}M" if m.memory else UNKNOWN,
        "weights in memory": _weights,
        "KV cache": _kv,
    }
    for row, text in of_memory.items():
        table.add_row(row, text(target), text(drafter))
    return table


def _weights(model: Model) -> str:
    memory = model.memory
    if memory is None:
        return UNKNOWN
    text = f"{_size(memory.weight_bytes)} in {memory.dtype} on {memory.device}"
    if memory.stored_bytes is None or memory.stored == memory.dtype:
        return text
    return f"{text} ({memory.dtype_reason}); {_size(memory.stored_bytes)} as stored, in {memory.stored}"


def _kv(model: Model) -> str:
    memory = model.memory
    if memory is None or memory.kv_bytes is None:
        return UNKNOWN
    text = f"{_size(memory.kv_bytes)} a token"
    return (
        text if memory.context is None else f"{text}; {_size(memory.kv_bytes * memory.context)} at {memory.context:,}"
    )


def _spellings(found: Spellings, target: Vocabulary, drafter: Vocabulary) -> Table:
    table = _table("the target's vocabulary in the drafter's tokens", "", "tokens", "", numbers=False)
    table.columns[1].justify = "right"
    ours, theirs = f"of the drafter's {drafter.size:,}", f"of the target's {target.size:,}"
    unused, nothing = found.byte_matches - found.byte_matches_in_use, found.spelled - found.spelled_in_use
    examples = ", ".join(map(_token, found.unspelled_examples))
    share = _percent(found.ngrams / found.spelled_in_use if found.spelled_in_use else 0.0)
    rows: dict[str, tuple[int | float, str]] = {
        "byte matches": (
            found.byte_matches,
            f"{ours} ({_percent(found.byte_matches / drafter.size)}) are single tokens of the target, too"
            + (f"; {unused} are special, and not used" if unused else ""),
        ),
        "spelled": (found.spelled, theirs + (f"; {nothing:,} are special, and write nothing" if nothing else "")),
        "not spelled": (
            found.unspelled,
            (f"{theirs}: the drafter cannot write {examples}" if examples else theirs)
            + (f"; {target.unused:,} rows have no token" if target.unused else ""),
        ),
        "n-grams": (found.ngrams, f"of the spelled ({share}) take several drafter tokens"),
        "mean length": (found.mean_length, "drafter tokens in a spelling"),
        "duplicates": (found.duplicates, "of the spelled are spelled as another one: never proposed"),
        "over-long": (found.overlong, f"{ours} stand for several of the target's"),
        "idle": (found.idle, f"{ours} propose nothing"),
    }
    for row, (count, text) in rows.items():
        table.add_row(row, f"{count:,}" if isinstance(count, int) else f"{count:.2f}", text)
    table.add_row("table", _size(found.table_bytes), f"in memory, {found.nodes:,} nodes")
    return table


def _specials(found: Sequence[Special], target: Vocabulary, drafter: Vocabulary) -> Table:
    table = _table("special tokens of the target", "token", "in the drafter's context", numbers=False)
    for special in found:
        if special.becomes is not None:
            table.add_row(_token(special.token), _token(special.becomes))
    dropped = [special.token for special in found if special.becomes is None]
    if target.bos in dropped:
        dropped.remove(target.bos)
        table.add_row(_token(target.bos), f"{_token(drafter.bos)} at its beginning" if drafter.bos else "dropped")
    if dropped:
        more = f" and {len(dropped) - SHOWN:,} more" if len(dropped) > SHOWN else ""
        table.add_row(", ".join(map(_token, dropped[:SHOWN])) + more, "dropped")
    return table


def _texts(found: Sequence[TextFigures]) -> Table:
    columns = ("tokens", "n-grams", "differs", "longer", "ratio", "left out")
    left_out = any(text.left_out for text in found)
    table = _table("texts in the tokens of both", "text", *columns[: None if left_out else -1])
    for text in found:
        row = [
            f"{text.target_tokens:,}",
            *map(_percent, (text.ngram_share, text.missed_share, text.excess)),
            "–" if text.ratio is None else f"{text.ratio:.2f}",
            f"{text.left_out:,} bytes",
        ]
        table.add_row(text.name, *row[: None if left_out else -1])
    return table


def _said(found: Sequence[TextFigures]) -> list[str]:
    """What the table of texts comes to."""
    figures: dict[str, Callable[[TextFigures], float | None]] = {
        "n-grams: {} of the target's tokens take several drafter tokens": lambda text: text.ngram_share,
        "differs: what a draft is read as misses {} of the tokens that the target itself writes": lambda t: (
            t.missed_share
        ),
        "longer: spelled token by token, the text takes {} more drafter tokens than by the drafter's own rules": (
            lambda text: text.excess
        ),
    }
    lines = []
    for sentence, figure in figures.items():
        known = [(value, text.name) for text in found if (value := figure(text)) is not None]
        if known:
            (low, where_low), (high, where_high) = min(known), max(known)
            between = f"{_percent(low)} ({where_low}) to {_percent(high)} ({where_high})"
            line = sentence.format(_percent(low) if _percent(low) == _percent(high) else between)
            lines.append(line)
    return [*lines, "ratio: target tokens in a draft token, on average"]


def _steps(steps: Steps) -> Table:
    table = _table("passes on this machine", f"after {steps.context} tokens", "ms, median")
    for size, seconds in steps.target.items():
        table.add_row(f"target, {size} {'tokens' if size > 1 else 'token'}", f"{1e3 * seconds:.2f}")
    table.add_row("drafter, 1 token", f"{1e3 * steps.drafter:.2f}")
    return table


def _break_even(found: Inspection) -> Table:
    table = _table("break-even", "draft tokens a round", *map(str, LENGTHS))
    rows: dict[str | None, list[str]] = {}
    for one in found.break_even or ():
        acceptance = "never" if one.acceptance is None else f"{one.acceptance:.2f}"
        rows.setdefault(one.text, []).append(f"{acceptance} ({one.best:.2f}x)")
    for text, cells in rows.items():
        table.add_row(text or "one for one", *cells)
    return table


def _token(token: Token) -> str:
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in token.text)
    return f"{text} ({token.id})"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _size(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
