"""Run other programs from Python: each child owned by one worker actor.

Names are loaded when they are first used, so that a worker, which imports
`actors.worker` only, never pays for the engine, asyncio or zmq.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from actors.child import Child
    from actors.engine import Engine
    from actors.events import (
        Change,
        Chunk,
        Closed,
        Completed,
        Event,
        Exited,
        ExitStatus,
        Gap,
        Info,
        KillReceipt,
        Piece,
        PollResult,
        Snapshot,
        StreamAbandoned,
        StreamEof,
        StreamError,
        Survivor,
        Usage,
        WriteResult,
    )
    from actors.scope import Scope
    from actors.settings import Limits, OutputPolicy, Settings, TtySize, Watch
    from actors.spec import AGENT_ENV, Spec
    from actors.streams import EventStream, Reader
    from broker.errors import (
        BrokerLost,
        CapacityExceeded,
        CommandFailed,
        EngineError,
        InvalidRequest,
        NotATerminal,
        OutputLimitExceeded,
        OutputLost,
        ProtocolError,
        RuntimeContext,
        ServiceFailed,
        SessionNotFound,
        SessionOwned,
        ShellEnded,
        SpawnFailed,
        StdinUnavailable,
        TimedOut,
        WorkerLost,
        WrongProcess,
    )

_HOMES = {
    "actors.child": "Child",
    "actors.engine": "Engine",
    "actors.events": (
        "Change Chunk Closed Completed Event Exited ExitStatus Gap Info KillReceipt "
        "Piece PollResult Snapshot StreamAbandoned StreamEof StreamError Survivor "
        "Usage WriteResult"
    ),
    "actors.scope": "Scope",
    "actors.settings": "Limits OutputPolicy Settings TtySize Watch",
    "actors.spec": "AGENT_ENV Spec",
    "actors.streams": "EventStream Reader",
    "broker.errors": (
        "BrokerLost CapacityExceeded CommandFailed EngineError InvalidRequest "
        "NotATerminal OutputLimitExceeded OutputLost ProtocolError RuntimeContext "
        "ServiceFailed SessionNotFound SessionOwned ShellEnded SpawnFailed "
        "StdinUnavailable TimedOut WorkerLost WrongProcess"
    ),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AGENT_ENV",
    "BrokerLost",
    "CapacityExceeded",
    "Change",
    "Child",
    "Chunk",
    "Closed",
    "CommandFailed",
    "Completed",
    "Engine",
    "EngineError",
    "Event",
    "EventStream",
    "ExitStatus",
    "Exited",
    "Gap",
    "Info",
    "InvalidRequest",
    "KillReceipt",
    "Limits",
    "NotATerminal",
    "OutputLimitExceeded",
    "OutputLost",
    "OutputPolicy",
    "Piece",
    "PollResult",
    "ProtocolError",
    "Reader",
    "RuntimeContext",
    "Scope",
    "ServiceFailed",
    "SessionNotFound",
    "SessionOwned",
    "Settings",
    "ShellEnded",
    "Snapshot",
    "SpawnFailed",
    "Spec",
    "StdinUnavailable",
    "StreamAbandoned",
    "StreamEof",
    "StreamError",
    "Survivor",
    "TimedOut",
    "TtySize",
    "Usage",
    "Watch",
    "WorkerLost",
    "WriteResult",
    "WrongProcess",
    "__version__",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
