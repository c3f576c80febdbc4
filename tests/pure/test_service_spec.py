"""What a service is declared to be, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from actors.services.spec import ServiceSpec
from broker.errors import InvalidRequest

ARGV = ["true"]


def refused(field: str, **changes: Any) -> None:
    values = {"name": "n", "owner": "o", "start": ARGV, "stop": ARGV, **changes}
    with pytest.raises(InvalidRequest) as caught:
        ServiceSpec(**values)
    assert caught.value.field == field


@pytest.mark.parametrize("name", ["name", "owner"])
@pytest.mark.parametrize("wrong", ["", "x" * 257, 5, None, "\ud800"])
def test_names_are_short_texts(name: str, wrong: Any) -> None:
    refused(name, **{name: wrong})


@pytest.mark.parametrize("name", ["start", "stop"])
@pytest.mark.parametrize("wrong", [None, "true", [], [""], ["a\0b"], [5]])
def test_commands_are_sequences_of_words(name: str, wrong: Any) -> None:
    refused(name, **{name: wrong})


@pytest.mark.parametrize("name", ["args", "context"])
@pytest.mark.parametrize(
    "wrong", [None, [], {1: 2}, {"x": b"bytes"}, {"x": float("nan")}, {"x": {1, 2}}]
)
def test_args_and_context_are_what_json_carries(name: str, wrong: Any) -> None:
    refused(name, **{name: wrong})


def test_what_refers_to_itself_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["x"] = loop
    refused("args", args=loop)


@pytest.mark.parametrize("name", ["output_dir", "tmp_dir"])
def test_the_directories_are_the_engines_to_give(name: str) -> None:
    refused("context", context={name: "/tmp"})


def test_what_is_changed_later_changes_nothing() -> None:
    argv, args = ["true"], {"deep": [1]}
    spec = ServiceSpec("n", "o", argv, (b"x", Path("/y")), args=args)
    argv.append("more")
    args["deep"].append(2)
    assert spec.start == ("true",)
    assert spec.args == {"deep": [1]}
    assert spec.key == ("n", "o")
    assert spec == ServiceSpec("n", "o", ["true"], (b"x", Path("/y")), {"deep": [1]})


def test_both_commands_read_one_document() -> None:
    spec = ServiceSpec("n", "o", ARGV, ARGV, {"a": 1}, {"b": 2})
    assert json.loads(spec.document("/out", "/tmp")) == {
        "version": 1,
        "context": {"b": 2, "output_dir": "/out", "tmp_dir": "/tmp"},
        "args": {"a": 1},
    }
