"""`python -m bench [WORKLOAD...]`, and the door to the tools beside it."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench import compare, machine, measure, rivals
from bench.options import changed
from bench.sizes import Sizes

TOOLS: Final = {
    "quick": "a minute of ratios beside recorded ones; fails where one is half as good",
    "mixed": "minutes of everything at once: does anything grow, or get slower",
    "slow": "a stream whose reader is slow: memory, and what its neighbours notice",
    "costs": "what a session, a message and a byte cost, in CPU, memory, files",
    "scale": "how far a broker, a machine, many machines go, from measured costs",
}
"""Each a module with a `main` of its own, and its own `--help`."""


def main(words: Sequence[str]) -> None:
    """Measure, and tell."""
    if words and words[0] in TOOLS:
        importlib.import_module(f"bench.{words[0]}").main(words[1:])
        return
    given = _parser().parse_args(words)
    sizes = changed(Sizes(), given.set)
    workloads = given.workload or compare.WORKLOADS
    results = compare.run(workloads, given.against, sizes, given.rounds)
    document = results.document(sizes, given.rounds)
    print(results.text(), machine.line(document["machine"]), sep="\n\n")
    if given.json:
        compare.save(given.json, document)
    if given.plot:
        # Draws with what only this needs.
        importlib.import_module("bench.plot").draw(document, given.plot)
    if any(rivals.OURS in failed for failed in results.skipped.values()):
        sys.exit(1)


def _parser() -> argparse.ArgumentParser:
    tools = "\n".join(f"  {name:6} {what}" for name, what in TOOLS.items())
    parser = argparse.ArgumentParser(
        "python -m bench",
        description=measure.__doc__,
        epilog=f"instead of a workload:\n{tools}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "workload", nargs="*", help=f"{', '.join(compare.WORKLOADS)}; all unless told"
    )
    parser.add_argument(
        "--against",
        type=_rivals,
        default=list(rivals.RIVALS),
        metavar="NAME,...",
        help=f"rivals: {', '.join(rivals.RIVALS)}; all unless told, those left out "
        "that are not installed",
    )
    parser.add_argument("--rounds", type=int, default=5, help="5 unless told")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="how much work a round is: see bench/sizes.py",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all of it")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw it, as SVG")
    return parser


def _rivals(names: str) -> list[str]:
    wanted = names.split(",")
    for name in wanted:
        if name not in rivals.RIVALS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of the rivals")
    return wanted


if __name__ == "__main__":
    main(sys.argv[1:])
