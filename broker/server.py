"""The broker's loop: sockets, pidfds and timers become events, actions become sends.

No rule lives here; `router` decides. Nothing here ever blocks but the one epoll wait:
every send is non-blocking, and what a peer does not take is queued for that peer alone,
control before data. How much that can be is bounded by the credit that readers give and
by the answers they asked for.
"""

import _socket
import gc
import hmac
import os
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, NoReturn

import zmq
from zmq.backend import Socket as Calls  # sugar's send takes three times as long

from broker import auth, capacity, errors, lease, passing, pool, registry, router, wire
from broker.pipe import Leg, LegClosed, message_in
from broker.wire import BULK, Kind, Message

DRAIN: Final = 64
"""Messages taken from the clients' socket before other descriptors get their turn."""
QUEUE: Final = 256
"""Messages that libzmq may hold per client; the rest waits in this process."""
LOT: Final = 32
"""Workers that the pool is asked for in one message: they take it 15 ms."""
RETRY: Final = 0.005
"""Seconds until a client that took nothing is tried again."""
LAST_FDS: Final = 32
"""Descriptors that no client's lifeline may take: for sessions, and to go on at all."""
TICKET: Final = 16
NOBLOCK: Final = int(zmq.NOBLOCK)
MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
RCVMORE: Final = int(zmq.RCVMORE)
EVENTS: Final = int(zmq.EVENTS)
ANSWERS: Final = frozenset({Kind.REPLY, Kind.ERROR})
"""After these a SPAWN comes to no START any more."""


class Lifeline:
    """A client's raw connection: it proves the process, and its end is the client's."""

    def __init__(self, sock: socket.socket, pidfd: int) -> None:
        self.sock = sock
        self.pidfd = pidfd
        self.ticket = os.urandom(TICKET)
        self.peer: bytes | None = None
        self._rest = b""
        self._fds: list[int] = []

    def receive(self) -> list[tuple[int, tuple[int, ...]]] | None:
        """Read what is there: descriptors, each with the number of their SPAWN.

        The receiver closes them. None: the client is gone.

        Raises:
            BlockingIOError: nothing is there.
        """
        try:
            data, fds, _, _ = socket.recv_fds(
                self.sock, 4096, wire.MAX_FDS, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return None
        self._fds += fds
        frames, self._rest = passing.parse(self._rest + data)
        brought = [(request, self._take(count)) for request, count in frames]
        if not self._rest:
            close_all(self._take(len(self._fds)))  # nothing announced them
        return brought if data else None

    def _take(self, count: int) -> tuple[int, ...]:
        taken, self._fds = self._fds[:count], self._fds[count:]
        return tuple(taken)

    def close(self) -> None:
        """Let go of the process and the connection."""
        close_all(self._take(len(self._fds)))
        os.close(self.pidfd)
        self.sock.close()


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)


class Outbox:
    """What one client has not taken yet: control, then data."""

    def __init__(self) -> None:
        self.control: deque[bytes] = deque()
        self.data: deque[bytes] = deque()

    def __bool__(self) -> bool:
        return bool(self.control or self.data)

    def next(self) -> deque[bytes]:
        """Return the lane to send from."""
        return self.control or self.data


def in_data_lane(kind: int, request: int) -> bool:
    """Return whether a message for a client keeps its place behind output.

    A reader's own Exited and Closed come after its chunks.
    """
    return kind in BULK or (kind in (Kind.EXITED, Kind.CLOSED) and request != 0)


class Server:
    """Everything that the broker process holds open."""

    def __init__(
        self, rules: router.Router, clients: Any, control: Leg, page: lease.Page
    ) -> None:
        self.rules = rules
        self.clients = clients
        self.receive = partial(Calls.recv, clients, NOBLOCK)
        self.send = partial(Calls.send, clients)
        self.clients_say = partial(Calls.get, clients)
        self.control = control
        self.page = page
        self.epoll = select.epoll()
        self.handlers: dict[int, Callable[[int], object]] = {}
        self.flushing: set[int] = set()
        self.legs: dict[int, Leg] = {}
        self.pool: Leg | None = None
        self.outboxes: dict[bytes, Outbox] = {}
        self.tickets: dict[bytes, Lifeline] = {}
        self.lifelines: dict[bytes, Lifeline] = {}
        self.unsent_forks: list[tuple[int, _socket.socket]] = []
        self.operator_key = b""
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.renew_at = 0.0
        self.more_from_clients = False
        self.passing = passing.Passing()
        self._due: deque[registry.Event] = deque()

    # -- the loop ---------------------------------------------------------------

    def watch(
        self, fd: int, handler: Callable[[int], object], events: int = select.EPOLLIN
    ) -> None:
        """Call `handler(events)` when `fd` is ready."""
        self.handlers[fd] = handler
        self.epoll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stop watching `fd`, before it is closed."""
        self.flushing.discard(fd)
        if self.handlers.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def run(self) -> NoReturn:
        """Serve until the process is ended."""
        gc.freeze()
        gc.enable()
        while True:
            self._look_at_clients()
            self._handle(self.epoll.poll(self._finish_turn()))

    def _finish_turn(self) -> float:
        """Do what is due, and ask for workers; return for how many seconds to sleep."""
        wait = self._on_time()
        # To be told of a failure may have swallowed the news of a client's message.
        return wait if self._send_forks() else 0.0

    def _look_at_clients(self) -> None:
        """Take what clients sent, unless the roll is called: then it waits.

        Also without a wake-up: zmq's descriptor is edge-triggered, and a send may have
        swallowed the edge that announces the next message. And until somebody looks it
        stays readable, which would be a wake-up without end.
        """
        if self.rules.calling_roll:
            self.clients_say(EVENTS)
        else:
            self.take_from_clients()

    def _handle(self, ready: list[tuple[int, int]]) -> None:
        # What handles one of them may close another, and open a third by its number.
        meant = [(fd, self.handlers.get(fd), events) for fd, events in ready]
        for fd, handler, events in meant:
            if handler is not None and self.handlers.get(fd) is handler:
                handler(events)

    def _on_time(self) -> float:
        """Do what is due; return for how many seconds nothing else will be."""
        now = time.monotonic()
        if now >= self.renew_at:
            self.page.stamp(now)
            self.renew_at = now + lease.RENEWAL
        due, half = self.rules.next_deadline(), self.passing.next_deadline()
        late = (due is not None and due <= now) or (half is not None and half <= now)
        if late:
            self._catch_up()
            self.happen(registry.Tick())
            self._pass(self.passing.tick(now))
            due, half = self.rules.next_deadline(), self.passing.next_deadline()
        next_due = min(self.renew_at, due or self.renew_at, half or self.renew_at)
        flushed = False
        if self.outboxes:
            for peer in list(self.outboxes):
                self._flush(peer)
            flushed = not self.outboxes
            next_due = min(next_due, now + RETRY)
        # What was sent just now may have swallowed the news of a client's message.
        busy = self.more_from_clients or late or flushed
        return 0.0 if busy else max(0.0, next_due - now)

    def _catch_up(self) -> None:
        """Take what lies there before a time is over: it may have come in that time.

        A late look of this process, which may have stood still, is held against nobody
        else. While the roll is called one leg leads to others, which are looked at too.
        """
        while True:
            ready = self.epoll.poll(0)
            self._handle(ready)
            if not self.rules.calling_roll:
                return
            legs = {leg.fileno() for leg in self.legs.values()}
            if self.pool is not None:
                legs.add(self.pool.fileno())
            if legs.isdisjoint(fd for fd, _ in ready):
                return

    def happen(self, event: registry.Event) -> None:
        """Let the rules take an event, and carry out what they say."""
        self._due.append(event)
        if len(self._due) > 1:
            return  # carrying out an action made it happen: it is next
        while self._due:
            for action in self.rules.handle(self._due[0], time.monotonic()):
                self._carry_out(action)
            self._due.popleft()

    def _carry_out(self, action: registry.Action) -> None:
        match action:
            case registry.ToClient(peer, message):
                if self.passing.joined and message.kind in ANSWERS:
                    close_all(self.passing.take(peer, message.request))
                self._send(peer, message)
            case registry.ToWorker(worker, message):
                self._tell(worker, message)
            case registry.Fork(worker):
                self._fork(worker)
            case registry.Retire(worker):
                self._close_leg(worker)
            case registry.Condemn(worker):
                self._condemn(worker)

    # -- clients ----------------------------------------------------------------

    def take_from_clients(self) -> None:
        """Take what clients sent, a bounded number at a time."""
        for _turn in range(DRAIN):
            try:
                peer = self.receive()
            except zmq.Again:
                self.more_from_clients = False
                return
            frame = self.receive()
            more = self._receive_rest()
            if len(peer) != 5 or peer[0] != 0:
                continue  # a routing id of its own choice: it might be somebody's
            if more:
                fault = errors.ProtocolError("a message has one frame")
                self._refuse(peer, wire.salvage(frame), fault)
            else:
                self._from_client(peer, frame)
        self.more_from_clients = True

    def _receive_rest(self) -> bool:
        """Take what follows the one frame of a message; whatever does is refused."""
        more = False
        while self.clients_say(RCVMORE):
            more = True
            self.receive()
        return more

    def _from_client(self, peer: bytes, frame: bytes) -> None:
        head = wire.head(frame)
        worker = head and self.rules.worker_for(peer, head, time.monotonic())
        if head and worker:
            self._forward(worker, head, frame)
            return
        try:
            message = wire.decode(frame)
        except errors.ProtocolError as broken:
            self._refuse(peer, wire.salvage(frame), broken)
            return
        if message.kind is Kind.HELLO:
            self._hello(peer, message)
        elif message.kind is Kind.SPAWN and message.body["fds"] and self._knows(peer):
            self._pass(self.passing.spawn(peer, message, time.monotonic()))
        else:
            self.happen(registry.FromClient(peer, message))

    def _knows(self, peer: bytes) -> bool:
        """Return whether a client can send descriptors; else the rules refuse it."""
        return peer in self.lifelines

    def _pass(self, actions: list[passing.Action]) -> None:
        """Carry out what follows from a SPAWN with descriptors, or for want of one."""
        for action in actions:
            match action:
                case passing.Pass(peer, message):
                    self.happen(registry.FromClient(peer, message))
                case passing.Refuse(peer, message, error):
                    self._refuse(peer, message.request, error)
                case passing.Close(fds):
                    close_all(fds)

    def _refuse(self, peer: bytes, request: int, error: errors.EngineError) -> None:
        code, values = errors.encode(error)
        body = {"code": code, "values": values}
        self._send(peer, Message(Kind.ERROR, 0, request, body=body))

    def _hello(self, peer: bytes, message: Message) -> None:
        body = message.body
        line = self.tickets.pop(body["ticket"], None)
        if line is None:
            fault = errors.ProtocolError("the ticket is not one of lifeline.sock")
            self._refuse(peer, message.request, fault)
            return
        operator = body["operator"] is not None
        if operator and not hmac.compare_digest(body["operator"], self.operator_key):
            fault = errors.ProtocolError("the operator key is wrong")
            self._refuse(peer, message.request, fault)
            self._end_lifeline(line)
            return
        if peer in self.lifelines:
            self._end_lifeline(line)  # the rules refuse a second hello: the first stays
        else:
            line.peer = peer
            self.lifelines[peer] = line
        self.happen(
            registry.Hello(
                peer,
                body["owner"],
                operator,
                body["lease"],
                message.request,
                message.client,
                body["proof"],
            )
        )

    def _send(self, peer: bytes, message: Message) -> None:
        frame = wire.encode(message)
        if message.payload is not None:
            frame += message.payload
        self._send_frame(peer, message.kind, message.request, frame)

    def _send_frame(
        self, peer: bytes, kind: int, request: int, frame: wire.Payload
    ) -> None:
        outbox = self.outboxes.get(peer)
        if outbox is None:
            if self._offer(peer, frame):
                return
            outbox = self.outboxes[peer] = Outbox()
        lane = outbox.data if in_data_lane(kind, request) else outbox.control
        lane.append(bytes(frame))

    def _offer(self, peer: bytes, frame: wire.Payload) -> bool:
        """Hand a message to libzmq; False when this client's queue is full."""
        try:
            self.send(peer, MORE)
            self.send(frame, NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as gone:
            if gone.errno != zmq.EHOSTUNREACH:
                raise
        return True

    def _flush(self, peer: bytes) -> None:
        outbox = self.outboxes[peer]
        while outbox:
            queue = outbox.next()
            if not self._offer(peer, queue[0]):
                return
            queue.popleft()
        del self.outboxes[peer]

    # -- lifelines --------------------------------------------------------------

    def on_lifeline(self, listener: socket.socket) -> None:
        """Accept a client's lifeline and hand out its ticket."""
        try:
            sock, _ = listener.accept()
        except OSError:
            return  # it is gone again, or the system has no descriptor left
        if sock.fileno() >= self.files - LAST_FDS:
            sock.close()  # numbers are given lowest first: few are left
            return
        sock.setblocking(False)
        try:
            who = auth.peer_pidfd(sock)
        except ProcessLookupError:
            sock.close()
            return
        line = Lifeline(sock, who.pidfd)
        if who.uid != os.geteuid():
            line.close()
            return
        self.tickets[line.ticket] = line
        with suppress(OSError):  # gone already: its end is seen below
            sock.send(line.ticket)
        self.watch(sock.fileno(), lambda _: self._on_line(line))
        self.watch(who.pidfd, lambda _: self._end_lifeline(line))

    def _on_line(self, line: Lifeline) -> None:
        try:
            brought = line.receive()
        except BlockingIOError:
            return
        for request, fds in brought or ():
            self._take_fds(line.peer, request, fds)
        if brought is None:
            self._end_lifeline(line)
        elif line.peer is not None:
            self.happen(registry.LeaseRenewed(line.peer))

    def _take_fds(self, peer: bytes | None, request: int, fds: tuple[int, ...]) -> None:
        if peer is None or max(fds, default=0) >= self.files - LAST_FDS:
            close_all(fds)  # nobody yet, or few numbers are left
            fds = ()
        if peer is not None:
            now = time.monotonic()
            self._pass(self.passing.descriptors(peer, request, fds, now))

    def _end_lifeline(self, line: Lifeline) -> None:
        if line.sock.fileno() < 0:
            return
        self.unwatch(line.sock.fileno())
        self.unwatch(line.pidfd)
        line.close()
        self.tickets.pop(line.ticket, None)
        if line.peer is not None:
            self.lifelines.pop(line.peer, None)
            self.outboxes.pop(line.peer, None)
            self._pass(self.passing.gone(line.peer))
            self.happen(registry.ClientGone(line.peer))

    # -- workers ----------------------------------------------------------------

    def _fork(self, worker: int) -> None:
        try:
            ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        except OSError as error:
            self.happen(registry.WorkerGone(worker, error.errno or 0, proven=True))
            return
        leg = Leg(ours)
        self.legs[worker] = leg
        self.watch(leg.fileno(), lambda events: self._on_leg(worker, events))
        self.unsent_forks.append((worker, theirs))

    def _find(
        self, workers: list[int], fds: tuple[int, ...], *, last: bool, whole: bool
    ) -> None:
        """Take the legs to workers that had one to a lost broker."""
        for worker, fd in zip(workers, fds, strict=True):
            leg = Leg(_socket.socket(fileno=fd))
            self.legs[worker] = leg
            self.watch(leg.fileno(), partial(self._on_leg, worker))
        self.happen(registry.Found(workers, last, whole))

    def _send_forks(self) -> bool:
        """Ask the pool for all the workers that this turn found wanting.

        Those that it forks in one go share more memory: see `Pool`.

        Returns:
            False when it could not be asked: whoever wants one of them was told.
        """
        if self.pool is None or not self.unsent_forks:
            return True
        sent = True
        while lot := self.unsent_forks[:LOT]:
            del self.unsent_forks[:LOT]
            workers = [worker for worker, _ in lot]
            legs = tuple(theirs.fileno() for _, theirs in lot)
            try:
                self.pool.send(Message(Kind.FORK, body={"workers": workers}), fds=legs)
            except OSError as error:  # no room for more descriptors
                sent = False
                for worker in workers:
                    errno = error.errno or 0
                    self.happen(registry.WorkerGone(worker, errno, proven=True))
            for _, theirs in lot:
                theirs.close()
        self._watch_writes(self.pool)
        return sent

    def _condemn(self, worker: int) -> None:
        if self.pool is not None:
            self.pool.send(Message(Kind.CONDEMN, body={"worker": worker}))
            self._watch_writes(self.pool)

    def _tell(self, worker: int, message: Message) -> None:
        leg = self.legs.get(worker)
        if leg is None:
            return
        fds: tuple[int, ...] = ()
        if message.kind is Kind.START:
            peer = self.rules.peers.get(message.client, b"")
            fds = self.passing.take(peer, message.request)
        try:
            leg.send(message, urgent=message.kind not in BULK, fds=fds)
        except OSError as error:  # no room for more descriptors
            self.happen(registry.WorkerGone(worker, error.errno or 0, proven=True))
        close_all(fds)  # the worker has its own
        self._watch_writes(leg)

    def _forward(self, worker: int, head: wire.Head, frame: bytes) -> None:
        """Pass a client's frame on to a worker, unread."""
        leg = self.legs.get(worker)
        if leg is not None:
            leg.forward(frame, urgent=head.kind not in BULK)
            self._watch_writes(leg)

    def _watch_writes(self, leg: Leg) -> None:
        """Have the loop flush a leg as long as it has not taken everything."""
        fd = leg.fileno()
        if fd in self.handlers and (leg.queued > 0) is not (fd in self.flushing):
            self.flushing ^= {fd}
            events = select.EPOLLIN | (select.EPOLLOUT if leg.queued else 0)
            self.epoll.modify(fd, events)

    def _on_leg(self, worker: int, events: int) -> None:
        leg = self.legs.get(worker)
        if leg is None:
            return
        if events & select.EPOLLOUT:
            leg.flush()
            self._watch_writes(leg)
        if not events & ~select.EPOLLOUT:
            return
        try:
            for frame, fds in leg.frames():
                close_all(fds)  # no worker has any to give
                self._from_worker(worker, frame)
        except (LegClosed, errors.ProtocolError):
            # The pool tells when the worker is reaped and its orphans are gone; without
            # a leg it is of no use, and its own child may keep it from being reaped.
            self._close_leg(worker)
            self._condemn(worker)

    def _from_worker(self, worker: int, frame: memoryview) -> None:
        head = wire.head(frame)
        peer = head and self.rules.peer_for(worker, head)
        if head and peer:
            self._send_frame(peer, head.kind, head.request, frame)
        else:
            self.happen(registry.FromWorker(worker, message_in(frame)))

    def _close_leg(self, worker: int) -> None:
        leg = self.legs.pop(worker, None)
        if leg is not None:
            self.unwatch(leg.fileno())
            leg.close()

    # -- pool and supervisor ----------------------------------------------------

    def use_pool(self, sock: _socket.socket) -> None:
        """Take a pool that is up, or comes up."""
        self.pool = Leg(sock)
        self.watch(self.pool.fileno(), self._on_pool)
        self.happen(registry.PoolReady())

    def _on_pool(self, events: int) -> None:
        if self.pool is None:
            return
        if events & select.EPOLLOUT:
            self.pool.flush()
            self._watch_writes(self.pool)
        if not events & ~select.EPOLLOUT:
            return
        try:
            for message, fds in self.pool.receive():
                body = message.body
                if message.kind is Kind.WORKERS:
                    self._find(
                        body["workers"], fds, last=body["last"], whole=body["whole"]
                    )
                    continue
                gone = registry.WorkerGone(
                    body["worker"], body["errno"], body["proven"]
                )
                self.happen(gone)
        except LegClosed:
            self._lose_pool()

    def _lose_pool(self) -> None:
        """Stop using a dead pool; the supervisor tells when it is swept."""
        if self.pool is not None:
            self.unwatch(self.pool.fileno())
            self.pool.close()
            self.pool = None

    def on_supervisor(self, _: int) -> None:
        """Take word of a lost or a new pool; without a supervisor, end."""
        try:
            for message, fds in self.control.receive():
                if message.kind is Kind.POOL_GONE:
                    self._lose_pool()
                    for _, theirs in self.unsent_forks:
                        theirs.close()  # a START in it is answered now, so never run
                    self.unsent_forks.clear()
                    self.happen(registry.PoolGone(message.body["proven"]))
                elif message.kind is Kind.POOL:
                    self.use_pool(_socket.socket(fileno=fds[0]))
        except LegClosed:
            os._exit(0)


def open_socket(listener: socket.socket, path: bytes) -> Any:
    """Return the clients' ROUTER socket on an already listening descriptor."""
    clients = zmq.Context(io_threads=1).socket(zmq.ROUTER)
    clients.setsockopt(zmq.LINGER, 0)
    clients.setsockopt(zmq.ROUTER_MANDATORY, 1)
    clients.setsockopt(zmq.ROUTER_HANDOVER, 0)
    clients.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)
    clients.setsockopt(zmq.SNDHWM, QUEUE)
    clients.setsockopt(zmq.RCVHWM, QUEUE)
    clients.setsockopt(zmq.HANDSHAKE_IVL, 3000)
    clients.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
    # bind() would silently replace whatever lies at the path: the supervisor has bound.
    clients.setsockopt(zmq.USE_FD, listener.fileno())
    # A text has to be UTF-8; bytes need not, and are taken though not declared.
    clients.bind(b"ipc://" + path)  # type: ignore[arg-type]
    return clients


def run(
    *,
    control: _socket.socket,
    pool_leg: _socket.socket,
    listener: socket.socket,
    name: bytes,
    lifeline: socket.socket,
    directory: auth.RunDirectory,
    page: int,
    shared: bool,
    warm: int,
    containment: str,
    grace: float,
    secret: bytes,
    follows: bool,
    whole: bool,
) -> NoReturn:
    """Be the broker."""
    stamp = lease.Page(page)
    pool.raise_file_limit()
    rules = router.Router(
        int.from_bytes(os.urandom(7)) + 1,
        shared=shared,
        warm=warm,
        capacity=capacity.capacity(),
        containment=containment,
        grace=grace,
        numbers=stamp.numbers(),
        secret=secret,
    )
    listener.setblocking(False)
    clients = open_socket(listener, directory.path(name))
    server = Server(rules, clients, Leg(control), stamp)
    server.operator_key = directory.operator_key()
    lifeline.setblocking(False)
    server.watch(clients.getsockopt(zmq.FD), lambda _: None)  # the loop looks anyway
    server.watch(lifeline.fileno(), lambda _: server.on_lifeline(lifeline))
    server.watch(server.control.fileno(), server.on_supervisor)
    if follows:
        server.happen(registry.CallRoll(time.monotonic() + grace, whole))
    server.use_pool(pool_leg)
    server.control.send(Message(Kind.POOL))
    server.run()
