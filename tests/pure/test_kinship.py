"""Who belongs to the record of a dead engine, and who only looks like it."""

from typing import Any

import pytest

from broker.journal import Entry
from broker.kinship import Kin, Kinship, Process
from broker.tree import Identity, ProcStat

MARK = b"0123456789abcdef" * 2
WORKER, LEADER = Identity(50, 500), Identity(60, 600)
INIT, SHELL = 1, 7


def entry(**changes: Any) -> Entry:
    whole = Entry(1000, LEADER, MARK, WORKER, b"boot", 9, 0, "")
    return whole._replace(**changes)


def process(
    pid: int,
    parent: int = INIT,
    session: int | None = None,
    *,
    mark: bytes = b"",
    started: int | None = None,
    state: str = "S",
) -> Process:
    at = pid * 10 if started is None else started
    own = pid if session is None else session
    return Process(ProcStat(pid, state, parent, own, own, 1, at), mark)


def look(*processes: Process, record: Entry | None = None, **options: Any) -> Kin:
    return looked(Kinship(record or entry()), *processes, **options)


def looked(
    kinship: Kinship,
    *processes: Process,
    inside: tuple[int, ...] = (),
    lineage: tuple[int, ...] = (INIT, SHELL),
) -> Kin:
    there = (process(INIT), process(SHELL), *processes)
    return kinship.look({p.stat.pid: p for p in there}, inside, lineage)


def test_worker_and_leader_are_known_by_pid_and_start() -> None:
    assert look(process(50), process(60, 50)).ours == {50, 60}


def test_a_later_process_of_the_same_pid_is_an_innocent() -> None:
    assert look(
        process(50, started=501),
        process(60, started=601),
        process(61, 60, 60),
        process(62, INIT, 60),
    ) == Kin(frozenset(), frozenset(), mine=False)


def test_the_mark_is_enough_wherever_it_is_found() -> None:
    assert look(process(90, mark=MARK), process(91, mark=MARK[::-1])).ours == {90}


def test_a_record_without_a_mark_knows_none_by_it() -> None:
    assert look(process(90), record=entry(mark=b"")).ours == set()


def test_what_is_in_the_cgroup_belongs_to_it() -> None:
    assert look(process(90), process(91), inside=(91, 92)).ours == {91}


def test_children_and_theirs_belong_to_their_parents() -> None:
    found = look(process(60), process(70, 60), process(80, 70), process(81, SHELL))
    assert found.ours == {60, 70, 80}


def test_members_of_a_known_leaders_session_belong_to_it() -> None:
    found = look(
        process(60), process(61, INIT, 60), process(70, 60), process(71, INIT, 70)
    )
    assert found.ours == {60, 61, 70, 71}


def test_a_marked_member_tells_whose_the_session_is() -> None:
    found = look(process(90, INIT, 80, mark=MARK), process(91, INIT, 80))
    assert found.ours == {90, 91}


def test_the_session_of_a_worker_is_its_pools() -> None:
    assert look(process(40), process(50, 40, 40), process(51, 40, 40)).ours == {50}


def test_a_member_of_the_leaders_session_known_otherwise_vouches_for_the_rest() -> None:
    found = look(process(61, INIT, 60), process(62, INIT, 60), inside=(61,))
    assert found == Kin(frozenset({61, 62}), frozenset(), mine=False)


def test_members_of_a_session_whose_leader_is_gone_are_unsure() -> None:
    found = look(process(61, INIT, 60), process(62, INIT, 60, state="Z"))
    assert found == Kin(frozenset(), frozenset({61}), mine=False)


def test_without_a_leader_nobody_is_unsure() -> None:
    found = look(process(61, INIT, 60), record=entry(leader=None))
    assert found == Kin(frozenset(), frozenset(), mine=False)


def test_the_dead_are_nobody_but_still_prove_whose_a_session_is() -> None:
    found = look(process(60, state="Z"), process(61, INIT, 60))
    assert found == Kin(frozenset({61}), frozenset(), mine=False)


def test_what_was_known_stays_known() -> None:
    kinship = Kinship(entry())
    assert looked(kinship, process(60)).ours == {60}
    assert looked(kinship, process(61, INIT, 60)).ours == {61}


def test_a_session_is_forgotten_once_somebody_else_has_its_number() -> None:
    kinship = Kinship(entry())
    assert looked(kinship, process(60)).ours == {60}
    later = process(60, started=9999), process(61, INIT, 60)
    assert looked(kinship, *later).ours == set()


@pytest.mark.parametrize("lineage", [(62, 60, INIT), (60, INIT)])
def test_a_record_that_the_caller_belongs_to_is_told(lineage: tuple[int, ...]) -> None:
    assert look(process(60), process(62, 60), lineage=lineage).mine
