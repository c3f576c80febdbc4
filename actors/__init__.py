"""Run other programs from Python: each child owned by one worker actor."""

__version__ = "0.1.0"
