"""The tokens of an answer's reasoning, by the answer's tokens alone: however they came in rounds, they are as many."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from omnidraft.server.reading.events import Reasoning
from omnidraft.server.scheduler import Task


def reasoning_tokens(task: Task, ids: Sequence[int], length: int) -> int:
    """How many of these tokens have text of the reasoning, which has `length` characters."""
    if not length:
        return 0
    text = task.served.model.text_after(task.ids, task.options["extras"].marks)
    reader = task.reading.reader(task.served.marks)
    counted: set[int] = set()
    begins: list[int] = []  # places of the tokens in the text; one without text is of the character behind it
    read, told = "", 0
    for token in ids:
        begins.append(len(read))
        new = text.feed([token])
        read += new
        reasoning = "".join(each.text for each in reader.feed(new) if isinstance(each, Reasoning))
        if not reasoning:
            continue
        start = read.rfind(reasoning)  # what is held back may follow it
        first = bisect_left(begins, start)
        if first == len(begins) or begins[first] > start:  # it begins within a token
            first -= 1
        counted.update(range(first, bisect_left(begins, start + len(reasoning))))
        told += len(reasoning)
        if told >= length:
            break
    return len(counted)
