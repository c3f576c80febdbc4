"""The client leg: lifeline, hello, requests and streams over ZeroMQ, on asyncio.

A link belongs to the event loop that opened it. Its DEALER socket is read with
`add_reader` on ZMQ_FD and a bounded drain (303 us a round trip against 362 us with
`zmq.asyncio`, and 1.7 times its messages per second). ZMQ_FD announces a change once:
after every send, and before the first wait, the socket has to be looked at again.

Nothing here waits for a slow consumer: whatever arrives is handed to the future or the
listener it is for, so that an answer is never stuck behind output nobody takes.

A broker that is lost may be replaced: the WELCOME says within what *grace*. Without one
the loss is the end. With one::

    joined ──the lifeline ends──▶ adrift ──a WELCOME──▶ joined
                                    └──the grace is over, or refused──▶ lost

While a link is adrift what is asked of it waits, what needs no answer is left out.
Joined again it says what it knows (`on_back`), then where its listeners are (`again`),
then asks once more what was not answered, under the same numbers.
"""

import asyncio
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import zmq
from zmq.backend import Socket as Calls  # sugar's send takes three times as long

from broker import auth, errors, lease, passing, wire
from broker.wire import Kind, Message

DRAIN: Final = 256
"""Messages taken in one turn of the event loop."""
QUEUE: Final = 1000
"""Messages libzmq holds per direction; more wait in this process."""
RETRY: Final = 0.002
"""Seconds until a full queue is tried again, ours or the broker's."""
HELLO_TIMEOUT: Final = 10.0
"""Seconds that a client waits for its ticket and its welcome."""
ROUNDS: Final = 5
"""Rounds that such a wait is made of: see `in_time`."""
TICKET: Final = 16
_NOBLOCK: Final = int(zmq.NOBLOCK)
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)

T = TypeVar("T")
Listener = Callable[[Message], None]
Again = Callable[[], None]


class Asked(NamedTuple):
    """A request without an answer, and all that it takes to ask it again."""

    future: "asyncio.Future[Message]"
    first: Listener | None
    kind: Kind
    session: int
    body: Mapping[str, Any] | None
    payload: wire.Payload | None
    fds: Sequence[int]
    sent: bool
    since: float

    def again(self) -> Mapping[str, Any] | None:
        """Return the body with which to ask again, in what is left of its time.

        A SPAWN may have started already.
        """
        passed = self.future.get_loop().time() - self.since
        body = dict(self.body or {})
        for name in _PATIENCE:
            if body.get(name) is not None:
                body[name] = max(0.0, body[name] - passed)
        if self.kind is Kind.SPAWN and self.sent:
            body["again"] = True
        return body


_PATIENCE: Final = ("wait", "queue")
"""Seconds in the body of a request, for which it waits at most."""


class Link:
    """A connection to a broker.

    Args:
        endpoint: `ipc://PATH`.
        on_push: called with every message that answers no request, in the loop.
        on_lost: called once, in the loop, when the broker is gone.
        on_back: called in the loop when another broker has taken its place.

    Attributes:
        grace: seconds that it takes to replace a lost broker at most; 0: none is.
    """

    def __init__(
        self,
        endpoint: str,
        on_push: Listener,
        on_lost: Callable[[], None],
        on_back: Again = lambda: None,
    ) -> None:
        path = auth.endpoint_path(endpoint)
        self.endpoint = endpoint
        self.loop = asyncio.get_running_loop()
        self.client = 0
        self.epoch = 0
        self.grace = 0.0
        self.lost: errors.EngineError | None = None
        self._hello: dict[str, Any] = {}
        self._proof: bytes | None = None
        self._renewal = 0.0
        self._adrift = False
        self._rejoining: asyncio.Task[None] | None = None
        self._directory = auth.RunDirectory.open(os.path.dirname(path))
        self._name = os.path.basename(path)
        self._on_push = on_push
        self._on_lost = on_lost
        self._on_back = on_back
        self._last = 0
        self._waiting: dict[int, Asked] = {}
        self._listeners: dict[int, tuple[Listener, Again]] = {}
        self._unsent: deque[bytes] = deque()
        self._looking = False
        self._expected = 0
        self._heard = 0.0
        self._due = 0.0
        self._pulse: asyncio.TimerHandle | None = None
        self._line: socket.socket | None = None
        self._context: zmq.Context[Any] | None = None
        self._socket: zmq.Socket[Any]
        self._send: Callable[[bytes, int], object]
        self._receive: Callable[[int], bytes]
        self._events: Callable[[int], Any]
        self._fd = -1
        self._renewer: threading.Thread | None = None
        self._stop_renewing = threading.Event()
        self._finalizer: weakref.finalize[..., Link] | None = None

    # -- opening and closing ----------------------------------------------------

    async def open(
        self, owner: bytes, *, operator: bool = False, lease: float, renewal: float
    ) -> None:
        """Say hello.

        Args:
            owner: the key under which sessions are made and found.
            operator: whether to present the operator key of the runtime directory.
            lease: seconds after which a client that shows no life is dropped; 0: never.
            renewal: seconds between two signs of life.

        Raises:
            BrokerLost: nobody answers.
            ProtocolError: the broker refuses this client.
        """
        self._renewal = renewal
        try:
            key = self._directory.operator_key() if operator else None
            self._hello = {"owner": owner, "operator": key, "lease": lease}
            await in_time(self._join(), HELLO_TIMEOUT)
        except (OSError, TimeoutError, zmq.ZMQError) as error:
            self.close()
            # A timeout has no words of its own.
            why = getattr(error, "strerror", None) or str(error) or "no answer in time"
            raise errors.BrokerLost(f"no broker at {self.endpoint}: {why}") from error
        except BaseException:
            self.close()
            raise

    async def _join(self) -> None:
        await self._greet(await self._take_ticket())

    async def _greet(self, ticket: bytes) -> None:
        """Say hello, and take the welcome."""
        if self._line is None:  # lost since it gave its ticket
            raise ConnectionResetError("the broker closed the lifeline")
        self._connect()
        body = {**self._hello, "ticket": ticket, "proof": self._proof}
        request = self.number()
        asked = self._expect_answer(request, Kind.HELLO, body=body)
        self._put(Kind.HELLO, 0, request, body)
        welcome = await asked
        self.client, self.epoch = welcome.client, welcome.epoch
        self.grace, self._proof = welcome.body["grace"], welcome.body["proof"]
        if self._hello["lease"]:
            self._renew_every(self._renewal)

    async def _take_ticket(self) -> bytes:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.setblocking(False)
        self._line = line
        while not self._queued(line):  # noqa: ASYNC110 - nobody is told of room
            await asyncio.sleep(RETRY)
        ticket = await self.loop.sock_recv(line, TICKET)
        if len(ticket) != TICKET:
            raise ConnectionResetError("the broker closed the lifeline")
        self.loop.add_reader(line, self._on_line)
        return ticket

    def _queued(self, line: socket.socket) -> bool:
        """Connect a lifeline; return False if too many wait to be accepted.

        asyncio would take that for a connection on its way, and a socket without one
        for connected.
        """
        try:
            line.connect(self._directory.path(auth.LIFELINE_SOCKET))
        except BlockingIOError:
            return False
        return True

    def _connect(self) -> None:
        path = self._directory.path(self._name)
        os.stat(path)  # for one that is not there ZeroMQ would wait
        context = zmq.Context(io_threads=1)
        try:
            self._socket = context.socket(zmq.DEALER)
        except zmq.ZMQError:
            context.term()
            raise
        self._context = context
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE)
        self._socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        self._send = partial(Calls.send, self._socket)
        self._receive = partial(Calls.recv, self._socket)
        self._events = partial(Calls.get, self._socket)
        # A text has to be UTF-8; bytes need not, and are taken though not declared.
        self._socket.connect(b"ipc://" + path)  # type: ignore[arg-type]
        self.loop.add_reader(self._fd, self._drain)
        self._look_soon()
        self._stop_renewing = threading.Event()
        self._finalizer = weakref.finalize(
            self, _abandoned, self._line, self._stop_renewing, self._socket
        )
        self._finalizer.atexit = False

    def _renew_every(self, renewal: float) -> None:
        """Show life from a thread.

        So it stops when the program is stopped, but not when its loop is busy.
        """
        line, stop = self._line, self._stop_renewing

        def renew() -> None:
            while line is not None and not stop.wait(renewal):
                with suppress(OSError):  # closed meanwhile: the thread ends next round
                    line.send(b".")

        self._renewer = threading.Thread(target=renew, name="creche-lease", daemon=True)
        self._renewer.start()

    def _on_line(self) -> None:
        if self._line is None:
            return
        try:
            data = self._line.recv(64)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._lose()

    # -- another broker ---------------------------------------------------------

    def _lose(self) -> None:
        """Wait for another broker if one may come; else this is the end."""
        if not self.grace:
            self.fail(errors.BrokerLost())
            return
        self._disconnect()
        if self._adrift:  # the next one is lost as well, before its welcome
            for request, asked in list(self._waiting.items()):
                if asked.kind is Kind.HELLO:
                    del self._waiting[request]
                    asked.future.set_exception(ConnectionResetError())
            return
        self._adrift = True
        if self._rejoining is not None:
            self._rejoining.cancel()  # it may not have asked for everything again yet
        self._rejoining = self.loop.create_task(self._rejoin())

    async def _rejoin(self) -> None:
        """Join another broker within the grace, or fail."""
        ends = self.loop.time() + self.grace
        while self._adrift:
            try:
                ticket = await in_time(self._take_ticket(), ends - self.loop.time())
                # From here on it is only the other workers that it waits for.
                await in_time(self._greet(ticket), self.grace + HELLO_TIMEOUT)
            except ConnectionResetError:
                self._disconnect()
                await asyncio.sleep(RETRY)
            except (OSError, TimeoutError, zmq.ZMQError, errors.EngineError) as error:
                why = getattr(error, "strerror", None) or str(error) or "none came"
                lost = f"the broker is lost, and no other took its place: {why}"
                self.fail(errors.BrokerLost(lost))
                return
            else:  # it may be lost already; that is the beginning of another grace
                self._adrift = self._line is None
                ends = self.loop.time() + self.grace
        await self._come_back()

    async def _come_back(self) -> None:
        """Tell another broker what this client knows, and ask again."""
        self._heard = self.loop.time()
        self._on_back()
        for _, again in list(self._listeners.values()):
            again()
        late = [request for request in list(self._waiting) if not self._repeat(request)]
        for request in late:
            while not self._repeat(request):
                with self.expecting():  # of a broker that hangs, the end
                    await asyncio.sleep(RETRY)

    def _repeat(self, request: int) -> bool:
        """Ask once more what has no answer; False: its descriptors find no room yet."""
        asked = self._waiting.get(request)
        if asked is None:  # it was taken back
            return True
        if asked.future.done():  # nobody waits for it any more
            del self._waiting[request]
            return True
        try:
            if asked.fds and not self._offer_fds(request, asked.fds):
                return False
            self.post(asked.kind, asked.session, request, asked.again(), asked.payload)
            self._waiting[request] = asked._replace(sent=True)
        except OSError as error:  # what was to be passed is closed
            del self._waiting[request]
            failed = errors.SpawnFailed(error.errno or 0, "pipe")
            asked.future.set_exception(failed)
        return True

    def fail(self, error: errors.EngineError) -> None:
        """Answer everything that waits with `error`, and refuse what comes."""
        if self.lost is not None:
            return
        self.lost = error
        self.close()
        self._on_lost()

    def close(self) -> None:
        """Close the connection: the broker drops this client. Harmless to repeat."""
        if self.lost is None:
            self.lost = errors.BrokerLost("the engine is closed")
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        self._disconnect()
        self._directory.close()
        waiting, self._waiting = self._waiting, {}
        for asked in waiting.values():
            if not asked.future.done():
                asked.future.set_exception(self.lost)
                asked.future.exception()  # who waits sees it; nobody else must be told
        listeners, self._listeners = self._listeners, {}
        code, values = errors.encode(self.lost)
        end = Message(Kind.ERROR, body={"code": code, "values": values})
        for listener, _ in listeners.values():
            listener(end)
        if self._rejoining is not None:
            self._rejoining.cancel()  # which may be what calls this: then it ends now

    def _disconnect(self) -> None:
        """Let go of the connection; harmless to repeat."""
        self._stop_renewing.set()
        if self._line is not None:
            self.loop.remove_reader(self._line)
            self._line.close()
            self._line = None
        if self._context is not None:
            self.loop.remove_reader(self._fd)
            self._socket.close()
            self._context.term()
            self._context = None
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None
        self._unsent.clear()

    # -- sending ----------------------------------------------------------------

    def number(self) -> int:
        """Return a fresh request number."""
        self._last += 1
        return self._last

    def post(
        self,
        kind: Kind,
        session: int = 0,
        request: int = 0,
        body: Mapping[str, Any] | None = None,
        payload: wire.Payload | None = None,
    ) -> None:
        """Send a message; with a `request` number its answer is the caller's matter.

        Raises:
            BrokerLost: the broker is gone.
        """
        if self.lost is not None:
            raise self.lost
        if not self._adrift:
            self._put(kind, session, request, body, payload)

    def tell(
        self, kind: Kind, session: int = 0, body: Mapping[str, Any] | None = None
    ) -> None:
        """Send a command that nobody waits for, but that is not to be lost.

        Raises:
            BrokerLost: the broker is gone.
        """
        if self.grace:
            self.ask(kind, session, body).add_done_callback(ignored)
        else:
            self.post(kind, session, 0, body)

    def _put(
        self,
        kind: Kind,
        session: int,
        request: int,
        body: Mapping[str, Any] | None,
        payload: wire.Payload | None = None,
    ) -> None:
        message = Message(
            kind, self.client, request, session, self.epoch, 0.0, body or {}, payload
        )
        frame = wire.encode(message)
        if payload is not None:
            frame += payload
        if self._unsent or not self._offer(frame):
            self._unsent.append(frame)
        # To ask takes 1.4 us; to look without need 3.2, and a turn of the loop.
        if self._unsent or self._events(_EVENTS) & _POLLIN:
            self._look_soon()

    def ask(
        self,
        kind: Kind,
        session: int = 0,
        body: Mapping[str, Any] | None = None,
        payload: wire.Payload | None = None,
        *,
        request: int = 0,
        first: Listener | None = None,
        fds: Sequence[int] = (),
    ) -> "asyncio.Future[Message]":
        """Send a command and return the future of its answer.

        The future fails with the error of the answer, or with `BrokerLost`. Cancelling
        it forgets the answer; the command goes on. `first` is called with a good
        answer before any later message is looked at; who awaits the future is too late.
        `fds` went ahead by `pass_fds`: where it is asked again, they go again.
        """
        request = request or self.number()
        future = self._expect_answer(
            request, kind, session, body, payload, first=first, fds=fds
        )
        try:
            self.post(kind, session, request, body, payload)
        except BaseException:
            del self._waiting[request]
            raise
        return future

    def _expect_answer(
        self,
        request: int,
        kind: Kind,
        session: int = 0,
        body: Mapping[str, Any] | None = None,
        payload: wire.Payload | None = None,
        *,
        first: Listener | None = None,
        fds: Sequence[int] = (),
    ) -> "asyncio.Future[Message]":
        future: asyncio.Future[Message] = self.loop.create_future()
        self._waiting[request] = Asked(
            future,
            first,
            kind,
            session,
            body,
            payload,
            fds,
            sent=not self._adrift,
            since=self.loop.time(),
        )
        self._watch()
        return future

    def asked(self, kind: Kind) -> list[Asked]:
        """Return the requests of a kind that wait for their answer."""
        return [asked for asked in self._waiting.values() if asked.kind is kind]

    def wait_again(self, request: int) -> "asyncio.Future[Message] | None":
        """Return a new future of an answer whose own was cancelled; None: it came."""
        asked = self._waiting.get(request)
        if asked is None:
            return None
        future: asyncio.Future[Message] = self.loop.create_future()
        self._waiting[request] = asked._replace(future=future, first=None)
        return future

    async def pass_fds(self, request: int, fds: Sequence[int]) -> None:
        """Send descriptors ahead of the SPAWN of that number, which has to follow.

        They stay the caller's. Returns at once unless the broker is busy.

        Raises:
            OSError: one is not open, or the system takes no more of them.
            BrokerLost: the broker is gone.
        """
        while not self._offer_fds(request, fds):
            with self.expecting():  # of a broker that hangs, the end
                await asyncio.sleep(RETRY)

    def _offer_fds(self, request: int, fds: Sequence[int]) -> bool:
        if self._adrift:
            return True  # they go with what is asked again
        if self._line is None:
            raise self.lost or errors.BrokerLost()
        frame = passing.frame(request, len(fds))
        try:
            # Ten bytes go in one piece: the renewing thread cannot part them.
            socket.send_fds(self._line, [frame], list(fds), socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True  # the end of the lifeline tells it, and answers the SPAWN
        return True

    def take_back(self, session: int, request: int) -> None:
        """Have a request or a stream stopped, which is then never answered."""
        self._waiting.pop(request, None)
        if self.lost is None:
            self.tell(Kind.STOP, session, {"target": request})

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Watch the broker while the caller waits for a push."""
        self._expected += 1
        self._watch()
        try:
            yield
        finally:
            self._expected -= 1

    # A broker that hangs closes no lifeline. While anybody waits, a silent one is asked
    # for a sign of life; its workers give it up after the same time.

    def _watch(self) -> None:
        if self._pulse is None and self.lost is None:
            now = self.loop.time()
            self._heard = max(self._heard, now - lease.RENEWAL)
            self._next_pulse(now)

    def _next_pulse(self, now: float) -> None:
        self._due = now + lease.RENEWAL
        self._pulse = self.loop.call_at(self._due, self._feel_pulse)

    def _feel_pulse(self) -> None:
        self._pulse = None
        now = self.loop.time()
        if self.lost is not None or not (
            self._waiting or self._listeners or self._expected
        ):
            return
        if self._adrift or now - self._due > lease.RENEWAL:
            self._heard = (
                now  # it was this program that stood still, or nobody is there
            )
        elif now - self._heard > lease.DURATION:
            self.fail(errors.BrokerLost("the broker does not answer"))
            return
        if now - self._heard >= lease.RENEWAL and self.client:
            self.post(Kind.INFO, 0, self.number())
        self._next_pulse(now)

    def listen(
        self, request: int, listener: Listener, again: Again = lambda: None
    ) -> None:
        """Have `listener` called with every message of this number.

        `again` is called when another broker is there, which knows nothing of it.
        """
        self._listeners[request] = listener, again
        self._watch()

    def unlisten(self, request: int) -> None:
        """Forget a listener; harmless to repeat."""
        self._listeners.pop(request, None)

    def drop(self, session: int) -> None:
        """Give a session up: its tree is killed and it is forgotten."""
        self.tell(Kind.DROP, body={"sessions": [session], "tokens": []})

    def call(self, action: Callable[[], None]) -> None:
        """Run `action` in the loop soon; from any thread, and from finalizers.

        A closed loop runs nothing any more: then the lifeline's end drops everything.
        """
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(action)

    def _offer(self, frame: bytes) -> bool:
        try:
            self._send(frame, _NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _flush(self) -> None:
        while self._unsent and self._offer(self._unsent[0]):
            self._unsent.popleft()

    # -- receiving --------------------------------------------------------------

    def _look_soon(self) -> None:
        if not self._looking:
            self._looking = True
            self.loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        self._drain()

    def _drain(self) -> None:
        for _ in range(DRAIN):
            if self._context is None:
                return
            try:
                frame = self._receive(_NOBLOCK)
            except zmq.Again:
                break
            self._take(frame)
        else:
            self._look_soon()
        if self._unsent and self._context is not None:
            self._flush()
            if self._unsent:
                self.loop.call_later(RETRY, self._look_soon)
            elif self._events(_EVENTS) & _POLLIN:  # as after any send
                self._look_soon()

    def _take(self, frame: bytes) -> None:
        self._heard = self.loop.time()
        try:
            message = wire.decode(memoryview(frame))
        except errors.ProtocolError as broken:
            self.fail(broken)
            return
        asked = self._waiting.pop(message.request, None)
        listening = self._listeners.get(message.request)
        if asked is not None:
            _settle(asked.future, asked.first, message)
        elif listening is not None:
            listening[0](message)
        elif message.request == 0:
            self._on_push(message)


async def in_time(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return what `work` does, unless that takes longer than this.

    Time in which this process stood still is no time that it waited: an answer may be
    there as it goes on, when it is too late as well. So the wait is made of rounds, and
    one that is over late is one all the same. Seen where 1500 processes wanted two
    processors: after 4 s the answer lay there, unread.

    Raises:
        TimeoutError: it does; it is cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(ROUNDS):
            if (await asyncio.wait({task}, timeout=seconds / ROUNDS))[0]:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _abandoned(
    line: socket.socket | None, stop: threading.Event, requests: "zmq.Socket[Any]"
) -> None:
    """Let go of what nothing can reach any more: its loop was closed before it.

    Collected with its socket, a ZeroMQ context would wait for that for ever.
    """
    stop.set()
    if line is not None:
        line.close()
    requests.close()


def _settle(
    future: "asyncio.Future[Message]", first: Listener | None, message: Message
) -> None:
    if future.done():
        return
    if message.kind is Kind.ERROR:
        future.set_exception(error_of(message))
        return
    if first is not None:
        first(message)
    future.set_result(message)


def ignored(future: "asyncio.Future[Any]") -> None:
    """Let a failure go unseen: whoever waited for it has heard enough."""
    if not future.cancelled():
        future.exception()


def error_of(message: Message) -> errors.EngineError:
    """Return the exception in an ERROR message."""
    return errors.decode(message.body["code"], message.body["values"])
