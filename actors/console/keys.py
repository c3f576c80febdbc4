"""Keys by their names, and the keys that detach. Pure.

A key is written as people write it: `C-c`, `ctrl-c` or `^C`, `M-x`, `Enter`, `Up`,
`F5`, or the character itself. What it sends is what most terminals send.
"""

from typing import Final

DETACH_KEYS: Final = "C-p C-q"
"""What detaches unless told otherwise, as from a container."""
_NAMED: Final = {
    "enter": b"\r",
    "tab": b"\t",
    "escape": b"\x1b",
    "esc": b"\x1b",
    "space": b" ",
    "backspace": b"\x7f",
    "up": b"\x1b[A",
    "down": b"\x1b[B",
    "right": b"\x1b[C",
    "left": b"\x1b[D",
    "home": b"\x1b[H",
    "end": b"\x1b[F",
    "insert": b"\x1b[2~",
    "delete": b"\x1b[3~",
    "pageup": b"\x1b[5~",
    "pagedown": b"\x1b[6~",
    **{f"f{n}": b"\x1bO%c" % (ord("P") + n - 1) for n in range(1, 5)},
    **{
        f"f{n}": b"\x1b[%d~" % code
        for n, code in zip(range(5, 13), (15, 17, 18, 19, 20, 21, 23, 24), strict=True)
    },
}
_CONTROL: Final = ("C-", "c-", "ctrl-", "Ctrl-", "^")
_META: Final = ("M-", "m-", "alt-", "Alt-")
_COMMAS: Final = [f"{modifier}," for modifier in (*_CONTROL, *_META)]
"""Words whose comma is a key, not the end of one."""


def key(name: str) -> bytes:
    """Return what a key sends.

    Raises:
        ValueError: there is no key of that name.
    """
    if name.lower() in _NAMED:
        return _NAMED[name.lower()]
    if len(name) == 1:
        return name.encode(errors="surrogateescape")
    for prefix in _META:
        if name.startswith(prefix) and name != prefix:
            return b"\x1b" + key(name.removeprefix(prefix))
    for prefix in _CONTROL:
        rest = name.removeprefix(prefix).lower()
        if rest != name.lower() and len(rest) == 1 and "?" <= rest <= "z":
            return bytes([ord(rest.upper()) ^ 0x40])
    raise ValueError(f"{name!r} is no key like C-c, Enter, Up, F5 or x")


def keys(names: str) -> list[bytes]:
    """Return what keys send whose names are separated by blanks or commas.

    A comma that stands alone, or behind a modifier, is that key itself.

    Raises:
        ValueError: there is no key of such a name.
    """
    return [key(name) for word in names.split() for name in _names(word)]


def _names(word: str) -> list[str]:
    if word == "," or word in _COMMAS:
        return [word]
    return word.removesuffix(",").split(",")


class Detacher:
    """Finds the keys that detach in what is typed; the rest is passed on.

    Args:
        sequence: what the keys send; empty: nothing detaches.

    Attributes:
        detached: whether all of them were typed.
    """

    def __init__(self, sequence: bytes) -> None:
        self.detached = False
        self._sequence = sequence
        self._held = b""

    def typed(self, data: bytes) -> bytes:
        """Take what was typed; return what is to be passed on now.

        The beginning of the sequence is held back until the next key tells whether it
        was one. What comes behind the whole sequence is dropped.
        """
        if not self._sequence:
            return data
        data = self._held + data
        self._held = b""
        before, found, _ = data.partition(self._sequence)
        if found:
            self.detached = True
            return before
        for size in range(min(len(data), len(self._sequence) - 1), 0, -1):
            if self._sequence.startswith(data[-size:]):
                self._held = data[-size:]
                return data[:-size]
        return data
