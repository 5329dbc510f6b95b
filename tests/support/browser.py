"""A headless Chromium, and the server's page in it."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

ARTEFACTS = Path(__file__).parents[2] / "artefacts"
WAIT_S = 110  # less than the driver's own limit; for what must come, on a busy machine as well
QUIET = (  # no calls home, which a closed network would refuse by the dozen
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextmanager
def chromium(profile: Path) -> Iterator[webdriver.Chrome]:
    """A browser with an empty profile; skips where there is none."""
    found = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    if missing := [name for name, path in found.items() if path is None]:
        pytest.skip(f"no {' and no '.join(missing)}: install the packages chromium and chromium-driver of Debian")
    options = webdriver.ChromeOptions()
    options.binary_location = str(found["chromium"])
    for argument in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(found["chromedriver"])))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page of a server, as a person uses and sees it."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self.complaints()  # those of before
        self.resize(1280, 860)

    def open(self, *, ready: bool = True) -> None:
        """Load it; `ready` waits until a message can be sent."""
        self.driver.get(self.url)
        if ready:
            self.wait(lambda: self.one("#model").is_enabled())

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        """Have the system be "light" or "dark"."""
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    # ------------------------------------------------------------ doing

    def send(self, text: str) -> None:
        self.one("#message").send_keys(text, Keys.ENTER)

    def keys(self, *keys: str | tuple[str, str]) -> None:
        """Type to whatever has the focus; a pair is a key held and one pressed meanwhile."""
        for key in keys:
            actions = ActionChains(self.driver)
            if isinstance(key, tuple):
                actions.key_down(key[0]).send_keys(key[1]).key_up(key[0]).perform()
            else:
                actions.send_keys(key).perform()

    def wait_for_answers(self, count: int) -> None:
        self.wait(partial(self.answered, count))

    def wait(self, condition: Callable[[], object]) -> None:
        """Fail unless the condition comes to hold."""
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, self.text("body")
            time.sleep(0.05)

    def shot(self, name: str, selector: str | None = None) -> None:
        """Keep a picture of the page, or of an element of it."""
        ARTEFACTS.mkdir(exist_ok=True)
        path = str(ARTEFACTS / f"page-{name}.png")
        self.one(selector).screenshot(path) if selector else self.driver.save_screenshot(path)

    # ------------------------------------------------------------ seeing

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        """The text of every element, read at once, as the page may change meanwhile."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText ?? e.textContent)"
        found: list[str] = self.driver.execute_script(script, selector)
        return found

    def text(self, selector: str) -> str:
        """The text of the first element, empty without any."""
        return next(iter(self.texts(selector)), "")

    def attributes(self, selector: str, name: str) -> list[str]:
        """An attribute of every element, read at once."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.getAttribute(arguments[1]) ?? '')"
        found: list[str] = self.driver.execute_script(script, selector, name)
        return found

    def answered(self, count: int = 1) -> bool:
        """True when there are so many answers, all complete."""
        return len(self.all("article.answer")) == count == len(self.all('article.answer[aria-busy="false"]'))

    def focused(self) -> str:
        """The id of what has the focus."""
        return str(self.driver.execute_script("return document.activeElement.id"))

    def overflow(self) -> int:
        """Pixels by which the page, or what scrolls in it, is wider than its place."""
        script = "return [...document.querySelectorAll('html, #log, #panel')].map((e) => e.scrollWidth - e.clientWidth)"
        return max(map(int, self.driver.execute_script(script)))

    def colour(self, selector: str, name: str = "color") -> tuple[int, ...]:
        """Red, green and blue of the first element's property, read at once, as the page may change meanwhile."""
        script = "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"
        return tuple(map(int, re.findall(r"\d+", self.driver.execute_script(script, selector, name))[:3]))

    def contrast(self, selector: str, name: str = "color") -> float:
        """The contrast of an element with the page's ground, by WCAG 2."""
        pair = (_luminance(self.colour(selector, name)), _luminance(self.colour("body", "background-color")))
        return (max(pair) + 0.05) / (min(pair) + 0.05)

    def complaints(self) -> list[str]:
        """What the browser wrote to its console since the last time."""
        return [json.dumps(entry) for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def grant_clipboard(self) -> None:
        permissions = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
        self.driver.execute_cdp_cmd("Browser.grantPermissions", permissions)

    def clipboard(self) -> str:
        read = "navigator.clipboard.readText().then(arguments[0])"
        return str(self.driver.execute_async_script(read))


def _luminance(colour: tuple[int, ...]) -> float:
    parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))
