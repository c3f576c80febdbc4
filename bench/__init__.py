"""Measures creche beside its rivals, in the same run: `python -m bench`."""
