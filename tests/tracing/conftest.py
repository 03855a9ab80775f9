"""One Chromium for all tests of pages, and the page of a module's fixture ``trace``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxgen.tracing.page import page
from mlxgen.tracing.record import Trace

from ..support.browser import CHROMEDRIVER, CHROMIUM, Browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not (CHROMIUM and CHROMEDRIVER):
        pytest.skip("no Chromium and ChromeDriver here (Debian: apt install chromium chromium-driver)")
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def runs(trace: Trace) -> tuple[Trace, ...]:
    """What the page shows: a module's trace, or the two that it compares."""
    return (trace,)


@pytest.fixture(scope="module")
def file(runs: tuple[Trace, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "trace.html"
    path.write_text(page(*runs), encoding="utf-8")
    return path


@pytest.fixture
def width() -> int:
    """Of the window, in pixels."""
    return 1280


@pytest.fixture
def opened(browser: Browser, file: Path, width: int) -> Browser:
    browser.size(width, 900)
    browser.open(file)
    return browser
