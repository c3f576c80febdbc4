"""The broker's rules: who may ask what of which session, and what follows from a loss.

Pure: `Router.handle(event, now)` returns the actions that the server carries out. The
server translates sockets, pidfds and timers into events; no rule lives there.

Theory of operation
-------------------
* A *client* is a connection that said hello; it has an owner key and maybe the operator
  key. A *session* is one child under its integer id; it belongs to an owner key, and is
  owned by one client at most: that which spawned it, or attached to it.
* What becomes of a session and its worker, whoever asked, is the `Keeper`'s: a session
  is registered, and its slot bound, before START leaves for the worker. From then on
  the keeper follows it, up to its end or loss. The router is the keeper that hears
  clients too.
* A session without an owner has client 0. That comes of DETACH, or of the drop of one
  that stays (`kill_on_drop=False` closes its stdin, `detach_ttl` alone does not), and
  ends with its ttl unless a client attaches. ATTACH changes the owner here, before the
  worker tells the new one what it has to know; a robbed owner is told, and what it
  waits for is answered. A STOP of the ATTACH undoes it, whatever became of that.
* A spawn that is asked again is answered to its owner alone; one without an owner gets
  whoever asks for it as that. So who has the answer will be told of the end.
* Only the owner releases: whoever was robbed and does not know yet ends nothing.
* KILL_MANY is one KILL for each session, asked by the broker itself (client 0); a
  `Batch` collects the receipts and answers once.
* A drop (owner gone, handle collected, spawn cancelled) sends KILL with `release` and
  leaves a tombstone for the spawn's token: a retry never starts a second child.
* A spawn over a limit is refused, or waits in the `Line` (`admission`), which is looked
  at whenever something ended. It has no session before it has room, and goes with its
  time, and with the last client that asked for it: that one's end, lease or drop of its
  token. One that may evict has others end, and waits for that.
* Whoever watches is told what happens to the sessions of its key (`watchers`). CREDIT
  and STOP for session 0 are those of its stream.
* A worker that does not answer START within `START_TIMEOUT`, or a KILL within the time
  it was given and a margin, stands still: the pool kills it, and its tree with it.
* Commands of another epoch, or past their deadline, are refused and never forwarded.
* A broker in the place of a lost one hears no client before every worker of that one
  has said what it has, is gone, or was waited for long enough (`rollcall`). A client
  comes back under its old number, which it proves, and claims its sessions; what nobody
  came back for within a grace is dropped.

========  =====================================  =====================================
state     reached by                             answers
========  =====================================  =====================================
starting  SPAWN accepted                         commands wait in the worker's leg
running   REPLY to START                         everything is forwarded
exited    EXITED pushed by the worker            everything is forwarded
closed    CLOSED pushed by the worker            everything is forwarded
leaving   KILL with release, or a drop           `SessionNotFound` for everything new,
                                                 but its owner's KILL with release
lost      the worker is gone                     `WorkerLost`; KILL its receipt, if
                                                 the tree is proven gone
========  =====================================  =====================================
"""

import hashlib
import hmac
from collections.abc import Callable
from typing import Final, assert_never

from broker import admission, errors
from broker.admission import Applicant, Load
from broker.batches import Batch
from broker.keeper import DROP_TIMEOUT, HUNG_MARGIN, Keeper, failure
from broker.outcomes import TimedOut
from broker.registry import (
    CLIENT,
    LIVE,
    SESSION,
    THERE,
    Action,
    Ask,
    Attach,
    CallRoll,
    Capacity,
    Client,
    ClientGone,
    Condemn,
    Event,
    Found,
    FromClient,
    FromWorker,
    Hello,
    LeaseRenewed,
    Numbers,
    PoolGone,
    PoolReady,
    Session,
    State,
    Tick,
    ToClient,
    WorkerGone,
)
from broker.rollcall import RollCall
from broker.wire import Head, Kind, Message, pack

FIRST_SESSION: Final = 1000
START_TIMEOUT: Final = 30.0
"""Seconds that a worker may take to start a child: exec may wait for a slow disk."""
ROOM_TIMEOUT: Final = DROP_TIMEOUT + 2 * HUNG_MARGIN
"""Seconds that a spawn waits at least for what was ended to make room for it."""
GIVEN_UP: Final = "it was given up: nobody came back for it in time"
"""What a client is told that comes back later than a grace after its broker."""
LEASE_OVER: Final = "the lease ran out: the child stays without an owner, attach to it"
"""What a client is told that stood still, of a child that outlives its owner."""
RETRY_AFTER: Final = 1.0
"""Seconds after which a spawn that found no room may find some."""


class Router(Keeper):
    """The clients, what each of them may ask, and who gets room.

    Args:
        epoch: this broker's incarnation; commands of another one are refused.
        shared: whether children may outlive their client (`kill_on_drop=False`).
        warm: idle workers kept ready.
        capacity: live sessions that this broker takes at most.
        containment: how the workers hold their trees, for whoever asks.
        grace: seconds that sessions and clients outlive this broker; 0: they do not.
        numbers: see `Keeper`.
        secret: the key of the proofs that clients get of their numbers.
    """

    def __init__(
        self,
        epoch: int,
        *,
        shared: bool,
        warm: int,
        capacity: Capacity,
        containment: str = "subreaper",
        grace: float = 0.0,
        numbers: Numbers | None = None,
        secret: bytes = b"",
    ) -> None:
        super().__init__(epoch, warm, grace, [0, 0, 0] if numbers is None else numbers)
        self.secret = secret
        self.rollcall: RollCall | None = None
        self.doubt = False
        """Whether a lost broker's worker is gone, and what it had started unknown."""
        self.settles: float | None = None
        self.shared = shared
        self.capacity = capacity
        self.containment = containment
        self.clients: dict[bytes, Client] = {}
        self.line = admission.Line()
        self._next_due: float | None = None
        self._due_known = False
        self._last_batch = 0

    # -- the door ---------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event at time `now` (seconds, monotonic) and return what to do."""
        self._now = now
        self._out = []
        self._due_known = False
        self._take(event)
        if self.rollcall is not None and self.rollcall.complete:
            self._roll_called(self.rollcall)
        if self._room:
            self._room = False
            self._admit()
        return self._out

    def _take(self, event: Event) -> None:
        match event:
            case FromClient(peer, message):
                self._from_client(peer, message)
            case FromWorker(worker, message):
                self._hear(worker, message)
            case Hello():
                self._hello(event)
            case ClientGone(peer):
                self._client_gone(peer)
            case LeaseRenewed(peer):
                self._renew(peer)
            case WorkerGone(worker, errno, proven):
                self._worker_gone(worker, errno, proven=proven)
            case PoolGone(proven):
                self._pool_gone(proven=proven)
            case PoolReady():
                self._refill()
            case CallRoll(ends, whole):
                self.rollcall, self.doubt = RollCall(ends), not whole
            case Found(workers, last, whole):
                self._find(workers, last=last, whole=whole)
            case Tick():
                self._tick()
            case _:
                assert_never(event)

    def _tick(self) -> None:
        if self.rollcall is not None and self.rollcall.ends <= self._now:
            self._roll_called(self.rollcall)
        if self.settles is not None and self.settles <= self._now:
            self.settles = None
            self._settle()
        self._expire_leases()
        self._condemn_late()
        self._expire_ttls()
        self.retention.ripen(self.sessions, self._now)
        self._end_surplus()
        for late in self.line.late(self._now):
            self._room = True  # for those who came behind it
            self._refuse_full(late)

    def _pool_gone(self, *, proven: bool) -> None:
        for worker in list(self.slots):
            self._worker_gone(worker, 0, proven=proven)
        if self.rollcall is not None:  # none of its workers speaks any more
            self.doubt = True
            self.rollcall.missing.clear()
            self.rollcall.found((), last=True)

    def next_deadline(self) -> float | None:
        """Return when a `Tick` is wanted, None while nothing is due."""
        if not self._due_known:  # asked in each turn; what is passed on changes nothing
            self._next_due = self._find_deadline()
            self._due_known = True
        return self._next_due

    def _find_deadline(self) -> float | None:
        ends = [c.lease_ends for c in self.clients.values() if c.lease_ends is not None]
        firsts = (
            self.line.next_deadline(),
            self.retention.next_deadline(),
            self.settles,
            None if self.rollcall is None else self.rollcall.ends,
        )
        ends += [first for first in firsts if first is not None]
        return min([*ends, *self.due.values(), *self.ttls.values()], default=None)

    # -- after a lost broker ----------------------------------------------------

    @property
    def calling_roll(self) -> bool:
        """Whether a lost broker's workers are awaited: no client is to be heard."""
        return self.rollcall is not None

    def _hear(self, worker: int, message: Message) -> None:
        if self.rollcall is not None and worker in self.rollcall.missing:
            self.rollcall.heard(worker)
            self._adopt(worker, message)
        else:
            self._from_worker(worker, message)

    def _worker_gone(self, worker: int, errno: int, *, proven: bool) -> None:
        if self.rollcall is not None:
            self.doubt = self.doubt or worker in self.rollcall.missing
            self.rollcall.heard(worker)
        super()._worker_gone(worker, errno, proven=proven)

    def _find(self, workers: list[int], *, last: bool, whole: bool) -> None:
        self.doubt = self.doubt or not whole
        if self.rollcall is not None:
            self.rollcall.found(workers, last=last)
        elif workers:  # too late: their sessions may have been told as lost
            self.doubt = True
            self._out.extend(Condemn(worker) for worker in workers)

    def _refill(self) -> None:
        if self.rollcall is None:  # else idle workers may be found yet
            super()._refill()

    def _roll_called(self, rollcall: RollCall) -> None:
        """Hear clients from now on; whoever stands still comes too late for that."""
        self.rollcall = None
        self.settles = self._now + self.grace
        self.doubt = self.doubt or not rollcall.complete
        self._out.extend(Condemn(worker) for worker in sorted(rollcall.missing))
        self._refill()

    def _proof(self, number: int, owner: bytes) -> bytes:
        """Return what proves to any broker of this key that a client had this number.

        Nobody else can know it, so nobody else gets what was meant for that client.
        """
        named = number.to_bytes(4) + owner
        return hashlib.blake2b(named, key=self.secret, digest_size=16).digest()

    def _number(self, hello: Hello) -> int | None:
        """Return a client's number: the one it had, or a new one; None: it lies."""
        if hello.proof is None:
            self.numbers[CLIENT] += 1
            return self.numbers[CLIENT]
        right = self._proof(hello.number, hello.owner)
        if not hmac.compare_digest(right, hello.proof) or hello.number in self.peers:
            return None
        return hello.number

    def _claim(self, client: Client, message: Message) -> None:
        """Tell a client that came back what it has not heard of its sessions."""
        for number in message.body["sessions"]:
            session = self.sessions.get(number)
            if session is None or not self._may(client, session):
                self._claim_absent(client, number)
            elif session.client not in (0, client.id):
                self._push(client.id, number, errors.SessionOwned())
            else:
                if session.client == 0:  # it came after it was given up
                    self._owns(client, session)
                self._tell_end(client, session)
        visits = message.body["visits"]
        for number, request in zip(visits[::2], visits[1::2], strict=False):
            self._visit_again(client, number, request)

    def _visit_again(self, client: Client, number: int, request: int) -> None:
        """Tell a client that came back what it has not heard of one that it visits."""
        session = self.sessions.get(number)
        if session is None or not self._may(client, session):
            self._tell_absence(client, number)
        else:
            session.visits.add(Ask(client.id, request))
            self._tell_end(client, session)

    def _tell_absence(self, client: Client, number: int) -> None:
        """Tell a client that came back of a session that is nowhere.

        Its worker was lost, and nobody told; or this client comes so late that the
        session was given up.
        """
        late = self.settles is None
        fault = errors.SessionNotFound(GIVEN_UP) if late else errors.WorkerLost()
        self._push(client.id, number, fault)

    def _claim_absent(self, client: Client, number: int) -> None:
        """Have a session that is nowhere be lost, unless it was given up."""
        if self.settles is None:
            self._tell_absence(client, number)
            return
        ids = number, client.id, client.owner, "", f"lost {number}", 0
        session = Session(*ids, kill_on_drop=True, state=State.LOST)
        given = FIRST_SESSION <= number < FIRST_SESSION + self.numbers[SESSION]
        if given and number not in self.sessions:
            self.sessions[number] = session
        self._tell_loss(session)

    def _tell_end(self, client: Client, session: Session) -> None:
        """Tell a client how a session ended, or that it was lost, if either is so."""
        if session.status is not None:
            if session.client in (0, client.id):
                self._reported(session)
            ids = client.id, 0, session.id, self.epoch
            body = {"status": session.status}
            told = Message(Kind.EXITED, *ids, 0.0, body)
            self._out.append(ToClient(client.peer, told))
        elif session.state is State.LOST:
            self._push(client.id, session.id, errors.WorkerLost())

    # -- clients ----------------------------------------------------------------

    def _hello(self, hello: Hello) -> None:
        if hello.peer in self.clients:
            fault = errors.ProtocolError("this connection said hello before")
            client = self.clients[hello.peer]
            self._refuse(client, Message(Kind.HELLO, client.id, hello.request), fault)
            return
        number = self._number(hello)
        if number is None:
            fault = errors.ProtocolError("the proof is not of this client's number")
            refused = Message(Kind.HELLO, 0, hello.request)
            self._out.append(ToClient(hello.peer, failure(refused, fault)))
            return
        client = Client(
            number,
            hello.peer,
            hello.owner,
            hello.operator,
            hello.lease,
            None,
        )
        self.clients[hello.peer] = client
        self.peers[client.id] = hello.peer
        self._renew(hello.peer)
        proof = self._proof(number, hello.owner)
        body = {"clock": self._now, "grace": self.grace, "proof": proof}
        welcome = Message(
            Kind.WELCOME, client.id, hello.request, 0, self.epoch, 0.0, body
        )
        self._out.append(ToClient(hello.peer, welcome))

    def _renew(self, peer: bytes) -> None:
        client = self.clients.get(peer)
        if client is not None and client.lease > 0:
            client.lease_ends = self._now + client.lease

    def _expire_leases(self) -> None:
        for client in self.clients.values():
            if client.lease_ends is not None and client.lease_ends <= self._now:
                # It may still start something from a queue: look again.
                client.lease_ends = self._now + client.lease
                owned = self._owned_by(client)
                self._drop_all(client)
                for session in owned:
                    if session.client:
                        session.let_go = True
                    else:  # nobody tells it of the end any more
                        self._part(session, client.id, errors.SessionOwned(LEASE_OVER))

    def _client_gone(self, peer: bytes) -> None:
        client = self.clients.pop(peer, None)
        if client is None:
            return
        del self.peers[client.id]
        self.watchers.leave(client.id)
        self._drop_all(client)
        for session in self.sessions.values():
            self._leave(session, client.id)

    def _drop_all(self, client: Client) -> None:
        for applicant in self.line.of_client(client.id):
            self._take_back(applicant, client)
        for session in self._owned_by(client):
            self._drop(session)

    def _take_back(self, applicant: Applicant, client: Client) -> None:
        """Let a client wait no more; whoever asked next for the same goes on."""
        self._room = True
        owner, _ = applicant.token
        rest = [spawn for spawn in applicant.asked if spawn.client != client.id]
        taken = [spawn for spawn in applicant.asked if spawn.client == client.id]
        if rest:
            applicant.asked = rest
            applicant.limits = admission.limits(owner, rest[0], self.capacity)
        else:
            del self.line.waiting[applicant.token]
        self._answer_all(taken, errors.SessionNotFound())

    def _owned_by(self, client: Client) -> list[Session]:
        return [s for s in self.sessions.values() if s.client == client.id]

    def _leave(self, session: Session, client: int) -> None:
        """Take back what a client that is gone has asked of another one's session."""
        for ask in [a for a in session.pending if a.client == client]:
            # The answer to a spawn is kept for whoever asks again with its token; that
            # to a kill shows that its worker does not stand still.
            if session.pending[ask] not in (Kind.SPAWN, Kind.KILL):
                del session.pending[ask]
        session.visits = {v for v in session.visits if v.client != client}
        if client in session.holders:
            self._stop_all(session, client)

    # -- commands ---------------------------------------------------------------

    def worker_for(self, peer: bytes, head: Head, now: float) -> int | None:
        """Return the worker that a client's frame can be passed on to unread.

        None: there is more to it than that, so `handle` has to take it. What comes
        most, input and credit, takes 1.7 us this way, and 5 to 6 by `handle`.
        """
        client, session = self.clients.get(peer), self.sessions.get(head.session)
        if (
            client is None
            or session is None
            or head.kind not in _PASSED_ON
            or head.client != client.id
            or head.epoch != self.epoch
            or head.deadline
            or session.state in (State.LEAVING, State.LOST)
            or not self._may(client, session)
        ):
            return None
        if head.kind == Kind.WRITE:
            session.used = now
            if head.request:
                session.pending[Ask(client.id, head.request)] = Kind.WRITE
        return session.worker

    def _from_client(self, peer: bytes, message: Message) -> None:
        client = self.clients.get(peer)
        if client is None:
            fault: errors.EngineError = errors.ProtocolError("say HELLO first")
            error = failure(message, fault)
            self._out.append(ToClient(peer, error))
            return
        refusal = self._refusal(client, message)
        if refusal is not None:
            self._refuse(client, message, refusal)
        elif message.session == 0 and message.kind in (Kind.CREDIT, Kind.STOP):
            self._on_watcher(client, message)
        elif message.kind in _FORWARDED:
            self._forward(client, message)
        else:
            _ANSWERED[message.kind](self, client, message)

    def _refusal(self, client: Client, message: Message) -> errors.EngineError | None:
        if message.client != client.id:
            return errors.ProtocolError("the client number is not this connection's")
        if message.epoch != self.epoch:
            return errors.BrokerLost("the command was meant for an earlier broker")
        if message.deadline and message.deadline < self._now:
            return TimedOut(message.kind.name.lower(), 0.0)
        if message.kind not in _FORWARDED and message.kind not in _ANSWERED:
            return errors.ProtocolError(
                f"{message.kind.name} is not a client's to send"
            )
        return None

    def _refuse(
        self, client: Client, message: Message, error: errors.EngineError
    ) -> None:
        if message.request:
            self._out.append(ToClient(client.peer, failure(message, error)))

    def _answer(self, client: Client, message: Message) -> None:
        if message.request:
            self._out.append(ToClient(client.peer, message))

    def _spawn(self, client: Client, message: Message) -> None:
        token = (client.owner, message.body["token"])
        if token in self.tokens:
            self._spawn_again(client, message, self.tokens[token])
        elif token in self.line.waiting:
            self.line.waiting[token].asked.append(message)
        elif self.doubt and message.body["again"]:
            lost = "its worker may have been lost with the broker: it may have run"
            self._refuse(client, message, errors.WorkerLost(lost))
        elif (misfit := self._misfit(message)) is not None:
            self._refuse(client, message, misfit)
        else:
            limits = admission.limits(client.owner, message, self.capacity)
            applicant = Applicant(token, [message], limits, self._now)
            self.line.add(applicant)
            self._admit()
            if token in self.line.waiting:
                self._keep_waiting(applicant)

    def _misfit(self, spawn: Message) -> errors.InvalidRequest | None:
        """Return why a private broker cannot take a spawn."""
        if self.shared:
            return None
        needs = "needs a shared broker: this one ends with you"
        if not spawn.body["kill_on_drop"]:
            return errors.InvalidRequest("kill_on_drop", f"False {needs}")
        if spawn.body["detach_ttl"] is not None:
            return errors.InvalidRequest("detach_ttl", needs)
        return None

    def _admit(self) -> None:
        """Start whoever waits and has room now."""
        if self.line:
            load = Load(self.sessions, self.busy)
            for applicant in self.line.admitted(load):
                session = self._start(applicant)
                load.add(session)
                self._warn(session, applicant, load)

    def _warn(self, session: Session, applicant: Applicant, load: Load) -> None:
        """Tell whoever watches that a limit is near."""
        for limit in applicant.limits:
            count = load.of(limit)
            if count == limit.warns_at:
                near = f"{limit.name} holds {count} of {limit.most} sessions"
                self._announce(session, "warning", errors.EngineError(near))

    def _keep_waiting(self, applicant: Applicant) -> None:
        goes = self._make_room(applicant)
        patience = ROOM_TIMEOUT if goes else 0.0
        applicant.ends = self._now + max(
            applicant.message.body["queue"] or 0.0, patience
        )
        if applicant.ends <= self._now:
            del self.line.waiting[applicant.token]
            self._refuse_full(applicant)

    def _make_room(self, applicant: Applicant) -> bool:
        """Have others go for a spawn, if it may; return whether that will be enough."""
        oldest = self.retention.oldest()
        found = admission.victims(applicant, self.sessions.values(), oldest)
        everywhere = any(limit.key == admission.BROKER for limit in applicant.stuck)
        for session in found:
            if session is oldest and everywhere:
                self._let_go(session)
            else:
                self._evict(session, applicant, release=everywhere)
        return bool(found)

    def _evict(self, session: Session, applicant: Applicant, *, release: bool) -> None:
        """End a session for another one; its log stays if that is not in the way."""
        session.evicted = True
        self._announce(session, "evicted")
        if release or session.ended is not None or session.client == 0:
            self._let_go(session, "evicted")
            self._room = True
            return
        client = self.clients[self.peers[applicant.message.client]]
        body = {"sessions": [session.id]}
        unasked = Message(Kind.KILL_MANY, client.id, 0, 0, self.epoch, 0.0, body)
        self._kill_each(client, unasked, DROP_TIMEOUT, "evicted")

    def _refuse_full(self, applicant: Applicant) -> None:
        full = str(applicant.stuck[0])
        self._answer_all(applicant.asked, errors.CapacityExceeded(RETRY_AFTER, full))

    def _answer_all(self, asked: list[Message], error: errors.EngineError) -> None:
        for spawn in asked:
            self._to(Ask(spawn.client, spawn.request), failure(spawn, error))

    def _start(self, applicant: Applicant) -> Session:
        """Give a spawn its session and its worker."""
        message, (owner, token) = applicant.message, applicant.token
        body = message.body
        self.numbers[SESSION] += 1
        session = Session(
            FIRST_SESSION - 1 + self.numbers[SESSION],
            message.client,
            owner,
            body["scope"],
            token,
            self._take_worker(),
            body["kill_on_drop"],
            body["detach_ttl"],
            used=self._now,
            told=self._now,
            runs=body["release"],
        )
        self.latency.note("queued", applicant.came, self._now)
        self.sessions[session.id] = session
        self.slots[session.worker] = session.id
        self.tokens[applicant.token] = session.id
        self.due[session.id] = self._now + START_TIMEOUT
        asks = [Ask(spawn.client, spawn.request) for spawn in applicant.asked]
        session.pending.update(dict.fromkeys(asks, Kind.SPAWN))
        if body["reader"] is not None:
            session.pending[Ask(message.client, body["reader"])] = Kind.OPEN
        terms = {name: body[name] for name in _START_TERMS}
        terms["memo"] = session.memo(None) if self.grace else b""
        start = message._replace(kind=Kind.START, session=session.id, body=terms)
        self._tell(session, start)
        for spawn in applicant.asked[1:]:
            self._capture_again(session, spawn)
        self._announce(session, "starting")
        self._refill()
        return session

    def _spawn_again(self, client: Client, message: Message, known: int | None) -> None:
        session = self.sessions.get(known) if known is not None else None
        if session is None or session.state in (State.LEAVING, State.LOST):
            self._refuse(client, message, _over(session, message))
        elif session.client not in (0, client.id):
            self._refuse(client, message, errors.SessionOwned())
        else:
            self._owns(client, session)
            if session.answer is None:
                session.pending[Ask(client.id, message.request)] = Kind.SPAWN
            else:
                self._answer_again(client, message, session, session.answer)
            self._capture_again(session, message)

    def _answer_again(
        self, client: Client, spawn: Message, session: Session, answer: Message
    ) -> None:
        """Answer a spawn that was before, and tell of an end that is over as well."""
        again = answer._replace(client=client.id, request=spawn.request)
        self._answer(client, again._replace(epoch=self.epoch))
        self._tell_end(client, session)

    def _capture_again(self, session: Session, spawn: Message) -> None:
        """Open the capture that comes with a spawn that was before, if there is one.

        What it gets begins with the first byte, or says what was dropped. Nobody but
        the owner has one: any other is told that it is none.
        """
        reader = Ask(spawn.client, spawn.body["reader"] or 0)
        owned = spawn.client == session.client
        if not owned or not reader.request or reader in session.pending:
            return
        body = {name: spawn.body[name] for name in ("chunks", "bytes")}
        body |= {"after": None, "newest": False, "capture": True}
        opening = Message(Kind.OPEN, *reader, session.id, self.epoch, 0.0, body)
        self._pass_on(session, opening, reader)

    # -- those who watch --------------------------------------------------------

    def _watch(self, client: Client, message: Message) -> None:
        self.watchers.open(client, message)

    def _on_watcher(self, client: Client, message: Message) -> None:
        """Take credit for a lifecycle stream, or its end: they are no session's."""
        if message.kind is Kind.CREDIT:
            ask = Ask(client.id, message.request)
            self.watchers.credit(ask, message.body["chunks"])
        else:
            self.watchers.stop(Ask(client.id, message.body["target"]))
            self._answer(client, message.reply(Kind.REPLY))

    def _list(self, client: Client, message: Message) -> None:
        scope = message.body["scope"]
        states = THERE if message.body["readable"] else LIVE
        ids = [
            s.id
            for s in self.sessions.values()
            if s.state in states
            and self._may(client, s)
            and (scope is None or s.scope == scope)
        ]
        self._answer(client, message.reply(Kind.REPLY, payload=pack(sorted(ids))))

    def _info(self, client: Client, message: Message) -> None:
        states = [session.state for session in self.sessions.values()]
        counts = {
            "sessions": len(states),
            "live": sum(state in LIVE for state in states),
            "clients": len(self.clients),
            "workers": len(self.slots),
            "idle": len(self.idle),
            "waiting": len(self.line),
            "retained": len(self.retention),
            "watchers": len(self.watchers),
            "capacity": self.capacity.sessions,
            "shared": self.shared,
            "containment": self.containment,
        }
        latency = pack(self.latency.rows())
        self._answer(client, message.reply(Kind.REPLY, counts, latency))

    def _drop_asked(self, client: Client, message: Message) -> None:
        for number in message.body["sessions"]:
            session = self.sessions.get(number)
            if session is not None and session.client == client.id:
                self._drop(session)
        for token in message.body["tokens"]:
            self._cancel(client, (client.owner, token))
        self._answer(client, message.reply(Kind.REPLY))

    def _cancel(self, client: Client, token: admission.Token) -> None:
        """Take a spawn back, unless another client has it, or waits for it too."""
        session = self.sessions.get(self.tokens.get(token) or 0)
        if session is not None:
            if session.client in (0, client.id):
                self._drop(session, cancelled=True)
            return
        if (waiting := self.line.waiting.get(token)) is not None:
            self._take_back(waiting, client)
        if token not in self.line.waiting:
            self._bury(*token)

    def _kill_many(self, client: Client, message: Message) -> None:
        self._kill_each(client, message, message.body["timeout"], "killed")

    def _kill_each(
        self, client: Client, message: Message, timeout: float, cause: str
    ) -> None:
        """Kill all sessions that a message names; it is answered once they are gone."""
        self._last_batch += 1
        number = self._last_batch
        batch = self.batches[number] = Batch(client.id, message)
        for kill in batch.kills(number, timeout, cause):
            self._forward(client, kill, Ask(0, number))
        self._finish_batch(number)

    def _may(self, client: Client, session: Session) -> bool:
        return client.operator or client.owner == session.owner

    def _forward(
        self, client: Client, message: Message, ask: Ask | None = None
    ) -> None:
        """Pass a command on to its session's worker, answered to `ask`."""
        ask = ask or Ask(client.id, message.request)
        if message.kind is Kind.CREDIT:
            # It carries its reader's number, but wants no answer: one would be taken
            # for the reader's end, while the real one may still be on its way.
            ask = Ask(client.id, 0)
        session = self._reached(client, message, ask)
        if session is None:
            return
        release = message.kind is Kind.KILL and message.body["release"]
        if release and ask.client and session.client not in (0, client.id):
            self._to(ask, failure(message, errors.SessionOwned()))
        else:
            self._pass_on(session, message, ask)

    def _reached(self, client: Client, message: Message, ask: Ask) -> Session | None:
        """Return the session that a command is for; `ask` is answered if none is.

        One that leaves is there for nobody but its owner that releases it: an answer
        that it is not there any more would be taken for the proof.
        """
        session = self.sessions.get(message.session)
        release = message.kind is Kind.KILL and message.body["release"]
        if (
            session is None
            or not self._may(client, session)
            or (
                session.state is State.LEAVING
                and not (release and session.client == client.id)
            )
        ):
            self._to(ask, failure(message, errors.SessionNotFound()))
            return None
        if session.state is State.LOST:
            self._answer_for_lost(session, message, ask)
            return None
        return session

    def _pass_on(self, session: Session, message: Message, ask: Ask) -> None:
        if ask.request:
            session.pending[ask] = message.kind
        if message.kind in _USES:
            session.used = self._now
        if message.kind in _LASTING and ask.client not in (0, session.client):
            session.holders.add(ask.client)
        if message.kind is Kind.VISIT:
            session.visits.add(ask)
        if message.kind is Kind.STOP:
            self._stopped(session, Ask(ask.client, message.body["target"]))
        self._tell(session, message)
        if message.kind is Kind.KILL:
            if ask.request or message.body["release"]:  # else there is no answer
                self._expect_end(session, message, ask)
            if message.body["release"]:
                self._leaves(session)

    def _stopped(self, session: Session, target: Ask) -> None:
        """Expect no answer to what was stopped; a visit ends, an ATTACH is undone."""
        if session.pending.get(target) in _STOPPED:
            del session.pending[target]
        session.visits.discard(target)
        if session.attach is not None and session.attached_by(target):
            self._take_attach_back(session, session.attach)

    def _answer_for_lost(self, session: Session, message: Message, ask: Ask) -> None:
        if message.kind is Kind.KILL and session.proven:
            self._to(ask, message.reply(Kind.REPLY, {"receipt": [0, 0, []]}))
        else:
            self._to(ask, failure(message, errors.WorkerLost()))
        if message.kind is Kind.KILL and message.body["release"]:
            self._forget(session)

    # -- owners -----------------------------------------------------------------

    def _attach(self, client: Client, message: Message) -> None:
        ask = Ask(client.id, message.request)
        session = self._reached(client, message, ask)
        if session is None:
            return
        if not session.attached_by(ask):  # else its answer was lost with a broker
            if session.client and not message.body["steal"]:
                self._refuse(client, message, errors.SessionOwned())
                return
            robbed = session.client != 0
            if robbed:
                self._part(session, session.client, errors.SessionOwned())
            ends = self.ttls.get(session.id)
            self._owns(client, session, Attach(message.request, ends, robbed))
        self._pass_on(session, message, ask)

    def _owns(
        self, client: Client, session: Session, attach: Attach | None = None
    ) -> None:
        self.ttls.pop(session.id, None)
        session.holders.discard(client.id)
        before = session.client, session.attach
        session.client, session.attach = client.id, attach
        if before != (client.id, attach):
            self._note_owner(session)

    def _take_attach_back(self, session: Session, attach: Attach) -> None:
        """Leave a session as it was without the ATTACH that its owner has stopped.

        Whoever was robbed was told, so nobody owns it: it lives on if it may.
        """
        if not attach.robbed:
            ends = attach.ends
            self._orphan(session, None if ends is None else max(0.0, ends - self._now))
        elif session.stays:
            self._orphan(session, session.detach_ttl)
        else:
            self._end(session)

    def _part(self, session: Session, owner: int, error: errors.SessionOwned) -> None:
        """Tell an owner that it is none any more, and let go of what it reads."""
        self._push(owner, session.id, error)  # it may not have come back to this broker
        for ask, kind in list(session.pending.items()):
            if ask.client == owner and kind in _STOPPABLE:
                del session.pending[ask]
                asked = Message(kind, owner, ask.request, session.id, self.epoch)
                self._to(ask, failure(asked, error))
        self._stop_all(session, owner)

    def _detach(self, client: Client, message: Message) -> None:
        session = self._reached(client, message, Ask(client.id, message.request))
        if session is None:
            return
        if not self.shared:
            fault = "a detached child needs a shared broker: this one ends with you"
            self._refuse(client, message, errors.InvalidRequest("ttl", fault))
        elif session.client not in (0, client.id):
            self._refuse(client, message, errors.SessionOwned())
        else:
            ttl = message.body["ttl"]
            self._orphan(session, session.detach_ttl if ttl is None else ttl)
            self._answer(client, message.reply(Kind.REPLY))


def _over(session: Session | None, spawn: Message) -> errors.EngineError:
    """Return what a spawn is told whose token is that of one that is over.

    A client that asks again because its broker was lost came too late; any other uses
    the name of a spawn that it knows of.
    """
    if not spawn.body["again"]:
        what = "was used by a spawn that failed, was cancelled or is over"
        return errors.InvalidRequest("request_id", what)
    if session is not None and session.state is State.LOST:
        return errors.WorkerLost()
    return errors.SessionNotFound(GIVEN_UP)


Answer = Callable[[Router, Client, Message], None]

_ANSWERED: Final[dict[Kind, Answer]] = {
    Kind.SPAWN: Router._spawn,  # noqa: SLF001 - the table names the class's own cells
    Kind.LIST: Router._list,  # noqa: SLF001
    Kind.INFO: Router._info,  # noqa: SLF001
    Kind.KILL_MANY: Router._kill_many,  # noqa: SLF001
    Kind.DROP: Router._drop_asked,  # noqa: SLF001
    Kind.ATTACH: Router._attach,  # noqa: SLF001
    Kind.DETACH: Router._detach,  # noqa: SLF001
    Kind.WATCH: Router._watch,  # noqa: SLF001
    Kind.CLAIM: Router._claim,  # noqa: SLF001
}
"""Commands that the broker answers itself."""


def _kinds(*kinds: Kind) -> frozenset[Kind]:
    return frozenset(kinds)


_FORWARDED: Final = _kinds(
    Kind.WRITE,
    Kind.CLOSE_STDIN,
    Kind.POLL,
    Kind.READ,
    Kind.OPEN,
    Kind.RESUME,
    Kind.CREDIT,
    Kind.STOP,
    Kind.KILL,
    Kind.SIGNAL,
    Kind.SNAPSHOT,
    Kind.STATS,
    Kind.CLOCK,
    Kind.RESIZE,
    Kind.EXPECT,
    Kind.READY,
    Kind.APPEND,
    Kind.VISIT,
)
"""Commands that go to the session's worker, unread."""

_PASSED_ON: Final = _kinds(Kind.WRITE, Kind.CREDIT)
"""What of a client's is for the worker alone."""

_START_TERMS: Final = ("reader", "chunks", "bytes", "release")
"""What a START takes over from its SPAWN."""

_USES: Final = _kinds(Kind.WRITE, Kind.POLL, Kind.SIGNAL, Kind.RESIZE)
"""What makes a session a recently used one."""

_STOPPABLE: Final = _kinds(
    Kind.OPEN, Kind.RESUME, Kind.READ, Kind.POLL, Kind.EXPECT, Kind.READY
)
"""Requests that may take long, and that a STOP takes back."""

_STOPPED: Final = _STOPPABLE | {Kind.ATTACH, Kind.VISIT}
"""What a STOP leaves without an answer."""

_LASTING: Final = _STOPPABLE | {Kind.CLOCK}
"""What a client leaves at a session until it is gone."""
