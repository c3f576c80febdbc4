"""`creche doctor`: what this machine offers."""

import dataclasses
import json
from typing import Final

import click

from actors import __version__
from actors.cli import words

SIZES: Final = ("memory_total", "memory_available", "shm_free", "pipe_soft_limit")


@click.command(cls=words.Verb)
@words.AS_JSON
def doctor(*, as_json: bool) -> None:
    """Tell what this machine offers.

    And of each capability, whether it is fine, or what is worse here than it could be
    and what to do.

    \b
    --json prints one object; null is "no limit, or unknown", sizes are in bytes:
      creche, kernel, python, zmq, msgpack, psutil   versions
      containment        cgroup, subreaper or pgroup: how trees are held
      subreaper          whether orphans can be adopted
      cgroup             whether a cgroup v2 can be made
      pid_namespaces     whether one can be made; not needed
      pidfd              whether processes can be held by descriptor
      peer_pidfd         whether a socket tells the pidfd of its peer
      children_files     whether the kernel lists the children of a thread
      files_soft, files_hard                         descriptors of a process
      pid_max, processes_user, processes_cgroup      how many there may be
      memory_total, memory_available, shm_free       sizes; shm: /dev/shm
      ptys_used, ptys_max                            terminals
      pipe_soft_limit    size of all pipes of one user
      sessions           how many one broker would take here
      sessions_end       what would not do for more
      capabilities       name: whether it is fine
      degraded           a sentence for each that is not
    """  # noqa: D301 - click wants the character itself
    from broker import host  # noqa: PLC0415 - see the package's docstring

    found = host.report()
    room = found.room
    facts = {"creche": __version__, **dataclasses.asdict(found)}
    facts |= {"sessions": room.sessions, "sessions_end": room.resource}
    if as_json:
        fine = {name: not advice for name, advice in found.capabilities}
        told = {**facts, "capabilities": fine, "degraded": found.degraded}
        words.tell(json.dumps(told))
        return
    facts |= {name: _size(facts[name]) for name in SIZES}
    lines = [_line(name, _plain(value)) for name, value in facts.items()]
    lines.append("")
    lines += [
        _line(name, f"- {advice}" if advice else "fine")
        for name, advice in found.capabilities
    ]
    words.tell("\n".join(lines))


def _line(name: str, value: object) -> str:
    return f"{name:<18}{value}"


def _size(value: int | None) -> str | None:
    return None if value is None else words.amount(value)


def _plain(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "no limit, or unknown" if value is None else value
