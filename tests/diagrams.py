"""The pictures in `docs/states.md`: `python -m tests.diagrams` draws them anew.

They are made of the tables by which the code goes from one state to the next.
"""

from collections.abc import Iterable
from pathlib import Path

from actors import lifecycle
from actors.services import life

PAGE = Path(__file__).resolve().parent.parent / "docs" / "states.md"
START, END = "<!-- {}: drawn by tests/diagrams.py -->\n", "<!-- end -->\n"

Step = tuple[str, str, str]
"""From a state to a state, and why."""


def session() -> list[Step]:
    """Return the steps of a session's life."""
    whys = {
        "LeaderExited": "its leader ended",
        "StreamDone": "the last of its streams ended, or was abandoned",
    }
    table = lifecycle.AFTER.items()
    return [(a.value, b.value, whys[event.__name__]) for (a, event), b in table]


def service() -> list[Step]:
    """Return the steps of a service's life."""
    return [(a.value, b.value, h.value) for (a, h), b in life.AFTER.items()]


DIAGRAMS = {"session": session, "service": service}


def drawn(steps: Iterable[Step]) -> str:
    """Return a picture of steps, which begins with the first."""
    taken = list(steps)
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {taken[0][0]}"]
    lines += [f"    {a} --> {b}: {why}" for a, b, why in taken]
    return "\n".join([*lines, "```", ""])


def redrawn(page: str) -> str:
    """Return the page with its pictures drawn anew."""
    for name, steps in DIAGRAMS.items():
        start = START.format(name)
        before, _, rest = page.partition(start)
        page = before + start + drawn(steps()) + END + rest.partition(END)[2]
    return page


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))
