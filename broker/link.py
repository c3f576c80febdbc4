"""The client leg: lifeline, hello, requests and streams over ZeroMQ, on asyncio.

A link belongs to the event loop that opened it. Its DEALER socket is read with
`add_reader` on ZMQ_FD and a bounded drain (303 us a round trip against 362 us with
`zmq.asyncio`, and 1.7 times its messages per second). ZMQ_FD announces a change once:
after every send, and before the first wait, the socket has to be looked at again.

Nothing here waits for a slow consumer: whatever arrives is handed to the future or the
listener it is for, so that an answer is never stuck behind output nobody takes.
"""

import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import zmq
from zmq.backend import Socket as Calls  # sugar's send takes three times as long

from broker import auth, errors, lease, passing, wire
from broker.wire import Kind, Message

DRAIN: Final = 256
"""Messages taken in one turn of the event loop."""
QUEUE: Final = 1000
"""Messages libzmq holds per direction; more wait in this process."""
RETRY: Final = 0.002
"""Seconds until a full queue is tried again."""
HELLO_TIMEOUT: Final = 10.0
TICKET: Final = 16
_NOBLOCK: Final = int(zmq.NOBLOCK)

Listener = Callable[[Message], None]
Waiting = tuple["asyncio.Future[Message]", Listener | None]


class Link:
    """A connection to a broker.

    Args:
        endpoint: `ipc://PATH`.
        on_push: called with every message that answers no request, in the loop.
        on_lost: called once, in the loop, when the broker is gone.
    """

    def __init__(
        self, endpoint: str, on_push: Listener, on_lost: Callable[[], None]
    ) -> None:
        path = auth.endpoint_path(endpoint)
        self.endpoint = endpoint
        self.loop = asyncio.get_running_loop()
        self.client = 0
        self.epoch = 0
        self.lost: errors.EngineError | None = None
        self._directory = auth.RunDirectory.open(os.path.dirname(path))
        self._name = os.path.basename(path)
        self._on_push = on_push
        self._on_lost = on_lost
        self._last = 0
        self._waiting: dict[int, Waiting] = {}
        self._listeners: dict[int, Listener] = {}
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
        self._fd = -1
        self._renewer: threading.Thread | None = None
        self._stop_renewing = threading.Event()

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
        key = self._directory.operator_key() if operator else None
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                ticket = await self._take_ticket()
                self._connect()
                body = {
                    "ticket": ticket,
                    "owner": owner,
                    "operator": key,
                    "lease": lease,
                }
                welcome = await self.ask(Kind.HELLO, body=body)
        except (OSError, TimeoutError) as error:
            self.close()
            # A timeout has no words of its own.
            why = getattr(error, "strerror", None) or str(error) or "no answer in time"
            raise errors.BrokerLost(f"no broker at {self.endpoint}: {why}") from error
        except BaseException:
            self.close()
            raise
        self.client, self.epoch = welcome.client, welcome.epoch
        if lease:
            self._renew_every(renewal)

    async def _take_ticket(self) -> bytes:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.setblocking(False)
        self._line = line
        await self.loop.sock_connect(line, self._directory.path(auth.LIFELINE_SOCKET))
        ticket = await self.loop.sock_recv(line, TICKET)
        if len(ticket) != TICKET:
            raise ConnectionResetError("the broker closed the lifeline")
        self.loop.add_reader(line, self._on_line)
        return ticket

    def _connect(self) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, QUEUE)
        self._socket.setsockopt(zmq.RCVHWM, QUEUE)
        self._socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_FRAME)
        self._send = partial(Calls.send, self._socket)
        self._receive = partial(Calls.recv, self._socket)
        path = self._directory.path(self._name)
        self._socket.connect("ipc://" + os.fsdecode(path))
        self._fd = int(self._socket.getsockopt(zmq.FD))
        self.loop.add_reader(self._fd, self._drain)
        self._look_soon()

    def _renew_every(self, renewal: float) -> None:
        """Show life from a thread.

        So it stops when the program is stopped, but not when its loop is busy.
        """
        line = self._line

        def renew() -> None:
            while line is not None and not self._stop_renewing.wait(renewal):
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
            self.fail(errors.BrokerLost())

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
        self._stop_renewing.set()
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        if self._line is not None:
            self.loop.remove_reader(self._line)
            self._line.close()
            self._line = None
        if self._context is not None:
            self.loop.remove_reader(self._fd)
            self._socket.close()
            self._context.term()
            self._context = None
        self._directory.close()
        waiting, self._waiting = self._waiting, {}
        for future, _ in waiting.values():
            if not future.done():
                future.set_exception(self.lost)
                future.exception()  # whoever waits sees it; nobody else must be told
        listeners, self._listeners = self._listeners, {}
        code, values = errors.encode(self.lost)
        end = Message(Kind.ERROR, body={"code": code, "values": values})
        for listener in listeners.values():
            listener(end)

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
        message = Message(
            kind, self.client, request, session, self.epoch, 0.0, body or {}, payload
        )
        frame = wire.encode(message)
        if payload is not None:
            frame += payload
        if self._unsent or not self._offer(frame):
            self._unsent.append(frame)
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
    ) -> "asyncio.Future[Message]":
        """Send a command and return the future of its answer.

        The future fails with the error of the answer, or with `BrokerLost`. Cancelling
        it forgets the answer; the command goes on. `first` is called with a good
        answer before any later message is looked at; who awaits the future is too late.
        """
        request = request or self.number()
        future: asyncio.Future[Message] = self.loop.create_future()
        self._waiting[request] = future, first
        self._watch()
        try:
            self.post(kind, session, request, body, payload)
        except BaseException:
            del self._waiting[request]
            raise
        return future

    def wait_again(self, request: int) -> "asyncio.Future[Message] | None":
        """Return a new future of an answer whose own was cancelled; None: it came."""
        if request not in self._waiting:
            return None
        future: asyncio.Future[Message] = self.loop.create_future()
        self._waiting[request] = future, None
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
            self.post(Kind.STOP, session, 0, {"target": request})

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
        if now - self._due > lease.RENEWAL:
            self._heard = now  # it was this program that stood still
        elif now - self._heard > lease.DURATION:
            self.fail(errors.BrokerLost("the broker does not answer"))
            return
        if now - self._heard >= lease.RENEWAL and self.client:
            self.post(Kind.INFO, 0, self.number())
        self._next_pulse(now)

    def listen(self, request: int, listener: Listener) -> None:
        """Have `listener` called with every message of this number."""
        self._listeners[request] = listener
        self._watch()

    def unlisten(self, request: int) -> None:
        """Forget a listener; harmless to repeat."""
        self._listeners.pop(request, None)

    def drop(self, session: int) -> None:
        """Give a session up: its tree is killed and it is forgotten."""
        self.post(Kind.DROP, body={"sessions": [session], "tokens": []})

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

    def _take(self, frame: bytes) -> None:
        self._heard = self.loop.time()
        try:
            message = wire.decode(memoryview(frame))
        except errors.ProtocolError as broken:
            self.fail(broken)
            return
        waiting = self._waiting.pop(message.request, None)
        listener = self._listeners.get(message.request)
        if waiting is not None:
            _settle(*waiting, message)
        elif listener is not None:
            listener(message)
        elif message.request == 0:
            self._on_push(message)


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
