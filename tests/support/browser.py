"""A real headless Chromium, for the tests of pages."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless=new",
    "--no-sandbox",  # for a test that runs as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]


class Browser:
    """Headless Chromium, driven by ChromeDriver over plain HTTP (the WebDriver protocol)."""

    def __init__(self) -> None:
        assert CHROMIUM and CHROMEDRIVER
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._driver = subprocess.Popen([CHROMEDRIVER, "--port=0"], stdout=subprocess.PIPE, text=True)
        self._http = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        assert self._driver.stdout
        port = next(
            found[1] for line in self._driver.stdout if (found := re.search(r"successfully on port (\d+)", line))
        )
        self._url = f"http://127.0.0.1:{port}/session"
        chrome = {"binary": CHROMIUM, "args": [*FLAGS, f"--user-data-dir={self._profile.name}"]}
        wanted = {"goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        self._url += "/" + self._call("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]

    def _call(self, path: str, body: Any = None, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        with self._http.open(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, path: Path) -> None:
        self._call("/url", {"url": path.as_uri()})

    def show(self, text: str, folder: Path) -> None:
        """Open a page, which is written into the folder."""
        file = folder / "page.html"
        file.write_text(text, encoding="utf-8")
        self.open(file)

    def js(self, script: str, *args: Any) -> Any:
        return self._call("/execute/sync", {"script": script, "args": list(args)})

    def text(self, selector: str) -> str:
        return str(self.js("return document.querySelector(arguments[0]).textContent", selector))

    def click(self, selector: str) -> None:
        self.js("document.querySelector(arguments[0]).click()", selector)

    def move(self, control: str, value: object) -> None:
        """Set a slider."""
        script = "const c = document.getElementById(arguments[0]); c.value = arguments[1];"
        self.js(script + " c.dispatchEvent(new Event('input'))", control, value)

    def keys(self, *keys: str) -> None:
        """Press real keys, one after another, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def hover(self, selector: str) -> None:
        """Move a real pointer over an element."""
        script = (
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
            " const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2].map(Math.round)"
        )
        x, y = self.js(script, selector)
        move = {"type": "pointerMove", "duration": 0, "x": x, "y": y}
        self._call("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def command(self, name: str, **params: Any) -> Any:
        return self._call("/goog/cdp/execute", {"cmd": name, "params": params})

    def size(self, width: int, height: int, dark: bool = False) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self) -> bytes:
        return base64.b64decode(
            self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        )

    def console(self) -> list[str]:
        return [entry["message"] for entry in self._call("/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """What was asked for over the network or from disk since the last call."""
        entries = [json.loads(entry["message"])["message"] for entry in self._call("/se/log", {"type": "performance"})]
        return [one["params"]["request"]["url"] for one in entries if one["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._call("", method="DELETE")
        self._driver.terminate()
        self._driver.wait(30)
        assert self._driver.stdout
        self._driver.stdout.close()
        self._profile.cleanup()


# Every visible text's colour against the background behind it (WCAG 2.2, 1.4.3).
CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
const rgba = (colour) => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const over = (top, below) => top.slice(0, 3).map((c, i) => (c * top[3]) / 255 + below[i] * (1 - top[3] / 255));
const behind = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.unshift(rgba(getComputedStyle(e).backgroundColor));
  return layers.reduce((below, top) => over(top, below), [255, 255, 255]);
};
const [seen, low] = [[], []];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || !element.checkVisibility() || element.closest('.hidden, script, style, .mark, :disabled')) continue;
  const paper = behind(element);
  const [a, b] = [over(rgba(getComputedStyle(element).color), paper), paper].map(light);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  seen.push(ratio);
  if (ratio < 4.5) low.push(`${element.tagName}.${element.className} ${element.textContent.slice(0, 20)} ${ratio}`);
}
return [seen.length, low];
"""
