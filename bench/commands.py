"""The programs that every system runs."""

from typing import Final

TRUE: Final = ("/bin/true",)
ECHO: Final = ("/bin/echo", "hi")
CAT: Final = ("/bin/cat",)
SLEEP: Final = ("/bin/sleep", "1000")
LINE: Final = b"0123456789abcdef\n"
MIB: Final = 1024 * 1024


def zeros(size: int, write: int) -> tuple[str, ...]:
    """Return a command that writes `size` zero bytes, `write` at a time."""
    count = f"count={size // write}"
    return ("/bin/dd", "if=/dev/zero", f"bs={write}", count, "status=none")
