"""How much work each workload does in a round."""

import json
from dataclasses import asdict, dataclass
from typing import Final, Self


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amounts, for a machine that has minutes; `--set NAME=VALUE` changes them.

    Attributes:
        serial: commands that are run one after the other.
        batch: commands that are run many at a time.
        trips: lines that one session echoes.
        trips_each: lines that each of 64 sessions echoes.
        stream: MiB of output in large writes, over all streams.
        small_writes: MiB of output in small writes.
        bursts: commands that write a burst and end.
        sessions: children that are held and killed.
        levels: numbers of live sessions at which operations are timed.
        level_times: operations at each of these.
        drops: trees that lose an owner.
        starts: engines that are started.
        idle: children that do nothing.
        idle_seconds: for how long.
    """

    serial: int = 300
    batch: int = 1200
    trips: int = 2000
    trips_each: int = 60
    stream: int = 1024
    small_writes: int = 256
    bursts: int = 40
    sessions: int = 1000
    levels: tuple[int, ...] = (10, 100, 1000, 4000)
    level_times: int = 200
    drops: int = 15
    starts: int = 7
    idle: int = 200
    idle_seconds: float = 5.0

    def to_json(self) -> str:
        """Return them as a word of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, word: str) -> Self:
        """Return what `to_json` gave."""
        given = json.loads(word)
        return cls(**{**given, "levels": tuple(given["levels"])})


QUICK: Final = Sizes(
    serial=60,
    batch=256,
    trips=400,
    trips_each=15,
    stream=96,
    small_writes=32,
    bursts=10,
    sessions=100,
    levels=(10, 100),
    level_times=50,
    drops=3,
    starts=2,
    idle=20,
    idle_seconds=1.0,
)
"""For a look that takes a minute."""
