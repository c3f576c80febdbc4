"""The broker's loop, held by hand: what it looks at, and what it passes on."""

import errno
import os
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import zmq

from broker import lease
from broker.pipe import Leg
from broker.registry import CallRoll, Capacity, PoolReady
from broker.router import Router
from broker.server import RETRY, Outbox, Server
from broker.wire import Kind, Message

pytestmark = pytest.mark.live


@contextmanager
def pool_of(server: Server) -> Iterator[Leg]:
    """Give a server a pool for a block: return its end of the leg."""
    ours, theirs = socket.socketpair()
    pool = Leg(ours)
    server.use_pool(theirs)
    try:
        yield pool
    finally:
        for leg in (pool, server.pool, *server.legs.values()):
            assert leg is not None
            leg.close()


@contextmanager
def holding(rules: Router, clients: Any = None) -> Iterator[Server]:
    """A server for a block, with no clients unless told, whose loop does not run."""
    control, page = socket.socketpair(), lease.create()
    server = Server(rules, clients, Leg(control[0]), lease.Page(page))
    try:
        yield server
    finally:
        server.epoll.close()
        server.control.close()
        server.page._map.close()  # whoever keeps the server would keep it
        control[1].close()
        os.close(page)


def test_a_broker_that_stood_still_hears_the_workers_that_spoke_meanwhile() -> None:
    rules = Router(1, shared=True, warm=0, capacity=Capacity(9, "files"), grace=1.0)
    with holding(rules) as server:
        server.happen(CallRoll(time.monotonic() - 1.0, True))
        with pool_of(server) as pool, ExitStack() as workers:
            for number in (1, 2):
                ours, theirs = socket.socketpair()
                worker = workers.enter_context(closing(Leg(ours)))
                worker.send(Message(Kind.IDLE, body={"stamps": []}))
                body = {"workers": [number], "last": False, "whole": True}
                pool.send(Message(Kind.WORKERS, body=body), fds=(theirs.fileno(),))
                theirs.close()
            last = {"workers": [], "last": True, "whole": True}
            pool.send(Message(Kind.WORKERS, body=last))
            assert server._on_time() == 0.0  # it has sent: clients are looked at again
            assert server._on_time() > 0.0
            assert not rules.calling_roll
            assert rules.idle == [1, 2]
            assert not rules.doubt


@contextmanager
def supervisor_of(server: Server) -> Iterator[Leg]:
    """Give a server another supervisor for a block: return its end of the leg."""
    ours, theirs = socket.socketpair()
    server.control.close()
    server.control = Leg(theirs)
    supervisor = Leg(ours)
    try:
        yield supervisor
    finally:
        supervisor.close()


def test_what_was_lost_with_a_pool_is_not_forked_by_the_next_one() -> None:
    rules = Router(1, shared=True, warm=1, capacity=Capacity(9, "files"))
    with holding(rules) as server, supervisor_of(server) as supervisor:
        server.happen(PoolReady())  # it wants a worker while there is no pool
        assert rules.idle == [1]
        supervisor.send(Message(Kind.POOL_GONE, body={"proven": True}))
        server.on_supervisor(select.EPOLLIN)
        assert rules.idle == []
        with pool_of(server) as pool:
            server._send_forks()
            [(fork, legs)] = pool.receive()
            for leg in legs:
                os.close(leg)
            assert fork.body == {"workers": [2]}


def test_what_is_told_of_a_closed_descriptor_is_not_meant_for_its_successor() -> None:
    rules = Router(1, shared=True, warm=0, capacity=Capacity(9, "files"))
    ours, theirs = socket.socketpair()
    heard: list[str] = []
    with holding(rules) as server, ours, theirs:

        def follow(_: int) -> None:
            server.unwatch(theirs.fileno())
            server.watch(theirs.fileno(), lambda _: heard.append("the next"))

        server.watch(ours.fileno(), follow)
        server.watch(theirs.fileno(), lambda _: heard.append("the closed one"))
        events = [(end.fileno(), select.EPOLLIN) for end in (ours, theirs)]
        server._handle(events)
        assert heard == []
        server._handle(events[1:])
        assert heard == ["the next"]


def test_a_client_that_waits_for_the_roll_call_wakes_nobody_up_without_end() -> None:
    rules = Router(1, shared=True, warm=0, capacity=Capacity(9, "files"), grace=1.0)
    with ExitStack() as stack:
        context = zmq.Context(io_threads=1)
        stack.callback(context.term)
        clients = stack.enter_context(closing(context.socket(zmq.ROUTER)))
        client = stack.enter_context(closing(context.socket(zmq.DEALER)))
        clients.bind("inproc://clients")
        client.connect("inproc://clients")
        server = stack.enter_context(holding(rules, clients))
        server.happen(CallRoll(time.monotonic() + 1.0, True))
        server.watch(int(clients.getsockopt(zmq.FD)), lambda _: None)
        client.send(b"hello")
        assert server.epoll.poll(0)
        server._look_at_clients()
        assert not server.epoll.poll(0)
        assert clients.recv_multipart(zmq.NOBLOCK)[1] == b"hello"


def test_clients_are_looked_at_again_once_a_backlog_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise zmq.Again

    rules = Router(1, shared=True, warm=0, capacity=Capacity(9, "files"))
    with holding(rules) as server:
        assert server._on_time() > RETRY
        server.outboxes[b"client"] = Outbox()
        server.outboxes[b"client"].control.append(b"message")
        monkeypatch.setattr(server, "send", refuse)
        assert server._on_time() == pytest.approx(RETRY)
        monkeypatch.setattr(server, "send", lambda *_: None)
        assert server._on_time() == 0.0
        assert server._on_time() > RETRY


def test_workers_that_the_pool_cannot_be_asked_for_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ETOOMANYREFS, "too many references")

    rules = Router(1, shared=True, warm=2, capacity=Capacity(9, "files"))
    with holding(rules) as server, pool_of(server):
        unsent = [theirs for _, theirs in server.unsent_forks]
        assert (rules.idle, len(unsent)) == ([1, 2], 2)
        monkeypatch.setattr(Leg, "send", refuse)
        # Whoever wants one was told: clients are looked at again.
        assert server._finish_turn() == 0.0
        assert server._finish_turn() > 0.0
        assert (rules.idle, rules.slots, server.legs) == ([], {}, {})
        assert [theirs.fileno() for theirs in unsent] == [-1, -1]
