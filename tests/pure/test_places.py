"""Where engines live."""

import os

import pytest

from broker.places import SERVICES, place, runtime_root


@pytest.mark.parametrize(
    ("environ", "uid", "root"),
    [
        ({"XDG_RUNTIME_DIR": "/run/user/5"}, 5, b"/run/user/5/creche"),
        ({"XDG_RUNTIME_DIR": "/run/user/5/"}, 5, b"/run/user/5/creche"),
        ({"XDG_RUNTIME_DIR": "/"}, 5, b"/creche"),
        ({"XDG_RUNTIME_DIR": os.fsdecode(b"/\xff")}, 5, b"/\xff/creche"),
        ({"XDG_RUNTIME_DIR": "relative"}, 5, b"/tmp/creche-5"),
        ({"XDG_RUNTIME_DIR": ""}, 0, b"/run/creche"),
        ({}, 5, b"/tmp/creche-5"),
    ],
)
def test_the_root_is_the_users_own(
    environ: dict[str, str], uid: int, root: bytes
) -> None:
    assert runtime_root(environ, uid) == root
    assert place(SERVICES, environ, uid) == root + b"/services"
