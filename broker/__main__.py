"""`python -m broker`: the supervisor of an embedded or a shared broker."""

import gc
import os
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Final, NoReturn

from broker.errors import AlreadyRunning, EngineError
from broker.opening import Opening, Options, say

GRACE: Final = 3.0
"""Seconds that workers and clients wait for another broker, where one comes."""
LONGEST_GRACE: Final = 3600.0


def main(options: Options) -> NoReturn:
    """Be the supervisor; returns to nobody."""
    gc.disable()  # what it and the broker import is no garbage: 5 ms not to look
    try:
        opening = Opening.start(options)
        from broker.supervisor import supervise  # noqa: PLC0415 - see `opening`

        supervise(options, opening)
    except AlreadyRunning:
        say(f"creche: {_taken(options.endpoint)}")
        os._exit(1)
    except EngineError as error:
        options.refuse(error)
        os._exit(1)
    except ProcessLookupError:
        pass  # the client died while we started: there is nobody to serve
    except OSError as error:
        options.refuse(EngineError(f"cannot start: {error}"))
        os._exit(1)
    os._exit(0)


def _taken(endpoint: str | None) -> str:
    """Return what to say of a broker that is in our place, or beside it."""
    from broker import auth  # noqa: PLC0415 - for trouble alone

    where, name = os.path.split(auth.endpoint_path(endpoint))
    with closing(auth.RunDirectory.open(where)) as directory:
        if directory.answers(name):
            return f"a broker is already running at {endpoint}"
    beside = "give each a directory of its own"
    return f"a broker is already running in {os.fsdecode(where)}: {beside}"


def parse(arguments: Sequence[str]) -> Options:
    """Return the options in the command line of `python -m broker`."""
    if arguments[:1] == ["--keeper"]:
        return _embedded(*arguments[1:])
    return _shared(arguments)


def _embedded(
    keeper: str, client: str, warm: str, containment: str, log: str = ""
) -> Options:
    """Return those of an embedded broker, whose words a client has put together."""
    return Options(
        keeper=int(keeper),
        client=int(client),
        warm=int(warm),
        containment=containment,
        log=log or None,
    )


def _shared(arguments: Sequence[str]) -> Options:
    """Return those of a shared broker, whose words somebody has written."""
    import argparse  # noqa: PLC0415 - 9 ms with its use; no client waits for this one

    parser = argparse.ArgumentParser(
        "python -m broker",
        description="Be a broker for many clients until SIGTERM or SIGINT.",
    )
    parser.add_argument("--endpoint", help="ipc://PATH of the shared broker")
    parser.add_argument("--warm", type=int, default=4, help="idle workers kept ready")
    parser.add_argument(
        "--containment",
        choices=("auto", "cgroup", "subreaper"),
        default="auto",
        help="how trees are held together",
    )
    parser.add_argument(
        "--grace",
        type=float,
        default=GRACE,
        help="seconds that children and clients outlive a lost broker, which is "
        "replaced meanwhile; 0: they do not (default %(default)g)",
    )
    parser.add_argument(
        "--ready-fd",
        type=int,
        help="descriptor to write the endpoint to, once clients can connect",
    )
    parser.add_argument(
        "--print-endpoint",
        action="store_true",
        help="print the endpoint alone once clients can connect",
    )
    parser.add_argument("--log", help="file for unhandled errors of engine processes")
    given = parser.parse_args(arguments)
    if not 0 <= given.grace <= LONGEST_GRACE:
        parser.error(f"--grace: must be 0 to {LONGEST_GRACE:g} seconds")
    options = Options(**vars(given))
    if options.endpoint is None:
        return options._replace(endpoint=_usual_endpoint())
    return options


def _usual_endpoint() -> str:
    from broker import auth  # noqa: PLC0415 - 8 ms that no client waits for

    return auth.usual_endpoint(os.environ, os.geteuid())


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
