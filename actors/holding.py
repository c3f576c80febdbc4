"""How a handle of a child holds its log back, and lets it go in the end.

Under a `block` policy the worker keeps everything from a handle's cursor on, and holds
the child back for that. It knows the cursor by a number, which each POLL and EXPECT of
the handle carries, and drops it when it is told to stop that number: so that is told
when the handle is collected, or is of no more use.
"""

import weakref

from actors.record import Record
from broker.link import Link


class Holding:
    """The number under which one handle holds the log of its child."""

    def __init__(self, link: Link, record: Record) -> None:
        self._link = link
        self._record = record
        self._number = link.number()

    def number(self) -> int:
        """Return the number for a request: from then on it may hold the log."""
        link, record, number = self._link, self._record, self._number
        if record.block is not None and number not in record.holdings:
            record.holdings.add(number)
            end = weakref.finalize(self, _end, link, record, number, record.process)
            end.atexit = False
        return number


def _end(link: Link, record: Record, number: int, process: int) -> None:
    """Let go of what a collected handle holds; any thread, any moment."""
    if not record.here(process) or link.lost is not None:
        return

    def end() -> None:
        if number in record.holdings:
            record.holdings.discard(number)
            link.take_back(record.id, number)

    link.call(end)


def let_go(link: Link, record: Record) -> None:
    """Let go of what all handles hold by this record; harmless to repeat.

    A forked copy of the process that made it lets go of nothing.
    """
    while record.holdings and record.here(record.process):
        link.take_back(record.id, record.holdings.pop())
