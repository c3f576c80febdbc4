"""What the verbs share: values people write, exit codes, and how to say things."""

import os
import re
import sys
from typing import Any, Final

import click

USAGE: Final = 2
"""Exit code of a mistake in the words given, as click and most commands have it."""
TIMED_OUT: Final = 124
"""Exit code, like the following ones a custom of timeout(1), env(1) and shells."""
ENGINE_TROUBLE: Final = 125
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
"""Exit code of a command that died of signal N, less N."""

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_NUMBER: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+) *([A-Za-z]*)")


class Seconds(click.ParamType[float]):
    """A time: 1.5, 10s, 5m, 2h, 1d, 250ms."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        if isinstance(value, float):
            return value
        number = _scaled(value, _SECONDS)
        if number is None:
            self.fail(f"{value!r} is no time like 1.5, 10s or 5m", param, ctx)
        return number


class Size(click.ParamType[int]):
    """A number of bytes: 4096, 64K, 1.5M, 2G; the units are powers of 1024."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return bytes."""
        if isinstance(value, int):
            return value
        unit = str(value).upper().removesuffix("IB").removesuffix("B")
        number = _scaled(unit, _BYTES)
        if number is None:
            self.fail(f"{value!r} is no size like 4096, 64K or 2G", param, ctx)
        return int(number)


def _scaled(text: str, units: dict[str, Any]) -> float | None:
    """Return a number times its unit; None if it is not written like that."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2] not in units:
        return None
    return float(found[1]) * float(units[found[2]])


SECONDS: Final = Seconds()
SIZE: Final = Size()

ENDPOINT: Final = click.option(
    "--endpoint",
    envvar="CRECHE_BROKER",
    metavar="ipc://PATH",
    help="Use this broker instead of a private one; also CRECHE_BROKER.",
)
AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="For programs.")


def tell(text: str) -> None:
    """Write a line to stdout.

    Raises:
        ClickException: that was refused, by a full disk for one.
    """
    try:
        click.echo(text)
    except BrokenPipeError:
        raise  # click ends quietly with the reader
    except OSError as refused:
        # What is left in the buffer would be refused again at our end, with code 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.ClickException(f"stdout: {refused.strerror}") from refused
