"""Break rules one by one, and see that their tests notice: `python -m tests.mutations`.

Each mutation replaces one piece of text in a copy of the tree, and runs the test of the
rule there; the copy is whole before and after. Ends with 1 if a mutant survives. A
few minutes; not part of the test run.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

TREE = Path(__file__).resolve().parent.parent
PARTS = ("actors", "broker", "tests", "setup.cfg", "tox.ini")
PATIENCE = 300
"""Seconds that a run of tests may take."""
FAILED = 1
"""What pytest ends with when tests ran and some failed."""


class Mutation(NamedTuple):
    """What is broken, where, how, and which test is to notice."""

    what: str
    path: str
    old: str
    new: str
    test: str


MUTATIONS = (
    Mutation(
        "foreign sessions are found",
        "broker/router.py",
        "return client.operator or client.owner == session.owner",
        "return True",
        "test_shared_broker.py::test_s1_a_foreign_session_looks_like_none_at_all",
    ),
    Mutation(
        "request ids are ignored",
        "actors/connection.py",
        "token = spec.request_id or os.urandom(16).hex()",
        "token = os.urandom(16).hex()",
        "rules/test_start.py::test_s16_a_retried_start_gives_the_same_child",
    ),
    Mutation(
        "gaps are not told",
        "actors/outlet.py",
        "self.voice.say(Kind.GAP, reader.ask, piece._asdict())",
        "pass",
        "rules/test_output.py::test_s19_nothing_goes_missing_unsaid",
    ),
    Mutation(
        "a tail is a byte short",
        "actors/buffer.py",
        'self._tail = size // 2 if policy == "head_tail" else size',
        'self._tail = size // 2 if policy == "head_tail" else size - 1',
        "rules/test_output.py::test_s20_tail_keeps_the_newest_and_head_tail_both_ends",
    ),
    Mutation(
        "the grace runs while a reader is slow",
        "actors/lifecycle.py",
        "self._hold(held=held)",
        "pass",
        "rules/test_output.py::test_s23_time_with_a_slow_reader_is_no_time_of_grace",
    ),
    Mutation(
        "the decoder is not incremental",
        "actors/text.py",
        "text = decoder.decode(data, final)",
        "text = decoder.decode(data, True)",
        "rules/test_output.py::test_s26_a_character_split_over_polls_stays_whole",
    ),
    Mutation(
        "waits have no upper bound",
        "actors/polling.py",
        "return min(asked, most)",
        "return asked",
        "rules/test_polls.py::test_s28_a_wait_has_an_upper_bound",
    ),
    Mutation(
        "a cancelled poll moves its cursor",
        "actors/polling.py",
        "                asked.cancel()\n",
        '                asked.cancel()\n                self._cursor["stdout"] += 1\n',
        "rules/test_polls.py::test_s29_a_cancelled_poll_consumes_nothing",
    ),
    Mutation(
        "closing stdin waits for writers",
        "actors/stdin.py",
        "if self._pipe.stdin is not None:",
        "if self._pipe.stdin is not None and not self._inbox:",
        "rules/test_input.py"
        "::test_s35_closing_stdin_is_harmless_to_repeat_and_waits_for_nobody",
    ),
    Mutation(
        "only the group is killed",
        "actors/session.py",
        "self.ending.sweep()",
        "tree.send_group(self.process.pid, 9)",
        "test_cases_kill.py::test_s36_descendants_in_other_sessions_end_too",
    ),
    Mutation(
        "what is stopped is not continued",
        "actors/lifecycle.py",
        "[SignalGroup(SIGTERM), SignalGroup(SIGCONT)]",
        "[SignalGroup(SIGTERM)]",
        "test_cases_kill.py::test_s36_a_stopped_child_is_asked_politely_and_can_answer",
    ),
    Mutation(
        "leftovers are killed whatever was asked",
        "actors/lifecycle.py",
        'elif self.terms.leftover == "kill":',
        "elif self.terms.leftover:",
        "rules/test_ending.py::test_s40_leftovers_are_killed_kept_or_reported",
    ),
    Mutation(
        "the last come is served first",
        "broker/admission.py",
        "for applicant in list(self.waiting.values()):",
        "for applicant in reversed(self.waiting.values()):",
        "test_registry.py::test_s5_spawns_wait_for_room_in_their_order",
    ),
    Mutation(
        "any session is evicted",
        "broker/admission.py",
        "may_go = by_use[:-PROTECTED]",
        "may_go = by_use",
        "rules/test_identity.py::test_s6_the_eight_used_last_are_never_evicted",
    ),
    Mutation(
        "a resize is no use of a session",
        "broker/router.py",
        "Kind.WRITE, Kind.POLL, Kind.SIGNAL, Kind.RESIZE",
        "Kind.WRITE, Kind.POLL, Kind.SIGNAL",
        "rules/test_identity.py"
        "::test_s6_writes_polls_resizes_and_signals_are_uses_and_looks_are_none",
    ),
    Mutation(
        "a scratch directory is open to others",
        "actors/scratch.py",
        "os.mkdir(name, 0o700, dir_fd=top)",
        "os.mkdir(name, 0o755, dir_fd=top)",
        "test_scratch.py"
        "::test_s8_a_scratch_directory_is_private_the_same_each_time_and_removed",
    ),
    Mutation(
        "a resize stays with the engine",
        "actors/terminal.py",
        "            termios.tcsetwinsize(self._slave, (size.rows, size.cols))\n"
        "            self.size = size",
        "            self.size = size",
        "test_terminal.py::test_s15_resize_is_seen_by_the_child_and_in_the_snapshot",
    ),
    Mutation(
        "the last words on a terminal are not waited for",
        "actors/terminal.py",
        "return IN_FLIGHT",
        "return 0",
        "test_terminal.py::"
        "test_s23_the_exit_is_told_although_a_quiet_descendant_keeps_the_terminal",
    ),
    Mutation(
        "a pause does not push timeouts",
        "actors/session.py",
        "self.happened(lifecycle.Paused(paused))",
        "pass",
        "test_pause.py::test_s31_timeouts_do_not_fire_during_a_pause_but_after_it",
    ),
    Mutation(
        "clients are heard before the workers of a lost broker",
        "broker/rollcall.py",
        "return self._listed and not self.missing",
        "return True",
        "test_restart.py::test_s46_readers_go_on_where_they_were",
    ),
    Mutation(
        "spawns of a lost broker are not known",
        "broker/keeper.py",
        "self.tokens[(session.owner, session.token)] = number",
        "pass",
        "test_restart.py::test_s46_a_start_without_an_answer_is_not_repeated",
    ),
    Mutation(
        "owners who do not come back are waited for",
        "broker/keeper.py",
        "if session.client and session.client not in self.peers:",
        "if session.client is None:",
        "test_restart.py::test_s46_a_client_that_died_meanwhile_keeps_nothing",
    ),
    Mutation(
        "answers are lost with a broker",
        "actors/answers.py",
        "self.known = dict(self._last)",
        "self.known = {}",
        "test_restart.py::test_s46_input_is_neither_lost_nor_repeated",
    ),
    Mutation(
        "a reader without a broker holds nothing",
        "actors/outlet.py",
        "        self.left |= self.readers\n",
        "        [self._detach(ask) for ask in list(self.readers)]\n",
        "test_restart.py::test_s46_what_a_reader_has_not_got_is_kept_for_it_meanwhile",
    ),
    Mutation(
        "a reader begins again after a loss",
        "actors/streams.py",
        '"stdout": self._at[0],',
        '"stdout": 0,',
        "test_restart.py::test_s46_readers_go_on_where_they_were",
    ),
    Mutation(
        "losses are not told to who missed them",
        "actors/connection.py",
        "self.link.post(Kind.CLAIM, body=claimed)",
        "pass",
        "test_restart.py::test_s46_a_worker_lost_meanwhile_is_told_as_lost",
    ),
    Mutation(
        "an owner is robbed without a word",
        "broker/router.py",
        "self._push(owner, session.id, error)  # it may",
        "# it may",
        "test_attach.py::test_s43_a_living_owner_is_robbed_only_by_those_who_say_so",
    ),
    Mutation(
        "a failed start has no end",
        "broker/keeper.py",
        'self._announce(session, "failed", failed)',
        "pass",
        "test_lifecycle_events.py::test_s52_every_spawn_has_one_end_however_it_comes",
    ),
    Mutation(
        "changes within a file are not seen",
        "actors/observe.py",
        "stamp = found.st_mtime_ns, found.st_size, found.st_ino",
        "stamp = 0, 0, found.st_ino",
        "test_observe.py::test_s53_a_result_tells_what_files_changed",
    ),
    Mutation(
        "processor time of the dead is forgotten",
        "actors/session.py",
        "cpu_time=self.ending.cpu_time + sample.cpu_time",
        "cpu_time=sample.cpu_time",
        "test_limits.py::test_s54_processor_time_counts_living_and_ended_processes",
    ),
    Mutation(
        "all commands run at once",
        "actors/many.py",
        "self._free = asyncio.Semaphore(concurrency)",
        "self._free, concurrency = asyncio.Semaphore(99), 99",
        "test_many.py::test_s57_no_more_than_the_concurrency_run_at_once",
    ),
    Mutation(
        "a service starts for each who asks",
        "actors/services/service.py",
        "while (running := self._running.get(spec.key)) is not None and running.over:",
        "while (running := self._running.pop(spec.key, None)) and running.over:",
        "test_services.py::test_s47_it_starts_once_for_all_and_stops_with_the_last",
    ),
    Mutation(
        "a dead leader makes a service ready",
        "actors/services/running.py",
        'if line and (await child.snapshot()).state == "running":',
        "if line:",
        "test_services.py::"
        "test_s48_a_leader_that_ends_with_its_first_line_makes_nothing_ready",
    ),
    Mutation(
        "stopping waits for no call",
        "actors/services/running.py",
        "await self._idle.wait()",
        "pass",
        "test_services.py::test_s49_stopping_waits_for_calls_and_lets_no_new_one_begin",
    ),
    Mutation(
        "a service that was given up is not stopped",
        "actors/services/running.py",
        "        outcome = await stop(self._connection, files, record)\n",
        "        outcome = failure or await stop(self._connection, files, record)\n",
        "test_services.py::test_s48_a_start_that_is_given_up_is_cancelled",
    ),
    Mutation(
        "a record is written after the start",
        "actors/worker.py",
        "self.record.begin(session.number, launch.mark)",
        "pass",
        "test_recovery.py::test_s51_a_record_is_written_before_the_child_can_run",
    ),
    Mutation(
        "a pid is taken for an identity",
        "broker/kinship.py",
        "if identity in (entry.worker, entry.leader):",
        "if identity.pid in (entry.worker.pid, entry.leader and entry.leader.pid):",
        "test_recovery.py::"
        "test_s51_a_later_process_with_the_pid_of_a_child_is_left_alone",
    ),
    Mutation(
        "marks are not looked for",
        "broker/kinship.py",
        "return bool(entry.mark) and process.mark == entry.mark",
        "return False",
        "test_recovery.py::test_s51_the_next_engine_ends_every_tree",
    ),
    Mutation(
        "cgroups are not looked into",
        "broker/kinship.py",
        "known |= processes.keys() & set(inside)",
        "known |= set()",
        "test_recovery.py::"
        "test_s51_what_emptied_its_environment_is_found_by_its_cgroup",
    ),
    Mutation(
        "another boot is this one",
        "broker/aftermath.py",
        "(entry is not None and entry.boot != boot)",
        "(entry is not None and False)",
        "test_recovery.py::test_s51_a_record_of_another_boot_kills_nobody",
    ),
    Mutation(
        "a program ends the tree that it is in",
        "broker/aftermath.py",
        "        if case.kin.mine:\n            continue\n",
        "",
        "test_recovery.py::test_s51_a_program_does_not_end_the_tree_that_it_is_in",
    ),
    Mutation(
        "a stop command is run though its end is on record",
        "actors/services/leftover.py",
        "if not record.stopped:",
        "if True:",
        "test_recovery.py::"
        "test_s51_a_stop_command_whose_end_is_on_record_is_not_run_again",
    ),
    Mutation(
        "one look that finds nobody is enough",
        "broker/aftermath.py",
        "QUIET: Final = 2",
        "QUIET: Final = 1",
        "test_recovery.py::test_s51_who_is_born_during_a_look_is_seen_by_the_next_one",
    ),
    Mutation(
        "a child that is just begun is not waited for",
        "broker/aftermath.py",
        "return unknown and not self.killed - {self.entry.worker.pid}",
        "return False",
        "test_recovery.py::test_s51_a_child_without_its_mark_yet_is_waited_for",
    ),
    Mutation(
        "a record is read once",
        "broker/aftermath.py",
        "        self._read_again()\n",
        "",
        "test_recovery.py::test_s51_a_child_that_is_recorded_during_the_sweep_is_ended",
    ),
    Mutation(
        "brokers are replaced without end",
        "broker/supervisor.py",
        "if len(self.lost) > BROKER_STARTS:",
        "if False:",
        "test_restart.py::"
        "test_s46_brokers_that_die_too_often_are_not_replaced_any_more",
    ),
    Mutation(
        "a broker may stand still for ever",
        "broker/lease.py",
        "DURATION: Final = 10.0",
        "DURATION: Final = 1000.0",
        "test_crash.py::test_a_broker_that_stands_still_for_a_whole_lease_counts_as_dead",
    ),
    Mutation(
        "what a lost pool leaves is not swept",
        "broker/supervisor.py",
        "proven = self._sweep(lambda: (self.broker_pid,))",
        "proven = True",
        "test_crash.py::test_a_lost_pool_loses_its_sessions_and_is_replaced",
    ),
    Mutation(
        "a supervisor sweeps nothing",
        "broker/supervisor.py",
        "while not (gone := sweep.step()) and time.monotonic() < ends:",
        "while not (gone := True) and time.monotonic() < ends:",
        "test_crash.py::test_a_supervisor_that_is_the_last_sees_everything_off",
    ),
    Mutation(
        "a broker takes its time once its supervisor is lost",
        "broker/server.py",
        "        except LegClosed:\n            os._exit(0)\n",
        "        except LegClosed:\n            select.select((), (), (), 60)\n"
        "            os._exit(0)\n",
        "test_crash.py::"
        "test_an_engine_that_lost_a_vital_part_ends_and_answers_everybody",
    ),
)


def mutated(mutation: Mutation, tree: Path) -> str:
    """Return the file of a mutation as it is with it.

    Raises:
        ValueError: what it replaces is not there exactly once.
    """
    text = (tree / mutation.path).read_text()
    if (count := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.what}: found {count} times in {mutation.path}")
    return text.replace(mutation.old, mutation.new)


def ended(tree: Path, *tests: str) -> int:
    """Return what pytest ends with after these tests of a tree.

    Raises:
        TimeoutExpired: they do not end.
    """
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    command += ["-m", "live"]  # also those that are too long for each run
    return subprocess.run(
        [*command, *(f"tests/live/{test}" for test in tests)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    ).returncode


def is_noticed(mutation: Mutation, tree: Path) -> bool:
    """Return whether the rule's test fails with a mutation of `tree`.

    Raises:
        RuntimeError: the test did not run.
    """
    place = tree / mutation.path
    whole = place.read_text()
    place.write_text(mutated(mutation, tree))
    try:
        code = ended(tree, mutation.test)
    finally:
        place.write_text(whole)
    if code not in (0, FAILED):
        raise RuntimeError(f"{mutation.what}: pytest ended with {code}")
    return code == FAILED


def copied(place: Path) -> Path:
    """Return a copy of the tree below `place`."""
    for name in PARTS:
        source, target = TREE / name, place / name
        if source.is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, ignore=skip)
        else:
            shutil.copy(source, target)
    return place


def main() -> int:
    """Try every mutation, and tell which was noticed; return the exit code."""
    survivors = 0
    with TemporaryDirectory(prefix="mutations-") as place:
        tree = copied(Path(place))
        if ended(tree, *(mutation.test for mutation in MUTATIONS)) != 0:
            sys.exit("the tests fail without any mutation")
        for mutation in MUTATIONS:
            noticed = is_noticed(mutation, tree)
            survivors += not noticed
            word = "noticed" if noticed else "SURVIVED"
            test = mutation.test.rpartition("::")[2]
            print(f"{word:8}  {mutation.what:40}  {test}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
