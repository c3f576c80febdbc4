"""The ways to run child processes that are compared, by name.

A table, so that nobody imports what is not measured: each is loaded in the process of
its own round.
"""

import importlib.util
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

REFERENCE: Final = "asyncio"
OURS: Final = "creche"
FLOOR: Final = "posix_spawn"


@dataclass(frozen=True, slots=True)
class Rival:
    """One way to run child processes.

    Attributes:
        place: its system, as `module:class`.
        package: what must be installed for it.
        lacks: the calls of `System` that it has no way to answer.
        share: the part of the bytes that it is given to stream: of the slow a part
            says as much, for a rate is what is told.
    """

    place: str
    package: str = ""
    lacks: Collection[str] = ()
    share: float = 1.0

    @property
    def installed(self) -> bool:
        """Whether it can be measured here."""
        return not self.package or importlib.util.find_spec(self.package) is not None


RIVALS: Final = {
    REFERENCE: Rival("bench.rivals.asyncio_exec:Asyncio"),
    OURS: Rival("bench.rivals.creche:Creche"),
    FLOOR: Rival("bench.rivals.posix_spawn:PosixSpawn"),
    "threads": Rival("bench.rivals.popen_threads:PopenThreads"),
    "trio": Rival("bench.rivals.trio_process:Trio", "trio"),
    # It is line oriented: 16 streams without line ends at once are more than it takes.
    "running-process": Rival(
        "bench.rivals.running_process_sync:RunningProcess",
        "running_process",
        lacks=("drain_many",),
        share=1 / 16,
    ),
    # The log that its readers read is bounded: it loses what a stream has more.
    "running-process-asyncio": Rival(
        "bench.rivals.running_process_async:AsyncRunningProcess",
        "running_process",
        lacks=("drain", "drain_many"),
    ),
    "pexpect": Rival("bench.rivals.pexpect_spawn:Pexpect", "pexpect", share=1 / 16),
}
