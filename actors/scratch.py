"""Scratch directories: a private one for each scope that asks, gone with its sessions.

Below a root lie, for each such scope, a directory and a lock file::

    scope-HASH/         mode 0700, made exclusively
    scope-HASH.lock     mode 0600; names the directory (device, inode) and the client
                        (pid, start time) that made both

HASH is made of the scope's name, keyed with the engine's owner key: engines that know
nothing of each other never meet. The lock file answers two questions.

* Did we make this directory? Only if it is the one that the text names. Whatever else
  lies at that path is neither used nor removed.
* Is it in use? A shared flock on the file is a `Hold`. The client that made it has one,
  and the worker of every child that the scope started since: so it outlives a client
  that was killed, as long as one of its children lives, on a shared broker too.

Who gets the exclusive lock removes the directory: the scope that closes, once its
sessions are proven gone; or, when the client died, the next engine that starts with
this root. To lock a file that another is just making or removing is kept apart by the
*gate*, a flock on the root that is held for microseconds.

=========  =================================  ========================================
state      reached by                         what a sweep finds
=========  =================================  ========================================
making     the lock file exists               the gate is shut
in use     the directory's name is in it      a lock that it does not get
left       the last hold ended                a free lock: it goes on with the removal
gone       directory, then lock file removed  nothing
=========  =================================  ========================================

The system calls here may take long (a large tree), so they run in threads.
"""

import asyncio
import fcntl
import os
import re
import stat
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from actors.aside import aside
from actors.holds import LOCK_FLAGS
from broker.auth import RunDirectory
from broker.errors import EngineError, InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

    from broker.tree import Identity

__all__ = ["DIRECTORY", "Scratches", "clear", "sweep"]

DIRECTORY: Final = b"scratch"
"""Name of the root in a runtime directory."""
FIELD: Final = "settings.scratch_root"
LOCK: Final = b".lock"
_LOCKS: Final = re.compile(rb"scope-[0-9a-f]{32}\.lock")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LEVELS: Final = 30
"""Levels of directories that are open at once while a tree is removed."""
_PAUSES: Final = (0.002, 0.1)
"""Seconds between attempts to remove what a worker lets go of just now: first, most."""


class Scratches:
    """The directories of one engine's scopes, made when asked for.

    Args:
        root: where they are made; itself made at the first use.
        key: keeps the names of this engine's apart from others'.
        patience: seconds for the workers of ended sessions to let go of one.
    """

    def __init__(self, root: bytes, key: bytes, patience: float) -> None:
        self._root = os.path.abspath(root)
        self._key = key
        self._patience = patience
        self._sweeping: asyncio.Task[None] | None = None
        self._made: dict[str, asyncio.Future[_Made]] = {}
        self._left: dict[asyncio.Future[_Made], _Leaving] = {}

    async def sweep(self) -> None:
        """Remove what dead engines left below the root.

        What workers of a dead client still hold is tried again, beside the caller: they
        are ending their children just now, or keep them.
        """
        if not self._root_exists():
            return  # as for most engines: a thread would cost more than this look
        if await aside(sweep, self._root):
            self._sweeping = asyncio.ensure_future(self._sweep_on())

    async def _sweep_on(self) -> None:
        for pause in _pauses(self._patience):
            await asyncio.sleep(pause)
            if not await aside(sweep, self._root):
                return

    def _root_exists(self) -> bool:
        return os.path.lexists(self._root)

    async def path(self, scope: str) -> "Path":
        """Return the directory of an open scope; made once.

        While an earlier scope of this name closes, that one's is waited for.

        Raises:
            InvalidRequest: the root is refused, or the directory's place is taken.
        """
        making = self._made.get(scope)
        if making is None:
            # Shielded: a directory whose making nobody awaits must be known as well.
            earlier = [one for one in self._left.values() if one.scope == scope]
            task = self._make(scope, earlier)
            making = self._made[scope] = asyncio.ensure_future(task)
        try:
            made = await asyncio.shield(making)
        except Exception:
            if self._made.get(scope) is making:
                del self._made[scope]
            raise
        from pathlib import Path  # noqa: PLC0415 - 4 ms that most engines do not need

        return Path(os.fsdecode(made.path))

    async def _make(self, scope: str, earlier: "list[_Leaving]") -> "_Made":
        for leaving in earlier:
            await leaving.over.wait()
        return await aside(_make, self._root, self._name(scope))

    def lock(self, scope: str) -> bytes | None:
        """Return the path of the file to hold for a child that is started now."""
        making = self._made.get(scope)
        if making is None or not making.done() or making.exception() is not None:
            return None
        return making.result().path + LOCK

    def leave(self, scope: str) -> "asyncio.Future[_Made] | None":
        """Take a closing scope's directory: its name may be used again at once.

        It is to be removed or kept then, whatever comes first.
        """
        making = self._made.pop(scope, None)
        if making is not None:
            self._left[making] = _Leaving(scope)
        return making

    def keep(self, making: "asyncio.Future[_Made]") -> None:
        """Leave what `leave` gave in its place: not all that used it is gone.

        It is removed with the engine, or by a later engine's start.
        """
        self._left[making].over.set()

    async def remove(
        self, making: "asyncio.Future[_Made]", *, patient: bool = True
    ) -> None:
        """Remove what `leave` gave, once no worker holds it any more.

        What is still held after the patience, or at once without, is left for a later
        engine's start.

        Raises:
            EngineError, OSError: it cannot be removed.
        """
        if making in self._left:
            # Of this object, not of the caller: it goes on when that is cancelled.
            leaving = self._left[making]
            if leaving.task is None:
                leaving.task = asyncio.ensure_future(self._remove(making, patient))
            await asyncio.shield(leaving.task)

    async def _remove(self, making: "asyncio.Future[_Made]", patient: bool) -> None:
        try:
            await asyncio.wait([making])
            if making.exception() is None:
                with closing(making.result()) as made:
                    await self._try_to_remove(made, patient)
        finally:
            self._left.pop(making).over.set()

    async def _try_to_remove(self, made: "_Made", patient: bool) -> None:
        for pause in _pauses(self._patience):
            if await aside(made.remove) or not patient:
                return
            await asyncio.sleep(pause)

    async def close(self, staying: Collection[str | None] = ()) -> None:
        """Remove all that is left; what cannot be is for a later engine's start.

        Of the scopes `staying` children live on: for them nobody waits.
        """
        if self._sweeping is not None:
            self._sweeping.cancel()
        for scope in list(self._made):
            self.leave(scope)

        async def remove(making: "asyncio.Future[_Made]", scope: str) -> None:
            with suppress(EngineError, OSError):
                await self.remove(making, patient=scope not in staying)

        left = [(making, leaving.scope) for making, leaving in self._left.items()]
        await asyncio.gather(*(remove(*one) for one in left))

    def _name(self, scope: str) -> bytes:
        import hashlib  # noqa: PLC0415 - 3 ms that most engines do not need

        digest = hashlib.blake2b(scope.encode(), key=self._key, digest_size=16)
        return b"scope-" + digest.hexdigest().encode()


def _pauses(patience: float) -> Iterator[float]:
    """Yield growing pauses, as many as fill `patience`; at least one."""
    pause, most = _PAUSES
    while True:
        yield pause
        patience -= pause
        if patience <= 0:
            return
        pause = min(2 * pause, most)


@dataclass(slots=True)
class _Leaving:
    """A directory whose scope is closed.

    Attributes:
        scope: the name of that.
        task: its removal, once that has begun.
        over: set when its place is free, or nothing more is done for that.
    """

    scope: str
    task: asyncio.Task[None] | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)


class _Made:
    """A directory in use; `lock` is the descriptor of the locked file."""

    def __init__(self, root: bytes, name: bytes, lock: int) -> None:
        self._root = root
        self._name = name
        self._lock = lock
        self.path = os.path.join(root, name)

    def remove(self) -> bool:
        """Remove it unless somebody else holds it; return whether that is done."""
        if not _locked(self._lock, fcntl.LOCK_EX):
            return False
        if os.fstat(self._lock).st_nlink > 0:  # no sweep was faster
            with _root(self._root) as top:
                _remove(top.fd, self._name, self._lock)
        return True

    def close(self) -> None:
        """Let go of it."""
        os.close(self._lock)


def _make(root: bytes, name: bytes) -> _Made:
    with _root(root) as top:
        fcntl.flock(top.fd, fcntl.LOCK_SH)  # the gate, until `top` is closed
        with _explained(top.location, name):
            flags = LOCK_FLAGS | os.O_CREAT | os.O_EXCL
            lock = os.open(name + LOCK, flags, 0o600, dir_fd=top.fd)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                os.fchmod(lock, 0o600)  # whatever the umask took away
                _make_directory(top.fd, name, lock)
            except BaseException:
                os.unlink(name + LOCK, dir_fd=top.fd)
                os.close(lock)
                raise
        return _Made(top.location, name, lock)


def _make_directory(top: int, name: bytes, lock: int) -> None:
    """Make the directory and have its lock file name it, or leave none."""
    client = _identify(os.getpid())
    assert client is not None  # it is this process
    os.mkdir(name, 0o700, dir_fd=top)
    try:
        with _opened(name, top) as fd:
            named = _named(os.fstat(fd))
        os.write(lock, named + b"%d %d" % (client.pid, client.started))
    except BaseException:
        os.rmdir(name, dir_fd=top)
        raise


@contextmanager
def _root(path: bytes) -> Iterator[RunDirectory]:
    try:
        top = RunDirectory.create(path)
    except InvalidRequest as refused:
        raise InvalidRequest(FIELD, refused.message) from refused
    with closing(top):
        yield top


@contextmanager
def _explained(location: bytes, name: bytes) -> Iterator[None]:
    path = os.fsdecode(os.path.join(location, name))
    try:
        yield
    except FileExistsError as taken:
        raise InvalidRequest(
            FIELD, f"{path!r} exists: another engine of this key uses it, or remove it"
        ) from taken
    except OSError as refused:
        raise InvalidRequest(
            FIELD, f"{path!r} cannot be made ({refused.strerror})"
        ) from refused


# --- removal -------------------------------------------------------------------------


def sweep(root: bytes) -> bool:
    """Remove what dead engines left below `root`.

    What is in use, cannot be removed or was not made by an engine stays. A root that is
    refused, or not there, holds nothing of ours.

    Returns:
        Whether something is left that the worker of a dead client holds.
    """
    try:
        top = RunDirectory.open(root)
    except InvalidRequest:
        return False
    with closing(top):
        names = [n for n in map(os.fsencode, os.listdir(top.fd)) if _LOCKS.fullmatch(n)]
        return any([_sweep(top.fd, name) for name in names])  # noqa: C419 - each one


def _sweep(top: int, lock_name: bytes) -> bool:
    try:
        lock = os.open(lock_name, LOCK_FLAGS, dir_fd=top)
    except OSError:
        return False  # another sweep was faster, or it is not an engine's
    try:
        if _taken(top, lock):
            _remove(top, lock_name.removesuffix(LOCK), lock)
            return False
        return _orphaned(lock)
    except OSError:
        return False  # it cannot be removed now: a later sweep tries again
    finally:
        os.close(lock)


def _taken(top: int, lock: int) -> bool:
    """Lock a file for us alone; return whether that is done, and it is still in place.

    Behind the gate, where none is half made.
    """
    fcntl.flock(top, fcntl.LOCK_EX)
    try:
        return _locked(lock, fcntl.LOCK_EX) and os.fstat(lock).st_nlink > 0
    finally:
        fcntl.flock(top, fcntl.LOCK_UN)


def _identify(pid: int) -> "Identity | None":
    from broker import tree  # noqa: PLC0415 - 5 ms that most clients need not take

    return tree.identify(pid)


def _orphaned(lock: int) -> bool:
    """Return whether the client that made a lock file is dead."""
    words = os.pread(lock, 128, 0).split()
    if len(words) != 4:
        return False
    client = _identify(int(words[2]))
    return client is None or client.started != int(words[3])


def _locked(lock: int, mode: int) -> bool:
    try:
        fcntl.flock(lock, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(top: int, name: bytes, lock: int) -> None:
    """Remove what a lock file names, and the file; the lock must be ours alone."""
    if _is_ours(top, name, lock):
        clear(name, top)
    fcntl.flock(top, fcntl.LOCK_SH)
    os.unlink(name + LOCK, dir_fd=top)
    fcntl.flock(top, fcntl.LOCK_UN)


def _is_ours(top: int, name: bytes, lock: int) -> bool:
    try:
        found = os.stat(name, dir_fd=top, follow_symlinks=False)
    except FileNotFoundError:
        return False  # its user has removed it
    named = os.pread(lock, 128, 0).startswith(_named(found))
    return stat.S_ISDIR(found.st_mode) and named


def clear(name: bytes, above: int) -> None:
    """Remove a directory in `above` with all in it, without following any link.

    What lies deeper than `LEVELS` is moved up first, so that neither the length of a
    path, nor the number of open files, nor the stack is a limit.

    Raises:
        OSError: it is not there, or something of it cannot be removed.
    """
    with _opened(name, above) as top:
        while names := _directories_left(top):
            for own in names:
                _remove_directory(own, top, top, LEVELS)
    os.rmdir(name, dir_fd=above)


def _remove_directory(name: str, above: int, top: int, levels: int) -> None:
    with _opened(name, above) as fd:
        for deeper in _directories_left(fd):
            if levels > 0:
                _remove_directory(deeper, fd, top, levels - 1)
            else:
                with _opened(deeper, fd):
                    pass  # to be moved, a directory has to be writable
                os.rename(deeper, os.urandom(8).hex(), src_dir_fd=fd, dst_dir_fd=top)
    os.rmdir(name, dir_fd=above)


def _directories_left(fd: int) -> list[str]:
    """Remove what is no directory from one; return the names of those that are."""
    with os.scandir(fd) as found:
        entries = list(found)
    names = []
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        else:
            os.unlink(entry.name, dir_fd=fd)
    return names


@contextmanager
def _opened(name: bytes | str, above: int) -> Iterator[int]:
    """Open a directory so that it can be emptied, whatever mode it was given."""
    path = os.open(name, _DIRECTORY | os.O_PATH, dir_fd=above)
    try:
        if os.fstat(path).st_mode & 0o700 != 0o700:
            # By its descriptor, behind which no other file can be put.
            os.chmod(b"/proc/self/fd/%d" % path, 0o700)
        fd = os.open(b".", _DIRECTORY, dir_fd=path)
    finally:
        os.close(path)
    try:
        yield fd
    finally:
        os.close(fd)


def _named(info: os.stat_result) -> bytes:
    """Return how the text of a lock file begins, for the directory beside it."""
    return b"%d %d " % (info.st_dev, info.st_ino)
