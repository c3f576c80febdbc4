"""A clock that can be stopped, for deadlines that a pause pushes back. Pure.

While it runs it shows the time; while it is stopped it shows when it was stopped. A
deadline is a time on it. When it goes on it says by how much every deadline that its
owner holds has to be shifted, so that those made during the pause, and those made
before it, all get the whole time that is due to them.
"""


class Clock:
    """One clock; it runs at first."""

    __slots__ = ("_stopped",)

    def __init__(self) -> None:
        self._stopped: float | None = None

    def read(self, now: float) -> float:
        """Return what it shows at time `now`: a deadline up to that is reached."""
        return now if self._stopped is None else self._stopped

    def when(self, deadline: float | None) -> float | None:
        """Return at which time `deadline` is reached as things are, None: never."""
        if deadline is None or self._stopped is None or deadline <= self._stopped:
            return deadline
        return None

    def stop(self, now: float) -> None:
        """Stop it; harmless to repeat."""
        if self._stopped is None:
            self._stopped = now

    def go(self, now: float) -> float:
        """Let it run again; return the seconds by which deadlines are to be shifted."""
        paused = now - self.read(now)
        self._stopped = None
        return paused
