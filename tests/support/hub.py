"""A small hub on this machine: the part of its HTTP interface that mlxgen uses, for the real huggingface_hub client."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = b'{"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1}'
WHOLE = {
    ".gitattributes": b"-",
    "README.md": b"# a model",
    "config.json": CONFIG,
    "generation_config.json": b"{}",
    "tokenizer.json": b"{ }",
    "vocab.json": b"{  }",
    "merges.txt": b"#version: 0.2",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same, pickled",
    "tf_model.h5": b"the same",
    "onnx/config.json": b"{}",
    "onnx/model.onnx": b"the same",
}


class Hub(ThreadingHTTPServer):
    """The part of the hub's HTTP interface that a download uses. Keeps what was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.refusals: dict[str, tuple[int, str]] = {}  # repo -> status and the hub's error code
        self.asked: list[str] = []
        self.cut_at: int | None = None  # bytes of a file after which the connection breaks
        self.cut_every: int | None = None  # bytes of an answer after which the connection breaks
        self.listing: bytes | None = None  # in place of the repository's own
        self.pause: float | None = None  # seconds between the bytes of an answer
        self.compressed = False  # whether files are sent with gzip
        self.ranges: list[str] = []
        self.damaged: set[str] = set()  # files that arrive with other bytes than the hub has
        self.uploaded: dict[str, bytes] = {}

    @property
    def downloaded(self) -> set[str]:
        marker = f"/resolve/{COMMIT}/"
        return {path.partition(marker)[2] for path in self.asked if path.startswith("GET") and marker in path}


class Answer(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.asked.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        repo, rest = ("/".join(parts[2:4]), parts[4:]) if api else ("/".join(parts[:2]), parts[2:])
        if repo in self.server.refusals:
            status, code = self.server.refusals[repo]
            return self.send(status, b"", {"X-Error-Code": code} if code else {})
        files = self.server.repos.get(repo)
        if files is None:
            return self.send(404, b"", {"X-Error-Code": "RepoNotFound"})
        if len(rest) > 1 and rest[1] not in ("main", COMMIT):
            return self.send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if api:
            siblings = [{"rfilename": name} for name in files]
            info = {"id": repo, "sha": COMMIT, "siblings": siblings, "tags": [], "downloads": 0}
            listing = json.dumps(info).encode() if self.server.listing is None else self.server.listing
            return self.send(200, listing, {"Content-Type": "application/json"})
        name = "/".join(rest[2:])
        if name not in files:
            return self.send(404, b"", {"X-Error-Code": "EntryNotFound"})
        tag = etag(name, files[name])
        data = files[name] if name not in self.server.damaged else bytes(byte ^ 1 for byte in files[name])
        return self.send_file(data, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT})

    do_HEAD = do_GET

    def send_file(self, data: bytes, headers: dict[str, str]) -> None:
        """The file, or the rest of it from where the client has it; cut off where the test says so."""
        asked, begin = self.headers.get("Range"), 0
        if asked and self.command == "GET":
            self.server.ranges.append(asked)
            begin = int(asked.removeprefix("bytes=").partition("-")[0])
            headers |= {"Content-Range": f"bytes {begin}-{len(data) - 1}/{len(data)}"}
        if self.server.compressed and self.command == "GET":
            self.send(200, gzip.compress(data), headers | {"Content-Encoding": "gzip"})
            return
        cut = self.server.cut_at
        if self.server.cut_every:
            cut = begin + self.server.cut_every
        if cut is None or len(data) <= cut or self.command == "HEAD":
            self.send(206 if begin else 200, data[begin:], headers)
            return
        self.send_response(206 if begin else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data) - begin))
        self.end_headers()
        self.wfile.write(data[begin:cut])
        self.close_connection = True

    def do_POST(self) -> None:
        """An upload: the repository is made, each file goes into the commit itself."""
        body = self.read_body()
        path = self.path.partition("?")[0]
        self.server.asked.append(f"POST {path}")
        url = f"http://127.0.0.1:{self.server.server_port}"
        if "" in self.server.refusals:
            return self.send(self.server.refusals[""][0], b"{}", {})
        answer: dict[str, Any] = {}
        if path.endswith("/repos/create"):
            answer = {"url": f"{url}/{json.loads(body).get('organization', 'someone')}/{json.loads(body)['name']}"}
        elif "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
        elif "/commit/" in path:
            for entry in map(json.loads, body.splitlines()):
                if entry["key"] == "file":
                    self.server.uploaded[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            answer = {
                "commitUrl": f"{url}/{path.partition('/models/')[2].partition('/commit/')[0]}/commit/{COMMIT}",
                "commitOid": COMMIT,
                "success": True,
            }
        return self.send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while length := int(self.rfile.readline(), 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.write_slowly(body)

    def write_slowly(self, body: bytes) -> None:
        pause = self.server.pause
        for at in range(0, len(body), 1 if pause else max(1, len(body))):
            self.wfile.write(body[at : at + 1] if pause else body)
            time.sleep(pause or 0)

    def log_message(self, *_: Any) -> None:
        pass


def etag(name: str, data: bytes) -> str:
    """What the hub names a file by: SHA-256 for weights, git's SHA-1 for the others."""
    if name.endswith((".safetensors", ".bin")):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    server.repos["someone/tales"] = dict(WHOLE)
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for variable in ("HF_TOKEN", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.chdir(tmp_path)
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def no_network(hub: Hub) -> Hub:
    """The hub's address with nobody there."""
    hub.shutdown()
    hub.server_close()
    return hub
