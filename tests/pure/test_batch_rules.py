"""How jobs of a batch end, what is noted of them, and when it ends early."""

import json
from typing import Any

import pytest

import actors
from actors.batch import report
from actors.batch.halt import NEVER, Halt
from actors.batch.joblog import HEADER, NoJoblog, Past, row
from actors.batch.jobs import Job, of_line
from actors.batch.outcome import Outcome
from actors.batch.pace import ENOUGH, REMEMBERED, Pace
from actors.batch.tally import FAILURES, SLOWEST, Tally


def ended(code: int | None = 0, signal: int | None = None, **more: Any) -> Outcome:
    cause = more.pop("cause", "exited")
    wall = more.pop("wall", 0.0)
    usage = more.pop("usage", actors.Usage())
    status = actors.ExitStatus(code, signal, cause=cause, wall_time=wall, usage=usage)
    return Outcome(status, 1000.25, **more)


def failed(failure: str = "cannot execute 'x'", code: int = 127) -> Outcome:
    error = "spawn-failed"
    return Outcome(None, 1000.25, error=error, failure=failure, failure_code=code)


# -- outcomes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "cause", "log", "code", "words"),
    [
        (ended(0), "exited", (0, 0), 0, "exit 0"),
        (ended(3), "exited", (3, 0), 3, "exit 3"),
        (ended(None, 9), "exited", (0, 9), 137, "signal 9"),
        (ended(None, 9, cause="oom"), "oom", (0, 9), 137, "signal 9"),
        (ended(None, 15, cause="timeout"), "timeout", (-1, 15), 124, "timeout"),
        (ended(0, cause="timeout"), "timeout", (-1, 15), 124, "timeout"),
        (
            ended(None, 15, cause="killed", late=True),
            "timeout",
            (-1, 15),
            124,
            "timeout",
        ),
        (ended(None, 15, cause="limit"), "limit", (-1, 15), 143, "limit"),
        (ended(0, cause="limit"), "limit", (-1, 15), 143, "limit"),
        (ended(7, cause="killed"), "killed", (-1, 15), 7, "killed"),
        (ended(None, cause="worker-lost"), "worker-lost", (-1, 15), 125, "worker-lost"),
        (failed(), "failed", (127, 0), 127, "cannot execute 'x'"),
    ],
)
def test_an_end_is_told_in_numbers(
    outcome: Outcome, cause: str, log: tuple[int, int], code: int, words: str
) -> None:
    assert outcome.cause == cause
    assert (outcome.exitval, outcome.signal) == log
    assert outcome.code == code
    assert outcome.words == words
    assert outcome.ok is (code == 0)


# -- the joblog ---------------------------------------------------------------------


def test_a_job_has_a_line_in_the_format_of_gnu_parallel() -> None:
    job = Job(12, "echo 'a\nb'\tc", "", {}, ())
    line = row(job, ended(4, wall=1.5, stdout=6))
    assert line == b"12\t:\t1000.250\t     1.500\t0\t6\t4\t0\techo 'a\0b'\tc\n"
    assert row(job, failed()).split(b"\t")[3] == b"     0.000"


LINES = [
    HEADER,
    b"1\t:\t1.000\t     0.100\t0\t0\t0\t0\ttrue\n",
    b"3\t:\t1.000\t     0.100\t0\t0\t1\t0\tfalse\n",
    b"2\t:\t1.000\t     0.100\t0\t0\t0\t9\tkill -9 $$\ta\n",
]


def past(lines: list[bytes], *, again: bool = False) -> Past:
    read = Past(again=again)
    for line in lines:
        read.read(line)
    return read


def test_finished_jobs_are_not_run_again() -> None:
    assert past(LINES).done == {1, 2, 3}
    assert past([]).done == set()


def test_failed_jobs_are_run_again_when_asked_until_they_succeed() -> None:
    assert past(LINES, again=True).done == {1}
    again = LINES[2].replace(b"\t1\t0\tfalse", b"\t0\t0\tfalse")
    assert past([*LINES, again], again=True).done == {1, 3}
    assert past([*LINES, again, LINES[2]], again=True).done == {1}


@pytest.mark.parametrize("kept", range(len(LINES[1])))
def test_a_torn_line_counts_for_nothing(kept: int) -> None:
    read = past([*LINES[:1], *LINES[2:], LINES[1][:kept]])
    assert read.done == {2, 3}
    assert read.whole == sum(map(len, LINES)) - len(LINES[1])


def test_a_torn_header_is_none() -> None:
    assert past([HEADER[:20]]).whole == 0


@pytest.mark.parametrize(
    "lines",
    [[b"a,b\n"], [HEADER, b"\n"], [HEADER, b"x" + LINES[1]], [HEADER, b"1\t:\n"]],
)
def test_what_is_no_joblog_is_refused(lines: list[bytes]) -> None:
    with pytest.raises(NoJoblog, match="line"):
        past(lines)


# -- ending early -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "halt"),
    [
        ("never", NEVER),
        ("now,fail=1", Halt("now", "fail", 1)),
        ("soon,fail=10%", Halt("soon", "fail", 10, share=True)),
        ("now,success=2", Halt("now", "success", 2)),
        ("soon,done=100%", Halt("soon", "done", 100, share=True)),
    ],
)
def test_a_condition_is_read(text: str, halt: Halt) -> None:
    assert Halt.parse(text) == halt


@pytest.mark.parametrize(
    "text", ["", "now", "later,fail=1", "now,fail=0", "now,fail=101%", "now,fail=1x"]
)
def test_a_condition_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as now,fail=1"):
        Halt.parse(text)


@pytest.mark.parametrize(
    ("text", "failed", "done", "total", "due"),
    [
        ("never", 9, 9, 9, False),
        ("now,fail=2", 1, 9, None, False),
        ("now,fail=2", 2, 2, None, True),
        ("now,success=2", 7, 8, None, False),
        ("now,success=2", 7, 9, None, True),
        ("soon,done=3", 0, 3, None, True),
        ("soon,fail=50%", 2, 2, 6, False),
        ("soon,fail=50%", 3, 5, 6, True),
        ("soon,fail=50%", 2, 2, None, False),
        ("soon,fail=50%", 3, 6, None, True),
        ("soon,fail=50%", 3, 7, None, False),
        ("soon,fail=1%", 0, 5, 5, False),
    ],
)
def test_a_condition_comes_true(
    text: str, failed: int, done: int, total: int | None, *, due: bool
) -> None:
    assert Halt.parse(text).due(failed, done, total) is due


@pytest.mark.parametrize(
    ("text", "failed", "reached", "code"),
    [
        ("never", 0, None, 0),
        ("never", 100, None, 100),
        ("never", 101, None, 101),
        ("never", 5000, None, 101),
        ("now,fail=1", 1, 7, 7),
        ("soon,fail=1", 2, 137, 137),
        ("now,fail=1", 0, None, 0),
        ("now,fail=2", 3, 7, 3),
        ("now,fail=1%", 3, 7, 3),
        ("now,success=1", 3, 0, 0),
        ("now,success=50%", 3, 0, 0),
        ("now,success=9", 3, None, 3),
        ("now,done=9", 3, 1, 3),
    ],
)
def test_the_exit_code_counts_failures_or_is_that_of_the_first(
    text: str, failed: int, reached: int | None, code: int
) -> None:
    assert Halt.parse(text).exit_code(failed, reached) == code


def test_the_time_limit_follows_the_median() -> None:
    pace = Pace(2.0)
    for seconds in (1.0, 9.0):
        assert pace.limit is None
        pace.note(seconds)
    pace.note(2.0)
    assert ENOUGH == 3
    assert pace.limit == 4.0


def test_old_times_are_forgotten() -> None:
    pace = Pace(1.0)
    for _ in range(REMEMBERED):
        pace.note(50.0)
    for _ in range(REMEMBERED // 2 + 1):
        pace.note(1.0)
    assert pace.limit == 1.0


# -- the whole ----------------------------------------------------------------------


def test_a_tally_counts_and_names() -> None:
    tally = Tally(total=20, skipped=2)
    usage = actors.Usage(user=0.5, sys=0.25, max_rss=3 * 2**20)
    for seq in range(1, 6):
        tally.ended(of_line(seq, f"sleep {seq}"), ended(wall=seq, usage=usage), b"")
    last = b"1\n2\n3\nbad \x1b[2J end\n"
    for seq in range(6, 13):
        tally.ended(of_line(seq, "x" * 200), ended(1), last)
    tally.ended(of_line(13, "nope"), failed(), b"")
    tally.running = 1
    tally.dropped = 1
    assert tally.facts(10.0) == {
        "done": 13,
        "failed": 8,
        "skipped": 2,
        "dropped": 1,
        "wall_time": 10.0,
        "cpu_time": 3.75,
        "max_rss": 3 * 2**20,
    }
    assert tally.rate(10.0) == 1.3
    assert tally.remaining(13.0) == 5.0
    tally.written = 13 * 1536
    line = "13/18 done, 8 failed, 1 running, 1.0/s"
    assert tally.line(13.0) == f"{line}, 1.5 KiB/s, 5 s left"
    assert tally.line(13.0) == f"{line}, 0 B/s, 5 s left"
    tally.written += 2**41
    assert tally.line(15.0).split(", ")[4] == "1024.0 GiB/s"
    told = tally.summary(10.0).splitlines()
    assert told[0] == (
        "13 done, 8 failed, 2 finished before, 1 dropped unfinished; "
        "10.0 s, 1.3/s, CPU 3.8 s, peak memory 3.0 MiB"
    )
    assert told[1:5] == [
        "  slowest:",
        "    5.000 s  #5  sleep 5",
        "    4.000 s  #4  sleep 4",
        "    3.000 s  #3  sleep 3",
    ]
    assert SLOWEST == 3
    assert told[5:10] == [
        "  failed:",
        f"    #6  exit 1: {'x' * 99}…",
        "      | 2",
        "      | 3",
        "      | bad \ufffd[2J end",
    ]
    assert told[-1] == f"    and {8 - FAILURES} more"


def test_a_tally_of_nothing_says_so() -> None:
    tally = Tally()
    assert tally.remaining(1.0) is None
    assert tally.line(0.0) == "0 done, 0 failed, 0 running, 0.0/s, 0 B/s"
    assert len(tally.summary(0.0).splitlines()) == 1


def test_one_job_is_not_called_the_slowest() -> None:
    tally = Tally(total=1)
    tally.ended(of_line(1, "true"), ended(), b"")
    assert "slowest" not in tally.summary(1.0)


def test_a_job_is_an_object_for_programs() -> None:
    job = of_line(3, "echo")
    usage = actors.Usage(user=0.5, sys=0.25, max_rss=4096)
    facts = report.ended(job, ended(None, 9, usage=usage, wall=2.0, stdout=5))
    streams = {"stdout": [b"\xc3", b"\xa9\n\xff", b'"\xc3'], "stderr": [b""]}
    assert json.loads(b"".join(report.pieces(facts, streams))) == {
        "event": "ended",
        "seq": 3,
        "id": None,
        "command": "echo",
        "inputs": ["echo"],
        "started": 1000.25,
        "wall_time": 2.0,
        "attempts": 1,
        "ok": False,
        "code": None,
        "signal": 9,
        "cause": "exited",
        "error": None,
        "message": None,
        "usage": {
            "user": 0.5,
            "sys": 0.25,
            "max_rss": 4096,
            "voluntary": 0,
            "involuntary": 0,
            "tree_peak": None,
        },
        "written": {"stdout": 5, "stderr": 0},
        "stdout": 'é\n\ufffd"\ufffd',
        "stderr": "",
    }


def test_a_job_that_did_not_start_is_an_object_too() -> None:
    facts = report.ended(of_line(3, "echo"), failed("no room"))
    assert (facts["cause"], facts["code"]) == ("failed", None)
    assert (facts["error"], facts["message"]) == ("spawn-failed", "no room")
    assert facts["usage"]["max_rss"] == 0
