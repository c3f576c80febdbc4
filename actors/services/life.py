"""A service's life as a table: what it is after what has happened. Pure.

`docs/states.md` shows the table as a picture. Three things follow from it alone:

* calls begin in READY and in no other state;
* the stop command runs between STOPPING and ENDING, so once, and whatever became of the
  start command; only where that could not be executed at all there is nothing to stop;
* what is left of the start command ends after the stop command, in ENDING; or in
  LEAVING, where that cannot be run to its end now.

An engine that is lost leaves the service to recovery, which finds its record. So does
one that has no room for the stop command, cannot start it, or loses its worker.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final

__all__ = ["AFTER", "Happening", "ServiceLife", "State"]


class State(Enum):
    """Where a service stands."""

    STARTING = "starting"
    READY = "ready"
    FALLEN = "fallen"
    DRAINING = "draining"
    STOPPING = "stopping"
    ENDING = "ending"
    LEAVING = "leaving"
    ENDED = "ended"
    LEFT = "left"


class Happening(Enum):
    """What changes that."""

    NOT_EXECUTED = "the start command cannot be executed"
    LINE = "the first line came"
    FAILED = "no line came, or nobody waits for it any more"
    LEADER_ENDED = "the start command ended by itself"
    UNUSED = "the last user closed it"
    IDLE = "no call runs any more"
    STOPPED = "the stop command ended, or had its time"
    POSTPONED = "the stop command cannot be run to its end now"
    GONE = "the start command's tree is proven gone"
    ENGINE_LOST = "the engine is lost"


AFTER: Final[Mapping[tuple[State, Happening], State]] = {
    (State.STARTING, Happening.NOT_EXECUTED): State.ENDED,
    (State.STARTING, Happening.LINE): State.READY,
    (State.STARTING, Happening.FAILED): State.STOPPING,
    (State.READY, Happening.LEADER_ENDED): State.FALLEN,
    (State.READY, Happening.UNUSED): State.DRAINING,
    (State.FALLEN, Happening.UNUSED): State.DRAINING,
    (State.DRAINING, Happening.IDLE): State.STOPPING,
    (State.STOPPING, Happening.STOPPED): State.ENDING,
    (State.STOPPING, Happening.POSTPONED): State.LEAVING,
    (State.ENDING, Happening.GONE): State.ENDED,
    (State.LEAVING, Happening.GONE): State.LEFT,
    **{
        (state, Happening.ENGINE_LOST): State.LEFT
        for state in State
        if state not in (State.ENDED, State.LEFT)
    },
}


class ServiceLife:
    """Where one service stands.

    Attributes:
        state: the present one.
    """

    def __init__(self) -> None:
        self.state = State.STARTING

    def on(self, happening: Happening) -> None:
        """Go where the table says.

        Raises:
            KeyError: that cannot happen now.
        """
        self.state = AFTER[self.state, happening]

    @property
    def over(self) -> bool:
        """Whether it will not be used any more, by anybody."""
        return self.state not in (State.STARTING, State.READY, State.FALLEN)
