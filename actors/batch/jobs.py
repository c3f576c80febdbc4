"""Jobs, read from lines or made of a command and lists of arguments. Pure.

A line is a command for `/bin/sh`, or a JSON object if it begins like one: `{"`, or a
brace, a text and a colon. The number of a job is that of its line, or its place among
the combinations; so it is the same in every run over the same input.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import actors
from actors.batch.wording import command_line, place, quote

FIELDS: Final = (
    "argv",
    "shell",
    "id",
    "stdin",
    "cwd",
    "env",
    "extra_env",
    "arg0",
    "stderr",
    "tty",
    "timeout",
    "idle_timeout",
    "leftover",
    "post_exit_grace",
    "limits",
)
"""What an object may have; all but `id` are options of a spawn."""
SEPARATOR: Final = ":::"
MOST_DIGITS: Final = 9
"""Digits of the number of a list; nobody gives so many."""

_OBJECT: Final = re.compile(r'\s*\{(?:"|\s*"(?:[^"\\]|\\.)*"\s*:|\s*\}\s*$)')
_PLACE: Final = re.compile(r"\{(#|\d*)\}")


class BadJob(ValueError):
    """A line, or a command with its arguments, is no job."""


@dataclass(frozen=True, slots=True)
class Job:
    """One command to run.

    Attributes:
        seq: Its number, from 1.
        command: The same for people, and for the joblog.
        argv: The command, as `actors.Spec` takes it.
        options: What else that takes.
        inputs: The texts that tell it from others.
        id: Its name, if its line gives one.
    """

    seq: int
    command: str
    argv: str | Sequence[str]
    options: Mapping[str, Any]
    inputs: tuple[str, ...]
    id: str | None = None

    @property
    def tag(self) -> str:
        """What stands before each of its lines when asked for."""
        return " ".join(self.inputs)

    @property
    def place(self) -> str:
        """The directory of its results below that of all."""
        if self.id is None and self.options.keys() - {"shell"}:
            # Its command may be that of others, which have other options.
            return place([f"{self.command} #{self.seq}"])
        return place(self.inputs)


def of_line(seq: int, line: str) -> Job:
    """Return the job of a line without its end.

    Any line is a command for a shell, also one that cannot be started, for the NUL in
    it: then this job fails, and no other.

    Raises:
        BadJob: it is none; the message does not say which line.
    """
    if _OBJECT.match(line):
        return _of_object(seq, line)
    return Job(seq, line, line, {"shell": True}, (line,))


def _checked(job: Job) -> Job:
    """Refuse what could not be started, before anything is."""
    try:
        actors.Spec(job.argv, **job.options)
    except actors.InvalidRequest as wrong:
        raise BadJob(str(wrong)) from None
    return job


# -- objects ------------------------------------------------------------------------


def _of_object(seq: int, line: str) -> Job:
    try:
        given = json.loads(line)
    except ValueError as wrong:
        raise BadJob(f"is no JSON object: {wrong}") from None
    except RecursionError:
        raise BadJob("is no JSON object: it is nested too deeply") from None
    for name in given:
        if name not in FIELDS:
            raise BadJob(f"{name}: is not known; there are {', '.join(FIELDS)}")
    name = given.pop("id", None)
    if name is not None:
        if not isinstance(name, str):
            raise BadJob("id: must be text")
        _encoded("id", name)
    argv, shell = _command(given)
    command = argv if shell else command_line(_texts(argv))
    options = {key: _option(key, value) for key, value in given.items()}
    inputs = (command if name is None else name,)
    return _checked(Job(seq, command, argv, {**options, "shell": shell}, inputs, name))


def _command(given: dict[str, Any]) -> tuple[Any, bool]:
    """Take the command out of an object: what to run, and whether by a shell."""
    shell = given.pop("shell", False)
    if isinstance(shell, str):
        if "argv" in given:
            raise BadJob("shell: must be true or false beside argv")
        return shell, True
    if not isinstance(shell, bool):
        raise BadJob("shell: must be a command line, true or false")
    if "argv" not in given:
        raise BadJob("argv: is missing; it is a list of words, or give shell a text")
    argv = given.pop("argv")
    if shell and not isinstance(argv, str):
        raise BadJob("argv: must be one text with shell: true")
    return argv, shell


def _texts(argv: object) -> list[str]:
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        raise BadJob("argv: must be a list of texts")
    return argv


def _option(name: str, value: Any) -> Any:
    if name == "stdin":
        return _input(value)
    if name == "limits":
        return _limits(value)
    return value


def _input(value: object) -> object:
    if value is None:
        return "null"
    if not isinstance(value, str):
        raise BadJob("stdin: must be the text to be read, or null")
    return _encoded("stdin", value)


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise BadJob(f"{name}: holds half a character") from None


def _limits(value: object) -> actors.Limits:
    known = [field.name for field in fields(actors.Limits)]
    if not isinstance(value, dict) or not value.keys() <= set(known):
        raise BadJob(f"limits: must be an object with any of {', '.join(known)}")
    try:
        return actors.Limits(**value)
    except actors.InvalidRequest as wrong:
        raise BadJob(str(wrong)) from None


# -- a command and its arguments ----------------------------------------------------


class Template:
    """A command with places for arguments, and the lists that they come from.

    Arguments are quoted for the shell, the command is not. `{}` stands for all of them,
    `{1}`, `{2}` for that of one list, `{#}` for the number of the job; without any of
    these all arguments follow the command. Without a command they are the commands.

    Args:
        words: the command, then each list behind a `:::`.

    Raises:
        BadJob: a place has no list, or a separator is not known.
    """

    def __init__(self, words: Sequence[str]) -> None:
        first, *self._lists = _split(words)
        command = " ".join(first)
        self._quoted = bool(command)
        places = _PLACE.findall(command)
        self._command = command if places else f"{command} {{}}".strip()
        for name in places:
            if name.isdigit() and not self._has(name):
                raise BadJob(f"{{{name}}}: lists behind ::: are {len(self._lists)}")

    @property
    def total(self) -> int:
        """How many jobs there are: the product of the lengths of the lists."""
        total = 1
        for items in self._lists:
            total *= len(items)
        return total

    def jobs(self, done: set[int]) -> Iterator[Job | None]:
        """Yield the jobs in order, the last list changing fastest; None if done.

        Raises:
            BadJob: an argument cannot be one.
        """
        for seq, inputs in enumerate(itertools.product(*self._lists), 1):
            yield None if seq in done else self._job(seq, inputs)

    def _has(self, place: str) -> bool:
        """Return whether there is a list of this number, which may be a long one."""
        return len(place) <= MOST_DIGITS and 0 < int(place) <= len(self._lists)

    def _job(self, seq: int, inputs: tuple[str, ...]) -> Job:
        words = [quote(word) for word in inputs] if self._quoted else [*inputs]

        def fill(found: re.Match[str]) -> str:
            name = found[1]
            if name == "#":
                return str(seq)
            return words[int(name) - 1] if name else " ".join(words)

        command = _PLACE.sub(fill, self._command)
        try:
            return _checked(Job(seq, command, command, {"shell": True}, inputs))
        except BadJob as wrong:
            raise BadJob(f"job {seq}: {wrong}") from None


def is_separator(word: str) -> bool:
    """Return whether a word means to begin a list of arguments."""
    return word.startswith(SEPARATOR) and not word.strip(":+")


def _split(words: Sequence[str]) -> list[list[str]]:
    """Return the words between separators."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == SEPARATOR:
            parts.append([])
        elif is_separator(word):
            raise BadJob(f"{word!r} is not known; lists of arguments begin with ':::'")
        else:
            parts[-1].append(word)
    return parts
