"""Answers of a session that get lost with a broker, and are asked for again. Pure.

A client whose broker is lost asks again what was not answered, under the same number.
The worker may have done that already: then the same answer is given again, and nothing
is done twice. As long as the broker lives an answer is noted, and no more. With its
loss what was noted becomes *known*: these numbers are looked up from then on.

Answers with a payload are not among them: what is answered so only reads, from a place
that the client names, and is simply done again.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any

from broker.wire import Kind

Answer = tuple[Kind, dict[str, Any]]


class Answers:
    """The last answers of one session.

    Args:
        most: how many are remembered; 0: none, as nobody will ask again.

    Attributes:
        known: of what was asked before a broker was lost, the answer; None while it is
            still to come.
    """

    def __init__(self, most: int) -> None:
        self.known: dict[Hashable, Answer | None] = {}
        self._last: deque[tuple[Hashable, Answer]] = deque(maxlen=most)

    def note(self, ask: Hashable, kind: Kind, body: dict[str, Any]) -> None:
        """Remember an answer that goes out now."""
        self._last.append((ask, (kind, body)))
        if ask in self.known:
            self.known[ask] = kind, body

    def cut_off(self, pending: Iterable[Hashable]) -> None:
        """Know from now on what was asked: answered lately, or `pending`."""
        self.known = dict(self._last)
        self.known.update(dict.fromkeys(pending))
