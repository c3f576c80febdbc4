"""Which exit code stands for a command's end."""

import errno

import pytest

import actors
from actors import exit_codes
from actors.events import ExitStatus


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (ExitStatus(0), 0),
        (ExitStatus(3), 3),
        (ExitStatus(None, 9), 137),
        (ExitStatus(None, 15, cause="limit"), 143),
        (ExitStatus(None, 15, cause="timeout"), 124),
        (ExitStatus(0, cause="timeout"), 124),
        (ExitStatus(None, cause="worker-lost"), 125),
    ],
)
def test_an_end_has_a_code(status: ExitStatus, code: int) -> None:
    assert exit_codes.of_status(status) == code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (actors.SpawnFailed(errno.ENOENT, "exec", "no"), 127),
        (actors.SpawnFailed(errno.EACCES, "exec", "no"), 126),
        (actors.SpawnFailed(errno.ENOENT, "cwd", "no"), 125),
        (actors.BrokerLost(), 125),
    ],
)
def test_a_start_that_failed_has_a_code(error: Exception, code: int) -> None:
    assert exit_codes.of_failure(error) == code
