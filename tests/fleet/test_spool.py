"""Answers on their way to the trainer: whole segments within a bound, and damage that stays where it is."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from omnidraft.errors import ConfigError
from omnidraft.fleet import spool as spool_module
from omnidraft.fleet.spool import SEGMENT_ANSWERS, SEGMENT_S, Answer, Spool, answers, segments


def answer(number: int = 1) -> Answer:
    return Answer(prompt=[1, 2], tokens=[3, number], drafted=4, accepted=2, version=7)


def read(folder: Path) -> list[Answer]:
    return [each for segment in segments(folder) for each in answers(segment)]


def test_a_segment_is_written_when_it_is_full(tmp_path: Path) -> None:
    spool = Spool(tmp_path, "one", clock=lambda: 0.0)
    for number in range(SEGMENT_ANSWERS):
        assert not segments(tmp_path)
        spool.write()
        spool.add(answer(number))
    spool.write()
    assert read(tmp_path) == [answer(number) for number in range(SEGMENT_ANSWERS)]


def test_a_segment_is_written_after_a_time(tmp_path: Path) -> None:
    now = [5.0]
    spool = Spool(tmp_path, "one", clock=lambda: now[0])
    now[0] += 100
    spool.add(answer())
    spool.write()
    assert not segments(tmp_path)
    now[0] += SEGMENT_S
    spool.write()
    spool.write()
    assert read(tmp_path) == [answer()]
    assert len(segments(tmp_path)) == 1


def test_segments_of_all_replicas_are_in_order(tmp_path: Path) -> None:
    spools = [Spool(tmp_path, name) for name in ("b", "a-1", "a")]
    for number, spool in zip(range(9), itertools.cycle(spools), strict=False):
        spool.add(answer(number))
        spool.write(now=True)
    assert [each.tokens[1] for each in read(tmp_path)] == list(range(9))


def test_segments_that_nobody_reads_stay_within_a_bound(tmp_path: Path) -> None:
    one, other = Spool(tmp_path, "one", most_bytes=1000), Spool(tmp_path, "one-2", most_bytes=10**6)
    for number in range(50):
        for spool in (one, other):
            spool.add(answer(number))
            spool.write(now=True)
    own = [path for path in segments(tmp_path) if path.name.rsplit("-", 2)[0] == "one"]
    assert 0 < sum(path.stat().st_size for path in own) <= 1000
    assert [each.tokens[1] for path in own for each in answers(path)][-1] == 49
    assert len(segments(tmp_path)) - len(own) == 50


def test_answers_that_cannot_be_written_for_long_stay_within_the_bound_and_come_in_segments(tmp_path: Path) -> None:
    size = len(json.dumps(asdict(answer(100)), separators=(",", ":"))) + 1
    spool = Spool(tmp_path, "one", clock=lambda: 0.0, most_bytes=150 * size)
    for number in range(100, 300):
        spool.add(answer(number))
    spool.write(now=True)
    found = [list(answers(path)) for path in segments(tmp_path)]
    assert [len(its) for its in found] == [SEGMENT_ANSWERS, SEGMENT_ANSWERS, 150 - 2 * SEGMENT_ANSWERS]
    assert [each.tokens[1] for its in found for each in its] == list(range(150, 300)), "the oldest have gone"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"prompt": [1]}',
        b'{"prompt": 1, "tokens": [], "drafted": 0, "accepted": 0, "version": 0}',
        b'{"prompt": [1], "tokens": [2], "drafted": -1, "accepted": 0, "version": 0}',
        b'{"prompt": [1], "tokens": [2], "drafted": 1, "accepted": "0", "version": 0}',
        b'{"prompt": [1], "tokens": [2], "drafted": 1, "accepted": 0, "version": 0, "more": 1}',
    ],
)
def test_a_damaged_line_is_skipped(tmp_path: Path, line: bytes) -> None:
    good = json.dumps({"prompt": [1], "tokens": [2], "drafted": 1, "accepted": 0, "version": 0}).encode()
    path = tmp_path / "one-1-2.jsonl"
    path.write_bytes(b"\n".join([line, good, line]))
    assert list(answers(path)) == [Answer(prompt=[1], tokens=[2], drafted=1, accepted=0, version=0)]


@pytest.mark.parametrize(("share", "kept"), [(1.0, 40), (0.25, 10), (0.1, 4)])
def test_a_share_of_the_answers_is_kept(tmp_path: Path, share: float, kept: int) -> None:
    spool = Spool(tmp_path, "one", share=share)
    for number in range(40):
        spool.add(answer(number))
    spool.write(now=True)
    assert len(read(tmp_path)) == kept


def test_what_is_no_segment_has_no_answers(tmp_path: Path) -> None:
    (tmp_path / "folder-1-2.jsonl").mkdir()
    (tmp_path / "link-1-2.jsonl").symlink_to("/dev/zero")
    (tmp_path / "deep-1-2.jsonl").write_bytes(b"[" * 200_000)
    assert len(segments(tmp_path)) == 3
    assert read(tmp_path) == []
    assert list(answers(tmp_path / "gone-1-2.jsonl")) == []


def test_a_full_disk_is_said_once_and_serving_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warnings: list[str] = []
    spool = Spool(tmp_path, "one", warn=warnings.append)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spool_module, "replace_file", full)
        for _ in range(3):
            spool.add(answer())
            spool.write(now=True)
    (said,) = warnings
    assert "No space left on device; they are dropped" in said
    spool.add(answer(5))
    spool.write(now=True)
    assert read(tmp_path) == [answer(5)]


@pytest.mark.parametrize("name", ["", "a/b", "a b", ".a", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="replica is"):
        Spool(tmp_path, name)
