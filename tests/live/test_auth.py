"""The runtime directory, its lock, key and sockets, and who connects."""

import errno
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from broker import auth, places
from broker.auth import RunDirectory
from broker.errors import AlreadyRunning, EngineError, InvalidRequest

pytestmark = pytest.mark.live

RUN = b"run-1"
NOBODY = 65534


@pytest.fixture(autouse=True)
def no_descriptor_leaks() -> Iterator[None]:
    before = os.listdir("/proc/self/fd")
    yield
    assert os.listdir("/proc/self/fd") == before


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "creche"


@pytest.fixture
def directory(root: Path) -> Iterator[RunDirectory]:
    with closing(RunDirectory.create(bytes(root))) as made:
        yield made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


class Holder:
    """A process that does something with a run directory and then waits."""

    def __init__(self, root: Path, name: bytes, action: str) -> None:
        script = (
            "import sys; from broker.auth import RunDirectory as D;"
            f"d = D.create({bytes(root)!r}, {name!r}); {action};"
            "sys.stdout.write('ready\\n'); sys.stdout.flush(); sys.stdin.read()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def in_another_process(location: bytes) -> None:
    """Lock `location` in a process of its own and raise here what it raised."""
    script = (
        "import sys; from broker.auth import RunDirectory as D\n"
        "from broker.errors import AlreadyRunning\n"
        f"try: D.open({location!r}).lock()\n"
        "except AlreadyRunning: sys.exit(7)"
    )
    if subprocess.run([sys.executable, "-c", script], check=False).returncode == 7:
        raise AlreadyRunning


# The place


@pytest.mark.parametrize(
    ("environ", "uid", "path"),
    [
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, 7, b"/run/user/7/creche"),
        ({"XDG_RUNTIME_DIR": "/run/user/0"}, 0, b"/run/user/0/creche"),
        ({"XDG_RUNTIME_DIR": "relative"}, 7, b"/tmp/creche-7"),
        ({"XDG_RUNTIME_DIR": ""}, 7, b"/tmp/creche-7"),
        ({}, 0, b"/run/creche"),
    ],
)
def test_the_root_follows_the_environment_then_the_user(
    environ: dict[str, str], uid: int, path: bytes
) -> None:
    assert places.runtime_root(environ, uid) == path


def test_what_is_made_is_private(root: Path) -> None:
    with closing(RunDirectory.create(bytes(root), RUN)) as made:
        assert made.location == bytes(root) + b"/run-1"
        assert mode(root) == mode(root / "run-1") == 0o700


def test_a_directory_that_fits_is_adopted(root: Path) -> None:
    root.mkdir(0o700)
    with closing(RunDirectory.create(bytes(root))) as made:
        assert made.location == bytes(root)


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidRequest) as refused:
        call()
    assert refused.value.field == "endpoint"
    return str(refused.value)


def make(root: Path, name: bytes = b"") -> Callable[[], object]:
    return lambda: RunDirectory.create(bytes(root), name)


def test_a_planted_symlink_is_refused_and_its_target_untouched(
    root: Path, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir(0o700)
    root.symlink_to(target)
    assert "symbolic link" in refusal(make(root, RUN))
    root.unlink()
    root.mkdir(0o700)
    (root / "run-1").symlink_to(target)
    assert "run-1' is a symbolic link" in refusal(make(root, RUN))
    assert list(target.iterdir()) == []


def test_a_dangling_symlink_is_refused(root: Path, tmp_path: Path) -> None:
    root.symlink_to(tmp_path / "nowhere")
    assert "symbolic link" in refusal(make(root))
    assert not (tmp_path / "nowhere").exists()


def test_a_planted_file_or_fifo_is_refused(root: Path) -> None:
    root.write_bytes(b"kept")
    assert "no directory" in refusal(make(root))
    assert root.read_bytes() == b"kept"
    root.unlink()
    os.mkfifo(root)
    assert "no directory" in refusal(make(root))


@pytest.mark.parametrize("bits", [0o777, 0o750, 0o701])
def test_a_directory_open_to_others_is_refused_and_not_repaired(
    root: Path, bits: int
) -> None:
    root.mkdir()
    root.chmod(bits)
    assert f"(mode {bits:04o}): if you trust" in refusal(make(root))
    assert mode(root) == bits


def test_a_foreign_owner_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root.mkdir(0o700)
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert f"belongs to user {mine}" in refusal(make(root))


def test_a_parent_in_which_others_may_rename_is_refused(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    assert "loose' lets others replace" in refusal(make(loose / "creche"))
    assert "loose' lets others replace" in refusal(make(loose / "creche", RUN))
    loose.chmod(0o1777)
    RunDirectory.create(bytes(loose / "creche")).close()


def test_a_parent_is_judged_where_a_symlink_leads(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    with closing(RunDirectory.create(bytes(link / "creche"))) as made:
        assert made.location == bytes(real / "creche")
    real.chmod(0o777)
    assert "real' lets others" in refusal(make(link / "creche"))


def test_a_missing_parent_or_directory_is_named(tmp_path: Path, root: Path) -> None:
    assert "absent' does not exist" in refusal(make(tmp_path / "absent" / "creche"))
    missing = refusal(lambda: RunDirectory.open(bytes(root)))
    assert "is a broker running?" in missing


def test_removing_is_not_advised_where_looking_is_denied(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = os.open

    def denied(path: bytes, *flags: Any, **where: Any) -> int:
        if path == os.fsencode(root.name):
            raise PermissionError(errno.EACCES, "Permission denied")
        return look(path, *flags, **where)

    root.mkdir(0o700)
    monkeypatch.setattr(os, "open", denied)
    told = refusal(make(root))
    assert "cannot be used (Permission denied): choose" in told


def test_a_parent_of_a_third_user_is_refused_unless_it_is_the_hidden_root() -> None:
    info = os.stat_result((0o040755, 1, 1, 1, NOBODY, 0, 0, 0, 0, 0))
    with pytest.raises(InvalidRequest, match="belongs to user 65534"):
        auth._check_ancestor(b"/tmp", info, (0,))
    auth._check_ancestor(b"/tmp", info, (0, NOBODY))


def test_a_refusal_is_an_error_of_the_engine(root: Path) -> None:
    root.write_bytes(b"")
    with pytest.raises(EngineError):
        RunDirectory.create(bytes(root))


# Paths


def talk(directory: RunDirectory, name: bytes) -> None:
    with directory.listen(name), socket.socket(socket.AF_UNIX) as client:
        client.connect(directory.path(name))


def test_a_short_path_is_itself(directory: RunDirectory) -> None:
    assert directory.path(b"s") == directory.location + b"/s"
    talk(directory, b"s")


@pytest.mark.parametrize("length", [107, 108, 120, 300])
def test_a_long_path_works_through_the_descriptor(root: Path, length: int) -> None:
    root.mkdir(0o700)
    deep = root
    while len(bytes(deep)) + 12 < length:
        room = length - 12 - len(bytes(deep))
        deep = deep / ("d" * min(max(room - 1, 1), 100))
        deep.mkdir(0o700)
    with closing(RunDirectory.open(bytes(deep))) as directory:
        path = directory.path(b"broker.sock")
        assert len(path) <= 107
        assert path.startswith(b"/proc/self/fd/") is (length > 107)
        talk(directory, b"broker.sock")
        assert (deep / "broker.sock").is_socket()


def test_a_name_that_is_too_long_by_itself_is_refused(directory: RunDirectory) -> None:
    assert "shorter name" in refusal(lambda: directory.path(b"n" * 100))


@pytest.mark.parametrize("name", ["lifeline.sock", "lock", "operator.key"])
def test_an_endpoint_is_none_of_the_other_files_of_a_broker(name: str) -> None:
    said = refusal(lambda: auth.endpoint_path(f"ipc:///private/{name}"))
    assert "choose another name" in said


@pytest.mark.parametrize("path", ["/a\0/b", "/\ud800"], ids=["nul", "surrogate"])
def test_an_endpoint_that_no_file_can_have_is_refused(path: str) -> None:
    assert "no path" in refusal(lambda: auth.endpoint_path(f"ipc://{path}"))


# Listening


def test_a_socket_is_for_its_owner_alone_whatever_the_umask(
    directory: RunDirectory, root: Path
) -> None:
    before = os.umask(0)
    try:
        with directory.listen(b"broker.sock"):
            assert mode(root / "broker.sock") == 0o600
    finally:
        os.umask(before)


def test_a_live_socket_is_never_replaced(directory: RunDirectory, root: Path) -> None:
    directory.lock()
    with directory.listen(b"broker.sock"):
        inode = (root / "broker.sock").stat().st_ino
        with pytest.raises(AlreadyRunning, match=r"running at /.*/creche/broker\.sock"):
            directory.listen(b"broker.sock")
        assert (root / "broker.sock").stat().st_ino == inode


def test_a_socket_whose_backlog_is_full_is_live(directory: RunDirectory) -> None:
    directory.lock()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as client:
        path = directory.path(b"broker.sock")
        busy.bind(path)
        busy.listen(0)
        client.connect(path)
        with pytest.raises(AlreadyRunning):
            directory.listen(b"broker.sock")


def test_many_clients_may_come_before_one_is_accepted(directory: RunDirectory) -> None:
    most = int(Path("/proc/sys/net/core/somaxconn").read_text())
    with ExitStack() as stack:
        stack.enter_context(directory.listen(b"broker.sock"))
        for _ in range(min(300, most)):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            client.connect(directory.path(b"broker.sock"))


def test_a_dead_socket_is_replaced_only_with_the_lock(directory: RunDirectory) -> None:
    directory.listen(b"broker.sock").close()
    refused = refusal(lambda: directory.listen(b"broker.sock"))
    assert "dead broker's socket" in refused
    directory.lock()
    talk(directory, b"broker.sock")


def plant_file(path: Path) -> None:
    path.write_bytes(b"kept")


def plant_link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


def plant_datagram_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as planted:
        planted.bind(bytes(path))


@pytest.mark.parametrize("plant", [plant_file, plant_link, os.mkfifo, os.mkdir])
def test_anything_else_at_the_socket_is_refused_and_kept(
    directory: RunDirectory, root: Path, plant: Callable[[Path], None]
) -> None:
    place = root / "broker.sock"
    plant(place)
    before = place.lstat()
    directory.lock()
    assert "is not a socket" in refusal(lambda: directory.listen(b"broker.sock"))
    assert place.lstat() == before
    assert not (root / "elsewhere").exists()


# The lock


def test_a_second_engine_is_told_that_one_is_running(root: Path) -> None:
    with (
        closing(Holder(root, b"", "d.lock()")),
        closing(RunDirectory.create(bytes(root))) as second,
    ):
        with pytest.raises(AlreadyRunning, match=r"running at /.*/creche$"):
            second.lock()
        assert not second.locked


def test_the_lock_ends_with_its_process_even_by_sigkill(
    directory: RunDirectory, root: Path
) -> None:
    Holder(root, b"", "d.lock()").close()
    directory.lock()
    assert directory.locked


def test_a_second_lock_in_one_process_is_refused_and_does_not_break_the_first(
    directory: RunDirectory, root: Path
) -> None:
    directory.lock()
    second = RunDirectory.open(bytes(root))
    with closing(second), pytest.raises(AlreadyRunning):
        second.lock()
    with pytest.raises(AlreadyRunning):
        in_another_process(bytes(root))


def test_a_forked_copy_waits_for_no_thread_of_its_parent(root: Path) -> None:
    with closing(RunDirectory.create(bytes(root), RUN)) as held:
        held.lock()
        with auth._taking:
            pid = os.fork()
            if pid == 0:
                signal.alarm(15)
                code = 1
                try:
                    RunDirectory.create(bytes(root), b"run-2").lock()
                    with pytest.raises(AlreadyRunning):
                        RunDirectory.create(bytes(root), RUN).lock()
                    code = 0
                finally:
                    os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        with pytest.raises(AlreadyRunning):
            in_another_process(held.location)


FORKS = """
import os, signal, sys
from broker.auth import RunDirectory
held = RunDirectory.create(os.fsencode(sys.argv[1]), b"run-1")
held.lock()
parent = os.getpid()
if os.fork() == 0:
    signal.alarm(15)
    while os.getppid() == parent:
        signal.sigtimedwait([], 0.02)
    (found,) = RunDirectory.abandoned(os.fsencode(sys.argv[1]))
    found.remove()
    os.write(1, b"removed")
    os._exit(0)
os.kill(parent, signal.SIGKILL)
"""


def test_a_forked_copy_inherits_what_its_dead_parent_held(root: Path) -> None:
    command = [sys.executable, "-c", FORKS, str(root)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    assert done.stdout == b"removed"
    assert list(root.iterdir()) == []


def test_a_closed_directory_can_be_locked_anew(root: Path) -> None:
    for _ in range(2):
        with closing(RunDirectory.create(bytes(root))) as directory:
            directory.lock()
            directory.close()


@pytest.mark.parametrize("name", ["lock", "operator.key"])
@pytest.mark.parametrize("plant", [plant_link, os.mkfifo, plant_datagram_socket])
def test_a_planted_lock_or_key_is_refused_without_waiting(
    directory: RunDirectory, root: Path, plant: Callable[[Path], None], name: str
) -> None:
    plant(root / name)
    call = directory.lock if name == "lock" else directory.operator_key
    assert name in refusal(call)
    assert not (root / "elsewhere").exists()


# The key


def test_the_operator_key_is_made_once_and_private(
    directory: RunDirectory, root: Path
) -> None:
    directory.lock()
    key = directory.operator_key()
    assert len(bytes.fromhex(key.decode())) == 32
    assert mode(root / "operator.key") == 0o600
    assert directory.operator_key() == key
    with closing(RunDirectory.open(bytes(root))) as client:
        assert client.operator_key() == key


def test_only_the_holder_of_the_lock_makes_a_key(directory: RunDirectory) -> None:
    assert "is missing" in refusal(directory.operator_key)


def test_a_key_half_written_by_a_dead_engine_is_made_anew(
    directory: RunDirectory, root: Path
) -> None:
    (root / "operator.key.new").write_bytes(b"12")
    directory.lock()
    assert len(directory.operator_key()) == 64


def test_a_key_that_others_could_read_or_that_is_none_is_refused(
    directory: RunDirectory, root: Path
) -> None:
    directory.lock()
    directory.operator_key()
    (root / "operator.key").chmod(0o640)
    assert "open to others" in refusal(directory.operator_key)
    (root / "operator.key").chmod(0o600)
    (root / "operator.key").write_bytes(b"0" * 65)
    assert "holds no key" in refusal(directory.operator_key)


# Removal


def test_an_engine_removes_its_directory_but_not_the_root(root: Path) -> None:
    directory = RunDirectory.create(bytes(root), RUN)
    directory.lock()
    directory.operator_key()
    directory.listen(b"broker.sock").close()
    directory.remove()
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("lost", ["creche/run-1", "creche"])
def test_a_directory_that_was_removed_before_is_no_trouble(
    lost: str, tmp_path: Path
) -> None:
    directory = RunDirectory.create(bytes(tmp_path / "creche"), RUN)
    directory.lock()
    shutil.rmtree(tmp_path / lost)
    directory.remove()
    assert not directory.locked


def test_a_shared_broker_leaves_the_root_and_what_it_does_not_know(
    directory: RunDirectory, root: Path
) -> None:
    (root / "run-1").mkdir()
    (root / "notes").write_bytes(b"")
    directory.lock()
    directory.remove()
    assert sorted(path.name for path in root.iterdir()) == ["notes", "run-1"]


def test_a_directory_with_records_stays(root: Path) -> None:
    directory = RunDirectory.create(bytes(root), RUN)
    directory.lock()
    (root / "run-1" / "records").write_bytes(b"")
    directory.remove()
    assert [path.name for path in (root / "run-1").iterdir()] == ["records"]


def test_only_the_holder_of_the_lock_removes(directory: RunDirectory) -> None:
    assert "lock it" in refusal(directory.remove)


def test_the_sweep_removes_what_dead_engines_left_and_nothing_else(
    root: Path,
) -> None:
    Holder(root, b"run-dead", "d.lock(); d.operator_key()").close()
    Holder(root, b"run-records", "d.lock()").close()
    (root / "run-records" / "records").write_bytes(b"")
    (root / "run-newborn").mkdir(0o700)
    (root / "run-stillborn").mkdir(0o700)
    os.utime(root / "run-stillborn", (0, 0))
    (root / "run-link").symlink_to(root / "run-records")
    (root / "other").mkdir(0o700)
    (root / "run-odd").mkdir(0o700)
    os.mkfifo(root / "run-odd" / "lock")
    with (
        closing(Holder(root, b"run-live", "d.lock()")),
        closing(RunDirectory.create(bytes(root), b"run-own")) as own,
    ):
        own.lock()
        swept = RunDirectory.sweep_stale(bytes(root))
        again = RunDirectory.sweep_stale(bytes(root))
        with pytest.raises(AlreadyRunning):  # the sweep did not lose our own lock
            in_another_process(bytes(own.location))
    gone = [os.path.join(bytes(root), name) for name in (b"run-dead", b"run-stillborn")]
    assert sorted(swept) == gone
    assert again == []
    left = {path.name for path in root.iterdir()}
    assert left == {
        "other",
        "run-link",
        "run-live",
        "run-newborn",
        "run-odd",
        "run-own",
        "run-records",
    }


def test_there_is_nothing_to_sweep_where_no_engine_ever_was(root: Path) -> None:
    assert RunDirectory.sweep_stale(bytes(root)) == []


# Peers


@pytest.fixture(params=[True, False], ids=["by-kernel", "by-number"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_HAVE_PEERPIDFD", request.param)


@pytest.fixture
def listener(directory: RunDirectory) -> Iterator[socket.socket]:
    with directory.listen(b"lifeline.sock") as listening:
        listening.settimeout(20)
        yield listening


CONNECT = (
    "import socket, sys; s = socket.socket(socket.AF_UNIX);"
    "s.connect(sys.argv[1]); {}; sys.stdin.read()"
)


def connector(root: Path, then: str = "0") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CONNECT.format(then), str(root / "lifeline.sock")],
        stdin=subprocess.PIPE,
    )


@pytest.mark.usefixtures("way")
def test_a_peer_is_named_and_its_end_is_seen(
    root: Path, listener: socket.socket
) -> None:
    with connector(root) as client:
        connection, _ = listener.accept()
        peer = auth.peer_pidfd(connection)
        assert (peer.pid, peer.uid) == (client.pid, os.geteuid())
        assert not os.get_inheritable(peer.pidfd)
        client.kill()
        assert os.waitid(os.P_PIDFD, peer.pidfd, os.WEXITED | os.WNOWAIT) is not None
    connection.close()
    os.close(peer.pidfd)


@pytest.fixture
def by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "_HAVE_PEERPIDFD", False)


def gone_peer(connection: socket.socket) -> None:
    with connection, pytest.raises(ProcessLookupError, match="has ended"):
        auth.peer_pidfd(connection)


@pytest.mark.usefixtures("by_number")
def test_a_peer_that_was_reaped_is_not_found(
    root: Path, listener: socket.socket
) -> None:
    with connector(root) as client:
        connection, _ = listener.accept()
        client.kill()
    gone_peer(connection)


@pytest.mark.usefixtures("by_number")
def test_a_number_whose_connection_hung_up_may_be_a_later_process(
    directory: RunDirectory, listener: socket.socket
) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(directory.path(b"lifeline.sock"))
        connection, _ = listener.accept()
    gone_peer(connection)


@pytest.mark.usefixtures("by_number")
def test_a_number_that_started_after_the_question_is_a_later_process(
    root: Path, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "clock_gettime", lambda clock: 0.0)
    with connector(root) as client:
        connection, _ = listener.accept()
        gone_peer(connection)
        client.kill()


def test_a_process_that_is_gone_started_never() -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    assert auth._started(ended.pid) == float("inf")
    assert auth._started(os.getpid()) < time.clock_gettime(time.CLOCK_BOOTTIME)


class Refusing:
    """A socket whose kernel answers the question for the peer's pidfd with an error."""

    def __init__(self, number: int) -> None:
        self.number = number

    def getsockopt(self, level: int, option: int) -> int:
        raise OSError(self.number, os.strerror(self.number))


def test_an_old_kernel_leads_to_the_number_and_a_dead_peer_to_an_error() -> None:
    assert auth._peer_by_kernel(Refusing(errno.ENOPROTOOPT), 7) == 0  # type: ignore[arg-type]
    with pytest.raises(ProcessLookupError, match="peer 7 has ended"):
        auth._peer_by_kernel(Refusing(errno.EINVAL), 7)  # type: ignore[arg-type]
