"""What the engine tells: events, results and reports, all of them frozen values.

Times are float seconds; stamps are of the monotonic clock of the machine that the child
runs on, so only their differences mean anything. Sizes, offsets and memory are bytes.

The values that cross the wire turn into lists in the order of their fields (`Snapshot`,
which several parts put together, into a map by name) and back. A peer that sends
something else gets `ProtocolError`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, ClassVar, Literal, Self

from actors.spec import TtySize
from broker.errors import EngineError, ProtocolError

__all__ = [
    "Cause",
    "Change",
    "Chunk",
    "Closed",
    "Completed",
    "Event",
    "ExitStatus",
    "Exited",
    "Gap",
    "Info",
    "KillReceipt",
    "Lifecycle",
    "LifecycleKind",
    "Match",
    "Piece",
    "PollResult",
    "Snapshot",
    "State",
    "Stats",
    "Stream",
    "StreamAbandoned",
    "StreamEof",
    "StreamError",
    "StreamStats",
    "Survivor",
    "Usage",
    "WriteResult",
]

Stream = Literal["stdout", "stderr"]
State = Literal["starting", "running", "exited", "closed", "lost"]
Cause = Literal[
    "exited",
    "killed",
    "interrupted",
    "owner-drop",
    "timeout",
    "limit",
    "evicted",
    "oom",
    "worker-lost",
    "broker-lost",
    "lost",
]
LifecycleKind = Literal[
    "starting",
    "running",
    "exited",
    "closed",
    "lost",
    "evicted",
    "warning",
    "failed",
]
