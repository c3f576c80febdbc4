"""Switch off what makes things fast, one by one: nothing may depend on it.

`python -m tests.without` replaces one piece of text in a copy of the tree, so that a
fast path is never taken, and runs the tests of byte-exactness, of owners and of the
rules there: all of them have to pass. Those that ask whether a fast path is taken are
not among them. Two to three minutes for each; not part of the test run. Ends with 1 if
a test fails.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutations import Mutation, copied, ended, mutated

TESTS = (
    "rules",
    "test_cases_owner.py",
    "test_crash.py",
    "test_express.py",
    "test_model.py",
    "test_owner_drop.py",
    "test_session.py",
    "test_shared_broker.py",
)

FAST_PATHS = (
    Mutation(
        "input, output and answers are passed on unread",
        "broker/wire.py",
        "if fits is None or",
        "if True or",
        "",
    ),
    Mutation(
        "bulk output is told by its place",
        "actors/streams.py",
        "self.local = arena is not None",
        "self.local = False",
        "",
    ),
    Mutation(
        "a turn of the worker sends once",
        "actors/worker.py",
        "self.leg.put(message, urgent=not in_order)",
        "self.leg.send(message, urgent=not in_order)",
        "",
    ),
    Mutation(
        "a start that captures is answered with what follows",
        "actors/worker.py",
        "if session.releases_itself:\n            self._late",
        "if False:\n            self._late",
        "",
    ),
    Mutation(
        "a write of one piece goes the short way",
        "actors/writing.py",
        "if len(data) > WRITE_PIECE or inflow.under_way:",
        "if True:",
        "",
    ),
    Mutation(
        "pipes that fill are widened",
        "actors/drain.py",
        "self._pipes.widen(stream)",
        "pass",
        "",
    ),
    Mutation(
        "a line goes the short way through a worker",
        "actors/worker.py",
        "self.express = Express(session, self.send_now)",
        "self.express = None",
        "",
    ),
    Mutation(
        "a worker is used again",
        "broker/keeper.py",
        "if len(self.idle) < max(self.warm, IDLE_WORKERS):",
        "if False:",
        "",
    ),
)
"""Each with the text that takes the fast path, and what it is replaced by."""


def passes(path: Mutation, tree: Path) -> bool:
    """Return whether all tests pass without one fast path."""
    place = tree / path.path
    whole = place.read_text()
    place.write_text(mutated(path, tree))
    try:
        return ended(tree, *TESTS) == 0
    finally:
        place.write_text(whole)


def main() -> int:
    """Do without each of them, and tell; return the exit code."""
    failures = 0
    with TemporaryDirectory(prefix="without-") as place:
        tree = copied(Path(place))
        for path in FAST_PATHS:
            passed = passes(path, tree)
            failures += not passed
            print(
                f"{'passes' if passed else 'FAILS'}  without: {path.what}", flush=True
            )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
