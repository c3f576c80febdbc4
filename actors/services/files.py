"""What a client keeps on file of a service: its record, and its private directories.

Below `services` in the runtime directory lies a directory for each service, locked by
the client that runs it::

    lock
    record    what the stop command needs, and what became of it
    output/   the service's own
    tmp/      the same

The record holds the environment of the start command, which the stop command is to get:
like all else here it can be read by this user alone. It is written whole beside its
place and moved there, before anything can run.

A free lock tells that the client is dead; whoever takes it may run the stop command.
So it is never run twice at a time, and never again once its end is in the record.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from actors.scratch import clear
from broker import journal
from broker.auth import RunDirectory
from broker.errors import EngineError, SpawnFailed
from broker.places import RUN_PREFIX, SERVICES, place

__all__ = ["ServiceFiles", "ServiceRecord"]

RECORD, NEW = b"record", b"record.new"
OUTPUT, TEMPORARY = b"output", b"tmp"


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """What a record says.

    Attributes:
        name: of the service.
        owner: for whom it is.
        stop: its stop command.
        environment: of its start command.
        directory: the same.
        document: what both commands read.
        boot: in which life of the machine.
        namespace: in which its pids have their meaning.
        marks: of the start command's tree, and of those of the stop commands.
        stopped: whether a stop command has ended.
    """

    name: str
    owner: str
    stop: tuple[str, ...]
    environment: dict[str, str]
    directory: str
    document: str
    boot: str
    namespace: int
    marks: tuple[str, ...]
    stopped: bool = False

    @classmethod
    def parse(cls, text: bytes) -> Self | None:
        """Return what a record says, None for one that is torn."""
        try:
            values = json.loads(text)
            record = cls(**values)
            record = replace(record, stop=tuple(record.stop), marks=tuple(record.marks))
        except (ValueError, TypeError):
            return None
        return record if _sound(values) else None

    def to_text(self) -> bytes:
        """Return the record that says this."""
        return json.dumps(asdict(self)).encode()

    def here(self) -> bool:
        """Whether its pids are of this process's namespace."""
        return self.namespace == journal.here()[1]

    def now(self) -> bool:
        """Whether it was written in this life of the machine."""
        return self.boot.encode() == journal.here()[0]


def _sound(values: dict[str, Any]) -> bool:
    """Return whether each field is what it should be: others may have written it."""
    names = ("name", "owner", "directory", "document", "boot")
    texts = [values[name] for name in names]
    texts += [*values["stop"], *values["marks"]]
    environment = values["environment"]
    if not isinstance(environment, dict):
        return False
    return (
        all(isinstance(text, str) for text in (*texts, *environment.values()))
        and isinstance(values["namespace"], int)
        and isinstance(values.get("stopped", False), bool)
    )


class ServiceFiles:
    """The directory of one service, locked by this process.

    `make`, `read` and `remove` run in threads, which go on when who awaited them was
    cancelled. The directory stays open, and locked, until such a thread is done.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._guard = threading.Lock()
        self._busy = False
        self._left = False

    @classmethod
    def new(cls) -> Self:
        """Return those of a new service, of which nothing is made yet."""
        name = RUN_PREFIX + os.urandom(8).hex().encode()
        root = place(SERVICES, os.environ, os.geteuid())
        return cls(RunDirectory(-1, os.path.join(root, name)))

    def make(self) -> None:
        """Make and lock the directory; `remove` takes back what of it was made.

        Raises:
            InvalidRequest: the runtime directory is refused.
            SpawnFailed: it cannot be made.
        """
        root, name = os.path.split(self._directory.location)
        with self._at_work(), self._recording():
            RunDirectory.create(os.path.dirname(root)).close()
            self._directory = RunDirectory.create(root, name)
            self._directory.lock()
            fd = self._directory.fd
            for own in (OUTPUT, TEMPORARY):
                os.mkdir(own, 0o700, dir_fd=fd)
                os.chmod(own, 0o700, dir_fd=fd)  # whatever the umask took away

    @property
    def path(self) -> str:
        """Where it is."""
        return os.fsdecode(self._directory.location)

    def own(self, name: bytes) -> str:
        """Return the path of a private directory, as what reads UTF-8 finds it."""
        path = os.path.join(self._directory.location, name)
        return path.decode("utf-8", "surrogateescape")

    def write(self, record: ServiceRecord) -> None:
        """Put a record in place of the one before.

        Raises:
            SpawnFailed: it cannot be written.
        """
        fd = self._directory.fd
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._recording():
            with os.fdopen(os.open(NEW, flags, 0o600, dir_fd=fd), "wb") as file:
                os.fchmod(file.fileno(), 0o600)  # whatever the umask took away
                file.write(record.to_text())
            os.rename(NEW, RECORD, src_dir_fd=fd, dst_dir_fd=fd)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Turn the system's refusals into ours."""
        try:
            yield
        except OSError as refused:
            number = refused.errno or 0
            raise SpawnFailed(number, "journal", self.path) from refused

    def read(self) -> bytes | None:
        """Return the record; None if there is none: nothing has run.

        Raises:
            EngineError: it cannot be read.
        """
        # Never wait, as a fifo at its place would have us do.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._at_work():
            try:
                fd = os.open(RECORD, flags, dir_fd=self._directory.fd)
                with os.fdopen(fd, "rb") as file:
                    return file.read()
            except FileNotFoundError:
                return None
            except OSError as refused:
                raise self._failed("read", refused) from refused

    def remove(self) -> None:
        """Remove all of it; nothing may run any more that uses it.

        Raises:
            EngineError: something of it cannot be removed.
        """
        with self._at_work():
            if not self._directory.locked:
                return  # it was not made; without its lock, what there is may not be
            try:
                self._remove(self._directory.fd)
            except OSError as refused:
                raise self._failed("removed", refused) from refused

    def _remove(self, fd: int) -> None:
        for own in (OUTPUT, TEMPORARY):
            with suppress(FileNotFoundError):  # it died while it made them
                clear(own, fd)
        for own in (RECORD, NEW):
            with suppress(FileNotFoundError):  # the same
                os.unlink(own, dir_fd=fd)
        self._directory.remove()

    def _failed(self, what: str, refused: OSError) -> EngineError:
        return EngineError(f"{self.path!r} cannot be {what}: {refused}")

    def leave(self) -> None:
        """Let go of it: whoever comes next finds what is there. Idempotent."""
        with self._guard:
            self._left = True
            self._close_unused()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Keep the directory open for a block, although it may be left meanwhile.

        The number of its descriptor would soon be another file's.

        Raises:
            EngineError: it was left before.
        """
        with self._guard:
            if self._left:
                raise EngineError(f"{self.path!r} was left")
            self._busy = True
        try:
            yield
        finally:
            with self._guard:
                self._busy = False
                self._close_unused()

    def _close_unused(self) -> None:
        if self._left and not self._busy:
            self._directory.close()
