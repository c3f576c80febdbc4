"""The page of states shows the tables of the code."""

from tests.diagrams import DIAGRAMS, PAGE, drawn, redrawn


def test_the_pictures_are_those_of_the_tables() -> None:
    page = PAGE.read_text()
    assert redrawn(page) == page
    for steps in DIAGRAMS.values():
        assert drawn(steps()) in page
