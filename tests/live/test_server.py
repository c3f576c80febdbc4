"""The broker's loop, held by hand: what it looks at before a time is over."""

import errno
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from broker import lease
from broker.pipe import Leg
from broker.registry import CallRoll, Capacity
from broker.router import Router
from broker.server import Server
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
def holding(rules: Router) -> Iterator[Server]:
    """A server for a block that serves no client, and whose loop does not run."""
    control, page = socket.socketpair(), lease.create()
    server = Server(rules, None, Leg(control[0]), lease.Page(page))
    try:
        yield server
    finally:
        server.epoll.close()
        server.control.close()
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
        server._send_forks()
        assert (rules.idle, rules.slots, server.legs) == ([], {}, {})
        assert [theirs.fileno() for theirs in unsent] == [-1, -1]
