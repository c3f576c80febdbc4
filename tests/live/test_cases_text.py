"""Text of output that is read in small pieces: situations users reported."""

import pytest

import actors
from actors import OutputPolicy
from tests.helpers import NOT_BLOCKED, tag
from tests.live.children import program

pytestmark = pytest.mark.live

ROUND = "abc€def🎉"
"""Characters of one, three and four bytes: 13 bytes in all."""
WRITES = "write('abc\\u20acdef\\U0001f389'.encode() * int(sys.argv[2]))"
LIMITS = [1, 2, 3, 4, 7, 64]
MARK = "\N{REPLACEMENT CHARACTER}"


async def read(child: actors.Child, limit: int) -> tuple[bytes, str, int]:
    """Poll an ended child to its end: bytes, text, and bytes that were dropped."""
    data, text, dropped = [], [], 0
    while True:
        seen = await child.poll(wait=NOT_BLOCKED, max_bytes=limit)
        assert len(seen.stdout) <= limit
        assert seen.stdout or seen.done, "a poll gave nothing, and did not say why"
        data.append(seen.stdout)
        text.append(seen.text)
        dropped += seen.dropped_bytes
        if seen.done:
            return b"".join(data), "".join(text), dropped


async def test_small_polls_cut_no_character_and_lose_nothing() -> None:
    async with actors.Engine() as engine:
        for limit in LIMITS:
            rounds = 2 * limit
            child = await engine.spawn(program(WRITES, tag(), str(rounds)))
            await child.wait(NOT_BLOCKED)
            data, text, dropped = await read(child, limit)
            assert text == ROUND * rounds
            assert (data, dropped) == (text.encode(), 0)
            await child.aclose()


async def test_a_start_that_was_cut_off_leaves_no_odd_character() -> None:
    whole = (ROUND * 20).encode()
    inside = [8, 9, 14, 15, 16]  # of a character of three or four bytes
    async with actors.Engine() as engine:
        for kept, limit in zip(inside, LIMITS[:5], strict=True):
            policy = OutputPolicy.tail(kept)
            child = await engine.spawn(program(WRITES, tag(), "20"), retention=policy)
            await child.wait(NOT_BLOCKED)
            data, text, dropped = await read(child, limit)
            assert (data, dropped) == (whole[-kept:], len(whole) - kept)
            assert text == data.decode(errors="ignore")
            assert MARK not in text
            await child.aclose()
