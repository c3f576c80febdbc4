"""The sessions that there are, what each of them owes to whom, and how it goes. Pure.

Below `router`, which says who may ask for what; here is what follows for a session and
its worker, whoever asked.

Theory of operation
-------------------
* A *slot* is one worker: idle, or bound to exactly one session, which is forgotten when
  the worker says IDLE (its tree is proven gone, its log released), or the pool says
  that the worker is gone.
* Every request with a number is *pending* at its session until its answer passes by; a
  worker's loss answers all that are pending. Readers are pending until CLOSED. What the
  broker asks itself (client 0) goes to its `Batch`.
* A session that is ended gets a KILL with `release`: it is `LEAVING` from then on, and
  nobody finds it any more. One that outlives its owner has client 0 instead, and a ttl.
* The token of a spawn is known as long as its session, and as a tombstone after that: a
  retry never starts a second child.
* A worker that is asked to start or end something has a time for it; one that lets it
  pass stands still: the pool kills it, and its tree with it.
* What has ended is kept by `retention`; what is too much goes as if it was dropped, and
  its owner is told, as of all that the broker lets go of by itself.
* What another broker has to know of a session if this one is lost is its *memo*. The
  worker has it, gets it again when the owner changes, and gives it to that broker.
* Whenever something ended, `_room` is set: whoever waits may have room now.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from broker import errors
from broker.latency import Latency
from broker.registry import (
    WORKER,
    Action,
    Ask,
    Condemn,
    Fork,
    Numbers,
    Retire,
    Session,
    State,
    ToClient,
    ToWorker,
)
from broker.retention import READABLE, Retention
from broker.watchers import Watchers
from broker.wire import Head, Kind, Message

if TYPE_CHECKING:
    from broker.batches import Batch

TOMBSTONES: Final = 8192
"""Spawn tokens remembered after their session: bounds memory, oldest go first."""
IDLE_WORKERS: Final = 64
"""Idle workers kept for re-use; more are retired (0.6 to 2 MiB each)."""
MOST_AHEAD: Final = 16
"""Idle workers kept ready, unless it is to be more, while these are ever too few."""
HUNG_MARGIN: Final = 1.0
"""Seconds that a worker may be late with the answer to a KILL."""
DROP_TIMEOUT: Final = 5.0
"""Seconds a worker may take to prove a dropped tree gone."""
LET_GO: Final = "its broker has let go of it"
"""What the owner of a session is told that had to go for others, or for its limits."""
RELEASED: Final = Ask(0, 0)
"""Stands for a KILL with `release`, whatever asked for it: IDLE answers that."""


class Keeper:
    """The sessions and slots, from START to IDLE or loss.

    Args:
        epoch: this broker's incarnation.
        warm: idle workers kept ready.
        grace: seconds that sessions outlive this broker; 0: they do not.
        numbers: the last ones given to a client, a session and a worker, where an
            earlier broker has left them.

    Attributes:
        ahead: idle workers kept ready now: more than `warm` after these were too few.
        peers: client number → connection, of those that are there.
        sessions: number → session, until it is forgotten.
        slots: worker → its session, None while it is idle.
        idle: idle workers, the last one used at the end.
        tokens: (owner key, token) → session, None for one that is over.
        due: session → when its worker stands still.
        ttls: session without an owner → when it ends.
        batches: number → KILL_MANY that is not answered yet.
        watchers: the lifecycle streams.
        retention: the ended sessions, and which of them go.
        latency: how long each stage of the sessions took.
    """

    def __init__(self, epoch: int, warm: int, grace: float, numbers: Numbers) -> None:
        self.epoch = epoch
        self.warm = warm
        self.grace = grace
        self.numbers = numbers
        self.ahead = warm
        self.peers: dict[int, bytes] = {}
        self.sessions: dict[int, Session] = {}
        self.slots: dict[int, int | None] = {}
        self.idle: list[int] = []
        self.tokens: OrderedDict[tuple[bytes, str], int | None] = OrderedDict()
        self.due: dict[int, float] = {}
        self.ttls: dict[int, float] = {}
        self.batches: dict[int, Batch] = {}
        self.watchers = Watchers()
        self.retention = Retention()
        self.latency = Latency()
        self._room = False
        self._now = 0.0
        self._out: list[Action] = []

    # -- telling --------------------------------------------------------------------

    def _tell(self, session: Session, message: Message) -> None:
        self._out.append(ToWorker(session.worker, message))

    def _to(self, ask: Ask, message: Message) -> None:
        """Answer whoever asked: a client, or a batch of the broker's own."""
        peer = self.peers.get(ask.client)
        if ask.client == 0 and ask.request:
            self._batched(ask.request, message)
        elif peer is not None and ask.request:
            self._out.append(ToClient(peer, message))

    def _push(self, client: int, number: int, error: errors.EngineError) -> None:
        """Tell a client, if it is there, what has become of a session, unasked."""
        peer = self.peers.get(client)
        if peer is not None:
            push = Message(Kind.ERROR, client, 0, number, self.epoch)
            self._out.append(ToClient(peer, failure(push, error)))

    def _batched(self, number: int, answer: Message) -> None:
        """Note one session's answer to a KILL that the broker asked."""
        self.batches[number].note(answer)
        self._finish_batch(number)

    def _finish_batch(self, number: int) -> None:
        batch = self.batches.get(number)
        if batch is not None and not batch.missing:
            del self.batches[number]
            self._to(batch.ask, batch.reply())

    def _announce(
        self, session: Session, kind: str, error: errors.EngineError | None = None
    ) -> None:
        status = session.status if kind in ("exited", "closed") else None
        told = self.watchers.tell(session, kind, self._now, status, error)
        for message in told:
            ask = Ask(message.client, message.request)
            self._to(ask, message._replace(epoch=self.epoch))

    # -- owners ---------------------------------------------------------------------

    def _drop(self, session: Session, *, cancelled: bool = False) -> None:
        """End a session whose owner is gone; harmless to repeat.

        One that stays lives on without an owner, unless its spawn was cancelled: then
        nobody knows its number.
        """
        if session.state is State.LEAVING:
            return
        if session.state is State.LOST:
            self._forget(session)
            return
        if not session.stays or cancelled:
            self._end(session)
            return
        if not session.kill_on_drop:
            close = Message(Kind.CLOSE_STDIN, 0, 0, session.id, self.epoch)
            self._tell(session, close)
        self._orphan(session, session.detach_ttl)

    def _orphan(self, session: Session, ttl: float | None) -> None:
        """Let a session live on without an owner, for `ttl` seconds at most."""
        if session.client:
            session.holders.add(session.client)  # so what it reads ends with it
        session.client, session.attach = 0, None
        self.ttls.pop(session.id, None)
        if ttl is not None:
            self.ttls[session.id] = self._now + ttl
        self._note_owner(session)

    def _note_owner(self, session: Session) -> None:
        """Have the worker remember for another broker whose session it has."""
        if self.grace:
            body = {"memo": session.memo(self.ttls.get(session.id))}
            self._tell(
                session, Message(Kind.MEMO, 0, 0, session.id, self.epoch, body=body)
            )

    def _expire_ttls(self) -> None:
        late = [number for number, ends in self.ttls.items() if ends <= self._now]
        for session in map(self.sessions.__getitem__, late):
            ended = session.ended
            if ended is not None and ended + READABLE > self._now:
                self.ttls[session.id] = ended + READABLE
            else:
                self._end(session)

    def _stop_all(self, session: Session, client: int) -> None:
        """Have the worker let go of what a client reads."""
        session.holders.discard(client)
        body = {"target": 0}
        stop = Message(Kind.STOP, client, 0, session.id, self.epoch, 0.0, body)
        self._tell(session, stop)

    # -- ends -----------------------------------------------------------------------

    def _end(self, session: Session, cause: str = "owner-drop") -> None:
        """Have the worker end a session's tree, and forget it."""
        self._leaves(session)
        body = {
            "grace": None,
            "timeout": DROP_TIMEOUT,
            "cause": cause,
            "release": True,
        }
        kill = Message(Kind.KILL, 0, 0, session.id, self.epoch, 0.0, body)
        self._expect_end(session, kill, RELEASED)
        self._tell(session, kill)

    def _let_go(self, session: Session, cause: str = "owner-drop") -> None:
        """End a session of the broker's own accord; its owner hears when it is gone."""
        session.let_go = True
        self._end(session, cause)

    def _end_surplus(self) -> None:
        for session in self.retention.surplus():
            self._let_go(session)

    def _leaves(self, session: Session) -> None:
        session.state = State.LEAVING
        self._room = True  # one that has ended takes none any more
        self.ttls.pop(session.id, None)
        self.retention.forget(session)

    def _expect_end(self, session: Session, kill: Message, ask: Ask) -> None:
        """Expect what answers a KILL in its time."""
        body = kill.body
        patience = body["timeout"] + (body["grace"] or 0.0) + HUNG_MARGIN
        key = RELEASED if body["release"] else ask
        session.deadlines[key] = self._now + patience
        self._look_at_deadlines(session)

    def _look_at_deadlines(self, session: Session) -> None:
        """Note when a worker is late first, if anything is expected of it.

        While START is, that counts alone: whatever else was asked waits behind it.
        """
        if session.answer is None:
            return
        if session.deadlines:
            self.due[session.id] = min(session.deadlines.values())
        else:
            self.due.pop(session.id, None)

    def _expect_no_more(self, session: Session, ask: Ask) -> None:
        """Take the answer to a KILL; the others' times stay as they are."""
        session.deadlines.pop(ask, None)
        self._look_at_deadlines(session)

    def _condemn_late(self) -> None:
        for number, ends in list(self.due.items()):
            if ends <= self._now:
                session = self.sessions[number]
                session.deadlines.clear()
                del self.due[number]
                self._out.append(Condemn(session.worker))

    def _forget(self, session: Session) -> None:
        self._room = True
        self.sessions.pop(session.id, None)
        self.due.pop(session.id, None)
        self.ttls.pop(session.id, None)
        self.retention.forget(session)
        self._bury(session.owner, session.token)
        if session.let_go:
            self._push(session.client, session.id, errors.SessionNotFound(LET_GO))

    def _bury(self, owner: bytes, token: str) -> None:
        """Remember a spawn that is over, so that its retry starts nothing."""
        self.tokens[(owner, token)] = None
        self.tokens.move_to_end((owner, token))
        while len(self.tokens) > TOMBSTONES + len(self.sessions):
            oldest, known = next(iter(self.tokens.items()))
            self.tokens.pop(oldest)
            if known is not None:  # its session still lives: it goes to the young end
                self.tokens[oldest] = known

    # -- what a worker says ---------------------------------------------------------

    def _from_worker(self, worker: int, message: Message) -> None:
        if worker not in self.slots:
            return  # retired, or reported gone: what it still says concerns nobody
        if self.slots[worker] != message.session:
            return  # a worker speaks for its own session only
        session = self.sessions.get(message.session)
        if message.kind is Kind.IDLE:
            self._worker_idle(worker, session, message.body["stamps"])
        elif session is not None and message.kind is Kind.NOTICE:
            over = errors.EngineError(f"over its limit: {message.body['limit']}")
            self._announce(session, "warning", over)
        elif session is not None and message.kind in _ANSWERS:
            noted = self._note(session, message)
            peer = self.peers.get(message.client or session.client)
            if peer is not None and noted is not None:
                self._out.append(ToClient(peer, noted))

    def _note_stages(
        self,
        session: Session,
        started: float | None,
        execed: float | None,
        spoke: float | None,
        ended: float | None,
    ) -> None:
        self.latency.note("leased", session.told, started)
        self.latency.note("spawned", started, execed)
        self.latency.note("first_byte", execed, spoke)
        self.latency.note("exit_seen", execed, ended)
        # The end of one that was taken over may have been told by the lost broker.
        reported = None if session.told is None else session.ended
        self.latency.note("reported", ended, reported)

    def peer_for(self, worker: int, head: Head) -> bytes | None:
        """Return the client that a worker's frame can be passed on to unread.

        None: there is more to it than that, so `handle` has to take it.
        """
        session = self.sessions.get(head.session)
        if session is None or self.slots.get(worker) != head.session:
            return None
        peer = self.peers.get(head.client)
        if head.kind in _PASSED_ON:
            return peer
        ask = Ask(head.client, head.request)
        if peer is None or session.pending.get(ask) not in _PLAIN:
            return None
        del session.pending[ask]
        return peer

    def _note(self, session: Session, message: Message) -> Message | None:
        """Keep the registry in step with what a worker's message says.

        Returns what is to be passed on.
        """
        kind = message.kind
        if kind in (Kind.REPLY, Kind.ERROR):
            ask = Ask(message.client, message.request)
            asked = session.pending.pop(ask, None)
            if asked is Kind.SPAWN:
                self._spawn_answered(session, message)
            elif asked is Kind.KILL:
                self._expect_no_more(session, ask)
            if asked is None or not message.request:
                return None  # nobody waits for it, or no more
            if message.client == 0:
                self._batched(message.request, message)
                return None
            return self._completed(session, asked, message)
        if kind is Kind.CLOSED and message.request:
            if session.runs and session.ended is None:
                self._ended(session, message)
                self._announce(session, "closed")
            if session.pending.pop(Ask(message.client, message.request), None) is None:
                return None  # it was robbed, and told so instead
        elif not message.request:
            if kind is Kind.EXITED:
                self._ended(session, message)
            elif kind is Kind.CLOSED:
                self._announce(session, "closed")
            return self._ends(session, message)
        return message

    def _completed(self, session: Session, asked: Kind, message: Message) -> Message:
        """Return a worker's answer with what the broker has to say to it."""
        if message.kind is Kind.REPLY and asked is Kind.SNAPSHOT:
            return message._replace(body={"owner_alive": session.client != 0})
        if asked in (Kind.SPAWN, Kind.ATTACH):
            message = _for_owner(session, message)
        if message.kind is Kind.REPLY and asked is Kind.ATTACH:
            return self._attached(session, message)
        if asked is Kind.VISIT and session.client == 0 and session.ended is not None:
            self._reported(session)
        return message

    def _attached(self, session: Session, message: Message) -> Message:
        """Add what the broker knows; a status in it reports the end to the owner."""
        if session.ended is not None:
            self._reported(session)
        return message._replace(body={**message.body, "stays": session.stays})

    def _reported(self, session: Session) -> None:
        """Note that the owner hears now how its child ended.

        What is on its way out, or lost, is retained no more.
        """
        session.reported = self._room = True
        if session.state not in (State.LEAVING, State.LOST):
            self.retention.reported(session)
            self._end_surplus()

    def _ends(self, session: Session, message: Message) -> Message | None:
        """Follow what a worker pushes of its child's end; CLOSED is not passed on."""
        if session.state is not State.LEAVING:
            if message.kind is Kind.EXITED:
                session.state = State.EXITED
            elif message.kind is Kind.CLOSED:
                session.state = State.CLOSED
        return None if message.kind is Kind.CLOSED else message

    def _ended(self, session: Session, message: Message) -> None:
        """Note that the child has ended, and whether its owner hears of it."""
        session.ended = self._now
        session.status = message.body["status"]
        if session.state is not State.LEAVING:
            self.retention.ended(session, self._now)
        self._announce(session, "exited")
        visited = self._tell_visitors(session)
        session.reported = session.client in self.peers or visited
        self._room = True

    def _tell_visitors(self, session: Session) -> bool:
        """Tell them of an end; return whether nobody else is to hear of it."""
        body = {"status": session.status}
        for client in session.visitors - {session.client}:
            ended = Message(Kind.EXITED, client, 0, session.id, self.epoch, 0.0, body)
            self._out.append(ToClient(self.peers[client], ended))
        return session.client == 0 and bool(session.visitors)

    def _spawn_answered(self, session: Session, message: Message) -> None:
        waiting = [ask for ask, kind in session.pending.items() if kind is Kind.SPAWN]
        for ask in waiting:
            del session.pending[ask]
            answer = message._replace(client=ask.client, request=ask.request)
            self._to(ask, _for_owner(session, answer))
        if message.kind is Kind.ERROR:
            failed = errors.decode(message.body["code"], message.body["values"])
            self._announce(session, "failed", failed)
            self._answer_pending(session, errors.SessionNotFound())
            self._forget(session)
            self._worker_idle(session.worker, None)
            return
        session.answer = message
        assert session.told is not None  # START was sent
        took = self._now - session.told
        for ask in session.deadlines:  # it hears of these only now
            session.deadlines[ask] += took
        self._look_at_deadlines(session)
        self._announce(session, "running")
        if session.state is State.STARTING:
            session.state = State.RUNNING

    def _answer_pending(
        self, session: Session, error: errors.EngineError, *, proven: bool = False
    ) -> None:
        for ask, kind in session.pending.items():
            base = Message(kind, ask.client, ask.request, session.id, self.epoch)
            if kind is Kind.KILL and proven:
                self._to(ask, base.reply(Kind.REPLY, {"receipt": [0, 0, []]}))
            else:
                self._to(ask, failure(base, error))
        session.pending.clear()

    # -- taken over from a lost broker ------------------------------------------

    def _adopt(self, worker: int, message: Message) -> None:
        """Take a worker over, and the session that it says it has."""
        if message.kind is not Kind.REGISTER:  # it is idle
            self.slots[worker] = None
            self.idle.append(worker)
            return
        body, number = message.body, message.session
        session, ends = Session.remembered(number, worker, message.payload or b"")
        self.slots[worker] = number
        self.sessions[number] = session
        self.tokens[(session.owner, session.token)] = number
        if ends is not None:
            self.ttls[number] = ends
        started = {name: body[name] for name in ("pid", "started", "stdin")}
        session.answer = message.reply(Kind.REPLY, started)
        session.holders = set(body["clients"]) - {session.client}
        session.used = body["used"]
        session.state = State.RUNNING
        if body["status"] is not None:
            self._adopt_end(session, body["status"], closed=body["closed"])
        if body["released"]:
            self._leaves(session)
            session.deadlines[RELEASED] = self._now + DROP_TIMEOUT + HUNG_MARGIN
            self._look_at_deadlines(session)

    def _adopt_end(self, session: Session, status: object, *, closed: bool) -> None:
        """Note an end that this broker was not told of, nor maybe any owner."""
        session.state = State.CLOSED if closed else State.EXITED
        session.ended, session.status = self._now, status
        session.concluded = closed
        self.retention.ended(session, self._now)

    def _settle(self) -> None:
        """Give up whoever has not come back to this broker: its time is over."""
        for session in list(self.sessions.values()):
            if session.client and session.client not in self.peers:
                self._drop(session)
            if session.state in (State.LEAVING, State.LOST):
                continue
            for holder in session.holders.difference(self.peers):
                self._stop_all(session, holder)

    # -- workers --------------------------------------------------------------------

    @property
    def busy(self) -> int:
        """How many workers have a session; each one does that is not lost."""
        return len(self.slots) - len(self.idle)

    def _worker_idle(
        self, worker: int, session: Session | None, stamps: Sequence[float | None] = ()
    ) -> None:
        if session is not None:
            self._note_stages(session, *stamps)
            self._announce(session, "closed")
            self._answer_pending(session, errors.SessionNotFound())
            self._forget(session)
        self.slots[worker] = None
        if len(self.idle) >= self.ahead:
            self.ahead = self.warm  # the demand is over
        if len(self.idle) < max(self.warm, IDLE_WORKERS):
            self.idle.append(worker)
        else:
            del self.slots[worker]
            self._out += ToWorker(worker, Message(Kind.RETIRE)), Retire(worker)

    def _worker_gone(self, worker: int, errno: int, *, proven: bool) -> None:
        number = self.slots.pop(worker, None)
        if worker in self.idle:
            self.idle.remove(worker)
        session = self.sessions.get(number) if number is not None else None
        self._out.append(Retire(worker))
        if session is None:
            return
        if session.state is State.STARTING:
            error: errors.EngineError = (
                errors.SpawnFailed(errno, "fork") if errno else errors.WorkerLost()
            )
            self._announce(session, "failed", error)
            self._answer_pending(session, error, proven=proven)
            self._forget(session)
            return
        self._announce(session, "lost", errors.WorkerLost())
        self._tell_loss(session)
        self._answer_pending(session, errors.WorkerLost(), proven=proven)
        if session.state is State.LEAVING or session.client == 0:
            self._forget(session)
            return
        session.state = State.LOST
        self._room = True
        self.retention.forget(session)
        self.due.pop(session.id, None)
        session.proven = proven
        session.holders.clear()  # nothing is held any more

    def _tell_loss(self, session: Session) -> None:
        """Tell the owner and visitors, before they are answered and listen no more."""
        for client in sorted({session.client} | session.visitors):
            self._push(client, session.id, errors.WorkerLost())

    def _take_worker(self) -> int:
        """Return the worker that was idle for the shortest time, or fork one.

        The last one used has its pages warm, and the first ones can be retired.
        """
        if not self.idle:
            self.ahead = min(2 * self.ahead, max(MOST_AHEAD, self.warm))
            return self._fork()
        return self.idle.pop()

    def _fork(self) -> int:
        self.numbers[WORKER] += 1
        worker = self.numbers[WORKER]
        self.slots[worker] = None
        self._out.append(Fork(worker))
        return worker

    def _refill(self) -> None:
        """Fork what is missing once half is: workers forked in one go are smaller."""
        if 2 * len(self.idle) <= self.ahead:
            while len(self.idle) < self.ahead:
                self.idle.append(self._fork())


def _for_owner(session: Session, answer: Message) -> Message:
    """Return the answer to a spawn or attach for who asked, who may not be the owner.

    It was robbed meanwhile, or was not the first to ask: nobody tells it of the end.
    """
    if answer.kind is Kind.REPLY and answer.client != session.client:
        return failure(answer, errors.SessionOwned())
    return answer


def failure(message: Message, error: errors.EngineError) -> Message:
    """Return the answer to a message that says what went wrong."""
    code, values = errors.encode(error)
    return message.reply(Kind.ERROR, {"code": code, "values": values})


_ANSWERS: Final = frozenset(
    {
        Kind.REPLY,
        Kind.ERROR,
        Kind.CHUNK,
        Kind.PLACED,
        Kind.ARENA,
        Kind.GAP,
        Kind.EOF,
        Kind.ABANDONED,
        Kind.BROKEN,
        Kind.EXITED,
        Kind.CLOSED,
    }
)
"""What a worker may send to a client."""

_PASSED_ON: Final = frozenset({int(Kind.CHUNK), int(Kind.PLACED)})
"""What of a worker's is output, and nothing else."""

_PLAIN: Final = frozenset({Kind.WRITE, Kind.POLL, Kind.READ})
"""Requests whose answer says nothing that concerns the broker."""
