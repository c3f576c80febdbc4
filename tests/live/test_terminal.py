"""Children on terminals: start, size, input, interrupts, the last of the output."""

import asyncio
import errno
import os
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

import actors
from actors import (
    Child,
    Engine,
    Limits,
    OutputPolicy,
    Screen,
    Spec,
    StdinUnavailable,
    TtySize,
    process,
    terminal,
)
from actors.ambient import Surroundings
from actors.launch import Launch
from actors.settings import Settings
from tests.helpers import NOT_BLOCKED, alive, eventually, tag
from tests.live.children import (
    KIB,
    Opened,
    arrived,
    drained,
    program,
    repeated,
    terminals_of,
    until,
)

pytestmark = pytest.mark.live

QUIET = """
import termios
modes = termios.tcgetattr(0)
modes[3] &= ~termios.ECHO
termios.tcsetattr(0, termios.TCSANOW, modes)
"""
"""Switches echo off: only what the program writes is seen."""

RAW = """
import tty
tty.setraw(0)
write(b"ready\\n")
"""

LIKE_CAT = (
    QUIET
    + """
write(b"ready\\n")
while data := os.read(0, 65536):
    write(b"<" + data + b">")
write(b"<eof>")
"""
)


def terminals() -> int:
    """Return how many pseudo-terminals are open on this machine."""
    return int(Path("/proc/sys/kernel/pty/nr").read_text())


async def quiet_cat(engine: Engine, **options: Any) -> Child:
    child = await engine.spawn(program(LIKE_CAT, tag()), tty=True, **options)
    await until(child, b"ready\r\n")
    return child


# -- the start -----------------------------------------------------------------

DESCRIBES_TERMINAL = """
import resource
found = {
    "same": len({os.fstat(fd).st_rdev for fd in (0, 1, 2)}),
    "tty": os.ttyname(0),
    "controlling": os.fstat(os.open("/dev/tty", os.O_RDWR)).st_rdev != 0,
    "leads": os.getsid(0) == os.getpid() == os.getpgrp(),
    "foreground": os.tcgetpgrp(0) == os.getpid(),
    "size": tuple(os.get_terminal_size(0)),
    "cwd": os.getcwd(),
    "fds": [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) < 3],
    "extra": len(os.listdir("/proc/self/fd")) - 5,
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
}
with open("/proc/self/status") as file:
    status = dict(line.split(":", 1) for line in file)
found |= {name: status[name].strip() for name in ("Umask", "SigBlk")}
os.write(1, repr(found).encode())
"""


@pytest.mark.parametrize("limits", [Limits(), Limits(nofile=100)])
async def test_s15_the_terminal_controls_the_child_however_it_is_started(
    tmp_path: Path, limits: Limits
) -> None:
    asked = program(DESCRIBES_TERMINAL, tag())
    size = TtySize(31, 77)
    async with actors.Engine() as engine:
        done = await engine.run(asked, tty=size, cwd=tmp_path, limits=limits)
    found = eval(done.text)
    name = found.pop("tty")
    assert name.startswith("/dev/pts/")
    assert found.pop("nofile") == limits.nofile or limits.nofile is None
    assert found == {
        "same": 1,
        "controlling": True,
        "leads": True,
        "foreground": True,
        "size": (77, 31),
        "cwd": str(tmp_path),
        "fds": [0, 1, 2],
        "extra": 0,
        "Umask": f"{current_umask():04o}",
        "SigBlk": "0" * 16,
    }


@pytest.mark.parametrize("limits", [Limits(), Limits(nofile=100)])
async def test_s14_no_signal_that_a_program_can_use_is_ignored(limits: Limits) -> None:
    """posix_spawn leaves 32 and 33 ignored, which the C library keeps to itself."""
    asked = ["grep", "SigIgn", "/proc/self/status"]
    async with actors.Engine() as engine:
        ignored = (await engine.run(asked, tty=True, limits=limits)).text.split()[1]
    assert int(ignored, 16) & ~(3 << 31) == 0


def current_umask() -> int:
    here = Surroundings()
    try:
        return here.read().umask
    finally:
        here.close()


async def test_s15_a_terminal_has_24_by_80_cells_unless_told() -> None:
    async with actors.Engine() as engine:
        done = await engine.run(["stty", "size"], tty=True)
        assert done.stdout == b"24 80\r\n"
    settings = Settings(tty=TtySize(5, 6))
    async with actors.Engine(settings=settings) as engine:
        assert (await engine.run(["stty", "size"], tty=True)).stdout == b"5 6\r\n"


async def test_s11_a_start_fails_on_a_terminal_as_it_does_on_pipes(
    tmp_path: Path,
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for place in (first, second):
        place.mkdir()
    (first / "tool").write_text("#!/bin/sh\n")
    (second / "plain").write_text("#!/bin/sh\nexit 5\n")
    (second / "plain").chmod(0o755)
    (second / "noexec").write_text("no interpreter is named\n")
    (second / "noexec").chmod(0o755)
    path = {"PATH": f"{first}:{tmp_path}/none:{second}"}
    cases: dict[str, dict[str, Any]] = {
        "tool": {},
        "nowhere": {},
        "noexec": {},
        "./plain": {"cwd": first},
        str(second / "plain" / "below"): {},
        str(tmp_path): {},
        "plain": {"cwd": tmp_path / "none"},
        "/bin/true": {"cwd": second / "plain"},
    }
    async with actors.Engine() as engine:
        for name, options in cases.items():
            told = []
            for tty in (False, True):
                with pytest.raises(actors.SpawnFailed) as no:
                    await engine.run([name], env=path, tty=tty, **options)
                told.append((no.value.errno, no.value.step, no.value.path))
            assert told[0] == told[1], name
        for tty in (False, True):
            found = await engine.run(["plain"], env=path, tty=tty)
            assert found.returncode == 5
            here = await engine.run(["./plain"], env=path, tty=tty, cwd=second)
            assert here.returncode == 5
            with pytest.raises(actors.SpawnFailed, match="too long") as large:
                await engine.run(["/bin/true", "x" * 200_000], tty=tty)
            assert large.value.errno == errno.E2BIG
        assert terminals_of(engine) == 0


@pytest.fixture
def launch() -> Launch:
    here = Surroundings()
    try:
        spec = Spec(["true"], tty=True)
        return spec.launch(here.read(), Settings(), "", "0" * 32)
    finally:
        here.close()


@pytest.mark.parametrize("name", ["openpty", "dup", "ttyname", "open"])
def test_s11_a_terminal_that_cannot_be_had_is_the_step_pty(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(process, "limits", lambda _: None)
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patched:
        patched.setattr(os, name, refuse)
        with pytest.raises(actors.SpawnFailed) as failed:
            terminal.start(launch, TtySize())
    assert (failed.value.errno, failed.value.step) == (errno.ENOSPC, "pty")
    assert os.listdir("/proc/self/fd") == before


async def test_a_starting_worker_returns_to_its_place_and_umask(
    tmp_path: Path,
) -> None:
    """One after the other in one pool: what one start borrowed, the next must not see.

    `/proc/self/cwd` is where the worker stands.
    """
    mask = current_umask()
    async with actors.Engine() as engine:
        home = (await engine.run(["pwd"], cwd="/proc/self/cwd")).stdout
        old = os.umask(0o007)
        try:
            for _ in range(4):
                await engine.run(["true"], tty=True, cwd=tmp_path)
        finally:
            os.umask(old)
        for tty in (False, True):
            done = await engine.run("pwd; umask", shell=True, tty=tty)
            assert done.text.split() == [os.getcwd(), f"{mask:04o}"]
            done = await engine.run(["pwd"], cwd="/proc/self/cwd")
            assert done.stdout == home


# -- size ----------------------------------------------------------------------

SHOWS_SIZES = """
def show(*_):
    write(b"%d %d\\n" % tuple(os.get_terminal_size(0))[::-1])
signal.signal(signal.SIGWINCH, show)
show()
rest()
"""


async def test_s15_resize_is_seen_by_the_child_and_in_the_snapshot() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program(SHOWS_SIZES, tag()), tty=True)
        assert child.tty
        await until(child, b"24 80")
        used = (await child.snapshot()).last_used
        await child.resize(65535, 1)
        await until(child, b"65535 1\r\n")
        now = await child.snapshot()
        assert now.tty == TtySize(65535, 1)
        assert now.last_used > used
        await child.kill()
        await child.resize(9, 9)
        assert (await child.snapshot()).tty == TtySize(65535, 1)
        await child.aclose()


@pytest.mark.parametrize(
    ("rows", "cols", "field"),
    [
        (0, 80, "tty.rows"),
        (-1, 80, "tty.rows"),
        (24, 65536, "tty.cols"),
        (24, 80.0, "tty.cols"),
        (True, 80, "tty.rows"),
    ],
)
async def test_s15_an_impossible_size_is_refused(
    rows: Any, cols: Any, field: str
) -> None:
    async with actors.Engine() as engine, await quiet_cat(engine) as child:
        with pytest.raises(actors.InvalidRequest) as refused:
            await child.resize(rows, cols)
        assert refused.value.field == field
        assert (await child.snapshot()).tty == TtySize(24, 80)


async def test_s15_a_child_on_pipes_cannot_be_resized_before_or_after_its_end() -> None:
    async with actors.Engine() as engine, await engine.spawn(["cat"]) as child:
        assert not child.tty
        for _ in range(2):
            with pytest.raises(actors.NotATerminal):
                await child.resize(24, 80)
            await child.wait()


# -- output --------------------------------------------------------------------


async def test_a_terminal_is_one_stream_for_every_way_to_read() -> None:
    words = program("write(b'out'); write(b'err', 2); os._exit(3)", tag())
    async with actors.Engine() as engine:
        done = await engine.run(words, tty=True)
        assert (done.stdout, done.stderr, done.returncode) == (b"outerr", b"", 3)

        child = await engine.spawn(words, tty=True)
        events = [event async for event in child.events()]
        ends = [e for e in events if not isinstance(e, actors.Chunk)]
        assert [type(e).__name__ for e in ends] in (
            ["StreamEof", "Exited", "Closed"],
            ["Exited", "StreamEof", "Closed"],
        )
        assert {e.stream for e in events if isinstance(e, actors.Chunk)} == {"stdout"}
        with pytest.raises(actors.InvalidRequest, match="stderr"):
            child.reader("stderr")
        reader = child.reader()
        piece = await reader.read(3)
        assert (piece.data, piece.eof) == (b"out", False)
        assert (await child.output()).stdout == b"outerr"
        assert (await drained(child))[0] == b"outerr"
        await child.aclose()


async def test_s27_a_poll_of_a_terminal_returns_at_the_first_quiet() -> None:
    async with actors.Engine() as engine, await quiet_cat(engine) as child:
        await child.write("a\n")
        seen = await child.poll(wait=NOT_BLOCKED)
        assert seen.stdout
        assert b"<a\r\n>".startswith(seen.stdout)  # the kernel writes it in pieces
        assert seen.alive
        assert seen.wall_time < NOT_BLOCKED / 2


@repeated(15, 3000)
async def test_s24_nothing_that_was_written_before_the_end_is_lost(runs: int) -> None:
    async with actors.Engine() as engine:
        for _ in range(runs):
            child = await engine.spawn(["printf", "%08000d", "7"], tty=True)
            output, seen = await drained(child, wait=NOT_BLOCKED)
            assert output == b"%08000d" % 7
            assert seen.exit_code == 0
            await child.aclose()


@pytest.mark.parametrize("grace", [0.0, None])
@pytest.mark.parametrize("room", [4000, 8000])
async def test_s23_the_exit_is_told_although_a_quiet_descendant_keeps_the_terminal(
    grace: float | None, room: int
) -> None:
    """A full log holds reading back when the child ends; then a reader comes.

    With room for all 8000 bytes, the terminal is empty then, but that is not yet known.
    """
    body = """
signal.signal(signal.SIGHUP, signal.SIG_IGN)
forked(rest); write(b'%08000d' % 7); os._exit(4)
"""
    async with actors.Engine() as engine:
        child = await engine.spawn(
            program(body, tag()),
            tty=True,
            post_exit_grace=grace,
            leftover="keep",
            retention=OutputPolicy.block(room),
        )
        await asyncio.to_thread(eventually, lambda: not alive(child.pid))
        await arrived(child)
        parts, ends = b"", []
        async with asyncio.timeout(NOT_BLOCKED):
            async for event in child.events():
                if isinstance(event, actors.Chunk):
                    parts += event.data
                else:
                    ends.append(type(event).__name__)
                if isinstance(event, actors.Exited):
                    assert event.status.code == 4
                    await child.kill()
        assert parts == b"%08000d" % 7
        assert ends[0] == "Exited" or ends == ["StreamAbandoned", "Exited", "Closed"]
        await child.aclose()


async def test_a_screen_shows_what_a_child_drew() -> None:
    draws = "write(b'gone\\x1b[2J\\x1b[2;3Hshown'); os._exit(0)"
    async with actors.Engine() as engine:
        screen = Screen(TtySize(3, 10))
        child = await engine.spawn(program(draws, tag()), tty=screen.size)
        async with child:
            await screen.follow(child)
    assert screen.lines == ("", "  shown", "")


ASKS_TWICE = (
    QUIET
    + """
for text in b"first?", b"second?":
    write(b"\\x1b[?4m\\x1b[2J\\x1b[2;3H" + text)
    os.read(0, 9)
os._exit(3)
"""
)


async def test_a_screen_is_followed_until_it_shows_a_text_and_then_on() -> None:
    screen = Screen(TtySize(3, 10))
    async with actors.Engine() as engine:
        child = await engine.spawn(program(ASKS_TWICE, tag()), tty=screen.size)
        async with child:
            await screen.follow(child, until="first?", timeout=NOT_BLOCKED)
            await screen.follow(child, until="first?", timeout=0)
            with pytest.raises(actors.TimedOut, match="'second' on the") as late:
                await screen.follow(child, until="second", timeout=0.05)
            assert late.value.stdout == b"\n  first?"
            await child.write("\n")
            await screen.follow(child, until="second?", timeout=NOT_BLOCKED)
            assert screen.text == "\n  second?"
            await child.write("\n")
            with pytest.raises(actors.OutputEnded, match=r"with code 3; .*second\?'"):
                await screen.follow(child, until="third", timeout=NOT_BLOCKED)
            await screen.follow(child)
            with pytest.raises(actors.InvalidRequest, match="until"):
                await screen.follow(child, until=b"third")  # type: ignore[arg-type]


async def test_a_screen_begins_anew_with_another_child() -> None:
    screen = Screen(TtySize(3, 20))
    async with actors.Engine() as engine:
        for text in ("some words", "x"):
            child = await engine.spawn(["printf", text], tty=screen.size)
            async with child:
                await screen.follow(child, until=text, timeout=NOT_BLOCKED)
    assert screen.text == "some wordsx"


# -- input ---------------------------------------------------------------------


async def test_s35_closing_the_input_of_a_terminal_is_an_end_of_file() -> None:
    for text, seen in ((b"a\n", b"<a\r\n><eof>"), (b"half", b"<half><eof>")):
        async with actors.Engine() as engine, await quiet_cat(engine) as child:
            await child.write(text)
            for _ in range(2):
                await child.close_stdin()
            with pytest.raises(actors.StdinUnavailable, match=r"closed|ended"):
                await child.write(b"more")
            output, last = await drained(child, wait=NOT_BLOCKED)
            assert output.endswith(seen)
            assert last.exit_code == 0


async def test_what_one_write_quotes_may_come_with_the_next() -> None:
    for texts, seen in (
        ((b"abc\x16", b"\n"), b"<abc\r\n><eof>"),
        ((b"abc\x16",), b"<abc\x04><eof>"),
    ):
        async with actors.Engine() as engine, await quiet_cat(engine) as child:
            for text in texts:
                await child.write(text)
            await child.close_stdin()
            output, _ = await drained(child, wait=NOT_BLOCKED)
            assert output.endswith(seen)
    async with actors.Engine() as engine, await quiet_cat(engine) as child:
        await child.write(b"\x16")
        with pytest.raises(actors.InvalidRequest, match="a line of 4097"):
            await child.write(b"\n" + b"a" * 4095 + b"\n")


async def test_input_that_is_dropped_behind_a_quote_is_closed_all_the_same() -> None:
    ignores = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    echoes = LIKE_CAT.removeprefix(QUIET)
    async with actors.Engine() as engine:
        child = await engine.spawn(program(ignores + echoes, tag()), tty=True)
        async with child:
            await until(child, b"ready")
            await child.write(b"abc\x16")
            await until(child, b"abc^\b")  # the kernel has taken the quote in
            await child.interrupt()
            await child.close_stdin()
            output, last = await drained(child, wait=NOT_BLOCKED)
            assert output.endswith(b"<\x04><eof>")
            assert last.exit_code == 0


async def test_the_byte_of_control_d_leaves_the_input_open() -> None:
    body = QUIET + "write(b'ready\\n')\nfor _ in 1, 2: write(b'<%s>' % os.read(0, 99))"
    async with actors.Engine() as engine:
        child = await engine.spawn(program(body, tag()), tty=True)
        async with child:
            await until(child, b"ready")
            await child.write(b"\x04")
            await until(child, b"<>")
            await child.write(b"on\n")
            await until(child, b"<on\r\n>")


async def test_s35_closing_does_not_wait_behind_a_write_to_a_full_terminal() -> None:
    body = (
        QUIET
        + """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
write(b"ready\\n")
signal.sigwait({signal.SIGUSR1})
total = 0
while data := os.read(0, 65536):
    total += len(data)
write(b"total %d" % total)
"""
    )
    async with actors.Engine() as engine:
        child = await engine.spawn(program(body, tag()), tty=True)
        async with child:
            await until(child, b"ready")
            writing = asyncio.ensure_future(
                child.write(b"x" * 99 + b"\n" + b"ab\n" * 20_000)
            )
            await arrived(child)
            await child.close_stdin()
            cut = await asyncio.wait_for(writing, NOT_BLOCKED)
            assert 0 < cut.accepted < 60_000
            with pytest.raises(actors.StdinUnavailable):
                await child.write(b"more")
            await child.signal(signal.SIGUSR1)
            output, last = await drained(child, wait=NOT_BLOCKED)
            assert output.endswith(b"total %d" % cut.accepted)
            assert last.exit_code == 0


async def test_s35_a_long_line_in_two_writes_is_refused_with_the_second() -> None:
    async with actors.Engine() as engine, await quiet_cat(engine) as child:
        await child.write(b"x" * 4000)
        with pytest.raises(actors.InvalidRequest, match="4095") as refused:
            await child.write(b"y" * 96)
        assert refused.value.field == "data"
        await child.write(b"z" * 95 + b"\n")
        seen = await until(child, b"\n>")
        assert seen == b"<" + b"x" * 4000 + b"z" * 95 + b"\r\n>"


COUNTS_LINES = (
    QUIET
    + """
write(b"ready\\n")
import hashlib, select
found, sum = 0, hashlib.sha256()
while not sum.update(line := os.read(0, 65536)) and line != b"end\\n":
    found += 1
    if found % 100 == 0:
        select.select([], [], [], 0.001)
write(b"%d %s" % (found, sum.hexdigest().encode()))
"""
)


async def test_many_short_lines_wait_for_a_slow_reader() -> None:
    import hashlib

    lines = b"".join(b"%059d\n" % n for n in range(200 * 1024 // 60)) + b"end\n"
    async with actors.Engine() as engine:
        child = await engine.spawn(program(COUNTS_LINES, tag()), tty=True)
        async with child:
            await until(child, b"ready")
            written = await child.write(lines)
            assert written.accepted == len(lines)
            output, _ = await drained(child, wait=NOT_BLOCKED)
    digest = hashlib.sha256(lines).hexdigest().encode()
    assert output.endswith(b"%d %s" % (200 * 1024 // 60, digest))


async def test_run_output_and_communicate_feed_a_terminal() -> None:
    async with actors.Engine() as engine:
        done = await engine.run(program(LIKE_CAT, tag()), tty=True, input="hey\n")
        assert done.stdout.replace(b"hey\r\n", b"", 1).endswith(b"<eof>")
        assert (await engine.run(["cat"], tty=True)).stdout == b""
        child = await engine.spawn(["cat"], tty=True)
        assert await child.communicate("a\n") == (b"a\r\na\r\n", b"")
        await child.aclose()
        child = await engine.spawn(["cat"], tty=True)
        assert (await child.output()).stdout == b""
        await child.aclose()


async def test_output_of_a_raw_terminal_leaves_its_input_open() -> None:
    body = RAW + "write(os.read(0, 99)); os._exit(0)"
    async with actors.Engine() as engine:
        child = await engine.spawn(program(body, tag()), tty=True)
        await until(child, b"ready")
        output = asyncio.ensure_future(child.output())
        await arrived(child)
        await child.write(b"\x04")
        assert (await output).stdout == b"ready\n\x04"
        await child.aclose()


async def test_a_run_whose_input_would_be_cut_fails_instead_of_waiting(
    opened: Opened,
) -> None:
    async with opened() as engine:
        child = await engine.spawn(["cat"], tty=True)
        for refused in (
            engine.run(["cat"], tty=True, input="x" * 5000),
            child.communicate("x" * 5000),
            child.poll("x" * 5000),
        ):
            async with asyncio.timeout(NOT_BLOCKED):
                with pytest.raises(actors.InvalidRequest, match="4095") as told:
                    await refused
            assert told.value.field == "input"
        assert child.returncode is None
        await child.aclose()


# -- signals and the end -------------------------------------------------------


async def test_s36_interrupt_reaches_the_foreground_job_and_not_its_shell(
    tmp_path: Path,
) -> None:
    script = tmp_path / "shell"
    script.write_text("set -m\ntrap : INT\nsleep 150\necho alive $?\n")
    async with actors.Engine() as engine:
        child = await engine.spawn(["bash", script], tty=True)
        await job_runs(child)
        assert await child.interrupt()
        output, seen = await drained(child, wait=NOT_BLOCKED)
        assert output.endswith(b"alive 130\r\n")
        assert seen.exit_code == 0
        assert not await child.interrupt()
        await child.aclose()


async def test_s36_an_interrupt_drops_what_was_typed_ahead_as_control_c_does() -> None:
    async with actors.Engine() as engine:
        bare = ["bash", "--norc", "--noprofile"]
        child = await engine.spawn(bare, tty=True, extra_env={"TERM": "dumb"})
        async with child:
            await child.write("sleep 150\n")
            await job_runs(child)
            await child.write("echo R''AN\n")
            assert await child.interrupt()
            await child.write("echo do''ne\n")
            said = await child.expect("done\r", timeout=NOT_BLOCKED)
            assert b"RAN\r" not in said.before


READS_AFTER_INTERRUPT = """
import termios, tty
tty.setraw(0)
modes = termios.tcgetattr(0)
modes[3] |= termios.NOFLSH if sys.argv[2] == "keep" else 0
termios.tcsetattr(0, termios.TCSANOW, modes)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
write(b"ready\\n")
signal.sigwait({signal.SIGINT})
write(b"interrupted\\n")
typed = b""
while not typed.endswith(b"q"):
    typed += os.read(0, 65536)
write(b"%d bytes\\n" % len(typed))
os._exit(0)
"""


@pytest.mark.parametrize("keep", [False, True])
async def test_s36_an_interrupt_drops_queued_input_unless_the_terminal_keeps_it(
    *, keep: bool
) -> None:
    size = 100_000
    async with actors.Engine() as engine:
        wants = "keep" if keep else "drop"
        child = await engine.spawn(
            program(READS_AFTER_INTERRUPT, tag(), wants), tty=True
        )
        async with child:
            await child.expect("ready", timeout=NOT_BLOCKED)
            writing = asyncio.ensure_future(child.write(b"x" * size))
            await arrived(child)
            assert await child.interrupt()
            await child.expect("interrupted", timeout=NOT_BLOCKED)
            written = await writing
            assert (written.accepted == size) is keep
            await child.write(b"q")
            bytes_read = size + 1 if keep else 1
            await child.expect(f"\n{bytes_read} bytes", timeout=NOT_BLOCKED)


async def job_runs(child: Child) -> None:
    """Wait until a job of the shell has the terminal and ran its program."""

    def foreground() -> bool:
        words = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        job = int(words[5])
        try:
            name = Path(f"/proc/{job}/comm").read_text()
        except FileNotFoundError:
            return False
        return job != child.pid and name == "sleep\n"

    await asyncio.to_thread(eventually, foreground)


async def test_s39_a_child_that_dies_of_interrupt_was_interrupted() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(["sleep", "150"], tty=True)
        async with child:
            assert await child.interrupt()
            status = await child.wait(NOT_BLOCKED)
            assert (status.signal, status.cause) == (signal.SIGINT, "interrupted")


async def test_dropping_a_terminal_ends_its_tree_and_hangs_it_up() -> None:
    async with actors.Engine() as engine:
        child = await engine.spawn(program("forked(rest); rest()", tag()), tty=True)
        name = os.readlink(f"/proc/{child.pid}/fd/0")
        assert stat.S_ISCHR(os.stat(name).st_mode)
        await child.aclose()
        await asyncio.to_thread(eventually, lambda: terminals_of(engine) == 0)


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_500_terminals_live_side_by_side_and_end_with_their_engine() -> None:
    count, before = 500, terminals()
    async with actors.Engine() as engine:
        children = [await engine.spawn(["cat"], tty=True) for _ in range(count)]
        assert terminals() == before + count
        for n, child in enumerate(children):
            await child.resize(n + 1, 80)
            await child.write(f"line {n}\n")
        for n, child in enumerate(children):
            await until(child, b"line %d\r\nline %d\r\n" % (n, n))
            size = (await child.snapshot()).tty
            assert size is not None
            assert size.rows == n + 1
    pids = [child.pid for child in children]
    eventually(lambda: not any(map(alive, pids)) and terminals() == before, timeout=1.0)


HANGS_UP = """
import ctypes
for number in (signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
ctypes.CDLL(None).vhangup()
open(sys.argv[2], "w").close()
rest()
"""


async def typed_for_ever(child: Child) -> None:
    while True:
        await child.write("\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="vhangup is a privileged call")
async def test_a_child_that_hangs_its_terminal_up_is_still_in_hand(
    tmp_path: Path,
) -> None:
    async with Engine() as engine:
        child = await engine.spawn(
            program(HANGS_UP, tag(), str(tmp_path / "up")), tty=True
        )
        # It is seen before a write, or by the write: then stdin is closed for the next.
        with pytest.raises(StdinUnavailable, match=r"hung|is closed"):
            await typed_for_ever(child)
        await child.resize(10, 20)
        await child.close_stdin()
        assert (await child.snapshot()).state == "running"
        assert (await child.kill()).survivors == ()


async def test_s22_a_communicate_whose_input_is_refused_holds_the_child_no_longer(
    opened: Opened,
) -> None:
    kept = OutputPolicy.tail(16 * KIB)
    script = "read -r line; head -c 1000000 /dev/zero; exit 3"
    async with opened() as engine:
        child = await engine.spawn(["sh", "-c", script], tty=True, retention=kept)
        with pytest.raises(actors.InvalidRequest, match="4095"):
            await child.communicate("x" * 5000)
        await child.write("go\n")
        assert (await child.wait(NOT_BLOCKED)).code == 3
        await child.aclose()


@pytest.mark.skipif(os.geteuid() != 0, reason="vhangup is a privileged call")
async def test_a_child_that_has_hung_its_terminal_up_can_be_interrupted(
    tmp_path: Path,
) -> None:
    hung_up = tmp_path / "up"
    async with Engine() as engine:
        child = await engine.spawn(program(HANGS_UP, tag(), str(hung_up)), tty=True)
        await asyncio.to_thread(eventually, hung_up.exists)
        await child.interrupt()
        assert (await child.snapshot()).state == "running"
        assert (await child.kill()).survivors == ()
