"""When a run should end early: SIGTERM, Ctrl-C or its time limit."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """Turns signals and the clock into a wish that the loop grants between two updates.

    A second signal of the same kind acts as it would have without this, so that an impatient
    Ctrl-C still ends the process at once. Signals are left alone outside the main thread, where
    Python does not allow handlers.
    """

    def __init__(self, time_limit: float | None) -> None:
        self.deadline = None if time_limit is None else time.monotonic() + time_limit
        self._signal: str | None = None
        self._old: dict[signal.Signals, Any] = {}

    @property
    def reason(self) -> str | None:
        """Why to stop now; None to go on."""
        if self._signal is not None:
            return self._signal
        if self.deadline is not None and time.monotonic() >= self.deadline:
            return "time limit"
        return None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number).name
        signal.signal(number, self._old[signal.Signals(number)])
