"""What a session lives for, and what follows when that is gone."""

import asyncio

import pytest

from actors import OutputPolicy
from tests.helpers import NOT_BLOCKED, end, parent, tag
from tests.live.children import (
    NUMBERS,
    REST,
    Opened,
    collected,
    data_of,
    numbers,
    program,
)

pytestmark = pytest.mark.live


async def test_s45_other_sessions_go_on_streaming_when_a_worker_is_lost(
    opened: Opened,
) -> None:
    count = 20_000
    async with opened() as engine:
        victim = await engine.spawn(program(REST, tag()))
        child = await engine.spawn(
            program(NUMBERS, tag(), str(count)), retention=OutputPolicy("block", 65536)
        )
        reading = asyncio.ensure_future(collected(child.events()))
        end([parent(victim.pid)])
        assert (await victim.wait(NOT_BLOCKED)).cause == "worker-lost"
        assert data_of(await reading) == numbers(count)
        await victim.aclose()
        await child.aclose()
