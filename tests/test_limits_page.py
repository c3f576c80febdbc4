"""The page of defaults and limits says what the code does."""

import importlib
import re
from dataclasses import fields
from pathlib import Path

import pytest

from actors.settings import OutputPolicy, Settings, TtySize

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "limits.md").read_text()
UNITS = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "s": 1, "": 1}
SETTINGS = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
BOUNDS = re.findall(r"^\| .*? \| (.*?) \| `([\w.]+)\.(\w+)` \|$", PAGE, re.MULTILINE)


def number(text: str) -> float:
    """Return the number that `text` shows, such as `2 MiB`."""
    value, _, unit = text.partition(" ")
    return float(value) * UNITS[unit]


def means(shown: str, value: object) -> bool:
    """Return whether `shown` stands for a setting's value."""
    match value:
        case OutputPolicy(kind, size):
            word, _, bytes_kept = shown.partition(" ")
            return word == kind and number(bytes_kept) == size
        case TtySize(rows, cols):
            return shown == f"{rows} x {cols}"
        case None:
            return shown == "none"
        case str():
            return shown == value
        case _:
            return number(shown) == value


def test_every_setting_is_on_the_page_with_its_default() -> None:
    assert [name for name, _ in SETTINGS] == [field.name for field in fields(Settings)]
    defaults = Settings()
    wrong = [name for name, s in SETTINGS if not means(s, getattr(defaults, name))]
    assert wrong == []


@pytest.mark.parametrize(("shown", "module", "name"), BOUNDS)
def test_a_bound_is_what_the_page_says(shown: str, module: str, name: str) -> None:
    assert number(shown) == getattr(importlib.import_module(module), name)


def test_the_page_has_bounds() -> None:
    assert len(BOUNDS) > 10
