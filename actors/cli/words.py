"""What the verbs share: values people write, and how to say things."""

import io
import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from actors.events import ExitStatus

import click
from click.core import ParameterSource

from actors import exit_codes

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")

_SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_NUMBER: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+) *([A-Za-z]*)")


class Seconds(click.ParamType[float]):
    """A time: 1.5, 10s, 5m, 2h, 1d, 250ms.

    Args:
        least: seconds that it has to be.
    """

    name = "time"

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        if isinstance(value, float):
            return value
        number = _scaled(value, _SECONDS)
        if number is None:
            self.fail(f"{value!r} is no time like 1.5, 10s or 5m", param, ctx)
        if number < self._least:
            self.fail(f"{value!r} is less than {self._least:g} seconds", param, ctx)
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
    """Return a number times its unit; None if it is not written so, or too long."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None or found[2] not in units:
        return None
    number = float(found[1]) * float(units[found[2]])
    return number if math.isfinite(number) else None


SECONDS: Final = Seconds()
SIZE: Final = Size()


def _endpoint(
    _: click.Context, parameter: click.Parameter, given: str | None
) -> str | None:
    """Refuse what no broker could have for an address."""
    if given:
        from broker import auth, errors  # noqa: PLC0415 - see the package's docstring

        try:
            auth.endpoint_path(given)
        except errors.InvalidRequest as wrong:
            raise click.BadParameter(wrong.message, param=parameter) from None
    return given


ENDPOINT: Final = click.option(
    "--endpoint",
    envvar="CRECHE_BROKER",
    callback=_endpoint,
    metavar="ipc://PATH",
    help="Use this broker instead of a private one; also CRECHE_BROKER.",
)
BROKER: Final = click.option(
    "--endpoint",
    envvar="CRECHE_BROKER",
    callback=_endpoint,
    metavar="ipc://PATH",
    help="The broker; also CRECHE_BROKER. By default that of `creche serve`.",
)
SESSION: Final = click.argument("session", metavar="ID")


def as_json(says: str) -> "Callable[[F], F]":
    """Return the option by which a verb speaks to programs; `says` is its help."""
    return click.option("--json", "as_json", is_flag=True, help=says)


AS_JSON: Final = as_json("For programs.")


class Trouble(click.ClickException):
    """What could not be done, in one sentence."""

    def show(self, _file: IO[Any] | None = None) -> None:
        """Say it as all other trouble is said."""
        say(self.format_message())


class Verb(click.Command):
    """A command whose trouble is one sentence, and which Ctrl-C ends quietly."""

    trouble = exit_codes.TROUBLE

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; end with 1 and a sentence for what could not be done."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(exit_codes.INTERRUPTED)
        except BrokenPipeError:
            raise  # click ends quietly with the reader
        except Exception as error:
            if _reader_gone(error):
                sys.exit(exit_codes.READER_GONE)
            told = sentence(error)
            if told is None:
                raise
            say(told)
            sys.exit(self.trouble)


class ChildVerb(Verb):
    """A command that ends with a child's exit code: its own trouble is 125."""

    trouble = exit_codes.ENGINE_TROUBLE

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the words given; a mistake in them is trouble as well."""
        with self._own_trouble():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; end with 125 and a sentence for what could not be done."""
        with self._own_trouble():
            return super().invoke(ctx)

    @contextmanager
    def _own_trouble(self) -> "Iterator[None]":
        try:
            yield
        except click.ClickException as mistake:
            mistake.exit_code = self.trouble  # type: ignore[misc]  # click reads it so
            raise


def written(name: str) -> bool:
    """Return whether an option of the verb stands on the command line itself."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def leave_out(given: dict[str, Any], names: Iterable[str], why: str) -> None:
    """Take back options that do not apply to this call.

    A variable is a habit, and not always to the point; what is written is meant.

    Args:
        given: what the verb was given; there they are as if they were not.
        names: those that do not apply.
        why: what to tell of one that is written on the command line.

    Raises:
        UsageError: one is.
    """
    for name in names:
        if written(name):
            raise click.UsageError(why)
        given[name] = False if isinstance(given[name], bool) else None


def finish(work: "Coroutine[Any, Any, T]") -> T:
    """Return what a coroutine gives."""
    import asyncio  # noqa: PLC0415 - see the package's docstring

    return asyncio.run(work)


def _reader_gone(error: Exception) -> bool:
    from actors.console.stdio import ReaderGone  # noqa: PLC0415 - see the package's docstring

    return isinstance(error, ReaderGone)


def sentence(error: Exception) -> str | None:
    """Return what to tell of an error; None: it is a mistake of this program."""
    from broker.errors import EngineError  # noqa: PLC0415 - see the package's docstring

    if isinstance(error, EngineError):
        return str(error)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return None


def utf8(given: str) -> str:
    """Return a word of the command line as text whose UTF-8 is the bytes of the word.

    Python decodes words by the locale, and the engine takes text for UTF-8.
    """
    return os.fsencode(given).decode(errors="surrogateescape")


def broker(endpoint: str | None) -> str:
    """Return the endpoint given, or the one of `creche serve`."""
    from broker import auth  # noqa: PLC0415 - see the package's docstring

    return endpoint or auth.usual_endpoint(os.environ, os.geteuid())


def command(argv: Sequence[str]) -> str:
    """Return a command in one line, as a shell would take it."""
    import shlex  # noqa: PLC0415 - see the package's docstring

    return " ".join(shlex.join(argv).split())


def plain(text: str) -> str:
    """Return what others have named as it can be shown: it does nothing to a terminal.

    Bytes that are no text, and characters that are not printed, become escapes.
    """
    shown = text.encode(errors="surrogateescape").decode(errors="backslashreplace")
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode()
        for one in shown
    )


def end(status: "ExitStatus") -> str:
    """Return in a few words how a child ended: `exited 3`, `signal 9, killed`."""
    if status.code is not None:
        known = f"exited {status.code}"
    elif status.signal is not None:
        known = f"signal {status.signal}"
    else:
        return status.cause
    return known if status.cause == "exited" else f"{known}, {status.cause}"


def fitted(text: str) -> str:
    """Return lines cut to the width of the terminal, if that is where they go."""
    import shutil  # noqa: PLC0415 - see the package's docstring

    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "\n".join(line[:width] for line in text.splitlines())


def duration(seconds: float) -> str:
    """Return a time as people read it: 0.4s, 12s, 3m05s, 2h10m, 4d03h."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for size, unit, lesser, name in _UNITS:
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // lesser:02}{name}"
    return f"{whole}s"


_UNITS: Final = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))


def amount(size: float) -> str:
    """Return a number of bytes as people read it: 512, 1.5K, 64M; powers of 1024."""
    for unit in ("", "K", "M", "G"):
        if size < 1024:
            return f"{size:.1f}{unit}" if unit and size < 10 else f"{size:.0f}{unit}"
        size /= 1024
    return f"{size:.1f}T"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return `plain` rows below their heads, in columns; the last is not filled up."""
    lines = [heads, *([plain(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads) - 1)]
    return "\n".join(
        "  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in lines
    )


def open_streams() -> None:
    """Open a file for each standard stream that was closed when we started.

    The next file opened would take its number, and get a child's output. This one
    refuses what a closed one does: to be read, or written to.

    From then on stdout has an escape for a character that its encoding lacks, as stderr
    does: an argument that is no text, for one, of somebody's session.
    """
    refusing = enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY))
    for fd, mode in refusing:
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, mode)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:  # of words nobody wants to hear there is no trouble
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def tell(text: str, *, err: bool = False) -> None:
    """Write a line to stdout, or what is data there to stderr.

    Raises:
        Trouble: that was refused, by a full disk for one.
    """
    try:
        click.echo(text, err=err)
    except BrokenPipeError:
        raise  # click ends quietly with the reader
    except OSError as refused:
        raise unwritten(refused, "stderr" if err else "stdout") from refused


def unwritten(refused: OSError, stream: str = "stdout") -> Trouble:
    """Return the trouble that a stream does not take what is written to it."""
    if stream == "stdout":
        _empty(sys.stdout)
    return Trouble(f"{stream}: {refused.strerror}")


def say(text: str) -> None:
    """Say something to people, on stderr, if anybody hears it."""
    with suppress(OSError):
        click.echo(f"creche: {text}", err=True)


def hush() -> None:
    """Have words that stderr does not take change no exit code, at our end neither."""
    try:
        sys.stderr.flush()
        os.write(sys.stderr.fileno(), b"")  # a full device refuses that as well
    except OSError:
        _empty(sys.stderr)


def _empty(stream: IO[str]) -> None:
    """Let what is left in the buffer of a stream go nowhere, as all that follows.

    It would be refused again at our end, which then is one with code 120.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
