"""`creche batch`, as a shell sees it."""

import json
import os
import random
import re
import resource
import select
import shlex
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyte
import pytest

from actors import ignition
from actors.batch.joblog import HEADER
from actors.batch.jobs import FIELDS
from actors.batch.records import Appended
from actors.batch.spool import Results
from actors.cli.batch import batch as command
from tests.helpers import FOREVER, NOT_BLOCKED, eventually, gone, tag

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.live

BATCH = [sys.executable, "-m", "actors", "batch"]
PATIENCE = 3 * NOT_BLOCKED
"""Seconds for a whole batch, engine and all, on a busy machine."""


def batch(*words: str | bytes, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    plain: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if "input" not in options:
        plain["stdin"] = subprocess.DEVNULL
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        [*BATCH, *words],
        env=ignition.environment() | options.pop("env", {}),
        timeout=PATIENCE,
        check=False,
        **(plain | options),
    )
    return done


@contextmanager
def started(*words: str, **options: Any) -> "Iterator[subprocess.Popen[bytes]]":
    plain: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with subprocess.Popen(
        [*BATCH, *words], env=ignition.environment(), **(plain | options)
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def logged(path: Path) -> list[list[str]]:
    """Return the fields of the complete lines of a joblog."""
    data = path.read_bytes() if path.exists() else b""
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[1:-1]
    return [line.decode().split("\t") for line in lines]


def numbers(path: Path) -> list[int]:
    return sorted(int(fields[0]) for fields in logged(path))


# -- what is run ------------------------------------------------------------------


def test_lines_objects_and_stdin_are_jobs(tmp_path: Path) -> None:
    file = tmp_path / "jobs"
    file.write_text(
        'echo "$CRECHE_SEQ one"\n'
        '{"argv": ["sh", "-c", "pwd; cat; echo $A"], "cwd": "/", "stdin": "in",'
        ' "extra_env": {"A": "b"}}'
    )
    done = batch("-j1", str(file), "-", input=b"echo $CRECHE_SEQ three")
    assert done.stdout == b"1 one\n/\ninb\n3 three\n"
    assert done.returncode == 0


def test_a_command_is_run_for_every_combination() -> None:
    done = batch("-k", "--tag", "echo", "{#}", "{}", ":::", "a b", "c", ":::", "d")
    assert done.stdout == b"a b d\t1 a b d\nc d\t2 c d\n"


def test_words_of_a_command_are_the_bytes_given(latin: dict[str, str]) -> None:
    word = "ü".encode()
    done = batch(
        "--tag", "printf", "'%s\n'", b"c" + word, ":::", b"a" + word, env=latin
    )
    assert done.stdout == b"a%b\tc%b\na%b\ta%b\n" % (word, word, word, word)


def test_a_job_is_run_before_the_next_one_is_there() -> None:
    with started("-", stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in (b"one\n", b"two\n"):
            process.stdin.write(b"echo " + word)
            process.stdin.flush()
            assert process.stdout.readline() == word
        process.stdin.close()
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-file"], b"no-such-file: there is no such file of jobs"),
        (["/bin/sh"], b"/bin/sh: is a program, not a file of jobs"),
        (["echo", "::::", "a"], b"'::::' is not known"),
        (["/"], b"/: is a directory"),
        (["echo", "{3}", ":::", "a"], b"{3}: lists"),
        (["--halt", "at-once", ":::", "true"], b"'at-once' is not never"),
        (["--timeout", "soon", ":::", "true"], b"'soon' is no time"),
        (["--timeout", "0", ":::", "true"], b"0 seconds"),
        (["--timeout", "0%", ":::", "true"], b"'0%' is no time"),
        (["--resume", ":::", "true"], b"--resume needs --joblog"),
        (["--json", "--jsonl", ":::", "true"], b"exclude each other"),
        (["--joblog", "/etc/passwd", "--resume", ":::", "true"], b"/etc/passwd: "),
        (["--results", "/no/such/place.jsonl", ":::", "true"], b"/no/such/place"),
        (["--joblog", "/dev/full", ":::", "true"], b"/dev/full: is no regular file"),
        (["--results", "", ":::", "true"], b"--results names no file"),
        (["--joblog", "", ":::", "true"], b"--joblog names no file"),
    ],
)
def test_a_mistake_is_2_and_a_sentence(words: list[str], said: bytes) -> None:
    done = batch(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_line_with_a_nul_fails_alone() -> None:
    done = batch("-k", "--jsonl", input=b"echo one\necho \0\necho three\n")
    assert done.returncode == 1
    *jobs, _ = map(json.loads, done.stdout.splitlines())
    assert [job["ok"] for job in jobs] == [True, False, True]
    assert (jobs[1]["cause"], jobs[1]["error"]) == ("failed", "invalid-request")
    assert "NUL" in jobs[1]["message"]


@contextmanager
def small_files(size: int) -> "Iterator[None]":
    """Let no file of this process grow beyond so many bytes, for a block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal that comes with it.
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_takes_no_more_is_named_and_keeps_nothing_torn(
    tmp_path: Path,
) -> None:
    path = tmp_path / "log"
    refusal = pytest.raises(OSError, match="No space")
    with closing(Appended(str(path))) as file, small_files(100), refusal as refused:
        file.add([b"x" * 90, b"y" * 90])
    assert refused.value.filename == str(path)
    assert path.read_bytes() == b""


def test_results_that_are_refused_are_named(tmp_path: Path) -> None:
    results = Results(str(tmp_path), 7)
    with small_files(100), pytest.raises(OSError, match="too large") as refused:
        results.write("stdout", bytes(100_000))
    assert refused.value.filename == f"{tmp_path}/stdout.part-7"
    results.close()
    assert list(tmp_path.iterdir()) == []


def test_results_that_are_refused_late_are_named_and_leave_nothing(
    tmp_path: Path,
) -> None:
    results = Results(str(tmp_path), 7)
    with small_files(100):
        results.write("stdout", bytes(1000))  # it waits in memory
        with pytest.raises(OSError, match="too large") as refused:
            results.last(10)
        assert refused.value.filename == f"{tmp_path}/stdout.part-7"
        results.close()
    assert list(tmp_path.iterdir()) == []


def test_results_that_cannot_be_made_leave_nothing(tmp_path: Path) -> None:
    other = tmp_path / "stderr.part-7"
    other.mkdir()
    with pytest.raises(IsADirectoryError):
        Results(str(tmp_path), 7)
    assert list(tmp_path.iterdir()) == [other]


def test_a_bad_line_is_named_and_what_came_before_is_finished(tmp_path: Path) -> None:
    jobs, log = tmp_path / "jobs", tmp_path / "log"
    jobs.write_text('echo one\n{"argv": ["true"], "when": 1}\necho three\n')
    done = batch("--joblog", str(log), str(jobs))
    assert (done.returncode, done.stdout) == (2, b"one\n")
    assert f"{jobs} line 2: when: is not known".encode() in done.stderr
    assert numbers(log) == [1]


# -- how it ends ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "jobs", "code"),
    [
        ([], ["true", "exit 3", "kill -9 $$"], 2),
        ([], ["exit 1"] * 102, 101),
        (["-j1", "--halt", "now,fail=1"], ["true", "exit 7", "exit 8"], 7),
        (["-j1", "--halt", "now,fail=1"], ["kill -9 $$", "exit 8"], 137),
        (["-j1", "--halt", "soon,fail=2"], ["exit 7", "exit 8", "exit 9"], 2),
        (["-j1", "--halt", "now,success=1"], ["exit 7", "true", "exit 9"], 0),
        (["-j1", "--halt", "soon,fail=50%"], ["true", "exit 1", "exit 1", "true"], 2),
    ],
)
def test_the_exit_code_tells_of_the_jobs(
    words: list[str], jobs: list[str], code: int
) -> None:
    assert batch(*words, ":::", *jobs).returncode == code


def test_the_joblog_is_that_of_gnu_parallel(tmp_path: Path) -> None:
    log = tmp_path / "log"
    jobs = ["echo abc; echo d >&2", "exit 3", "kill -9 $$", f"sleep {FOREVER}"]
    missing = '{"argv": ["no-such-program"]}\n'
    lines = "".join(f"{job}\n" for job in jobs) + missing
    words = ["-j1", "--timeout", "5", "--joblog", str(log), "-"]
    assert batch(*words, input=lines.encode()).returncode == 4
    assert log.read_bytes().startswith(HEADER)
    found = logged(log)
    assert [(f[1], f[4], f[5], f[6], f[7], f[8]) for f in found] == [
        (":", "0", "4", "0", "0", jobs[0]),
        (":", "0", "0", "3", "0", jobs[1]),
        (":", "0", "0", "0", "9", jobs[2]),
        (":", "0", "0", "-1", "15", jobs[3]),
        (":", "0", "0", "127", "0", "no-such-program"),
    ]
    assert float(found[3][3]) >= 5.0
    assert all(len(f[3]) == 10 for f in found)


def test_halting_at_once_ends_what_runs_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    word, log, results = tag(), tmp_path / "log", tmp_path / "results"
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    long = f"echo up > {fifo}; sleep {FOREVER} # {word}"
    failing = f"cat {fifo}; exit 9"
    words = ["-j2", "--halt", "now,fail=1", "--joblog", str(log)]
    done = batch(*words, "--results", str(results), ":::", long, failing, "true")
    assert done.returncode == 9
    gone(word)
    assert numbers(log) == [2]
    names = {path.name for path in results.rglob("*") if path.is_file()}
    assert names == {"stdout", "stderr", "seq"}


def test_halting_soon_lets_what_runs_finish(tmp_path: Path) -> None:
    log, fifo = tmp_path / "log", tmp_path / "fifo"
    os.mkfifo(fifo)
    jobs = [f"cat {fifo}; echo whole", "exit 5", "echo never"]
    with started(
        "-j2", "--halt", "soon,fail=1", "--joblog", str(log), ":::", *jobs
    ) as process:
        eventually(lambda: numbers(log) == [2], PATIENCE)
        fifo.write_bytes(b"")
        out, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (5, b"whole\n")
    assert numbers(log) == [1, 2]


def test_a_fifo_of_jobs_holds_nothing_up(tmp_path: Path) -> None:
    jobs, fifo = tmp_path / "jobs", tmp_path / "fifo"
    jobs.write_text("echo first\n")
    os.mkfifo(fifo)
    with started(str(jobs), str(fifo)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"  # nobody writes to it yet
        fifo.write_text("echo second\n")
        assert process.stdout.readline() == b"second\n"
        assert process.wait(PATIENCE) == 0
    with started(str(jobs), str(fifo)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


def test_jobs_at_once_may_have_more_files_than_one_may(tmp_path: Path) -> None:
    few, results = 64, tmp_path / "results"

    def limited() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))

    # Each ends when all have begun, so that all have their files at the same time.
    gate = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    job = f"echo >> {tmp_path}/begun; ulimit -n; {gate}; : {{}}"
    words = f"-j{few}", "--results", str(results), job, ":::", *map(str, range(few))
    with started(*words, preexec_fn=limited) as process:
        begun = tmp_path / "begun"
        eventually(lambda: begun.exists() and begun.stat().st_size == few, PATIENCE)
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    written = [path.read_text() for path in results.rglob("stdout")]
    assert written == [f"{few}\n"] * few


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_loses_nothing_that_is_finished_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    word, log = tag(), tmp_path / "log"
    jobs = ["echo a", "echo b", *[f"sleep {FOREVER} # {word}"] * 3]
    with started("-j3", "--joblog", str(log), ":::", *jobs) as process:
        eventually(lambda: numbers(log) == [1, 2], PATIENCE)
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert sorted(out.split()) == [b"a", b"b"]
    assert b"2 done, 0 failed" in err
    gone(word)
    assert numbers(log) == [1, 2]


@pytest.mark.parametrize("stderr", [subprocess.PIPE, subprocess.STDOUT])
def test_an_interrupt_gets_through_although_nobody_reads(stderr: int) -> None:
    words = "-j1", ":::", "echo first; head -c 9000000 /dev/zero", "echo"
    with started(*words, stderr=stderr) as p:
        assert p.stdout is not None
        assert os.read(p.stdout.fileno(), 6) == b"first\n"
        p.send_signal(signal.SIGINT)  # what ended is to be written, and cannot be
        eventually(lambda: not pending(p.pid, signal.SIGINT), PATIENCE)
        p.send_signal(signal.SIGINT)
        assert p.wait(PATIENCE) == 130


def pending(pid: int, number: int) -> bool:
    """Return whether a signal was sent and not yet caught."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [line.split()[1] for line in status.splitlines() if "Pnd:" in line]
    return any(int(mask, 16) & 1 << (number - 1) for mask in masks)


def test_a_reader_that_goes_ends_it() -> None:
    word = tag()
    with started("-j2", ":::", *[f"sleep 0.2; echo {word}"] * 200) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE) == 128 + signal.SIGPIPE
    gone(word)


def test_output_that_is_refused_is_trouble_in_a_sentence() -> None:
    with open("/dev/full", "wb") as full:
        done = batch(":::", "echo a", stdout=full)
    assert done.returncode == 125
    assert b"creche: stdout: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_closed_stdout_is_not_taken_for_the_joblog(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def closed() -> None:
        os.close(1)

    done = batch("--joblog", str(log), ":::", "echo a", preexec_fn=closed)
    assert done.returncode == 125
    assert b"creche: stdout: Bad file descriptor" in done.stderr
    assert logged(log) == []
    done = batch("--joblog", str(log), ":::", "true", preexec_fn=closed)
    assert done.returncode == 0
    assert [fields[8] for fields in logged(log)] == ["true"]


def test_an_engine_that_is_lost_is_trouble_in_a_sentence(tmp_path: Path) -> None:
    word, log = tag(), tmp_path / "log"
    jobs = ["echo a", f"sleep {FOREVER} # {word}"]
    with shared(tmp_path) as (server, endpoint):
        words = ["--endpoint", endpoint, "-j1", "--joblog", str(log), ":::"]
        with started(*words, *jobs) as process:
            eventually(lambda: numbers(log) == [1], PATIENCE)
            server.kill()
            _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 125
    assert err.decode().splitlines()[-1].startswith("creche: ")
    assert b"Traceback" not in err
    assert numbers(log) == [1]
    gone(word)
    recover = [*BATCH[:-1], "recover"]  # takes the journal of the killed one away
    subprocess.run(recover, env=ignition.environment(), check=True, timeout=PATIENCE)


@contextmanager
def shared(place: Path) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """Give a shared broker, and where it listens."""
    endpoint = f"ipc://{place}/shared/broker.sock"
    with subprocess.Popen(
        [*BATCH[:-1], "serve", "--endpoint", endpoint],
        env=ignition.environment(),
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            yield server, endpoint
        finally:
            server.terminate()


def test_the_summary_names_the_slowest_and_what_failed() -> None:
    done = batch("-j1", ":::", "sleep 0.2", "echo a; echo why >&2; exit 3", "true")
    first, *told = done.stderr.decode().splitlines()
    assert first == "why"  # its own, as it ended
    assert told[0].startswith("creche: 3 done, 1 failed; ")
    assert told[1] == "  slowest:"
    assert any(line.endswith("#1  sleep 0.2") for line in told[2:5])
    assert "    #2  exit 3: echo a; echo why >&2; exit 3" in told
    assert "      | why" in told


# -- attempts and times -----------------------------------------------------------


def test_a_job_that_fails_is_tried_again_and_counts_once(tmp_path: Path) -> None:
    log, marks = tmp_path / "log", tmp_path / "marks"
    job = f'echo "try" >> {marks}; cat {marks}; test $(wc -l < {marks}) -ge 3'
    words = ["--retries", "4", "--joblog", str(log), "--jsonl"]
    done = batch(*words, ":::", job)
    event = json.loads(done.stdout.splitlines()[0])
    assert (event["attempts"], event["stdout"], event["ok"]) == (3, "try\n" * 3, True)
    assert done.returncode == 0
    assert len(logged(log)) == 1


def test_a_job_may_take_a_multiple_of_what_others_took(tmp_path: Path) -> None:
    word, log = tag(), tmp_path / "log"
    jobs = [f"sleep {FOREVER} # {word}", *["sleep 0.1"] * 4]
    done = batch("-j2", "--timeout", "2000%", "--joblog", str(log), ":::", *jobs)
    assert done.returncode == 1
    gone(word)
    assert min(logged(log))[6:8] == ["-1", "15"]


@pytest.mark.parametrize("options", [[], ["--timeout", "2000%"]], ids=["", "%"])
def test_a_terminal_of_a_job_is_at_its_end_of_input(options: list[str]) -> None:
    job = b'{"argv": ["cat"], "tty": true}\n'
    assert batch(*options, "-", input=job).returncode == 0


# -- output -----------------------------------------------------------------------


def test_the_output_of_each_job_is_in_one_piece_and_in_order_when_asked() -> None:
    size = 300_000  # more than is kept in memory, and than a pipe takes
    job = f"sleep 0.$((4 - {{}})); head -c {size} /dev/zero | tr '\\0' {{}}"
    done = batch("-k", "-j4", job, ":::", "1", "2", "3")
    assert done.stdout == b"".join(n * size for n in (b"1", b"2", b"3"))


def test_json_is_one_document() -> None:
    done = batch("-k", "--json", ":::", "echo é", "exit 3")
    document = json.loads(done.stdout)
    assert [job["code"] for job in document["jobs"]] == [0, 3]
    assert document["jobs"][0]["stdout"] == "é\n"
    assert document["summary"]["exit_code"] == done.returncode == 1
    assert json.loads(batch("--json", ":::").stdout)["jobs"] == []


def test_jsonl_is_an_event_for_each_job_and_a_summary(tmp_path: Path) -> None:
    done = batch("--jsonl", "--results", str(tmp_path), ":::", "echo a")
    job, summary = map(json.loads, done.stdout.splitlines())
    assert (job["event"], job["seq"]) == ("ended", 1)
    assert job["written"] == {"stdout": 2, "stderr": 0}
    assert Path(job["results"], "stdout").read_bytes() == b"a\n"
    assert (summary["event"], summary["done"]) == ("summary", 1)


def test_results_are_a_tree_like_that_of_gnu_parallel(tmp_path: Path) -> None:
    done = batch("--results", str(tmp_path), "echo {}; echo e >&2", ":::", "a b", "c/d")
    assert (done.stdout, done.returncode) == (b"", 0)
    files = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file() and path.parent.parent.name == "1"
    }
    assert files == {
        "1/a b/stdout": b"a b\n",
        "1/a b/stderr": b"e\n",
        "1/a b/seq": b"1",
        "1/c\\_d/stdout": b"c/d\n",
        "1/c\\_d/stderr": b"e\n",
        "1/c\\_d/seq": b"2",
    }


def test_results_may_be_lines(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    done = batch("--results", str(file), ":::", "echo a; echo b >&2; exit 3")
    assert done.stdout == b"a\n"
    (found,) = map(json.loads, file.read_text().splitlines())
    assert (found["stdout"], found["stderr"], found["code"]) == ("a\n", "b\n", 3)


def test_a_shared_broker_may_run_them(tmp_path: Path) -> None:
    with shared(tmp_path) as (_, endpoint):
        done = batch("-k", "echo", ":::", "1", "2", env={"CRECHE_BROKER": endpoint})
    assert done.stdout == b"1\n2\n"


# -- going on ---------------------------------------------------------------------


def test_a_batch_that_is_resumed_runs_what_is_not_finished(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["--joblog", str(log), "-j1"]
    first = batch(*words, "--halt", "now,done=2", ":::", "exit 1", "echo b", "echo c")
    assert (first.stdout, first.returncode) == (b"b\n", 1)
    done = batch(*words, "--resume", ":::", "exit 1", "echo b", "echo c", "echo d")
    assert (done.stdout, done.returncode) == (b"c\nd\n", 0)
    assert b"2 done, 0 failed, 2 finished before" in done.stderr
    again = batch(*words, "--resume-failed", ":::", "echo a", "echo b", "echo c")
    assert again.stdout == b"a\n"
    assert [fields[0] for fields in logged(log)] == ["1", "2", "3", "4", "1"]
    assert batch(*words, ":::", "echo new").stdout == b"new\n"
    assert numbers(log) == [1]  # a joblog that is not resumed begins anew


def test_a_torn_line_is_cut_off_and_its_job_run_again(tmp_path: Path) -> None:
    log, results = tmp_path / "log", tmp_path / "results.jsonl"
    words = ["-j1", "--joblog", str(log), "--results", str(results), "--resume"]
    jobs = [":::", "echo one", "echo two", "echo three"]
    assert batch(*words, *jobs).returncode == 0
    whole = log.read_bytes()
    log.write_bytes(whole[: whole.rfind(b"\t")])  # within the third line
    results.write_bytes(results.read_bytes()[:-9])
    done = batch(*words, *jobs)
    assert done.stdout == b"three\n"
    ends = [(fields[0], *fields[8:]) for fields in logged(log)]
    assert ends == [("1", "echo one"), ("2", "echo two"), ("3", "echo three")]
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(item["seq"], item["stdout"]) for item in found] == [
        (1, "one\n"),
        (2, "two\n"),
        (3, "three\n"),
    ]


def test_two_batches_do_not_share_a_joblog(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with started("--joblog", str(log), "-", stdin=subprocess.PIPE) as first:
        eventually(lambda: log.exists() and log.stat().st_size, PATIENCE)
        second = batch("--joblog", str(log), ":::", "true")
        assert second.returncode == 2
        assert b"another batch writes to it" in second.stderr
        assert log.read_bytes() == HEADER
        _, _ = first.communicate(b"true\n", timeout=PATIENCE)
    assert numbers(log) == [1]


JOBS, SIZE = 40, 70_000


@pytest.mark.parametrize("seed", range(4))
def test_a_killed_batch_is_resumed_without_loss_or_repetition(
    seed: int, tmp_path: Path
) -> None:
    word, log, results = tag(), tmp_path / "log", tmp_path / "results"
    ran = tmp_path / "ran"
    ran.mkdir()
    job = (
        f"echo >> {shlex.quote(str(ran))}/{{}}; : {word};"
        f" head -c {SIZE} /dev/zero | tr '\\0' x; exit $(({{}} % 2))"
    )
    words = ["-j4", "--joblog", str(log), "--results", str(results), "--resume", job]
    arguments = [":::", *map(str, range(1, JOBS + 1))]
    moment = random.Random(seed).randrange(JOBS - 4)
    with started(*words, *arguments) as process:
        eventually(lambda: len(logged(log)) >= moment and any(ran.iterdir()), PATIENCE)
        process.kill()
        process.wait(PATIENCE)
    gone(word)
    finished = set(numbers(log))
    check_whole(results, finished)
    done = batch(*words, *arguments)
    assert done.returncode == sum(
        n % 2 for n in range(1, JOBS + 1) if n not in finished
    )
    assert numbers(log) == list(range(1, JOBS + 1))
    runs = {int(path.name): path.stat().st_size for path in ran.iterdir()}
    assert {n for n in finished if runs[n] != 1} == set()
    check_whole(results, set(runs))
    assert list(results.rglob("*.part-*")) == []


def check_whole(results: Path, finished: set[int]) -> None:
    """Check the results of finished jobs, and that no other ones look like some."""
    for place in results.glob("1/*"):
        found = {path.name for path in place.iterdir() if ".part-" not in path.name}
        if int(place.name) in finished:
            assert found == {"stdout", "stderr", "seq"}
            assert (place / "seq").read_text() == place.name
        if "stdout" in found:
            assert (place / "stdout").read_bytes() == b"x" * SIZE


# -- the page ---------------------------------------------------------------------

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "batch.md").read_text()
SESSIONS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("session", SESSIONS)
def test_the_page_shows_what_a_shell_shows(session: str, tmp_path: Path) -> None:
    program = tmp_path / "creche"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m actors "$@"\n')
    program.chmod(0o700)
    lines = [line for line in session.splitlines() if line.startswith("$ ")]
    script = "".join(f"{line[2:]}\n" for line in lines)
    done = subprocess.run(
        ["bash", "-c", f"PATH={tmp_path}:$PATH\n{script}"],
        cwd=tmp_path,
        env=ignition.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=PATIENCE,
        check=True,
        text=True,
    )
    shown = [line for line in session.splitlines() if not line.startswith("$ ")]
    assert done.stdout.split() == " ".join(shown).split()


def test_the_page_names_every_option_and_field() -> None:
    for parameter in command.params:
        for name in parameter.opts if isinstance(parameter, click.Option) else ():
            assert f"`{name}" in PAGE, name
    assert [name for name in FIELDS if f"`{name}`" not in PAGE] == []


# -- on a terminal ----------------------------------------------------------------


def test_a_terminal_has_a_bar_below_the_output(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    jobs = ["echo first", "printf 'no end'", f"cat {fifo}"]
    ours, theirs = os.openpty()
    screen = pyte.Screen(100, 12)
    stream = pyte.ByteStream(screen)

    def shown() -> str:
        if select.select([ours], [], [], 0)[0]:
            stream.feed(os.read(ours, 65536))
        return "\n".join(line.rstrip() for line in screen.display)

    env = {"TERM": "linux", "COLUMNS": "100", "LINES": "12"}
    with subprocess.Popen(
        [*BATCH, "-j1", ":::", *jobs],
        env=ignition.environment() | env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            progress = "2/3 done, 0 failed, 1 running"

            def whole() -> bool:  # a look may fall into the drawing of it
                text = shown()
                parts = progress in text and " B/s" in text
                return parts and text.startswith("first\nno end\n")

            eventually(whole, PATIENCE, shown)
            fifo.write_bytes(b"last\n")
            eventually(lambda: "3 done, 0 failed; " in shown(), PATIENCE, shown)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
            os.close(ours)
    assert screen.display[0].rstrip() == "first"
    assert "last" in [line.rstrip() for line in screen.display]
    assert progress not in "\n".join(screen.display)
    assert not screen.cursor.hidden


def test_a_terminal_that_is_hung_up_ends_no_batch(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    ours, theirs = os.openpty()
    # Rich believes in the terminal, whatever becomes of it.
    env = {"TERM": "xterm", "FORCE_COLOR": "1"}
    with subprocess.Popen(
        [*BATCH, ":::", f"cat {fifo}"],
        env=ignition.environment() | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            shown = b""
            while b"\x1b[?25l" not in shown:
                shown += os.read(ours, 65536)
            os.close(ours)
            fifo.write_bytes(b"out\n")
            out, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, b"out\n")
