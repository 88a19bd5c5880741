"""A headless Chromium of the tests' own, driven over a pipe: no port, no other package.

The messages are those of the Chrome DevTools Protocol, each ended by a NUL byte.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

DEADLINE_SECONDS = 60.0
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--disable-breakpad",
    "--password-store=basic",
    "--remote-debugging-pipe",
)


def find_chromium() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


class Browser:
    """One page in a fresh profile; a context manager that leaves no process behind."""

    def __init__(self, profile: Path, width: int = 1400, height: int = 1000) -> None:
        executable = find_chromium()
        if executable is None:
            raise FileNotFoundError("chromium")
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
        # A socket's path has at most 107 bytes, and a test's own folder is deep.
        self._sockets = tempfile.TemporaryDirectory(prefix="np")
        self._process = subprocess.Popen(
            [executable, *_FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(3, 4),
            # It reads from descriptor 3 and writes to 4, whatever is there in this process.
            preexec_fn=lambda: [os.dup2(end, 3 + place) for place, end in enumerate(ends)],
            env={**os.environ, "HOME": str(profile), "TMPDIR": self._sockets.name},
        )
        for end in (to_browser, from_browser, *ends):
            os.close(end)
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []
        try:
            self._begin(width, height)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _begin(self, width: int, height: int) -> None:
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", {}, self._session)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", size, self._session)

    def open(self, path: Path) -> None:
        """Load a file and wait until it is."""
        self.call("Page.navigate", {"url": path.as_uri()}, self._session)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page, its promise awaited."""
        parameters = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", parameters, self._session)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} did not come true; {self.problems()}")
            time.sleep(0.05)

    def mouse(self, *moves: tuple[str, float, float]) -> None:
        """Real mouse events: ``mouseMoved``, ``mousePressed``, ``mouseReleased`` at x, y."""
        for kind, x, y in moves:
            pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", {"type": kind, "x": x, "y": y, **pressed},
                      self._session)  # fmt: skip

    def problems(self) -> list[str]:
        """Exceptions and errors on the page's console so far."""
        self.evaluate("0")
        found = []
        for event in self.events:
            details = json.dumps(event.get("params"))[:600]
            is_error = event["method"] == "Runtime.exceptionThrown" or (
                event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"
            )
            if is_error:
                found.append(details)
        return found

    def requested(self) -> list[str]:
        """Every address that the page asked the network for."""
        self.evaluate("0")
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path, full: bool = True) -> None:
        """A picture of the whole page, or of what is in view."""
        parameters = {"format": "png", "captureBeyondViewport": full}
        data = self.call("Page.captureScreenshot", parameters, self._session)["data"]
        path.write_bytes(base64.b64decode(data))

    def call(self, method: str, parameters: dict[str, Any], session: str = "") -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser closed its pipe, or did not answer in time")
            self._buffer += data
        message, self._buffer = self._buffer.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(message)
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._write)  # Chromium ends when its pipe does
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        finally:
            # What it started may outlive it for a moment; the group is all its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            os.close(self._read)
            self._sockets.cleanup()
