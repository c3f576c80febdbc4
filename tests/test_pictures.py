"""Pictures of terminals are whole in themselves, and the README's show what is now."""

import re
from collections import defaultdict
from pathlib import Path
from xml.etree.ElementTree import parse

import pytest

from actors import Screen, TtySize
from actors.batch.tally import Tally
from actors.cli import top
from actors.console import picture

TOP = Path(__file__).resolve().parents[1]
SHOWN = re.findall(r"^!\[.+\]\((.*)\)$", (TOP / "README.md").read_text(), re.MULTILINE)
LARGEST = 40_000
"""Bytes of a picture in the README."""
SVG = "{http://www.w3.org/2000/svg}"
AMOUNT = re.compile(r"\d[\d.]*( ?[KMG]iB| B|[KMGT]\b)?")
"""What is another number each time, with a unit that depends on it."""


def lines(path: Path) -> list[str]:
    """Return the text of a picture's terminal, which gives a width to each piece."""
    rows = defaultdict(list)
    for text in parse(path).iter(f"{SVG}text"):
        if "textLength" in text.attrib:
            place = float(text.attrib["y"]), float(text.attrib["x"])
            rows[place[0]].append((place[1], text.text or ""))
    found = ("".join(text for _, text in sorted(rows[y])) for y in sorted(rows))
    return [line.replace("\N{NO-BREAK SPACE}", " ").rstrip() for line in found]


def form(line: str) -> str:
    """Return a line as it is whatever its numbers are."""
    return " ".join(AMOUNT.sub("#", line).split())


def fetched(path: Path) -> list[str]:
    """Return what a browser would look for in other places to show a picture."""
    found = []
    for element in parse(path).iter():
        for words in (*element.attrib.values(), element.text or ""):
            found += [
                word for word in re.findall(r"url\((.*?)\)", words) if word[0] != "#"
            ]
            found += re.findall(r"\S+://\S+|@import\b.*|@font-face\b.*", words)
    return found


def saved(path: Path, data: bytes, rows: int) -> Path:
    shown = Screen(TtySize(rows, 20))
    shown.feed(data)
    picture.save(shown, str(path))
    return path


def height(path: Path) -> str:
    return parse(path).getroot().attrib["viewBox"].split()[-1]


def test_a_picture_is_as_high_as_its_screen(tmp_path: Path) -> None:
    path = tmp_path / "screen.svg"
    written = (b"", b"one", b"one\r\ntwo", b"one\r\ntwo\r\nthree")
    (high,) = {height(saved(path, data, rows=3)) for data in written}
    assert float(high) < float(height(saved(path, b"one", rows=4)))
    assert lines(saved(path, b"\r\n two", rows=3))[:2] == ["", " two"]


def test_a_picture_has_nothing_fetched_from_elsewhere(tmp_path: Path) -> None:
    assert fetched(saved(tmp_path / "screen.svg", b"one", rows=3)) == []
    words = "@font-face {one} two"
    path = saved(tmp_path / "screen.svg", words.encode(), rows=3)
    assert lines(path)[0] == words


def test_the_readme_shows_every_picture_there_is() -> None:
    assert sorted(SHOWN) == [f"docs/{path.name}" for path in drawn()]


def drawn() -> list[Path]:
    return sorted((TOP / "docs").glob("*.svg"))


@pytest.mark.parametrize("path", drawn(), ids=lambda path: path.name)
def test_a_picture_of_the_readme_is_small_and_tells_nothing_of_its_machine(
    path: Path,
) -> None:
    assert path.stat().st_size < LARGEST
    assert fetched(path) == []
    assert re.findall(r"(?<![\w%])/\w+", "\n".join(lines(path))) == []


def test_the_picture_of_a_batch_has_the_bar_of_now() -> None:
    bar = Tally(total=12, running=3, done=5, failed=1).line(1.0)
    shown = [form(line) for line in lines(TOP / "docs" / "batch.svg")]
    assert [line for line in shown if line.endswith(form(bar))]


def test_the_picture_of_top_has_the_tables_of_now() -> None:
    shown = [form(line) for line in lines(TOP / "docs" / "top.svg")]
    sums, _, heads = top._plain([]).splitlines()
    assert {form(sums), " ".join(top.SCOPES), form(heads)} <= set(shown)
