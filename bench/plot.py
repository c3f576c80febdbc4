"""Drawings of a run, as SVG: bars, curves over live sessions, distributions.

Needs matplotlib (the extra `bench`).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib.figure
import matplotlib.ticker

from bench.rivals import OURS

WIDTH: Final = 7.0
"""Inches."""
_OURS, _OTHERS = "tab:red", "tab:gray"

Document = Mapping[str, Any]
"""What `python -m bench --json` writes."""


def draw(document: Document, directory: Path) -> list[Path]:
    """Draw all that a run has to show; return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = document["rows"]
    drawn = {}
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        curve = own[0]["at"] is not None
        drawn[case] = _curves(case, own) if curve else _bars(case, own)
    for case, samples in document["samples"].items():
        units = [row["unit"] for row in rows if row["case"] == case]
        drawn[f"{case}-latency"] = _latency(case, units[0], samples)
    paths = []
    for name, figure in drawn.items():
        paths.append(directory / f"{name}.svg")
        figure.savefig(paths[-1], bbox_inches="tight")
    return paths


def _bars(case: str, rows: Sequence[Document]) -> matplotlib.figure.Figure:
    """Draw how many times better each system is than the reference, with its spread."""
    names = list(dict.fromkeys(row["figure"] for row in rows))
    height = 0.3 * len(rows) + 0.8 * len(names)
    figure = matplotlib.figure.Figure(figsize=(WIDTH, height), layout="constrained")
    shares = [sum(row["figure"] == name for row in rows) for name in names]
    fields = figure.subplots(
        len(names), squeeze=False, gridspec_kw={"height_ratios": shares}
    )
    for field, name in zip(fields[:, 0], names, strict=True):
        shown = [
            row
            for row in reversed(rows)
            if row["figure"] == name and _drawable(row["ratio"])
        ]
        _bar_field(field, name, shown)
    figure.suptitle(case)
    return figure


def _bar_field(field: Any, name: str, rows: Sequence[Document]) -> None:
    labels = [f"{row['system']}  {row['median']:.3g} {row['unit']}" for row in rows]
    spread = [
        [row["ratio"] - row["ratio_low"] for row in rows],
        [row["ratio_high"] - row["ratio"] for row in rows],
    ]
    colours = [_colour(row["system"]) for row in rows]
    lengths = [row["ratio"] - 1 for row in rows]  # to the left of 1: worse
    field.barh(
        labels, lengths, left=1, xerr=spread, color=colours, ecolor="black", capsize=2
    )
    field.axvline(1, color="black", linewidth=0.8)
    field.set_xscale("log")
    field.xaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
    field.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%gx"))
    field.xaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
    field.set_title(f"{name}, times better", fontsize="medium")


def _curves(case: str, rows: Sequence[Document]) -> matplotlib.figure.Figure:
    """Draw what an operation costs over the number of live sessions."""
    names = list(dict.fromkeys(row["figure"] for row in rows))
    figure = matplotlib.figure.Figure(
        figsize=(WIDTH, 3.0 * len(names)), layout="constrained"
    )
    fields = figure.subplots(len(names), squeeze=False)
    for field, name in zip(fields[:, 0], names, strict=True):
        for system in dict.fromkeys(row["system"] for row in rows):
            own = [
                row for row in rows if (row["system"], row["figure"]) == (system, name)
            ]
            colour = _OURS if system == OURS else None
            places, values = [row["at"] for row in own], [row["median"] for row in own]
            field.plot(places, values, marker="o", label=system, color=colour)
        field.set(xscale="log", yscale="log", xlabel="live sessions")
        field.set_ylabel(rows[0]["unit"])
        field.set_title(name, fontsize="medium")
        field.legend(fontsize="small")
    figure.suptitle(case)
    return figure


def _latency(
    case: str, unit: str, samples: Mapping[str, Sequence[float]]
) -> matplotlib.figure.Figure:
    """Draw which part of the operations took at most how long."""
    figure = matplotlib.figure.Figure(figsize=(WIDTH, 4.0), layout="constrained")
    field = figure.subplots()
    for system, values in samples.items():
        parts = [(place + 0.5) / len(values) for place in range(len(values))]
        colour = _OURS if system == OURS else None
        field.plot(values, parts, label=system, color=colour)
    field.set(xscale="log", xlabel=unit, ylabel="part that took at most")
    field.legend(fontsize="small")
    figure.suptitle(case)
    return figure


def _colour(system: str) -> str:
    return _OURS if system == OURS else _OTHERS


def _drawable(ratio: float) -> bool:
    return math.isfinite(ratio) and ratio > 0
