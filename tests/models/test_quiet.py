import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnidraft.models.quiet import silenced

REPORTS = logging.getLogger("transformers")
PACKAGE = """
from threading import Thread

from omnidraft.models.quiet import silenced

def silence():
    with silenced():
        pass

other = Thread(target=silence, daemon=True)
other.start()
other.join(5)
assert not other.is_alive(), "waits for the import"
from .utils import logging
"""


@pytest.fixture(params=[logging.WARNING, logging.NOTSET], ids=["imported", "not imported"])
def level(request: pytest.FixtureRequest) -> Iterator[int]:
    before = REPORTS.level
    REPORTS.setLevel(request.param)
    yield request.param
    REPORTS.setLevel(before)


def test_reports_are_silenced_inside_alone(level: int) -> None:
    with silenced():
        assert REPORTS.level == (logging.ERROR if level else logging.NOTSET)
    assert REPORTS.level == level


def test_the_last_thread_that_leaves_ends_the_silence(level: int) -> None:
    """Whichever came first: of two that restored what each had found, one would find the silence of the other."""
    first, second = silenced(), silenced()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert REPORTS.level == (logging.ERROR if level else logging.NOTSET)
    second.__exit__(None, None, None)
    assert REPORTS.level == level


def test_nothing_is_imported_while_another_thread_imports_transformers(tmp_path: Path) -> None:
    """Of two threads that import parts of a package, Python gives one a part that is half there."""
    (tmp_path / "transformers" / "utils").mkdir(parents=True)
    (tmp_path / "transformers" / "__init__.py").write_text(PACKAGE, encoding="utf-8")
    (tmp_path / "transformers" / "utils" / "__init__.py").write_text("from .. import other", encoding="utf-8")
    (tmp_path / "transformers" / "utils" / "logging.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import transformers"
    done = subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.PIPE, text=True, timeout=60)
    assert not done.returncode, done.stderr
