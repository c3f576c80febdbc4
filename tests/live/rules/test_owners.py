"""What a session lives for, and what follows when that is gone."""

import asyncio
import gc
from typing import Any

import pytest

import actors
from actors import OutputPolicy
from tests.helpers import NOT_BLOCKED, end, gone, parent, tag, tagged
from tests.live.children import (
    NUMBERS,
    REST,
    Opened,
    collected,
    data_of,
    numbers,
    program,
    until,
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


async def test_s42_what_a_scope_started_lives_for_the_scope(opened: Opened) -> None:
    word = tag()
    async with opened() as engine:
        async with engine.scope() as scope:
            child = await scope.spawn(program(REST, word))
            await until(child, b"ready\n")
            del child
            gc.collect()
            assert len(await scope.children()) == 1
            assert tagged(word)
        assert not tagged(word)


async def give_up(calls: "list[asyncio.Future[Any]]") -> None:
    calls[0].cancel()
    await asyncio.wait(calls)
    calls.clear()
    gc.collect()


async def test_s42_what_an_engine_started_lives_for_its_handle(opened: Opened) -> None:
    word = tag()
    async with opened() as engine:
        child = await engine.spawn(program(REST, word))
        calls: list[asyncio.Future[Any]] = [asyncio.ensure_future(child.wait())]
        await until(child, b"ready\n")
        del child
        gc.collect()
        assert len(await engine.children()) == 1, "a pending call holds it"
        with pytest.warns(ResourceWarning, match="never closed"):
            await give_up(calls)
        await asyncio.to_thread(gone, word)


async def test_s43_a_private_broker_leaves_nobody_behind(opened: Opened) -> None:
    async with opened() as engine:
        choices: list[tuple[str, dict[str, Any]]] = [
            ("kill_on_drop", {"kill_on_drop": False}),
            ("detach_ttl", {"detach_ttl": 5.0}),
        ]
        for field, options in choices:
            with pytest.raises(actors.InvalidRequest) as refused:
                await engine.spawn(["true"], **options)
            assert refused.value.field == field
        assert await engine.children() == []
