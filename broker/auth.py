"""Who may talk to a broker: its directory, lock, sockets and keys, and its peers.

Policy only: no socket loop. Everything rests on one directory that belongs to this user
alone. It is opened once, judged by its descriptor (never by its path, which others may
swap meanwhile) and used through that descriptor afterwards. Whatever is not as this
module would have made it is refused with the reason and the way out; it is neither
repaired nor removed, because it is not ours.
"""

import errno
import fcntl
import os
import re
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple, Self

from broker.errors import AlreadyRunning, InvalidRequest
from broker.places import RUN_PREFIX, place

__all__ = [
    "BROKER_SOCKET",
    "LIFELINE_SOCKET",
    "Peer",
    "RunDirectory",
    "endpoint_path",
    "peer_pidfd",
]

BROKER_SOCKET: Final = b"broker.sock"
LIFELINE_SOCKET: Final = b"lifeline.sock"

_LOCK: Final = b"lock"
_KEY: Final = b"operator.key"
_NEW_KEY: Final = b"operator.key.new"
_FILES: Final = frozenset((BROKER_SOCKET, LIFELINE_SOCKET, _LOCK, _KEY, _NEW_KEY))
_RESERVED: Final = _FILES - {BROKER_SOCKET}
_KEY_FORM: Final = re.compile(rb"[0-9a-f]{64}")
_SOCKET_PATH_MAX: Final = 107
"""Bytes of a path in `sockaddr_un`, its final zero not counted."""
_SOCKET_NAME_MAX: Final = _SOCKET_PATH_MAX - len("/proc/self/fd/1234567/")
"""Bytes of a socket's name that can be reached through any descriptor."""
_BACKLOG: Final = 4096
"""Clients that may wait to be accepted; Linux has a bound too, 4096 since 5.4."""
_ELSEWHERE: Final = "choose a private directory, as endpoint or XDG_RUNTIME_DIR"
_NEWBORN: Final = 60.0
"""Seconds for which an unlocked run directory may belong to an engine that starts."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SO_PEERPIDFD: Final = 77  # Linux 6.5; the socket module does not name it
_HAVE_PEERPIDFD = True  # tests force the fallback with it

# Identities of the directories that this process holds locked. A process that opens and
# closes a lock file loses its own lock on it (fcntl's rule), so it must never look.
_held: set[tuple[int, int]] = set()
_taking = threading.Lock()
"""Held while a thread of this process looks whether another one has a directory."""


def _hold_nothing() -> None:
    """Forget, in a forked copy, what its parent holds: locks are not inherited.

    What a dead parent left would count as in use otherwise. And the thread that was
    looking at the time of the fork is not there to finish.
    """
    global _taking  # noqa: PLW0603 - as it was made
    _held.clear()
    _taking = threading.Lock()


os.register_at_fork(after_in_child=_hold_nothing)


def usual_endpoint(environ: Mapping[str, str], uid: int) -> str:
    """Return where the shared broker of `uid` listens unless told otherwise."""
    return "ipc://" + os.fsdecode(place(BROKER_SOCKET, environ, uid))


def endpoint_path(endpoint: str | None) -> bytes:
    """Return the path in `ipc://PATH`, empty for None.

    Raises:
        InvalidRequest: it is no ipc endpoint, or no socket could have its name.
    """
    if endpoint is None:
        return b""
    if endpoint.startswith("tcp://"):
        absent = "tcp:// is not in this version: give ipc:///ABSOLUTE/PATH"
        raise InvalidRequest("endpoint", absent)
    path = endpoint.removeprefix("ipc://")
    if path == endpoint or not path.startswith("/") or path.endswith("/"):
        raise InvalidRequest("endpoint", f"{endpoint!r} is not ipc:///ABSOLUTE/PATH")
    try:
        where = os.fsencode(path)
    except UnicodeEncodeError:
        where = b""
    if not where or b"\0" in where:
        raise InvalidRequest("endpoint", f"{endpoint!r} is no path of the file system")
    if os.path.basename(where) in _RESERVED:
        why = "is the name of another file of a broker"
        raise _refuse(where, why, "choose another name")
    excess = len(os.path.basename(where)) - _SOCKET_NAME_MAX
    if excess > 0 and len(where) > _SOCKET_PATH_MAX:
        why = f"is longer than the {_SOCKET_PATH_MAX} bytes of a socket's path"
        raise _refuse(where, why, f"make its name {excess} bytes shorter")
    return where


class RunDirectory:
    """A directory of this user alone, held open; it works after being renamed too.

    Close it at the end; what `lock` took is released with that.

    Attributes:
        fd: its descriptor.
        location: its absolute path, for people and for other processes.
    """

    __slots__ = ("_lock", "_root", "_sockets", "fd", "location")

    def __init__(self, fd: int, location: bytes, *, root: bytes = b".") -> None:
        self.fd = fd
        self.location = location
        self._root = root  # seen from `fd`
        self._sockets: set[bytes] = set()
        self._lock = -1

    @classmethod
    def create(cls, root: bytes, name: bytes = b"") -> Self:
        """Make the directory `root`, and `name` in it if given; adopt what fits.

        Args:
            root: see `places.runtime_root`; its parent must exist.
            name: of an embedded engine's own directory, beginning with `RUN_PREFIX`.

        Raises:
            InvalidRequest: what lies there is not this user's alone.
        """
        top = cls._enter(root, make=True)
        if not name:
            return top
        with closing(top):
            location = os.path.join(top.location, name)
            fd = _open_private(name, top.fd, location, make=True)
            return cls(fd, location, root=b"..")

    @classmethod
    def open(cls, location: bytes) -> Self:
        """Open a directory that exists, to connect to what listens in it.

        Raises:
            InvalidRequest: it does not exist or is not this user's alone.
        """
        return cls._enter(location, make=False)

    @classmethod
    def _enter(cls, path: bytes, *, make: bool) -> Self:
        parent, name = os.path.split(os.path.abspath(path))
        parent = os.path.realpath(parent)
        location = os.path.join(parent, name)
        above = _open_trusted(parent)
        try:
            return cls(_open_private(name, above, location, make=make), location)
        finally:
            os.close(above)

    @property
    def locked(self) -> bool:
        """Whether this object holds the directory's lock."""
        return self._lock >= 0

    def path(self, name: bytes) -> bytes:
        """Return a path of `name` that fits into a socket address.

        When the real one is too long it goes through this object's descriptor: then it
        serves this process only, and only until `close`.

        Raises:
            InvalidRequest: `name` alone is too long.
        """
        for path in (
            os.path.join(self.location, name),
            b"/proc/self/fd/%d/%s" % (self.fd, name),
        ):
            if len(path) <= _SOCKET_PATH_MAX:
                return path
        raise _refuse(name, "is too long for a socket", "choose a shorter name")

    def lock(self) -> None:
        """Become the only engine of this directory, until `close` or this process ends.

        A forked copy of this process does not hold the lock.

        Raises:
            AlreadyRunning: another engine holds it.
            InvalidRequest: the lock file is not one.
        """
        with _gate(self.fd, self._root, fcntl.LOCK_SH):
            self._lock_file()

    def _lock_file(self) -> None:
        """Take the lock; within the gate."""
        with _taking:
            if _identity(self.fd) in _held:
                raise self._taken()
            fd = _open_file(self.fd, self.location, _LOCK, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.close(fd)
                raise self._taken() from None
            self._lock = fd
            _held.add(_identity(self.fd))

    def operator_key(self) -> bytes:
        """Return the key that opens all sessions: 64 hexadecimal digits.

        The holder of the lock makes it when there is none.

        Raises:
            InvalidRequest: there is none, or the file is not as it was made.
        """
        try:
            fd = _open_file(self.fd, self.location, _KEY, os.O_RDONLY)
        except FileNotFoundError:
            if not self.locked:
                raise self._refuse(_KEY, "is missing", "start a broker there") from None
            return self._make_key()
        try:
            key = os.read(fd, 65)
        finally:
            os.close(fd)
        if not _KEY_FORM.fullmatch(key):
            raise self._refuse(_KEY, "holds no key", "remove it")
        return key

    @classmethod
    def sweep_stale(cls, root: bytes) -> list[bytes]:
        """Remove the run directories of dead engines below `root`; return their paths.

        One that holds records is left for their recovery.

        Raises:
            InvalidRequest: `root` is not this user's alone.
        """
        if not os.path.lexists(root):
            return []
        with closing(cls.open(root)) as top, _gate(top.fd, b".", fcntl.LOCK_EX):
            names = map(os.fsencode, os.listdir(top.fd))
            below = [
                (name, os.path.join(top.location, name))
                for name in names
                if name.startswith(RUN_PREFIX)
            ]
            return [where for name, where in below if _sweep(top.fd, name, where)]

    @classmethod
    def abandoned(cls, root: bytes) -> list[Self]:
        """Lock and return the directories below `root` whose holders are dead.

        Each is to be removed, or closed: then it is for a later call.

        Raises:
            InvalidRequest: `root` is not this user's alone.
        """
        if not os.path.lexists(root):
            return []
        with closing(cls.open(root)) as top, _gate(top.fd, b".", fcntl.LOCK_EX):
            names = sorted(map(os.fsencode, os.listdir(top.fd)))
            found = [cls._inherit(top, n) for n in names if n.startswith(RUN_PREFIX)]
        return [directory for directory in found if directory is not None]

    @classmethod
    def _inherit(cls, top: Self, name: bytes) -> Self | None:
        """Lock a directory whose holder is dead; None: it lives, or it is not ours."""
        location = os.path.join(top.location, name)
        try:
            directory = cls(
                _open_private(name, top.fd, location, make=False), location, root=b".."
            )
        except InvalidRequest:
            return None
        try:
            if not _newborn(directory.fd):
                directory._lock_file()
                return directory
        except (AlreadyRunning, InvalidRequest):
            pass  # its holder lives; or it was not made by one
        directory.close()
        return None

    def listen(self, name: bytes) -> socket.socket:
        """Return a blocking stream socket, mode 0600, that listens at `name`.

        Raises:
            AlreadyRunning: somebody listens there.
            InvalidRequest: something lies there that is not the socket of a dead
                broker, or it is and the lock is not held; or the name is too long.
        """
        path = self.path(name)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # bind() gives the file the mode of the socket: unlike umask() this changes
            # nothing that another thread could be using.
            os.fchmod(listener.fileno(), 0o600)
            with _explained(os.path.join(self.location, name)):
                self._make_room(name)
                listener.bind(path)
            listener.listen(_BACKLOG)
            self._sockets.add(name)
        except BaseException:
            listener.close()
            raise
        return listener

    def answers(self, name: bytes) -> bool:
        """Return whether somebody listens at the socket `name`.

        Raises:
            InvalidRequest: the name is too long.
        """
        return _answers(self.path(name))

    def remove(self) -> None:
        """Remove the engine's files and, below a root, the directory.

        A directory that holds anything else stays: records outlive their engine until
        they are recovered.

        Raises:
            InvalidRequest: this object does not hold the lock.
        """
        if not self.locked:
            raise _refuse(self.location, "may be in use", "lock it before removing it")
        with _gate(self.fd, self._root, fcntl.LOCK_EX):
            _remove_files(self.fd, _FILES | self._sockets)
            if self._root == b"..":
                _remove_directory(self.fd, self.location)
            self.close()

    def close(self) -> None:
        """Release the lock and the descriptors. Idempotent."""
        if self._lock >= 0:
            _held.discard(_identity(self.fd))
            os.close(self._lock)
            self._lock = -1
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _refuse(self, name: bytes, why: str, remedy: str) -> InvalidRequest:
        return _refuse(os.path.join(self.location, name), why, remedy)

    def _taken(self, name: bytes = b"") -> AlreadyRunning:
        where = os.fsdecode(
            os.path.join(self.location, name) if name else self.location
        )
        return AlreadyRunning(f"a broker is already running at {where}")

    def _make_key(self) -> bytes:
        """Write the key beside its place and move it: readers see all of it or none."""
        key = os.urandom(32).hex().encode()
        with suppress(FileNotFoundError):  # no engine died just here
            os.unlink(_NEW_KEY, dir_fd=self.fd)
        fd = _open_file(
            self.fd, self.location, _NEW_KEY, os.O_WRONLY | os.O_CREAT | os.O_EXCL
        )
        try:
            os.fchmod(fd, 0o600)  # whatever the umask took away
            os.write(fd, key)
        finally:
            os.close(fd)
        os.rename(_NEW_KEY, _KEY, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        return key

    def _make_room(self, name: bytes) -> None:
        """Remove a dead broker's socket, and nothing else: bind() removes nothing."""
        try:
            mode = os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise self._refuse(name, "is not a socket", "remove it")
        if _answers(self.path(name)):
            raise self._taken(name)
        if not self.locked:
            raise self._refuse(name, "is a dead broker's socket", "remove it")
        os.unlink(name, dir_fd=self.fd)


@contextmanager
def _gate(fd: int, root: bytes, mode: int) -> Iterator[None]:
    """Keep sweepers out while a lock file exists that is not locked yet.

    The gate is a lock on the root directory itself, held for microseconds.
    """
    gate = os.open(root, _DIRECTORY, dir_fd=fd)
    try:
        fcntl.flock(gate, mode)
        yield
    finally:
        os.close(gate)


def _open_file(fd: int, location: bytes, name: bytes, flags: int) -> int:
    """Open a file of ours; never wait, as a fifo at its place would have us do."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    path = os.path.join(location, name)
    with _explained(path):
        file = os.open(name, flags, 0o600, dir_fd=fd)
    try:
        _check_own(path, os.fstat(file), stat.S_ISREG, "regular file")
    except BaseException:
        os.close(file)
        raise
    return file


def _remove_files(fd: int, names: Iterable[bytes]) -> None:
    for name in names:
        with suppress(FileNotFoundError):  # not every engine makes every file
            os.unlink(name, dir_fd=fd)


def _remove_directory(fd: int, location: bytes) -> None:
    if os.listdir(fd):
        return
    above = os.open(b"..", _DIRECTORY, dir_fd=fd)
    try:
        os.rmdir(os.path.basename(location), dir_fd=above)
    except OSError as error:
        # A worker that began as all ended wrote here; or somebody has removed it.
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise
    finally:
        os.close(above)


def _sweep(root: int, name: bytes, location: bytes) -> bool:
    try:
        fd = _open_private(name, root, location, make=False)
    except InvalidRequest:
        return False  # not made by an engine, so not ours to remove
    try:
        if not _is_stale(fd, location):
            return False
        _remove_files(fd, _FILES)
        os.rmdir(name, dir_fd=root)
    finally:
        os.close(fd)
    return True


def _is_stale(fd: int, location: bytes) -> bool:
    """Return whether its engine is dead and left nothing to recover.

    The gate must be shut: it keeps the answer true after this returns.
    """
    names = set(map(os.fsencode, os.listdir(fd)))
    if _identity(fd) in _held or not names <= _FILES:
        return False
    if _LOCK not in names:
        return not _newborn(fd)
    try:
        file = _open_file(fd, location, _LOCK, os.O_RDWR)
    except InvalidRequest:
        return False  # not made by an engine either
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False  # its engine lives
    finally:
        os.close(file)
    return True


def _newborn(fd: int) -> bool:
    """Return whether a directory without a lock may be somebody's who is starting."""
    if _LOCK in map(os.fsencode, os.listdir(fd)):
        return False
    age = time.time() - os.fstat(fd).st_mtime  # noqa: TID251 - the clock of files
    return age <= _NEWBORN


def _answers(path: bytes) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:
            pass  # its backlog is full: somebody listens, slowly
        return True


class Peer(NamedTuple):
    """Who connected; `pidfd` is the receiver's to close."""

    pid: int
    uid: int
    pidfd: int


def peer_pidfd(sock: socket.socket) -> Peer:
    """Return the process that connected to `sock`. Call it right after accept().

    Raises:
        ProcessLookupError: it has ended.
    """
    pid, uid, _ = struct.unpack(
        "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return Peer(pid, uid, _peer_by_kernel(sock, pid) or _peer_by_number(sock, pid))


def _peer_by_kernel(sock: socket.socket, pid: int) -> int:
    """Return a pidfd, 0 when this kernel cannot tell (before Linux 6.5)."""
    if not _HAVE_PEERPIDFD:
        return 0
    try:
        return sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as refused:
        if refused.errno == errno.ENOPROTOOPT:
            return 0
        raise ProcessLookupError(errno.ESRCH, f"peer {pid} has ended") from refused


def _peer_by_number(sock: socket.socket, pid: int) -> int:
    """Return a pidfd of `pid`, made sure that it is not a later process of this number.

    One that took the number after this call began has a later start time. One that took
    it between connect() and now cannot be seen by that: but then the connector is dead
    and its end of the connection closed, unless a forked copy of it holds it open.
    """
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as gone:
        raise ProcessLookupError(errno.ESRCH, f"peer {pid} has ended") from gone
    if _hung_up(sock) or _started(pid) > now:
        os.close(pidfd)
        raise ProcessLookupError(errno.ESRCH, f"peer {pid} has ended")
    return pidfd


def _hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, 0)  # POLLHUP is reported always
    return bool(poll.poll(0))


def _started(pid: int) -> float:
    """Return when `pid` started, in seconds since boot; infinity when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as status:
            fields = status.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return float("inf")
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _identity(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def _refuse(path: bytes, why: str, remedy: str) -> InvalidRequest:
    return InvalidRequest("endpoint", f"{os.fsdecode(path)!r} {why}: {remedy}")


@contextmanager
def _explained(path: bytes) -> Iterator[None]:
    """Turn the system's refusals about `path` into ours, save that it is missing."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as refused:
        why = {
            errno.ELOOP: "is a symbolic link",
            errno.ENOTDIR: "is a symbolic link or no directory",
        }.get(refused.errno or 0, f"cannot be used ({refused.strerror})")
        # Whoever may not look into a directory is not the one to remove it.
        denied = refused.errno == errno.EACCES
        remedy = _ELSEWHERE if denied else f"remove it or {_ELSEWHERE}"
        raise _refuse(path, why, remedy) from refused


def _open_private(name: bytes, above: int, path: bytes, *, make: bool) -> int:
    """Open directory `name` in `above`; refuse it unless it is this user's alone."""
    with _explained(path):
        if make:
            with suppress(FileExistsError):  # it is judged below like our own
                os.mkdir(name, 0o700, dir_fd=above)
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=above)
        except FileNotFoundError as missing:
            raise _refuse(path, "does not exist", "is a broker running?") from missing
    try:
        _check_own(path, os.fstat(fd), stat.S_ISDIR, "directory")
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_own(
    path: bytes, info: os.stat_result, is_kind: Callable[[int], bool], kind: str
) -> None:
    if not is_kind(info.st_mode):
        raise _refuse(path, f"is no {kind}", f"remove it or {_ELSEWHERE}")
    if info.st_uid != os.geteuid():
        raise _refuse(path, f"belongs to user {info.st_uid}", _ELSEWHERE)
    if info.st_mode & 0o077:
        mode = stat.S_IMODE(info.st_mode)
        raise _refuse(
            path,
            f"is open to others (mode {mode:04o})",
            "if you trust what is in it, chmod go= it",
        )


def _open_trusted(path: bytes) -> int:
    """Open a directory that nobody but root and this user can rename or replace.

    To look at each ancestor once is enough: only those who are trusted can change it.
    O_PATH, because an ancestor need not be readable.
    """
    roots = _roots()
    walked, fd = b"/", os.open(b"/", _DIRECTORY | os.O_PATH)
    try:
        _check_ancestor(walked, os.fstat(fd), roots)
        for part in filter(None, path.split(b"/")):
            walked = os.path.join(walked, part)
            above, fd = fd, _descend(part, fd, walked)
            os.close(above)
            _check_ancestor(walked, os.fstat(fd), roots)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _descend(part: bytes, above: int, walked: bytes) -> int:
    try:
        with _explained(walked):
            return os.open(part, _DIRECTORY | os.O_PATH, dir_fd=above)
    except FileNotFoundError as missing:
        raise _refuse(walked, "does not exist", _ELSEWHERE) from missing


def _check_ancestor(path: bytes, info: os.stat_result, roots: Collection[int]) -> None:
    if info.st_uid != os.geteuid() and info.st_uid not in roots:
        raise _refuse(path, f"belongs to user {info.st_uid}", _ELSEWHERE)
    if info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX:
        raise _refuse(path, "lets others replace what is in it", _ELSEWHERE)


def _roots() -> Collection[int]:
    """Return the user ids that the system's own directories may show.

    In a sandbox with a user namespace the real root is mapped to nobody, and shows as
    the overflow uid.
    """
    with open("/proc/self/uid_map", "rb") as table:
        mapped = sum(int(line.split()[2]) for line in table)
    if mapped >= 2**32 - 1:
        return (0,)
    with open("/proc/sys/fs/overflowuid", "rb") as number:
        return (0, int(number.read()))
