"""Make docs/page.png of a server that runs.

    omnidraft serve --target TARGET
    python tools/picture_page.py http://127.0.0.1:8080/ QUESTION...

The page in a headless Chromium, 1280 by 860 pixels, once the questions are answered, at the end of the last answer.
Needs the packages chromium and chromium-driver of Debian, and Pillow.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "page.png"
COLORS = 256


def main(url: str, *questions: str) -> None:
    sys.path.append(str(ROOT / "tests"))
    from support.browser import Page, chromium

    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as driver:
        page = Page(driver, url)
        page.scheme("light")
        page.open()
        for count, question in enumerate(questions, start=1):
            page.send(question)
            page.wait_for_answers(count)
        page.wait(lambda: page.all("#charts .last") != [])
        driver.save_screenshot(str(PICTURE))
    with Image.open(PICTURE) as picture:
        picture.convert("RGB").quantize(COLORS).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
