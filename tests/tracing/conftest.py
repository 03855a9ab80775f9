"""One Chromium for all tests of pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..support.browser import CHROMEDRIVER, CHROMIUM, Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("no Chromium and ChromeDriver here (Debian: apt install chromium chromium-driver)")
    browser = Browser()
    yield browser
    browser.close()
