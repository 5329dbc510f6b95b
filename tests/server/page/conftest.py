"""One headless Chromium for all tests of the page, and a server with canned answers for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Page, chromium
from support.fake_server import FakeServer


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here waits for a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def downloads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the browser saves files."""
    return tmp_path_factory.mktemp("downloads")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory, downloads: Path) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("browser")) as driver:
        allowed = {"behavior": "allow", "downloadPath": str(downloads)}
        driver.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
        yield driver


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A server with a port, and so a storage in the browser, of its own."""
    with FakeServer() as fake:
        yield fake


@pytest.fixture
def page(driver: Any, fake: FakeServer) -> Iterator[Page]:
    """The page, loaded; in the end nothing may have been complained about."""
    page = Page(driver, fake.url)
    page.open()
    yield page
    assert page.complaints() == []
