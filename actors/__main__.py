"""The command `creche`, also as `python -m actors`: its process, and what that saves.

Its imports make 40 000 objects, and none of them is ever garbage. To look through them
again and again while they come, and once more at the end, takes 25 ms of 145.
"""

import gc
from typing import Final

YOUNG: Final = 50_000
"""New objects after which garbage is looked for: more than the imports make."""


def main() -> None:
    """Be the command."""
    gc.set_threshold(YOUNG)
    from actors.cli import main as verbs, words  # noqa: PLC0415 - see above

    try:
        verbs(prog_name="creche")
    finally:
        words.hush()
        gc.freeze()  # the interpreter looks through what is left otherwise


if __name__ == "__main__":
    main()
