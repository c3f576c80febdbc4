"""Takes the pictures of README.md: `creche` at work, in a terminal.

python docs/pictures.py          takes them all
python docs/pictures.py batch    takes this one

What they show was written by real commands, on the machine at hand: a shell in a
session with a terminal runs `creche` as a person would, on files made for it in an
empty directory. What its screen shows at the right moment is saved as `creche screen
--svg` does. It needs the extras `screen` and `ui`, and gzip, tar, python3 and vmstat.
"""

import asyncio
import gzip
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import actors
from actors.console import picture
from actors.console.operating import NAME

DOCS: Final = Path(__file__).resolve().parent
PATIENCE: Final = 120
"""Seconds for the moment to come."""


class Place:
    """An empty directory, and an engine whose children find `creche` there.

    Args:
        engine: starts them.
        top: the directory.
    """

    def __init__(self, engine: actors.Engine, top: Path) -> None:
        self.engine = engine
        self.files = top / "files"
        self.files.mkdir()
        (top / "run").mkdir(mode=0o700)
        (top / "bin").mkdir()
        creche = top / "bin" / "creche"
        creche.write_text(f'#!/bin/sh\nexec {sys.executable} -m actors "$@"\n')
        creche.chmod(0o755)
        self.environment = {
            "PATH": f"{creche.parent}:{os.environ['PATH']}",
            "PS1": "$ ",
            "PYTHONPATH": str(DOCS.parent),
            "TERM": "xterm-256color",
            "XDG_RUNTIME_DIR": str(top / "run"),
        }

    async def screen(
        self, command: str, size: actors.TtySize, fact: Callable[[str], object]
    ) -> actors.Screen:
        """Type a command into a shell; return its screen once a fact holds of it."""
        shell = await self.engine.spawn(
            ["sh"], tty=size, cwd=self.files, extra_env=self.environment
        )
        screen = actors.Screen(size)
        async with shell:
            await shell.expect(r"\$ ", timeout=PATIENCE)
            await shell.write(f"{command}\n")
            async with asyncio.timeout(PATIENCE), shell.events() as events:
                async for event in events:
                    screen.feed(event)
                    if fact(screen.text):
                        return screen
        raise SystemExit(f"the shell ended, and showed\n{screen.text}")


async def batch(place: Place) -> actors.Screen:
    """A batch that checks a dozen files, of which one is cut, and some are large."""
    short = gzip.compress(os.urandom(1 << 16))
    long = gzip.compress(bytes(1 << 26)) * 200
    for number in range(1, 13):
        data = short if number < 6 else long
        whole = len(data) if number != 3 else len(data) // 2
        (place.files / f"db-{number:02}.sql.gz").write_bytes(data[:whole])
    return await place.screen(
        "creche batch -j 3 gzip -tv ::: *.gz",
        actors.TtySize(rows=9, cols=88),
        lambda text: "5/12 done, 1 failed, 3 running" in text,
    )


async def top(place: Place) -> actors.Screen:
    """The sessions of a broker, in two scopes."""
    for name, size in {"disk.img": 1 << 40, "access.log": 0}.items():
        with (place.files / name).open("wb") as file:
            file.truncate(size)
    async with AsyncExitStack() as stack:
        serve = await stack.enter_async_context(
            await place.engine.spawn(["creche", "serve"], extra_env=place.environment)
        )
        ready = await serve.expect(r"ready \S+\n", timeout=PATIENCE)
        endpoint = ready.matched.decode().split()[1]
        shared = await stack.enter_async_context(actors.Engine(endpoint))
        for name, commands in SESSIONS.items():
            scope = await stack.enter_async_context(shared.scope(name))
            for called, command in commands.items():
                await scope.spawn(
                    shlex.split(command),
                    cwd=place.files,
                    metadata={NAME: called},
                    extra_env=place.environment,
                )
        return await place.screen(
            "creche top",
            actors.TtySize(rows=13, cols=100),
            lambda text: re.search(r" running +\d\ds(.*\n)+.* vmstat 1", text),
        )


SESSIONS: Final = {
    "nightly": {
        "backup": "sh -c 'tar c disk.img | gzip >disk.tgz'",
        "checksum": "sha256sum disk.img",
    },
    "site": {
        "log": "tail -F access.log",
        "web": "python3 -m http.server -b 127.0.0.1 0",
        "load": "vmstat 1",
    },
}
"""Scope → name → command of what `top` looks at."""

PICTURES: Final[dict[str, Callable[[Place], Awaitable[actors.Screen]]]] = {
    "batch": batch,
    "top": top,
}


async def take(name: str) -> None:
    """Take a picture."""
    with tempfile.TemporaryDirectory() as top:
        async with actors.Engine() as engine:
            shown = await PICTURES[name](Place(engine, Path(top)))
    picture.save(shown, str(DOCS / f"{name}.svg"))


if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        asyncio.run(take(name))
