"""Paths of a server's targets and of its cache that are no paths here."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnidraft.errors import ModelError
from omnidraft.server.running.served_model import load_all, name_of
from omnidraft.server.server_settings import Serving
from support.denied import deny


def test_a_target_is_called_by_its_path_where_that_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    (private / "m").mkdir(parents=True)
    assert name_of(str(private / "m")) == "m"
    deny(monkeypatch, private)
    for name in ("~nobody-here/m", "x" * 300, str(private / "m")):
        assert name_of(name) == name
        with pytest.raises(ModelError):
            load_all([name], None, Serving(), warn=pytest.fail, options={})


@pytest.mark.medium
def test_a_cache_in_the_home_of_nobody_is_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"profile": None, "draft_length": 0}
    load_all(["zoo:target-a"], None, Serving(cache_dir="~nobody-here/cache"), warn=pytest.fail, options=options)
    assert (tmp_path / "~nobody-here" / "cache").is_dir()
