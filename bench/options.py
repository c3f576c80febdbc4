"""Changing the numbers of a dataclass by `NAME=VALUE` words of a command line."""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def changed(numbers: T, words: Iterable[str]) -> T:
    """Return a dataclass of numbers with some of them changed; a list has commas.

    Raises:
        SystemExit: a word names none of them, or its value is no number.
    """
    known = {each.name: getattr(numbers, each.name) for each in fields(numbers)}
    given: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in known:
            raise SystemExit(f"{name!r} is none of {', '.join(known)}")
        try:
            given[name] = _like(known[name], value)
        except ValueError:
            raise SystemExit(f"{word!r}: {value!r} is no such number") from None
    return replace(numbers, **given)


def _like(default: object, value: str) -> Any:
    if isinstance(default, tuple):
        return tuple(int(part) for part in value.split(","))
    return float(value) if isinstance(default, float) else int(value)
