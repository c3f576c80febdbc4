"""One child's life: the cells of the table, and laws that hold whatever happens."""

from collections import Counter
from collections.abc import Hashable
from typing import assert_never

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from actors.lifecycle import (
    SIGCONT,
    SIGINT,
    SIGKILL,
    SIGTERM,
    SWEEP_FIRST,
    SWEEP_LAST,
    Abandon,
    Action,
    Answer,
    Close,
    Event,
    Held,
    Interrupted,
    Kill,
    LeaderExited,
    Lifecycle,
    Output,
    Paused,
    Reaped,
    Report,
    SignalGroup,
    State,
    StreamDone,
    Sweep,
    Terms,
    Tick,
    TreeEmpty,
)

BOTH = frozenset({"stdout", "stderr"})
POLITELY = [SignalGroup(SIGTERM), SignalGroup(SIGCONT)]


def running(streams: frozenset[str] = BOTH, **terms: object) -> Lifecycle:
    """A child that started at time 0."""
    return Lifecycle(Terms(**terms), streams, 0.0)  # type: ignore[arg-type]


def exited(
    streams: frozenset[str] = BOTH, *, empty: bool = False, **terms: object
) -> Lifecycle:
    """A child whose leader ended at time 1, while its streams are open."""
    life = running(streams, **terms)
    life.handle(LeaderExited(0, empty), 1.0)
    return life


def closed(*, empty: bool = False, **terms: object) -> Lifecycle:
    """A child that has ended with its streams, and maybe left something running."""
    return exited(frozenset(), empty=empty, **terms)


def kill(
    key: Hashable | None = "k",
    grace: float | None = None,
    timeout: float = 5.0,
    cause: str = "killed",
) -> Kill:
    return Kill(key, grace, timeout, cause)


# LeaderExited


def test_the_leaders_end_is_reported_at_once() -> None:
    life = running()
    assert life.handle(LeaderExited(0, empty=True), 1.0) == [Report("exited")]
    assert life.state is State.EXITED


def test_a_child_without_streams_closes_with_its_leader() -> None:
    life = running(frozenset())
    assert life.handle(LeaderExited(0, empty=True), 1.0) == [Report("exited"), Close()]
    assert life.state is State.CLOSED
    assert life.next_deadline() is None


def test_streams_that_ended_before_the_leader_close_with_it() -> None:
    life = running()
    assert life.handle(StreamDone("stdout"), 0.5) == []
    assert life.handle(StreamDone("stderr"), 0.5) == []
    assert life.handle(LeaderExited(0, empty=True), 1.0)[-1] == Close()


def test_the_end_of_a_killed_leader_sweeps_what_it_left() -> None:
    life = running()
    life.handle(kill(grace=2.0), 0.5)
    assert life.handle(LeaderExited(15, empty=False), 1.0) == [
        Report("killed"),
        Sweep(),
    ]


def test_the_end_of_a_killed_leader_alone_answers_the_kill() -> None:
    life = running()
    life.handle(kill(grace=2.0), 0.5)
    assert life.handle(LeaderExited(15, empty=True), 1.0) == [
        Report("killed"),
        Answer("k", proven=True),
    ]


def test_death_by_sigint_after_an_interrupt_is_called_so() -> None:
    life = running()
    assert life.handle(Interrupted(), 0.5) == []
    assert life.handle(LeaderExited(SIGINT, empty=True), 1.0) == [Report("interrupted")]


def test_death_by_sigint_alone_is_no_interrupt() -> None:
    life = running()
    assert life.handle(LeaderExited(SIGINT, empty=True), 1.0) == [Report("exited")]


def test_an_interrupt_that_the_child_survived_is_not_its_cause() -> None:
    life = running()
    life.handle(Interrupted(), 0.5)
    assert life.handle(LeaderExited(0, empty=True), 1.0) == [Report("exited")]


def test_an_interrupt_after_the_end_is_ignored() -> None:
    assert exited().handle(Interrupted(), 2.0) == []


# Leftovers


def test_leftovers_are_swept_a_while_after_the_leader() -> None:
    life = closed(leftover_delay=0.5)
    assert life.next_deadline() == 1.5
    assert life.handle(Tick(), 1.4) == []
    assert life.handle(Tick(), 1.5) == [Sweep()]


def test_leftovers_that_end_by_themselves_are_not_swept() -> None:
    life = closed(leftover_delay=0.5)
    assert life.handle(TreeEmpty(), 1.2) == []
    assert life.next_deadline() is None


@pytest.mark.parametrize("leftover", ["keep", "report"])
def test_leftovers_may_stay(leftover: str) -> None:
    life = closed(leftover=leftover)
    assert life.next_deadline() is None
    assert life.handle(kill(), 9.0) == [Sweep()]


# Streams and their grace


def test_the_last_streams_end_closes() -> None:
    life = exited(empty=True)
    assert life.handle(StreamDone("stdout"), 1.1) == []
    assert life.handle(StreamDone("stderr"), 1.2) == [Close()]
    assert life.state is State.CLOSED
    assert life.next_deadline() is None


def test_open_streams_are_abandoned_after_their_grace() -> None:
    life = exited(empty=True, post_exit_grace=0.5)
    assert life.next_deadline() == 1.5
    assert life.handle(Tick(), 1.4) == []
    assert life.handle(Tick(), 1.5) == [Abandon()]
    assert life.handle(Tick(), 9.0) == []


def test_without_a_grace_streams_are_read_to_their_end() -> None:
    life = exited(empty=True, post_exit_grace=None)
    assert life.next_deadline() is None
    assert life.handle(Held(True), 2.0) == []
    assert life.handle(Held(False), 3.0) == []
    assert life.next_deadline() is None


def test_no_grace_at_all_abandons_at_the_next_tick() -> None:
    life = exited(empty=True, post_exit_grace=0.0)
    assert life.handle(Tick(), 1.0) == [Abandon()]


def test_the_grace_stands_still_while_reading_is_held() -> None:
    life = exited(empty=True, post_exit_grace=0.5)
    life.handle(Held(True), 1.25)
    assert life.next_deadline() is None
    life.handle(Held(True), 5.0)
    life.handle(Held(False), 10.0)
    assert life.next_deadline() == 10.25


def test_the_grace_begins_when_reading_that_was_held_goes_on() -> None:
    life = running(post_exit_grace=0.5)
    life.handle(Held(True), 0.5)
    life.handle(LeaderExited(0, empty=True), 1.0)
    assert life.next_deadline() is None
    life.handle(Held(False), 3.0)
    assert life.next_deadline() == 3.5


def test_a_hold_after_the_close_is_ignored() -> None:
    life = closed(empty=True)
    assert life.handle(Held(True), 2.0) == []
    assert life.handle(Held(False), 3.0) == []
    assert life.next_deadline() is None


# Kill


def test_a_kill_sweeps_at_once() -> None:
    assert running().handle(kill(), 1.0) == [Sweep()]


def test_a_polite_kill_signals_the_group_first() -> None:
    life = running()
    assert life.handle(kill(grace=2.0), 1.0) == POLITELY
    assert life.next_deadline() == 3.0
    assert life.handle(Tick(), 2.9) == []
    assert life.handle(Tick(), 3.0) == [Sweep()]


def test_a_second_polite_kill_signals_nothing_and_may_shorten_the_wait() -> None:
    life = running()
    life.handle(kill("a", grace=2.0), 1.0)
    assert life.handle(kill("b", grace=9.0), 1.0) == []
    assert life.next_deadline() == 3.0
    assert life.handle(kill("c", grace=0.5), 1.0) == []
    assert life.next_deadline() == 1.5


def test_a_kill_does_not_wait_for_an_earlier_polite_one() -> None:
    life = running()
    life.handle(kill("a", grace=2.0), 1.0)
    assert life.handle(kill("b"), 1.1) == [Sweep()]
    assert life.handle(LeaderExited(9, empty=True), 1.2) == [
        Report("killed"),
        Answer("a", proven=True),
        Answer("b", proven=True),
    ]


def test_a_kill_during_a_sweep_joins_it() -> None:
    life = running()
    life.handle(kill("a"), 1.0)
    assert life.handle(kill("b", grace=2.0), 1.0) == []


def test_the_first_cause_stands() -> None:
    life = running()
    life.handle(kill("a", grace=2.0, cause="timeout"), 1.0)
    life.handle(kill("b", cause="killed"), 1.0)
    assert Report("timeout") in life.handle(LeaderExited(9, empty=True), 1.2)


@pytest.mark.parametrize("life", [exited(), closed()])
def test_a_polite_kill_after_the_leaders_end_sweeps(life: Lifecycle) -> None:
    assert life.handle(kill(grace=2.0), 1.1) == [Sweep()]
    assert life.handle(TreeEmpty(), 1.2) == [Answer("k", proven=True)]


@pytest.mark.parametrize("life", [exited(empty=True), closed(empty=True)])
def test_a_kill_of_an_empty_tree_is_answered_at_once(life: Lifecycle) -> None:
    assert life.handle(kill(), 2.0) == [Answer("k", proven=True)]
    assert life.handle(kill(None), 2.0) == []


def test_a_kill_that_is_not_proven_in_time_is_answered_so() -> None:
    life = running()
    life.handle(kill(grace=1.0, timeout=5.0), 0.0)
    assert Answer("k", proven=False) not in life.handle(Tick(), 5.9)
    assert Answer("k", proven=False) in life.handle(Tick(), 6.0)
    life.handle(LeaderExited(9, empty=False), 7.0)
    assert life.handle(TreeEmpty(), 7.1) == []


def test_a_kill_that_nobody_asked_for_is_not_answered() -> None:
    life = running()
    assert life.handle(kill(None), 1.0) == [Sweep()]
    assert life.handle(LeaderExited(9, empty=True), 1.1) == [Report("killed")]


# Sweeping


def test_sweeps_become_rarer_while_nothing_dies() -> None:
    life = running()
    life.handle(kill(timeout=100.0), 0.0)
    now, pauses = 0.0, []
    for _ in range(15):
        due = life.next_deadline()
        assert due is not None
        pauses.append(due - now)
        now = due
        assert life.handle(Tick(), now) == [Sweep()]
    assert pauses[0] == SWEEP_FIRST
    assert pauses[1] == pytest.approx(2 * SWEEP_FIRST)
    assert pauses[-1] == pytest.approx(SWEEP_LAST)


def test_a_tick_before_a_sweep_is_due_does_nothing() -> None:
    life = running()
    life.handle(kill(), 1.0)
    assert life.handle(Tick(), 1.0) == []


@pytest.mark.parametrize("make", [running, exited, closed])
def test_a_death_while_sweeping_sweeps_at_once(make: object) -> None:
    life: Lifecycle = make()  # type: ignore[operator]
    life.handle(kill(), 2.0)
    for now in (2.1, 2.2, 2.3):
        life.handle(Tick(), now)
    assert life.handle(Reaped(), 3.0) == [Sweep()]
    assert life.next_deadline() == 3.0 + SWEEP_FIRST


@pytest.mark.parametrize("make", [running, exited, closed])
def test_a_death_while_nothing_is_killed_is_nothing(make: object) -> None:
    life: Lifecycle = make()  # type: ignore[operator]
    assert life.handle(Reaped(), 1.0) == []


def test_an_empty_tree_ends_the_sweeping() -> None:
    life = closed()
    life.handle(kill(), 2.0)
    assert life.handle(TreeEmpty(), 2.1) == [Answer("k", proven=True)]
    assert life.handle(Reaped(), 2.2) == []
    assert life.handle(Tick(), 9.0) == []
    assert life.next_deadline() is None


# Timeouts


def test_a_timeout_ends_the_child_politely() -> None:
    life = running(timeout=10.0, terminate_grace=2.0)
    assert life.next_deadline() == 10.0
    assert life.handle(Tick(), 9.9) == []
    assert life.handle(Tick(), 10.0) == POLITELY
    assert life.next_deadline() == 12.0
    assert life.handle(Tick(), 12.0) == [Sweep()]
    assert life.handle(LeaderExited(9, empty=True), 12.1) == [Report("timeout")]


def test_output_restarts_the_idle_time() -> None:
    life = running(idle_timeout=2.0)
    assert life.handle(Output(), 1.5) == []
    assert life.next_deadline() == 3.5
    assert life.handle(Tick(), 3.5) == POLITELY


def test_the_idle_time_stands_still_while_reading_is_held() -> None:
    life = running(idle_timeout=2.0)
    life.handle(Held(True), 1.0)
    assert life.next_deadline() is None
    assert life.handle(Output(), 2.0) == []
    assert life.handle(Tick(), 99.0) == []
    life.handle(Held(False), 100.0)
    assert life.next_deadline() == 102.0
    assert life.handle(Tick(), 102.0) == POLITELY


def test_output_without_an_idle_time_is_nothing() -> None:
    life = running()
    assert life.handle(Output(), 1.5) == []
    assert life.next_deadline() is None


def test_timeouts_end_with_the_leader() -> None:
    life = exited(empty=True, timeout=10.0, idle_timeout=5.0, post_exit_grace=None)
    assert life.handle(Output(), 1.5) == []
    assert life.next_deadline() is None
    assert life.handle(Tick(), 99.0) == []


# Causes


def test_s39_only_the_kernels_word_makes_it_out_of_memory() -> None:
    for signal, oom, cause in (
        (SIGKILL, True, "oom"),
        (SIGKILL, False, "exited"),
        (SIGTERM, True, "exited"),
        (0, True, "exited"),
    ):
        life = running()
        ended = life.handle(LeaderExited(signal, empty=True, oom=oom), 1.0)
        assert ended == [Report(cause)]


def test_s39_a_kill_of_ours_is_not_taken_for_want_of_memory() -> None:
    life = running()
    life.handle(kill(), 0.5)
    ended = life.handle(LeaderExited(SIGKILL, empty=True, oom=True), 1.0)
    assert Report("killed") in ended


def test_s39_a_leader_that_no_kill_reached_ended_by_itself() -> None:
    for signal, interrupted, cause in (
        (0, False, "exited"),
        (SIGINT, True, "interrupted"),
    ):
        life = running()
        if interrupted:
            life.handle(Interrupted(), 0.4)
        life.handle(kill(), 0.5)
        ended = life.handle(LeaderExited(signal, empty=True, spared=True), 1.0)
        assert Report(cause) in ended


# Pauses


def test_s31_a_pause_pushes_the_timeout_by_its_length() -> None:
    life = running(timeout=10.0)
    assert life.handle(Paused(True), 4.0) == []
    assert life.next_deadline() is None
    assert life.handle(Tick(), 50.0) == []
    assert life.handle(Paused(False), 54.0) == []
    assert life.next_deadline() == 60.0
    assert life.handle(Tick(), 59.9) == []
    assert life.handle(Tick(), 60.0) == POLITELY


def test_s31_a_timeout_that_was_due_as_the_pause_began_is_carried_out() -> None:
    life = running(timeout=10.0)
    life.handle(Paused(True), 10.0)
    assert life.next_deadline() == 10.0
    assert life.handle(Tick(), 10.1) == POLITELY


def test_s31_silence_during_a_pause_is_not_idle() -> None:
    life = running(idle_timeout=2.0)
    life.handle(Paused(True), 1.0)
    life.handle(Output(), 30.0)
    life.handle(Paused(False), 50.0)
    assert life.next_deadline() == 52.0


def test_s31_the_grace_for_pipes_stands_still_whether_it_began_before_or_during() -> (
    None
):
    before = exited(post_exit_grace=3.0, empty=True)
    before.handle(Paused(True), 2.0)
    during = running(post_exit_grace=3.0)
    during.handle(Paused(True), 0.5)
    during.handle(LeaderExited(0, empty=True), 1.0)
    for life, left in ((before, 2.0), (during, 3.0)):
        assert life.next_deadline() is None
        assert life.handle(Tick(), 90.0) == []
        life.handle(Paused(False), 100.0)
        assert life.next_deadline() == 100.0 + left
        assert life.handle(Tick(), 100.0 + left) == [Abandon()]


def test_s31_a_grace_that_is_held_and_paused_waits_for_both() -> None:
    life = exited(post_exit_grace=3.0, empty=True)
    life.handle(Held(True), 2.0)
    life.handle(Paused(True), 5.0)
    life.handle(Held(False), 6.0)
    assert life.next_deadline() is None
    life.handle(Held(True), 7.0)
    life.handle(Paused(False), 8.0)
    assert life.next_deadline() is None
    life.handle(Held(False), 9.0)
    assert life.next_deadline() == 11.0


def test_s31_pausing_twice_pauses_once_and_resuming_alone_is_nothing() -> None:
    life = running(timeout=10.0)
    life.handle(Paused(False), 1.0)
    life.handle(Paused(True), 2.0)
    life.handle(Paused(True), 3.0)
    life.handle(Paused(False), 4.0)
    assert life.next_deadline() == 12.0


def test_s31_a_kill_goes_on_during_a_pause() -> None:
    life = running()
    life.handle(Paused(True), 1.0)
    assert life.handle(kill(grace=2.0, timeout=5.0), 2.0) == POLITELY
    assert life.next_deadline() == 4.0
    assert life.handle(Tick(), 4.0) == [Sweep()]
    assert Answer("k", proven=False) in life.handle(Tick(), 9.0)


def test_s31_what_the_leader_left_is_ended_during_a_pause() -> None:
    life = running(leftover_delay=0.25)
    life.handle(Paused(True), 0.5)
    life.handle(LeaderExited(0, empty=False), 1.0)
    assert life.next_deadline() == 1.25
    assert life.handle(Tick(), 1.25) == [Sweep()]


# Whatever happens

delays = st.sampled_from([0.0, 0.001, 0.25, 1.0, 5.0])
maybe_delays = st.none() | delays


class Life(RuleBasedStateMachine):
    """A leader with a tree and streams, driven in any order that can be."""

    @initialize(
        terms=st.builds(
            Terms,
            post_exit_grace=maybe_delays,
            leftover=st.sampled_from(["kill", "keep", "report"]),
            leftover_delay=delays,
            timeout=maybe_delays,
            idle_timeout=maybe_delays,
            terminate_grace=delays,
            kill_timeout=delays,
        ),
        streams=st.sets(st.sampled_from(sorted(BOTH))),
    )
    def start(self, terms: Terms, streams: set[str]) -> None:
        self.now = 100.0
        self.life = Lifecycle(terms, frozenset(streams), self.now)
        self.open = set(streams)
        self.leader = True
        self.descendants = 0
        self.asked: set[int] = set()
        self.answers: Counter[Hashable] = Counter()
        self.reports = 0
        self.closes = 0
        self.swept = False

    def happen(self, event: Event) -> None:
        for action in self.life.handle(event, self.now):
            self.carry_out(action)

    def carry_out(self, action: Action) -> None:
        match action:
            case SignalGroup():
                assert self.leader, "its group's number may be another's by now"
            case Sweep():
                assert not self.life.empty, "there is nothing to sweep"
                self.swept = True
            case Report():
                assert not self.leader
                self.reports += 1
            case Close():
                assert self.reports == 1
                assert not self.open
                self.closes += 1
            case Answer(key, proven):
                self.answers[key] += 1
                assert proven == (not self.leader and not self.descendants)
            case Abandon():
                assert not self.leader
                for stream in sorted(self.open):
                    self.stream_ends(stream)
            case _:
                assert_never(action)

    def stream_ends(self, stream: str) -> None:
        self.open.discard(stream)
        self.happen(StreamDone(stream))

    # -- what can happen ---------------------------------------------------------

    @precondition(lambda self: self.leader)
    @rule(signal=st.sampled_from([0, SIGINT, SIGTERM, 9]))
    def leader_ends(self, signal: int) -> None:
        self.leader = False
        self.happen(LeaderExited(signal, empty=not self.descendants))
        self.happen(Reaped())

    @precondition(lambda self: self.leader or self.descendants)
    @rule()
    def tree_grows(self) -> None:
        self.descendants += 1

    @precondition(lambda self: self.descendants)
    @rule()
    def descendant_ends(self) -> None:
        self.descendants -= 1
        self.happen(Reaped())
        if not self.leader and not self.descendants:
            self.happen(TreeEmpty())

    @precondition(lambda self: self.open)
    @rule()
    def one_stream_ends(self) -> None:
        self.stream_ends(min(self.open))

    @precondition(lambda self: self.open)
    @rule()
    def child_writes(self) -> None:
        self.happen(Output())

    @precondition(lambda self: self.open)
    @rule(held=st.booleans())
    def reading_is_held(self, held: bool) -> None:
        self.happen(Held(held))

    @rule(
        asked=st.booleans(),
        grace=maybe_delays,
        timeout=delays,
        cause=st.sampled_from(["killed", "owner-drop"]),
    )
    def somebody_kills(
        self, asked: bool, grace: float | None, timeout: float, cause: str
    ) -> None:
        key = len(self.asked) if asked else None
        if key is not None:
            self.asked.add(key)
        self.happen(Kill(key, grace, timeout, cause))

    @rule(paused=st.booleans())
    def the_clock_is_stopped(self, paused: bool) -> None:
        self.happen(Paused(paused))

    @rule()
    def somebody_interrupts(self) -> None:
        self.happen(Interrupted())

    @rule(delay=delays)
    def time_passes(self, delay: float) -> None:
        self.now += delay
        self.tick()

    @precondition(lambda self: self.life.next_deadline() is not None)
    @rule()
    def something_is_due(self) -> None:
        due = self.life.next_deadline()
        assert due is not None
        self.now = max(self.now, due)
        self.tick()

    def tick(self) -> None:
        self.happen(Tick())
        due = self.life.next_deadline()
        assert due is None or due > self.now, "the loop would spin"

    # -- laws --------------------------------------------------------------------

    @invariant()
    def the_leaders_end_is_reported_once(self) -> None:
        assert self.reports == (not self.leader)

    @invariant()
    def it_closes_once_leader_and_streams_have_ended(self) -> None:
        assert self.closes == (not self.leader and not self.open)

    @invariant()
    def a_kill_is_answered_at_most_once(self) -> None:
        assert set(self.answers) <= self.asked
        assert all(count == 1 for count in self.answers.values())

    @invariant()
    def no_kill_waits_for_an_empty_tree(self) -> None:
        if not self.leader and not self.descendants:
            assert set(self.answers) == self.asked

    @invariant()
    def whoever_waits_for_a_kill_has_a_deadline(self) -> None:
        if set(self.answers) != self.asked:
            assert self.life.next_deadline() is not None

    def teardown(self) -> None:
        """Let time run out: every kill is answered although nothing may die."""
        if not hasattr(self, "life"):
            return
        for _ in range(100):
            if set(self.answers) == self.asked:
                break
            self.something_is_due()
        assert set(self.answers) == self.asked
        if self.asked and (self.leader or self.descendants):
            assert self.swept


TestLife = Life.TestCase
