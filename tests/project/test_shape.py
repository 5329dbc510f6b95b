"""The limits on the source's size, which `make check` holds: each is exceeded by a planted module."""

from __future__ import annotations

import pytest

from support.project_files import tool

shape = tool("check_shape")


def function(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("#\n" * (shape.FILE_LINES + 1), "a.b has 801 lines"),
        (function(shape.FUNCTION_LINES + 1), "a.b.f has 61 lines"),
        ("class C:\n    async " + function(61).replace("\n", "\n    "), "a.b.f has 61 lines"),
        (function(shape.FUNCTION_LINES_P95 + 1), "5 % of functions have 41 lines"),
    ],
)
def test_a_long_file_or_function_is_found(text: str, fault: str) -> None:
    (found, *more) = shape.faults_of([shape.Module("a.b", text)])
    assert found.startswith(fault)
    assert all(each.startswith("5 %") for each in more)


def test_what_is_just_within_the_limits_is_not_reported() -> None:
    long = shape.Module("a.b", "#\n" * shape.FILE_LINES)
    functions = shape.Module("a.c", function(shape.FUNCTION_LINES) + 20 * function(shape.FUNCTION_LINES_P95))
    assert shape.faults_of([long, shape.Module("a.d", function(40))]) == []
    assert [fault for fault in shape.faults_of([functions]) if "800" not in fault] == []


@pytest.mark.parametrize(
    "line", ["import a.thin", "from a import thin", "from a.thin import x", "def late():\n    from a import thin"]
)
def test_a_thin_module_with_one_importer_is_found(line: str) -> None:
    thin, user = shape.Module("a.thin", "x = 1\n"), shape.Module("a.user", line + "\n" * shape.THIN)
    assert shape.faults_of([thin, user]) == ["a.thin has 1 lines and one importer: make it part of that one"]
    other = shape.Module("a.other", line + "\n" * shape.THIN)
    assert shape.faults_of([thin, user, other]) == []
