"""Headless Chromium on a pipe: what a page measures, looks like and prints as.

Chromium reads DevTools commands from file descriptor 3 and answers on 4, each a JSON text that a
zero byte ends, so that neither a port nor a websocket library is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Scheme = Literal["light", "dark"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)
#: puts two inherited descriptors where Chromium looks for them, then becomes Chromium
LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def installed() -> str | None:
    """The path of a Chromium, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A running Chromium with one page."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = os.fdopen(commands, "wb"), os.fdopen(answers, "rb")
        self._rest, self._last, self._session = b"", 0, ""
        page = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=page, flatten=True)
        self._session = attached["sessionId"]
        self._call("Page.enable")

    def open(
        self, path: Path, *, width: int, scheme: Scheme, height: int = 800, medium: str = ""
    ) -> None:
        """Load a file into a window of this size, with this preference of its reader.

        `medium="print"` lays it out in the window as on paper.
        """
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", media=medium, features=[feature])
        phone = width < 600
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                   deviceScaleFactor=1, mobile=phone)  # fmt: skip
        self._call("Page.navigate", url=path.resolve().as_uri())
        self._wait("Page.loadEventFired")

    def value(self, script: str) -> Any:
        """What a JavaScript expression gives, as JSON."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The window as a PNG file."""
        shot = self._call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, path: Path) -> None:
        """The page as it is printed."""
        printed = self._call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(printed["data"]))

    def close(self) -> None:
        """End Chromium."""
        self._session = ""
        self._call("Browser.close")
        self._commands.close()
        self._answers.close()

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (answer := self._read()).get("id") != self._last:
            pass
        assert "error" not in answer, f"{method}: {answer['error']['message']}"
        result: dict[str, Any] = answer["result"]
        return result

    def _wait(self, event: str) -> None:
        while self._read().get("method") != event:
            pass

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = self._answers.read1(1 << 16)
            assert part, "Chromium ended"
            self._rest += part
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """Chromium with an empty profile in this folder."""
    program = installed()
    assert program is not None
    ours: list[int] = []
    theirs: list[int] = []
    for mine, its in (os.pipe()[::-1], os.pipe()):
        ours.append(mine)
        # away from 3 and 4, which the other would be overwritten by
        theirs.append(fcntl.fcntl(its, fcntl.F_DUPFD, 10))
        os.close(its)
    command = [sys.executable, "-c", LAUNCH, *map(str, theirs), program, *FLAGS,
               f"--user-data-dir={profile}"]  # fmt: skip
    with subprocess.Popen(
        command, pass_fds=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        for its in theirs:
            os.close(its)
        try:
            browser = Browser(*ours)
            yield browser
            browser.close()
            process.wait(timeout=20)
        finally:
            process.kill()
