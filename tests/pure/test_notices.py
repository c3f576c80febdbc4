"""Whoever started a broker is told what it asked for, when it is due."""

import socket
from pathlib import Path

import pytest

from broker.notices import Manager, Notices

SECOND = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1000000"}


@pytest.mark.parametrize(
    ("environ", "period"),
    [
        ({}, None),
        ({"NOTIFY_SOCKET": "/run/x"}, None),
        (SECOND, 0.5),
        (SECOND | {"WATCHDOG_PID": "7"}, 0.5),
        (SECOND | {"WATCHDOG_PID": "8"}, None),
        (SECOND | {"WATCHDOG_USEC": "0"}, None),
        (SECOND | {"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "1000000"}, None),
    ],
)
def test_a_manager_says_whether_it_wants_signs_of_life(
    environ: dict[str, str], period: float | None
) -> None:
    assert Manager.found(environ, 7).period == period


def listening(address: str) -> socket.socket:
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    ear.bind(address)
    ear.setblocking(False)
    return ear


def heard(ear: socket.socket) -> list[bytes]:
    try:
        return ear.recv(4096).split(b"\n")
    except BlockingIOError:
        return []


def test_signs_of_life_come_when_they_are_due_and_only_of_the_living(
    tmp_path: Path,
) -> None:
    address = str(tmp_path / "ear")
    with listening(address) as ear:
        notices = Notices(Manager(address, 0.5), None, bare=False)
        assert notices.beat(10.0, alive=True) == 501
        assert heard(ear) == [b"WATCHDOG=1"]
        assert notices.beat(10.25, alive=True) == 251
        assert heard(ear) == []
        assert notices.beat(10.5, alive=False) == 501
        assert heard(ear) == []
        assert notices.beat(11.0, alive=True) == 501
        assert heard(ear) == [b"WATCHDOG=1"]


def test_who_wants_no_signs_of_life_gets_none() -> None:
    assert Notices(Manager("", 0.5), None, bare=False).beat(1.0, alive=True) is None


def test_a_manager_that_is_gone_is_no_trouble(tmp_path: Path) -> None:
    Notices(Manager(str(tmp_path / "none"), None), None, bare=False).stopping()


def test_a_manager_in_the_abstract_namespace_is_told() -> None:
    with listening("\0creche-test-notices") as ear:
        Notices(Manager("@creche-test-notices", None), None, bare=False).stopping()
        assert heard(ear) == [b"STOPPING=1", b"STATUS=Ending every child"]


def test_what_is_not_utf_8_is_told_as_it_is(tmp_path: Path) -> None:
    address = str(tmp_path / "ear")
    with listening(address) as ear:
        Manager(address, None).tell("STATUS=Serving at ipc:///\udcff")
        assert heard(ear) == [b"STATUS=Serving at ipc:///\xff"]
