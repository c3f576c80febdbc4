"""What a client asks for, checked when it is made. Pure.

A `Spec` is a request in the caller's words. `Spec.launch` joins it with what the
client's process has at that moment (`Ambient`) and with the engine's `Settings` into a
`Launch`, which is all that a worker needs to start and keep one child. Whatever can be
judged without the operating system is refused here, with `InvalidRequest` naming the
parameter.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

from actors import checks
from actors.checks import Check, Native
from actors.launch import ErrorMode, InputMode, Launch, OutputMode
from actors.settings import Leftover, Limits, OutputPolicy, Rlimits, Settings, TtySize
from broker.errors import InvalidRequest

__all__ = ["AGENT_ENV", "Ambient", "Spec"]

MARK = b"CRECHE_MARK"
MARK_DIGITS = 32
_HEXADECIMAL = frozenset("0123456789abcdef")

AGENT_ENV: Mapping[str, str] = {
    "NO_COLOR": "1",
    "TERM": "dumb",
    "LANG": "C.UTF-8",
    "LC_CTYPE": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "COLORTERM": "",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GH_PAGER": "cat",
    "CRECHE_AGENT": "1",
}
"""An `extra_env` for children whose reader is a program: no colours, no pager."""


Environment = Mapping[str, Native] | Mapping[bytes, Native] | Mapping[Native, Native]
Overlay = (
    Mapping[str, Native | None]
    | Mapping[bytes, Native | None]
    | Mapping[Native, Native | None]
)
T = TypeVar("T")
_NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Ambient:
    """What the client's process has at the moment of a spawn.

    Attributes:
        cwd: Absolute working directory.
        env: Environment.
        umask: File mode creation mask.
        rlimits: Rows of resource number, soft and hard limit; -1 is "no limit".
        nice: Absolute niceness.
        oom_score_adj: Preference of the out-of-memory killer.
        block: What most children get of `env`, joined once: 4 us less for a launch
            with 40 variables.
    """

    cwd: bytes
    env: Mapping[bytes, bytes] = field(repr=False)
    umask: int
    rlimits: Rlimits
    nice: int
    oom_score_adj: int
    block: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A process may have inherited a variable without a name. No program can look it
        # up, and no child can be started with it.
        env = {k: v for k, v in self.env.items() if k and k != MARK}
        object.__setattr__(self, "block", _joined(env))


@dataclass(frozen=True, slots=True)
class _Words:
    """A request's texts as the operating system will see them."""

    argv: tuple[bytes, ...]
    arg0: bytes | None
    cwd: bytes | None
    env: dict[bytes, bytes] | None
    extra_env: dict[bytes, bytes | None]
    metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Spec:
    """A request for one child. Times in seconds, sizes in bytes.

    Texts, mappings and sequences are read once, here: changing them later changes
    nothing. `kill_on_drop=False` and `detach_ttl` need a shared broker, which is for
    the engine to check.

    Attributes:
        argv: The command, a sequence of `str`, `bytes` or paths; with `shell=True` one
            `str` or `bytes` for `/bin/sh -c`. Text is UTF-8.
        shell: Whether `argv` is a command line.
        cwd: Working directory; None is the client's, a relative one starts there.
        env: The whole environment; None is the client's.
        extra_env: Laid over `env`; a value of None removes the variable.
        arg0: What the child sees as its name, instead of the program's.
        marker: Whether to add the variable by which recovery knows descendants.
        pass_fds: Descriptors that the child gets under the same numbers.
        stdin: `null`, `pipe`, or bytes that are fed, then closed.
        stdout: `pipe` or `null`.
        stderr: `pipe`, `null`, or `stdout`: wherever stdout goes, also to `null`.
        tty: A terminal instead of the three; True is one of the default size.
        kill_on_drop: Whether a lost owner ends the tree, or only closes stdin.
        detach_ttl: Seconds that it may live without an owner: one that goes detaches it
            (its stdin stays open unless `kill_on_drop=False` as well), and then it is
            killed.
        retention: What is kept of the output; None is the engine's setting.
        post_exit_grace: Seconds for pipes left open after the end; None is until EOF,
            `"default"` the engine's setting.
        leftover: What becomes of descendants after a normal end; None is the setting.
        limits: What the child may use.
        timeout: Seconds until the tree is ended.
        idle_timeout: Seconds without output until the tree is ended.
        metadata: Pairs given back, copied, with every result; 4096 at most.
        authority: A note given back with every snapshot.
        observe: Directories below which files are compared before and after, for the
            result of a run or of `output`; relative ones start in `cwd`.
        request_id: Name of this request, for retrying it; 1 to 128 characters. While
            its session is there, a request of the same key and name gets that again
            instead of a new one; to close a handle of it closes it for all. Later the
            name is refused with `InvalidRequest`.
        on_full: Whether a full limit refuses this one, or ends another session of the
            same key: the least recently used, but none of the 8 most recently used.
        queue: Seconds to wait for room over a limit, first come first served; None is
            the scope's default, which does not wait.

    Raises:
        InvalidRequest: A parameter is not valid; `field` names it.
    """

    argv: Sequence[Native] | str | bytes
    _: KW_ONLY
    shell: bool = False
    cwd: Native | None = None
    env: Environment | None = field(default=None, repr=False)
    extra_env: Overlay | None = field(default=None, repr=False)
    arg0: Native | None = None
    marker: bool = True
    pass_fds: Sequence[int] = ()
    stdin: InputMode | bytes = field(default="null", repr=False)
    stdout: OutputMode = "pipe"
    stderr: ErrorMode = "pipe"
    tty: bool | TtySize = False
    kill_on_drop: bool = True
    detach_ttl: float | None = None
    retention: OutputPolicy | None = None
    post_exit_grace: float | Literal["default"] | None = "default"
    leftover: Leftover | None = None
    limits: Limits = _NO_LIMITS
    timeout: float | None = None
    idle_timeout: float | None = None
    metadata: Mapping[str, str] | None = None
    authority: str | None = None
    observe: Sequence[Native] = ()
    request_id: str | None = None
    on_full: Literal["refuse", "evict"] = "refuse"
    queue: float | None = None
    _words: _Words = field(init=False, repr=False, compare=False)

    _CHECKS: ClassVar[Mapping[str, Check]] = {
        "shell": checks.flag,
        "marker": checks.flag,
        "pass_fds": checks.descriptors,
        "stdin": checks.stdin,
        "stdout": checks.stdout,
        "stderr": checks.stderr,
        "kill_on_drop": checks.flag,
        "detach_ttl": checks.optional(checks.seconds),
        "retention": checks.optional(checks.instance(OutputPolicy)),
        "leftover": checks.optional(checks.leftover),
        "limits": checks.instance(Limits),
        "timeout": checks.optional(checks.some_seconds),
        "idle_timeout": checks.optional(checks.some_seconds),
        "authority": checks.optional(checks.text),
        "request_id": checks.optional(checks.token),
        "on_full": checks.choice("refuse", "evict"),
        "queue": checks.optional(checks.seconds),
    }

    def __post_init__(self) -> None:
        for name, check, default in _ASKED:
            value = getattr(self, name)
            if value is not default:  # 0.8 us, with all checks 2.4
                check(name, value)
        if self.post_exit_grace != "default":
            checks.optional(checks.seconds)("post_exit_grace", self.post_exit_grace)
        self._check_terminal()
        keep = object.__setattr__
        keep(self, "_words", self._read_words())
        watched = checks.items("observe", self.observe)
        keep(self, "observe", tuple(_directory("observe", path) for path in watched))
        keep(self, "pass_fds", tuple(self.pass_fds))

    def _check_terminal(self) -> None:
        if not isinstance(self.tty, TtySize):
            _flag_or_size("tty", self.tty)
        if self.tty is False:
            return
        if self.stdout != "pipe" or self.stderr != "pipe":
            name = "stdout" if self.stdout != "pipe" else "stderr"
            raise InvalidRequest(name, "cannot be chosen: a terminal is one stream")
        if isinstance(self.stdin, bytes):
            raise InvalidRequest("stdin", "of a terminal cannot be fed and closed")

    def launch(
        self,
        ambient: Ambient,
        settings: Settings,
        scope: str,
        mark: str,
        *,
        paused: bool = False,
    ) -> Launch:
        """Return the order to a worker.

        Args:
            ambient: What the client's process has now.
            settings: The engine's defaults.
            scope: Name of the scope.
            mark: 32 hexadecimal digits that the whole tree can be known by.
            paused: Whether the clock of the scope is stopped.

        Raises:
            InvalidRequest: `scope` or `mark` is not valid.
        """
        _mark("mark", mark)
        words, limits = self._words, self.limits
        program, arg0 = words.argv[0], words.arg0
        cwd = _absolute(words.cwd, ambient.cwd)
        return Launch(
            argv=words.argv if arg0 is None else (arg0, *words.argv[1:]),
            executable=None if arg0 is None else program,
            cwd=cwd,
            env=self._environment(ambient, mark),
            umask=ambient.umask,
            rlimits=limits.rlimits(ambient.rlimits),
            nice=_or(limits.nice, ambient.nice),
            oom_score_adj=_or(limits.oom_score_adj, ambient.oom_score_adj),
            pass_fds=tuple(self.pass_fds),
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            tty=self._tty_size(settings),
            retention=_or(self.retention, settings.retention),
            post_exit_grace=(
                settings.post_exit_grace
                if self.post_exit_grace == "default"
                else self.post_exit_grace
            ),
            leftover=_or(self.leftover, settings.leftover),
            leftover_delay=settings.leftover_delay,
            timeout=self.timeout,
            idle_timeout=self.idle_timeout,
            limits=limits,
            terminate_grace=settings.terminate_grace,
            kill_timeout=settings.kill_timeout,
            kill_on_drop=self.kill_on_drop,
            quiet=settings.quiet,
            chunk=settings.chunk,
            stdin_queue=settings.stdin_queue,
            metadata=words.metadata,
            authority=self.authority,
            scope=scope,
            paused=paused,
            observe=tuple(
                _absolute(_native("observe", path), cwd) for path in self.observe
            ),
            mark=mark.encode() if self.marker else b"",
        )

    def _read_words(self) -> _Words:
        return _Words(
            argv=_command_line(self.argv, shell=self.shell),
            arg0=None if self.arg0 is None else _native("arg0", self.arg0),
            cwd=None if self.cwd is None else _directory("cwd", self.cwd),
            env=None if self.env is None else _environment("env", self.env),
            extra_env=_overlay("extra_env", self.extra_env),
            metadata=_pairs("metadata", self.metadata),
        )

    def _tty_size(self, settings: Settings) -> TtySize | None:
        if isinstance(self.tty, TtySize):
            return self.tty
        return settings.tty if self.tty else None

    def _environment(self, ambient: Ambient, mark: str) -> bytes:
        words = self._words
        if words.env is None and not words.extra_env:
            known = mark.encode() if self.marker else ambient.env.get(MARK)
            return ambient.block if known is None else _with_mark(ambient.block, known)
        env = ambient.env if words.env is None else words.env
        merged: dict[bytes, bytes | None] = {**env, **words.extra_env}
        if self.marker:
            merged[MARK] = mark.encode()
        return _joined({k: v for k, v in merged.items() if k and v is not None})


def _defaults() -> Iterator[tuple[str, Check, object]]:
    """Yield what is checked of a request unless it has its default."""
    defaults = {field.name: field.default for field in fields(Spec)}
    for name, check in Spec._CHECKS.items():  # noqa: SLF001 - the class's own other half
        yield name, check, defaults[name]


_ASKED = tuple(_defaults())


def _joined(env: Mapping[bytes, bytes]) -> bytes:
    return b"\0".join([name + b"=" + value for name, value in env.items()])


def _with_mark(block: bytes, mark: bytes) -> bytes:
    variable = MARK + b"=" + mark
    return block + b"\0" + variable if block else variable


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _absolute(path: bytes | None, start: bytes) -> bytes:
    if path is None:
        return start
    if path.startswith(b"/"):
        return path
    return start.rstrip(b"/") + b"/" + path


def _mark(name: str, value: str) -> None:
    if len(value) != MARK_DIGITS or not _HEXADECIMAL.issuperset(value):
        raise InvalidRequest(name, f"must be {MARK_DIGITS} hexadecimal digits")


def _native(name: str, value: object) -> bytes:
    fspath = getattr(type(value), "__fspath__", None)
    plain = value if fspath is None else fspath(value)
    if isinstance(plain, str):
        try:
            # The inverse of how Python reads names that are not UTF-8.
            plain = plain.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            # Without its cause, which would carry the text along.
            raise InvalidRequest(name, "holds half a character") from None
    if not isinstance(plain, bytes):
        raise InvalidRequest(name, "must be text, bytes or a path")
    checks.plain_bytes(name, plain)
    return plain


def _directory(name: str, value: object) -> bytes:
    path = _native(name, value)
    if not path:
        raise InvalidRequest(name, "must not be empty")
    return path


def _command_line(argv: object, *, shell: bool) -> tuple[bytes, ...]:
    if shell:
        if not isinstance(argv, str | bytes):
            raise InvalidRequest("argv", "must be one text with shell=True")
        return b"/bin/sh", b"-c", _native("argv", argv)
    if not isinstance(argv, list | tuple):
        raise InvalidRequest("argv", "must be a sequence; one text needs shell=True")
    words = tuple(_native("argv", item) for item in argv)
    if not words or not words[0]:
        raise InvalidRequest("argv", "must name a program")
    return words


def _mapping(name: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise InvalidRequest(name, "must be a mapping")
    return value


def _flag_or_size(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(name, "must be True, False or TtySize")


def _variable(name: str, key: bytes, value: object) -> bytes:
    try:
        return _native(name, value)
    except InvalidRequest as wrong:
        # Its name helps to find it; its value may be a secret.
        which = key.decode("utf-8", "backslashreplace")
        raise InvalidRequest(name, f"variable {which} {wrong.message}") from None


def _environment(name: str, value: object) -> dict[bytes, bytes]:
    named = ((_native(name, key), text) for key, text in _mapping(name, value).items())
    env = {key: _variable(name, key, text) for key, text in named}
    checks.variable_names(name, env)
    return env


def _overlay(name: str, value: object) -> dict[bytes, bytes | None]:
    if value is None:
        return {}
    named = ((_native(name, key), text) for key, text in _mapping(name, value).items())
    overlay = {
        key: None if text is None else _variable(name, key, text) for key, text in named
    }
    checks.variable_names(name, overlay)
    return overlay


def _pairs(name: str, value: object) -> tuple[tuple[str, str], ...]:
    pairs = () if value is None else tuple(_mapping(name, value).items())
    checks.metadata(name, pairs)
    return pairs
