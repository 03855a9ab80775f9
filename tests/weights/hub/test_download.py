"""Downloads from a hub that breaks off, dawdles or lies: nothing that came is lost, nothing is written elsewhere."""

import gzip
import json
import os
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from mlxgen.errors import ModelError
from mlxgen.weights.hub import answers, download
from mlxgen.weights.hub.locate import resolve

from ...support.hub import COMMIT, WHOLE, Hub

WEIGHTS = os.urandom(300_000)


@pytest.fixture
def large(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub whose weights are larger than what counts as progress."""
    hub.repos["someone/tales"] = WHOLE | {"model.safetensors": WEIGHTS}
    monkeypatch.setattr(download, "PAUSE", 0)
    return hub


def refusal(name: str = "someone/tales") -> str:
    with pytest.raises(ModelError) as caught:
        resolve(name)
    assert str(caught.value).isprintable()
    return str(caught.value)


def left_over() -> list[Path]:
    return list(Path(constants.HF_HUB_CACHE).rglob("*.mlxgen-part"))


def test_after_each_cut_the_download_goes_on_where_it_was(large: Hub) -> None:
    large.cut_every = 40_000
    assert (resolve("someone/tales") / "model.safetensors").read_bytes() == WEIGHTS
    assert large.ranges == [f"bytes={at}-" for at in range(40_000, 300_000, 40_000)]
    assert not left_over()


def test_what_came_is_kept_for_the_next_run_however_little_it_is(large: Hub) -> None:
    large.cut_every = 1000  # five tries that bring next to nothing
    assert "interrupted" in refusal() and "run the command again to resume it" in refusal()
    assert [part.stat().st_size for part in left_over()] == [10_000]
    large.cut_every = None
    large.ranges.clear()
    assert (resolve("someone/tales") / "model.safetensors").read_bytes() == WEIGHTS
    assert large.ranges == ["bytes=10000-"]


def test_the_clients_own_functions_find_what_was_downloaded(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = resolve("someone/tales", "main")
    assert (folder.parent.parent / "refs" / "main").read_text() == COMMIT
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert Path(snapshot_download("someone/tales", local_files_only=True)) == folder
    assert resolve("someone/tales") == folder


def test_a_server_that_ignores_ranges_sends_all_of_it_again(large: Hub) -> None:
    large.cut_at = 50_000
    refusal()
    large.cut_at = None
    large.compressed = True  # which is sent as a whole
    assert (resolve("someone/tales") / "model.safetensors").read_bytes() == WEIGHTS


def test_an_answer_that_is_larger_than_the_file_leaves_nothing(large: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    monkeypatch.setattr("tests.support.hub.gzip.compress", lambda data: bomb)
    large.compressed = True
    large.repos["someone/tales"] = {"config.json": b"{}", "model.safetensors": WEIGHTS}
    assert "config.json is larger than it says" in refusal()
    assert not left_over()


@pytest.mark.parametrize("tag", ["/tmp/evil", "../../evil", "a" * 200, "", "0" * 40 + "/x", "0123456789é"])
def test_an_etag_that_is_not_hexadecimal_is_refused(hub: Hub, tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.hub.etag", lambda name, data: tag.encode().decode("latin-1"))
    assert "ETag" in refusal() and "hexadecimal" in refusal()
    assert not [path for path in Path(constants.HF_HUB_CACHE).rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("listing", "told"),
    [
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"<html>", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        (b"[]", "not a list of files"),
        (b'{"siblings": 5, "sha": "0123456"}', "not a list of files"),
        (b'{"siblings": [5], "sha": "0123456"}', "not a list of files"),
        (b'{"siblings": []}', "not a list of files"),
        (b'{"siblings": [], "sha": "../../../evil"}', "'../../../evil' is not a hexadecimal"),
        (b'{"siblings": [], "sha": "/evil\\u001b"}', "not a hexadecimal"),
        (b'{"siblings": [], "sha": null}', "not a hexadecimal"),
    ],
)
def test_a_malformed_listing_is_called_so(hub: Hub, listing: bytes, told: str) -> None:
    hub.listing = listing
    message = refusal()
    assert "answer" in message and "invalid" in message and told in message and "cannot be reached" not in message
    assert not Path(constants.HF_HUB_CACHE).exists()


def test_a_listing_too_large_is_not_read_to_its_end(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_JSON", 1 << 20)
    hub.listing = bytes(3 << 20)
    assert "larger than 1 MB" in refusal()


def test_names_that_would_not_print_are_not_asked_for(hub: Hub) -> None:
    names = [*WHOLE, "\x1b]0;evil\x07.model", "../evil.model", "evil/vocab.txt"]
    siblings = [{"rfilename": name} for name in names]
    hub.listing = json.dumps({"sha": COMMIT, "siblings": siblings}).encode()
    resolve("someone/tales")
    assert all(path.isprintable() and "evil" not in path and "%1B" not in path for path in hub.asked)


def test_a_server_of_a_few_bytes_a_second_does_not_hold_us(large: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "PATIENCE", 0.3)
    monkeypatch.setattr(download, "TRIES", 2)
    large.pause = 0.02
    assert "only" in refusal() and "bytes came in" in refusal()  # the listing
    large.pause = None
    begin = Hub.finish_request

    def late(self: Hub, *args: object) -> None:
        answered.wait(10)
        begin(self, *args)  # type: ignore[arg-type]

    answered = threading.Event()
    monkeypatch.setattr(Hub, "finish_request", late)
    assert "no answer came" in refusal()
    answered.set()


def test_two_downloads_at_once_take_turns(large: Hub) -> None:
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(resolve("someone/tales"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4 and len(set(folders)) == 1
    assert (folders[0] / "model.safetensors").read_bytes() == WEIGHTS and not left_over()
    gets = [path for path in large.asked if path.startswith("GET") and path.endswith("/model.safetensors")]
    assert len(gets) == 1
