"""The hub's answers, which are untrusted: each must make progress, be no larger than expected, and be well-formed."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

PATIENCE = 30.0  # seconds in which an answer must begin, and in which at least so many bytes of it must come
LEAST_BYTES = 30_000
MOST_JSON = 32 << 20  # bytes of a repository's listing
BUSY = (408, 429, 500, 502, 503, 504)  # statuses of an answer
HEX = re.compile(r"[0-9a-f]{7,128}")
T = TypeVar("T")


class BadAnswer(Exception):
    """The hub answered, but not as the hub does."""


class Stalled(Exception):
    """The hub stopped answering, or became too slow."""


def checked_hex(name: str, value: object) -> str:
    """A commit or an ETag, which becomes part of a path. Raises BadAnswer for anything but hexadecimal digits."""
    if not isinstance(value, str) or not HEX.fullmatch(value):
        raise BadAnswer(f"its {name} {str(value)[:80]!r} is not a hexadecimal number")
    return value


def get_json(url: str) -> Any:
    """The JSON at an address. Raises BadAnswer, Stalled, and the client's errors."""
    with opened(url) as response:
        content = b""
        for piece in pieces(response):
            content += piece
            if len(content) > MOST_JSON:
                raise BadAnswer(f"it is larger than {MOST_JSON >> 20} MB")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise BadAnswer("it is not valid JSON") from None


@contextmanager
def opened(url: str, headers: dict[str, str] | None = None) -> Iterator[Any]:
    """The response to a GET request, to be read with `pieces`. Raises Stalled, and the client's errors."""
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    client = get_session()
    own = {"Accept-Encoding": "identity"}  # so that sizes and ranges are those of the file
    request = client.build_request(
        "GET",
        url,
        headers=build_hf_headers(library_name="mlxgen") | own | (headers or {}),
        timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT,
    )
    response = in_time(lambda: client.send(request, stream=True, follow_redirects=True))
    try:
        in_time(lambda: hf_raise_for_status(response))  # which reads the reason
        yield response
    finally:
        response.close()


def pieces(response: Any) -> Iterator[bytes]:
    """The content of a response as it comes. Raises Stalled where it comes too slowly."""
    since, came = time.monotonic(), 0
    for piece in response.iter_bytes():
        came += len(piece)
        yield piece
        if time.monotonic() - since > PATIENCE:
            if came < LEAST_BYTES:
                raise Stalled(f"only {came:,} bytes came in {PATIENCE:.0f} seconds")
            since, came = time.monotonic(), 0


def in_time(call: Callable[[], T]) -> T:
    """What the call returns. Raises Stalled if that takes too long.

    The client's own time-outs are for each byte, so a server that sends one byte after another would hold it for ever.
    The call then goes on in its thread until its connection ends.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if errors:
        raise errors[0]
    if not results:
        raise Stalled(f"no answer came in {PATIENCE:.0f} seconds")
    return results[0]


def is_transient(error: Exception) -> bool:
    """Whether trying again may help: the connection broke, it stalled, or the hub is busy."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in BUSY
    return not isinstance(error, BadAnswer | OSError | ValueError)
