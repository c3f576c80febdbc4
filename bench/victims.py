"""Processes that are to end, held by descriptor: a number may change hands."""

import os
import select
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Self

PATIENCE: Final = 60.0
"""Seconds after which what does not end counts as hung."""


class Victims:
    """Some living processes; what is gone already is left out."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pidfds: list[int] = []
        for pid in pids:
            with suppress(ProcessLookupError):
                self._pidfds.append(os.pidfd_open(pid))

    def kill(self) -> None:
        """SIGKILL each of them."""
        for pidfd in self._pidfds:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def wait(self) -> None:
        """Return when the last of them has ended.

        Raises:
            TimeoutError: one does not.
        """
        ends = time.monotonic() + PATIENCE
        for pidfd in self._pidfds:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            if not poller.poll(max(0.0, ends - time.monotonic()) * 1000):
                raise TimeoutError(f"a process lives after {PATIENCE:g} seconds")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pidfd in self._pidfds:
            os.close(pidfd)
