"""What huggingface_hub's client itself shows during a download."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def client_output() -> Iterator[None]:
    """Let the client show its progress bars on a terminal only, and none of its warnings.

    It retries an interrupted download by itself; the last failure is reported.
    """
    import logging

    from huggingface_hub.utils import logging as hub_logging
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    verbosity = hub_logging.get_verbosity()
    no_bars = not sys.stderr.isatty() and not are_progress_bars_disabled()
    hub_logging.set_verbosity(logging.ERROR)
    if no_bars:
        disable_progress_bars()
    try:
        yield
    finally:
        hub_logging.set_verbosity(verbosity)
        if no_bars:
            enable_progress_bars()
