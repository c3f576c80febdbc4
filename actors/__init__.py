"""Run other programs from Python: each child owned by one worker actor.

Names are loaded when they are first used, so that a worker, which imports
`actors.worker` only, never pays for the engine, asyncio or zmq.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from actors import blocking as blocking
    from actors.blocking import run as run
    from actors.buffer import Counts as Counts
    from actors.child import Child as Child
    from actors.engine import Engine as Engine
    from actors.events import (
        Change as Change,
        Chunk as Chunk,
        Closed as Closed,
        Completed as Completed,
        Event as Event,
        Exited as Exited,
        Gap as Gap,
        Info as Info,
        KillReceipt as KillReceipt,
        Lifecycle as Lifecycle,
        Match as Match,
        Piece as Piece,
        PollResult as PollResult,
        Snapshot as Snapshot,
        StreamAbandoned as StreamAbandoned,
        StreamEof as StreamEof,
        StreamError as StreamError,
        WriteResult as WriteResult,
    )
    from actors.facts import (
        ExitStatus as ExitStatus,
        Stats as Stats,
        Survivor as Survivor,
        Usage as Usage,
    )
    from actors.many import Results as Results
    from actors.recovery import Recovery as Recovery
    from actors.scope import Scope as Scope
    from actors.screen import Screen as Screen
    from actors.services.leftover import Stopped as Stopped
    from actors.services.service import Service as Service
    from actors.services.spec import ServiceSpec as ServiceSpec
    from actors.settings import (
        Limits as Limits,
        OutputPolicy as OutputPolicy,
        Settings as Settings,
        TtySize as TtySize,
        Watch as Watch,
    )
    from actors.shell import Shell as Shell
    from actors.spec import (
        AGENT_ENV as AGENT_ENV,
        Spec as Spec,
    )
    from actors.streams import (
        EventStream as EventStream,
        Reader as Reader,
    )
    from actors.subscription import LifecycleStream as LifecycleStream
    from actors.text import (
        Abridged as Abridged,
        abridge as abridge,
    )
    from broker.aftermath import Finding as Finding
    from broker.errors import (
        BrokerLost as BrokerLost,
        CapacityExceeded as CapacityExceeded,
        EngineError as EngineError,
        InvalidRequest as InvalidRequest,
        NotATerminal as NotATerminal,
        OutputEnded as OutputEnded,
        OutputLimitExceeded as OutputLimitExceeded,
        OutputLost as OutputLost,
        ProtocolError as ProtocolError,
        RuntimeContext as RuntimeContext,
        ServiceFailed as ServiceFailed,
        SessionNotFound as SessionNotFound,
        SessionOwned as SessionOwned,
        ShellEnded as ShellEnded,
        SpawnFailed as SpawnFailed,
        StdinUnavailable as StdinUnavailable,
        WorkerLost as WorkerLost,
        WrongProcess as WrongProcess,
    )
    from broker.outcomes import CommandFailed as CommandFailed, TimedOut as TimedOut

_HOMES = {
    "actors": "blocking",
    "actors.blocking": "run",
    "actors.buffer": "Counts",
    "actors.child": "Child",
    "actors.engine": "Engine",
    "actors.events": (
        "Change Chunk Closed Completed Event Exited Gap Info KillReceipt Lifecycle "
        "Match Piece PollResult Snapshot StreamAbandoned StreamEof StreamError "
        "WriteResult"
    ),
    "actors.facts": "ExitStatus Stats Survivor Usage",
    "actors.many": "Results",
    "actors.recovery": "Recovery",
    "actors.scope": "Scope",
    "actors.screen": "Screen",
    "actors.services.leftover": "Stopped",
    "actors.services.service": "Service",
    "actors.services.spec": "ServiceSpec",
    "actors.settings": "Limits OutputPolicy Settings TtySize Watch",
    "actors.shell": "Shell",
    "actors.spec": "AGENT_ENV Spec",
    "actors.streams": "EventStream Reader",
    "actors.subscription": "LifecycleStream",
    "actors.text": "Abridged abridge",
    "broker.errors": (
        "BrokerLost CapacityExceeded EngineError InvalidRequest "
        "NotATerminal OutputEnded OutputLimitExceeded OutputLost ProtocolError "
        "RuntimeContext ServiceFailed SessionNotFound SessionOwned ShellEnded "
        "SpawnFailed StdinUnavailable WorkerLost WrongProcess"
    ),
    "broker.outcomes": "CommandFailed TimedOut",
    "broker.aftermath": "Finding",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = [
    "AGENT_ENV",
    "Abridged",
    "BrokerLost",
    "CapacityExceeded",
    "Change",
    "Child",
    "Chunk",
    "Closed",
    "CommandFailed",
    "Completed",
    "Counts",
    "Engine",
    "EngineError",
    "Event",
    "EventStream",
    "ExitStatus",
    "Exited",
    "Finding",
    "Gap",
    "Info",
    "InvalidRequest",
    "KillReceipt",
    "Lifecycle",
    "LifecycleStream",
    "Limits",
    "Match",
    "NotATerminal",
    "OutputEnded",
    "OutputLimitExceeded",
    "OutputLost",
    "OutputPolicy",
    "Piece",
    "PollResult",
    "ProtocolError",
    "Reader",
    "Recovery",
    "Results",
    "RuntimeContext",
    "Scope",
    "Screen",
    "Service",
    "ServiceFailed",
    "ServiceSpec",
    "SessionNotFound",
    "SessionOwned",
    "Settings",
    "Shell",
    "ShellEnded",
    "Snapshot",
    "SpawnFailed",
    "Spec",
    "Stats",
    "StdinUnavailable",
    "Stopped",
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
    "abridge",
    "blocking",
    "run",
]


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home == __name__:
        return import_module(f"{home}.{name}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
