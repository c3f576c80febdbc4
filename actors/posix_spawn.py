"""posix_spawn(3) onto a terminal, as the C library has it.

Python's own cannot name signals 32 and 33, which glibc keeps for itself: it leaves them
ignored in a child, and so in all that the child starts, unless they are in the set of
those that get their default action. Here they are.
"""

import ctypes
import os
from collections.abc import Sequence
from typing import Final

SETSIGDEF: Final = 0x04
SETSID: Final = 0x80
RESTORED: Final = (13, 25, 32, 33)
"""SIGPIPE and SIGXFSZ, which Python ignores, and the two that posix_spawn does."""

_SPACE: Final = 1024
"""Bytes for each of the library's structures: those of glibc have 336, 80 and 128."""
_libc = ctypes.CDLL(None)
_libc.posix_spawn.argtypes = (ctypes.c_void_p, ctypes.c_char_p, *(ctypes.c_void_p,) * 4)
_libc.posix_spawn_file_actions_addopen.argtypes = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_uint,
)


def spawn(
    path: bytes, argv: Sequence[bytes], env: Sequence[bytes], terminal: bytes
) -> int:
    """Execute `path` in a new session whose terminal is `terminal`; return its pid.

    A session leader that opens a terminal gets it as its controlling one.

    Raises:
        OSError: the system's refusal, of the terminal or of the program.
    """
    pid = ctypes.c_int()
    actions = _actions(terminal)
    try:
        refusal = _libc.posix_spawn(
            ctypes.byref(pid),
            path,
            actions,
            _ATTRIBUTES,
            _words(argv),
            _words(env),
        )
    finally:
        _libc.posix_spawn_file_actions_destroy(actions)
    if refusal:
        raise OSError(refusal, os.strerror(refusal), path)
    return pid.value


def _actions(terminal: bytes) -> "ctypes.Array[ctypes.c_char]":
    actions = ctypes.create_string_buffer(_SPACE)
    _check(_libc.posix_spawn_file_actions_init(actions))
    add_open = _libc.posix_spawn_file_actions_addopen
    _check(add_open(actions, 0, terminal, os.O_RDWR, 0))
    for copy in (1, 2):
        _check(_libc.posix_spawn_file_actions_adddup2(actions, 0, copy))
    return actions


def _attributes() -> "ctypes.Array[ctypes.c_char]":
    attributes = ctypes.create_string_buffer(_SPACE)
    _check(_libc.posix_spawnattr_init(attributes))
    _check(_libc.posix_spawnattr_setflags(attributes, SETSIGDEF | SETSID))
    bits = sum(1 << (number - 1) for number in RESTORED)
    signals = ctypes.create_string_buffer(bits.to_bytes(8, "little"), _SPACE)
    _check(_libc.posix_spawnattr_setsigdefault(attributes, signals))
    return attributes


def _words(words: Sequence[bytes]) -> "ctypes.Array[ctypes.c_char_p]":
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)


def _check(refusal: int) -> None:
    if refusal:
        raise OSError(refusal, os.strerror(refusal))


_ATTRIBUTES: Final = _attributes()
"""The same for every start, so made once."""
