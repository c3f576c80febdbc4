"""What a client asks once more after a lost broker."""

import asyncio
from typing import Any

from broker.link import Asked
from broker.wire import Kind


async def test_what_is_asked_again_waits_for_what_is_left_of_its_time() -> None:
    loop = asyncio.get_running_loop()
    poll = Asked(
        future=loop.create_future(),
        first=None,
        kind=Kind.POLL,
        session=1000,
        body={"wait": 10.0, "limit": 5},
        payload=None,
        fds=(),
        sent=True,
        since=loop.time() - 7.0,
    )
    again: Any = poll.again()
    assert 0.0 <= again.pop("wait") <= 3.0
    assert again == {"limit": 5}
    assert poll._replace(body={"wait": None}).again() == {"wait": None}
    assert poll._replace(body=None).again() == {}
    spawn = poll._replace(kind=Kind.SPAWN, body={"queue": 5.0, "again": False})
    assert spawn.again() == {"queue": 0.0, "again": True}
    assert spawn._replace(sent=False).again() == {"queue": 0.0, "again": False}
