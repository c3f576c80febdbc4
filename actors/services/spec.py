"""What a service is, checked when it is declared. Pure; nothing is started by it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from actors import checks
from actors.checks import Native
from actors.spec import Spec
from broker.errors import InvalidRequest

__all__ = ["ServiceSpec"]

VERSION: Final = 1
"""Of the document that a service's commands read."""
MAX_NAME: Final = 256
"""Bytes of the name of a service, and of its owner's."""
OUTPUT, TEMPORARY = "output_dir", "tmp_dir"
"""What we add to a context: the service's private directories."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """A helper that is started once for all who need it, and stopped after the last.

    Both commands get one JSON document on stdin, then its end::

        {"version": 1, "context": {..., "output_dir": ..., "tmp_dir": ...}, "args": ...}

    The start command is the service: it writes a line to stdout once it is ready, and
    stays. The stop command is run after it was used, failed or was given up.

    Attributes:
        name: What it is.
        owner: For whom; one service runs for each pair of name and owner.
        start: A command, a sequence of `str`, `bytes` or paths.
        stop: Another; it gets the environment and the directory of `start`.
        args: A mapping for both, of what JSON can carry.
        context: Another one, about where they run; `output_dir` and `tmp_dir`, two
            private directories that are removed in the end, are added to it.

    Raises:
        InvalidRequest: A parameter is not valid; `field` names it.
    """

    name: str
    owner: str
    start: Sequence[Native]
    stop: Sequence[Native]
    args: Mapping[str, Any] = field(default_factory=dict, repr=False)
    context: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for name in ("name", "owner"):
            value = getattr(self, name)
            checks.text(name, value)
            if not 0 < len(value.encode()) <= MAX_NAME:
                raise InvalidRequest(name, f"is a text of 1 to {MAX_NAME} bytes")
        keep = object.__setattr__
        for name in ("start", "stop"):
            keep(self, name, _command(name, getattr(self, name)))
        for name in ("args", "context"):
            keep(self, name, _plain(name, getattr(self, name)))
        for name in (OUTPUT, TEMPORARY):
            if name in self.context:
                raise InvalidRequest("context", f"{name} is added by the engine")

    @property
    def key(self) -> tuple[str, str]:
        """Name and owner: of each pair one service runs."""
        return self.name, self.owner

    def document(self, output: str, temporary: str) -> bytes:
        """Return what both commands read, with the paths of its directories."""
        context = {**self.context, OUTPUT: output, TEMPORARY: temporary}
        whole = {"version": VERSION, "context": context, "args": self.args}
        return json.dumps(whole).encode()


def _command(name: str, value: object) -> tuple[Native, ...]:
    try:
        Spec(checks.items(name, value))
    except InvalidRequest as wrong:
        raise InvalidRequest(name, wrong.message) from None
    return tuple(checks.items(name, value))


def _plain(name: str, value: object) -> Any:
    """Return a copy of a mapping by way of JSON."""
    if not isinstance(value, Mapping):
        raise InvalidRequest(name, "must be a mapping")
    if not all(isinstance(key, str) for key in value):
        raise InvalidRequest(name, "must have texts as keys")
    try:
        return json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        # Without its cause, which would carry values along.
        raise InvalidRequest(name, "holds what JSON cannot carry") from None
