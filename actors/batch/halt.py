"""When a batch ends before its time, and with which code. Pure.

The words are those of GNU parallel: `now,fail=1`, `soon,fail=10%`, `never`; besides
`fail`, `success` and `done` are counted.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal, Self

MOST_TOLD: Final = 100
"""Failed jobs that an exit code can tell; more are one more than that."""
FEW: Final = 3
"""Jobs that must have ended so before a share of an unknown number counts."""

_WORDS: Final = re.compile(r"(now|soon),(fail|success|done)=([1-9]\d*)(%?)")


@dataclass(frozen=True, slots=True)
class Halt:
    """The condition under which no more jobs are started.

    Attributes:
        when: `soon`: what runs is finished; `now`: it is killed; or `never`.
        why: What is counted.
        number: How many, or how many of a hundred.
        share: Whether it is of a hundred.
    """

    when: Literal["never", "soon", "now"] = "never"
    why: Literal["fail", "success", "done"] = "fail"
    number: int = 1
    share: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what `text` means.

        Raises:
            ValueError: it means nothing.
        """
        if text == "never":
            return cls()
        found = _WORDS.fullmatch(text)
        if found is None or (found[4] and int(found[3]) > 100):
            raise ValueError(
                f"{text!r} is not never, or now or soon with fail=N, success=N, "
                "done=N or a percentage, such as now,fail=1 or soon,fail=10%"
            )
        when, why, number, share = found.groups()
        return cls(when, why, int(number), bool(share))  # type: ignore[arg-type]  # as the pattern has them

    def due(self, failed: int, done: int, total: int | None) -> bool:
        """Return whether that is so now.

        Args:
            failed: jobs of this run that failed.
            done: jobs of this run that ended.
            total: jobs that there are; None if that is not known yet: then a share is
                one of those that ended, and counts once it is three jobs.
        """
        counts = {"fail": failed, "success": done - failed, "done": done}
        count = counts[self.why]
        if self.when == "never":
            return False
        if not self.share:
            return count >= self.number
        if total is None and count < FEW:
            return False
        return count > 0 and count * 100 >= self.number * (total or done)

    def exit_code(self, failed: int, reached: int | None) -> int:
        """Return the code for the end of a batch.

        Args:
            failed: jobs that failed.
            reached: the exit code of the job with which the condition came true; None
                if it did not.
        """
        if reached is not None:
            if self.why == "success":
                return 0
            if (self.why, self.number, self.share) == ("fail", 1, False):
                return reached
        return min(failed, MOST_TOLD + 1)


NEVER: Final = Halt()
"""All jobs are run, whatever becomes of them."""
