"""Identity, signals and the sweep, against processes that do not want to end.

The sweeps run in an interpreter of their own: it becomes a subreaper, starts the
hostile tree, sweeps it and prints what it saw as JSON. Every process here has an
alarm, so that nothing outlives a broken test for long.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker import cgroup, tree

pytestmark = pytest.mark.live

ROOT = str(Path(__file__).parents[2])

# Longer than any test may take (30 s): a process that is gone was ended by somebody.
ALARM = "import os, signal, sys\nsignal.alarm(60)\n"

# Holds still until its stdin ends.
IDLE = ALARM + "print('ready', flush=True)\nsys.stdin.read()\n"


class Child:
    """A child of the test that says when it is ready, and is reaped in the end."""

    def __init__(self, code: str, *, start_new_session: bool = False) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=start_new_session,
        )
        self.pid = self.process.pid

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def end(self) -> int:
        """Reap it, killed if it has not ended; negative for a signal."""
        for pid in reversed(tree.descendants(self.pid)):
            if found := tree.identify(pid):
                tree.signal_process(found, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()
        return self.process.returncode


Start = Callable[..., Child]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Child] = []

    def start_child(code: str = IDLE, *, start_new_session: bool = False) -> Child:
        child = Child(code, start_new_session=start_new_session)
        started.append(child)
        return child

    yield start_child
    for child in started:
        child.end()


@pytest.fixture(params=[True, False], ids=["children-files", "parent-walk"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "CHILDREN_FILES", request.param and tree.CHILDREN_FILES)


# --- identity ---


def test_a_name_with_parentheses_and_spaces_does_not_confuse_stat(start: Start) -> None:
    child = start(
        ALARM + "import ctypes\n"
        "ctypes.CDLL(None).prctl(15, b') S 1 1 (', 0, 0, 0)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n",
        start_new_session=True,
    )
    assert child.line() == "ready"
    found = tree.stat(child.pid)
    assert found is not None
    assert (found.parent, found.group, found.session) == (
        os.getpid(),
        child.pid,
        child.pid,
    )
    assert found.threads == 1
    assert not found.ended
    assert found.identity == tree.identify(child.pid)


def test_an_ended_child_keeps_its_identity_until_it_is_reaped(start: Start) -> None:
    child = start()
    child.line()
    before = tree.identify(child.pid)
    assert before is not None
    tree.signal_child(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert tree.identify(child.pid) == before
    after = tree.stat(child.pid)
    assert after is not None
    assert after.ended
    child.end()
    assert tree.identify(child.pid) is None
    assert tree.survivor(child.pid) is None
    assert tree.children(child.pid) == []
    assert tree.signal_process(before, signal.SIGKILL) is False


def test_a_leader_that_ended_before_its_threads_has_not_ended(start: Start) -> None:
    child = start(
        ALARM + "import ctypes, threading\n"
        "def late():\n"
        "    while open('/proc/self/stat').read().split(')')[-1].split()[0] != 'Z':\n"
        "        pass\n"
        "    print('ready', flush=True)\n"
        "    signal.pause()\n"
        "threading.Thread(target=late).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    assert child.line() == "ready"
    found = tree.stat(child.pid)
    assert found is not None
    assert found.state == "Z"
    assert not found.ended
    assert tree.signal_child(child.pid, signal.SIGKILL)
    assert child.end() == -signal.SIGKILL


def test_a_survivor_is_described_in_seconds_and_effective_uid() -> None:
    found = tree.survivor(os.getpid())
    identity = tree.identify(os.getpid())
    assert found is not None
    assert identity is not None
    assert found.pid == os.getpid()
    assert found.started == identity.started / os.sysconf("SC_CLK_TCK")
    assert found.uid == os.geteuid()
    assert found.state == "R"


# --- the tree ---

# Forks a child that forks a child; each prints its pid, parents first.
CHAIN = (
    ALARM + "for _ in range(2):\n"
    "    print(os.getpid(), flush=True)\n"
    "    if child := os.fork():\n"
    "        os.waitpid(child, 0)\n"
    "        os._exit(0)\n"
    "    signal.alarm(60)\n"
    "print(os.getpid(), flush=True)\n"
    "sys.stdin.read()\n"
)


def test_descendants_come_parents_first_and_without_the_root(
    start: Start, both_ways: None
) -> None:
    child = start(CHAIN)
    root, middle, last = (int(child.line()) for _ in range(3))
    assert tree.children(root) == [middle]
    assert tree.descendants(root) == [middle, last]
    assert tree.descendants(last) == []
    assert root in tree.children(os.getpid())


def test_a_child_that_a_thread_forked_belongs_to_the_tree(
    start: Start, both_ways: None
) -> None:
    child = start(
        ALARM + "import threading\n"
        "def fork():\n"
        "    if os.fork() == 0:\n"
        "        signal.alarm(60)\n"
        "        print(os.getpid(), flush=True)\n"
        "    signal.pause()\n"
        "threading.Thread(target=fork).start()\n"
        "signal.pause()\n"
    )
    forked = int(child.line())
    assert tree.descendants(child.pid) == [forked]


def test_the_walk_raises_when_proc_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Taken for an empty tree, this would be reported as a success.
    def no_descriptor(path: str) -> list[str]:
        raise OSError(24, "Too many open files", path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", no_descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            tree.descendants(os.getpid())


# --- signals ---


def test_s38_a_wrong_start_time_protects_whoever_has_the_pid_now(start: Start) -> None:
    child = start()
    child.line()
    identity = tree.identify(child.pid)
    assert identity is not None
    earlier = tree.Identity(identity.pid, identity.started - 1)
    assert tree.signal_process(earlier, signal.SIGKILL) is False
    # Had it been killed, it could not end with the status it chooses.
    child.process.communicate("")
    assert child.process.returncode == 0


def test_the_right_identity_is_signalled(start: Start) -> None:
    child = start()
    child.line()
    identity = tree.identify(child.pid)
    assert identity is not None
    assert tree.signal_process(identity, signal.SIGTERM) is True
    assert child.process.wait() == -signal.SIGTERM


def test_a_process_that_ends_while_it_is_confirmed_is_gone(start: Start) -> None:
    child = start()
    child.line()

    def reap() -> bool:
        child.end()
        return True

    assert tree._send_confirmed(child.pid, signal.SIGKILL, reap) is False


def test_s38_only_living_children_of_ours_are_signalled_as_children(
    start: Start,
) -> None:
    child = start(CHAIN)
    root, middle, _ = (int(child.line()) for _ in range(3))
    assert tree.signal_child(middle, signal.SIGKILL) is False
    assert tree.signal_child(root, signal.SIGKILL) is True
    os.waitid(os.P_PID, root, os.WEXITED | os.WNOWAIT)
    assert tree.signal_child(root, signal.SIGKILL) is False
    child.end()


@pytest.mark.parametrize(
    "pid", [-1, 0, 1, os.getpid()], ids=["all", "group", "init", "self"]
)
def test_no_signal_goes_to_many_to_init_or_to_ourselves(pid: int) -> None:
    with pytest.raises(ValueError, match="refusing"):
        tree.signal_child(pid, 0)
    with pytest.raises(ValueError, match="refusing"):
        tree.signal_process(tree.Identity(pid, 0), 0)


@pytest.mark.parametrize("leader", [-1, 0, 1, os.getpgrp()])
def test_no_signal_goes_to_a_group_that_cannot_be_meant(leader: int) -> None:
    with pytest.raises(ValueError, match="refusing"):
        tree.send_group(leader, 0)


def test_a_group_signal_reaches_all_its_members(start: Start) -> None:
    child = start(CHAIN, start_new_session=True)
    for _ in range(3):
        child.line()
    assert tree.send_group(child.pid, signal.SIGTERM) is True
    # The pipe ends when the last of the three has closed it.
    assert child.line() == ""
    assert child.process.wait() == -signal.SIGTERM


def test_a_group_whose_members_are_reaped_is_no_more(start: Start) -> None:
    child = start(start_new_session=True)
    child.process.communicate("")
    assert tree.send_group(child.pid, signal.SIGTERM) is False


# --- sweeps ---

PRELUDE = """
import json, os, signal, sys, time
from broker import tree
signal.alarm(60)
# Blocked, so that it can be waited for; the default would drop it.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
tree.become_subreaper()
reader, writer = os.pipe()
nowhere = os.open(os.devnull, os.O_WRONLY)

def fork(body):
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            # The test reads these to their end, and must not wait for hostile trees.
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            body()
        finally:
            os._exit(1)
    return pid

def deafen():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

def say():
    os.write(writer, b"%d\\n" % os.getpid())

def hear(count):
    heard = b""
    while heard.count(b"\\n") < count:
        heard += os.read(reader, 65536)
    return [tree.identify(int(line)) for line in heard.split()]

def reap():
    reaped = 0
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            reaped += 1
    except ChildProcessError:
        pass
    return reaped

def run(sweep, limit=20.0):
    deadline = time.monotonic() + limit
    done, rounds, reaped = False, 0, 0
    while not done and time.monotonic() < deadline:
        done = sweep.step()
        rounds += 1
        reaped += reap()
        if not done:
            signal.sigtimedwait({signal.SIGCHLD}, 0.001)
    return {
        "done": done,
        "rounds": rounds,
        "reaped": reaped,
        "signalled": len(sweep.signalled),
        "refused": len(sweep.refused),
        "survivors": [process.pid for process in sweep.survivors()],
    }

def alive(members):
    return [m.pid for m in members if m and tree.identify(m.pid) == m]
"""


def in_subreaper(code: str, *, children_files: bool = True, pidfd: bool = True) -> Any:
    """Run `code` after the prelude; the object it prints."""
    flags = (
        f"tree.CHILDREN_FILES = tree.CHILDREN_FILES and {children_files}\n"
        f"tree.PIDFD = tree.PIDFD and {pidfd}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + flags + code],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


# Each member is deaf; daemons are double-forked and have a session of their own.
BUSH = """
def daemon():
    os.setsid()
    fork(member)
    os._exit(0)

def member():
    deafen()
    say()
    while True:
        signal.pause()

def bush():
    deafen()
    for _ in range(4):
        fork(daemon)
        fork(member)
    member()

fork(bush)
members = hear(9)
"""

REPORT = """
result = run(tree.Sweep())
print(json.dumps({**result, "alive": alive(members)}))
"""

WAYS = [
    pytest.param({}, id="children-files"),
    pytest.param({"children_files": False}, id="parent-walk"),
    pytest.param({"pidfd": False}, id="no-pidfd"),
]


@pytest.mark.parametrize("way", WAYS)
def test_a_deaf_bush_with_daemons_is_swept_and_each_member_counted_once(
    way: dict[str, bool],
) -> None:
    result = in_subreaper(BUSH + REPORT, **way)
    assert result["done"]
    assert result["alive"] == []
    assert result["survivors"] == []
    assert result["refused"] == 0
    # The four that forked the daemons may be swept before they have ended.
    assert 9 <= result["signalled"] <= 13


@pytest.mark.parametrize("way", WAYS)
def test_stopped_processes_are_swept(way: dict[str, bool]) -> None:
    stop = """
for member in members:
    tree.signal_process(member, signal.SIGSTOP)
for member in members:
    while tree.stat(member.pid).state != "T":
        pass
"""
    result = in_subreaper(BUSH + stop + REPORT, **way)
    assert result["done"]
    assert result["alive"] == []


@pytest.mark.alone
@pytest.mark.parametrize("way", WAYS)
def test_a_comet_that_forks_and_exits_without_end_is_swept(
    way: dict[str, bool],
) -> None:
    # Where every walk reads all of /proc, nothing catches one that never rests: that is
    # the shortcoming which `creche doctor` tells. One that lives 20 ms is caught.
    rest = 0.0 if way.get("children_files", True) else 0.02
    comet = f"""
def comet():
    deafen()
    end = time.monotonic() + 60
    say()
    while time.monotonic() < end:
        time.sleep({rest})
        if os.fork():
            os._exit(0)
        signal.alarm(60)
        os.setsid()

fork(comet)
members = hear(1)
"""
    result = in_subreaper(comet + REPORT, **way)
    assert result["done"]
    assert result["survivors"] == []


@pytest.mark.alone
def test_a_storm_that_replaces_its_dead_is_swept() -> None:
    storm = """
def spark():
    deafen()
    say()
    signal.pause()

def storm():
    deafen()
    for _ in range(10):
        fork(spark)
    while True:
        os.wait()
        fork(spark)

fork(storm)
members = hear(10)
"""
    result = in_subreaper(storm + REPORT)
    assert result["done"]
    assert result["alive"] == []
    assert result["survivors"] == []


def test_a_process_without_its_leading_thread_is_swept() -> None:
    headless = """
import ctypes, threading

def headless():
    def late():
        while tree.stat(os.getpid()).state != "Z":
            pass
        say()
        while True:
            signal.pause()
    threading.Thread(target=late).start()
    ctypes.CDLL(None).pthread_exit(None)

fork(headless)
members = hear(1)
"""
    result = in_subreaper(headless + REPORT)
    assert result["done"]
    assert result["signalled"] == 1
    assert result["alive"] == []


def test_known_children_are_spared_with_all_that_is_below_them() -> None:
    spared = """
def worker():
    fork(member)
    member()

known = fork(worker)
kept = hear(2)
first = tree.Sweep(lambda: [known])
result = run(first)
print(json.dumps({
    **result,
    "swept": alive(members),
    "kept": len(alive(kept)),
    "rest": run(tree.Sweep()),
    "left": alive(kept),
}))
"""
    result = in_subreaper(BUSH + spared)
    assert result["done"]
    assert result["swept"] == []
    assert result["survivors"] == []
    assert result["kept"] == 2
    assert result["rest"]["signalled"] == 2
    assert result["left"] == []


def test_a_pid_that_moved_below_a_spared_child_is_not_killed() -> None:
    moved = """
def worker():
    fork(member)
    member()

known = fork(worker)
kept = hear(2)
below = next(one for one in kept if one.pid != known)
result = {
    "spared": tree._kill_below(below, frozenset([known])),
    "foreign": tree._descends(os.getppid(), frozenset()),
    "kept": len(alive(kept)),
    "ours": tree._kill_below(below, frozenset()),
}
print(json.dumps({**result, "rest": run(tree.Sweep())}))
"""
    result = in_subreaper(BUSH + moved)
    assert result["spared"] is False
    assert result["foreign"] is False
    assert result["kept"] == 2
    assert result["ours"] is True
    assert result["rest"]["done"]


def test_nothing_to_sweep_is_a_success_that_signalled_nobody() -> None:
    result = in_subreaper("members = []" + REPORT)
    assert result["done"]
    assert result["rounds"] == 1
    assert result["signalled"] == 0


def test_a_traced_child_that_stopped_for_us_has_not_ended() -> None:
    result = in_subreaper("""
import ctypes

def traced():
    ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME
    signal.raise_signal(signal.SIGUSR1)

pid = fork(traced)
os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
sent = tree.signal_child(pid, signal.SIGKILL)
os.kill(pid, signal.SIGKILL)
while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT).si_code == os.CLD_TRAPPED:
    pass
print(json.dumps({"sent": sent, "status": os.waitpid(pid, 0)[1]}))
""")
    assert result == {"sent": True, "status": signal.SIGKILL}


def test_an_ended_child_counts_as_left_until_it_is_reaped_but_is_not_signalled() -> (
    None
):
    result = in_subreaper("""
pid = fork(lambda: os._exit(7))
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
sweep = tree.Sweep()
before = sweep.step(), [process.state for process in sweep.survivors()]
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps({
    "before": before,
    "status": status,
    "after": sweep.step(),
    "signalled": len(sweep.signalled),
}))
""")
    assert result["before"] == [False, ["Z"]]
    assert result["status"] == 7
    assert result["after"] is True
    assert result["signalled"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to start as another user")
def test_members_of_another_user_are_reported_and_neither_raised_nor_counted() -> None:
    result = in_subreaper("""
def victim():
    fork(member)
    member()

def member():
    say()
    signal.pause()

fork(victim)
members = hear(2)
os.setresuid(65534, 65534, 0)
sweep = tree.Sweep()
result = run(sweep, limit=0.5)
uids = [process.uid for process in sweep.survivors()]
os.setresuid(0, 0, 0)
print(json.dumps({**result, "uids": uids, "rest": run(tree.Sweep())}))
""")
    assert not result["done"]
    assert result["signalled"] == 0
    assert result["refused"] == 2
    assert result["uids"] == [0, 0]
    assert result["rest"]["done"]


HIDEPID = """
import ctypes
libc = ctypes.CDLL(None)
CLONE_NEWNS, MS_REC, MS_PRIVATE, PR_SET_DUMPABLE = 0x20000, 0x4000, 0x40000, 4
assert libc.unshare(CLONE_NEWNS) == 0
assert libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
assert libc.mount(b"proc", b"/proc", b"proc", 0, b"hidepid=%d") == 0
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # the change of user took it away

def hidden(body):
    def hide():
        libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        body()
    return fork(hide)

def member():
    say()
    signal.pause()

def middle():
    hidden(member)
    member()

pids = [hidden(middle), fork(middle)]
hear(4)
shown = [tree.stat(pid) is not None for pid in pids]
sweep = tree.Sweep()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount another /proc")
@pytest.mark.parametrize("hidepid", [1, 2])
def test_s36_members_that_proc_hides_are_swept(hidepid: int) -> None:
    result = in_subreaper(
        HIDEPID % hidepid
        + """
left = [(s.pid == pids[0], s.started, s.uid, s.state) for s in sweep.survivors()
        if s.pid != pids[1]]
print(json.dumps({"shown": shown, "left": left, **run(sweep, limit=5.0)}))
"""
    )
    assert result["shown"] == [False, True]
    assert result["left"] == [[True, 0.0, -1, "?"]]
    assert result["done"]
    assert (result["signalled"], result["reaped"]) == (4, 4)


# --- what a process asks for itself ---


def test_orphans_go_to_the_subreaper_which_every_kernel_here_offers() -> None:
    assert tree.can_adopt()
    result = in_subreaper("""
def parent():
    fork(orphan)
    os._exit(0)

def orphan():
    while os.getppid() != adopter:
        pass
    say()
    signal.pause()

adopter = os.getpid()
os.waitpid(fork(parent), 0)
(found,) = hear(1)
children = tree.children(os.getpid())
print(json.dumps({"adopted": children == [found.pid], **run(tree.Sweep())}))
""")
    assert result["adopted"]
    assert result["done"]


def test_a_refused_request_to_the_kernel_is_an_error_with_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tree, "_PR_SET_CHILD_SUBREAPER", -1)
    with pytest.raises(OSError, match="Invalid argument"):
        tree.become_subreaper()
    monkeypatch.setattr(tree, "_PR_GET_CHILD_SUBREAPER", -1)
    assert tree.can_adopt() is False


def test_missing_pidfds_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree._pidfd_works()
    monkeypatch.delattr(os, "pidfd_open")
    assert not tree._pidfd_works()


# --- containment ---

contained = pytest.mark.skipif(not cgroup.probe(), reason="needs a writable cgroup v2")


@contained
def test_a_tree_born_in_a_cgroup_is_killed_with_all_of_it() -> None:
    result = in_subreaper("""
from broker import cgroup

def chain():
    fork(member)
    member()

def member():
    deafen()
    os.setsid()
    say()
    signal.pause()

home = cgroup.own_directory()
job = cgroup.Cgroup.create(f"creche-test-{os.getpid()}")
job.enter()
try:
    job.kill()
    refused = False
except ValueError:
    refused = True
fork(chain)
job.leave()
members = hear(2)
result = {
    "refused": refused,
    "back": cgroup.own_directory() == home,
    "held": sorted(job.pids()) == sorted(member.pid for member in members),
}
cgroup.Cgroup(job.path).kill()
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
result["emptied"] = job.pids() == []
job.remove()
print(json.dumps({
    **result, "alive": alive(members), "removed": not os.path.exists(job.path)
}))
""")
    assert result == {
        "refused": True,
        "back": True,
        "held": True,
        "emptied": True,
        "alive": [],
        "removed": True,
    }


@contained
def test_what_members_made_below_a_cgroup_is_counted_and_removed(start: Start) -> None:
    child = start()
    job = cgroup.Cgroup.create(f"creche-test-{os.getpid()}")
    try:
        inner = os.path.join(job.path, "inner")
        os.mkdir(inner)
        cgroup._write(os.path.join(inner, "cgroup.procs"), b"%d" % child.pid)
        assert job.pids() == [child.pid]
        with pytest.raises(OSError, match="busy"):
            job.remove()
        job.kill()
        assert child.process.wait() == -signal.SIGKILL
    finally:
        job.remove()


@contained
@contained
def test_a_cgroup_is_killed_although_a_member_made_a_threaded_one_below() -> None:
    result = in_subreaper("""
from broker import cgroup

job = cgroup.Cgroup.create(f"creche-test-{os.getpid()}")

def member():
    job.enter()
    place = f"{job.path}/threaded"
    os.mkdir(place)
    for name, word in ("type", "threaded"), ("threads", "0"):
        with open(f"{place}/cgroup.{name}", "w") as file:
            file.write(word)
    say()
    signal.pause()

pid = fork(member)
hear(1)
inside = job.pids() == [pid]
job.kill()
status = os.waitpid(pid, 0)[1]
job.remove()
print(json.dumps([inside, status, os.path.exists(job.path)]))
""")
    assert result == [True, signal.SIGKILL, False]


def test_the_probe_leaves_nothing_behind_also_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: cgroup.Cgroup) -> None:
        raise PermissionError

    home = cgroup.own_directory()
    assert home is not None
    monkeypatch.setattr(cgroup.Cgroup, "enter", refuse)
    assert cgroup.probe() is False
    assert f"creche-probe-{os.getpid()}" not in os.listdir(home)


@pytest.mark.parametrize(
    "mounts",
    [
        "",
        "31 23 0:28 / /sys rw - sysfs sysfs rw\n",
        "41 31 0:38 /elsewhere /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "41 31 0:38 / /no/such\\040place rw shared:1 - cgroup2 cgroup2 rw\n",
    ],
    ids=["nothing", "no-cgroup", "not-above-us", "not-writable"],
)
def test_without_a_usable_hierarchy_the_probe_says_so(
    mounts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(mounts)
    monkeypatch.setattr(cgroup, "MOUNTS", str(table))
    assert cgroup.probe() is False
