"""The screen of a terminal as a picture, by rich of the extra `ui`.

It is whole in itself: the fonts that rich has a browser fetch from elsewhere are left
out, and it is drawn with one that is there.
"""

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from actors.screen import Screen

# A text that a screen shows has no such blanks in a picture.
_FONT: Final = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def save(shown: "Screen", path: str) -> None:
    """Save a screen as an SVG file, with its colours.

    Raises:
        ModuleNotFoundError: rich is not installed.
        OSError: the file cannot be written.
    """
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.text import Text  # noqa: PLC0415
    except ModuleNotFoundError as missing:
        needs = "a picture needs the extra `ui`: pip install rich"
        raise ModuleNotFoundError(needs, name="rich") from missing
    size = shown.size
    drawn = Console(
        record=True, width=size.cols, file=io.StringIO(), color_system="truecolor"
    )
    text = Text.from_ansi(shown.styled, no_wrap=True)
    text.append("\n" * (size.rows - max(1, len(shown.text.splitlines()))))
    drawn.print(text)
    picture = drawn.export_svg(title=shown.title or "creche")
    Path(path).write_text(_FONT.sub("", picture), encoding="utf-8")
