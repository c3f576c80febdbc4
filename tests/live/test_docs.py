"""The documentation keeps its word: each of its programs is run."""

import ast
import asyncio
import inspect
import re
import signal
import sys
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

import actors
from tests.helpers import NOT_BLOCKED
from tests.parts import running

pytestmark = pytest.mark.live

TOP = Path(__file__).resolve().parents[2]
PAGES = sorted((TOP / "docs").glob("*.md"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")


def examples() -> Iterator[Any]:
    """Give each program with what stands to be printed below it."""
    for page in PAGES:
        text = page.read_text()
        fences = list(FENCE.finditer(text))
        for fence, following in zip_longest(fences, fences[1:]):
            if fence[1] != "python":
                continue
            promised = ""
            if following is not None and following[1] == "text":
                between = text[fence.end() : following.start()]
                promised = following[2] if not between.strip() else ""
            line = text[: fence.start()].count("\n") + 1
            yield pytest.param(fence[2], promised, id=f"{page.name}:{line}")


def run(program: str, names: dict[str, Any]) -> Any:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    return eval(compile(program, "example", "exec", flags), names)


@pytest.mark.parametrize(("program", "promised"), list(examples()))
async def test_an_example_prints_what_it_says(
    program: str,
    promised: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    broker = running(sys.executable, "-m", "actors", "serve")
    if "CRECHE_BROKER" in program:
        with broker as serving:
            *_, endpoint = serving.said("creche")
            monkeypatch.setenv("CRECHE_BROKER", endpoint)
            await printed(program)
            serving.signal(signal.SIGTERM)  # killed it would leave its journal
            serving.process.wait(NOT_BLOCKED)
    else:
        await printed(program)
    assert capsys.readouterr().out == promised


async def printed(program: str) -> None:
    async with actors.Engine() as engine:
        names = {"actors": actors, "asyncio": asyncio, "engine": engine}
        result = run(program, names)
        if inspect.isawaitable(result):
            await result


@pytest.mark.parametrize(
    "page", [TOP / "README.md", *PAGES], ids=lambda page: page.name
)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text()
    broken = []
    for path, anchor in LINK.findall(text):
        if ":" in path:
            continue
        target = page.parent / path if path else page
        if not target.exists():
            broken.append(path)
        elif anchor and anchor not in anchors(target.read_text()):
            broken.append(f"{path}#{anchor}")
    assert broken == []


def anchors(text: str) -> set[str]:
    """Return the names by which a page's headings are linked."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
