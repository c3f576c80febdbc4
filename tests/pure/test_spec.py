"""Requests, limits and settings: what is refused, and what crosses the wire."""

import dataclasses
import pathlib
import resource
from typing import Any

import pytest
from hypothesis import given, strategies as st

from actors import checks
from actors.launch import Launch
from actors.settings import Limits, OutputPolicy, Settings, TtySize, Watch
from actors.spec import AGENT_ENV, Ambient, Spec
from broker import wire
from broker.errors import InvalidRequest, ProtocolError

MARK = "0123456789abcdef" * 2
NOFILE = (resource.RLIMIT_NOFILE, 1024, 4096)
CORE = (resource.RLIMIT_CORE, 0, -1)
AMBIENT = Ambient(
    cwd=b"/home/me",
    env={b"PATH": b"/bin", b"LANG": b"C"},
    umask=0o022,
    rlimits=(NOFILE, CORE),
    nice=3,
    oom_score_adj=100,
)
DEFAULTS = Settings()


def launch(
    argv: Any, *, settings: Any = DEFAULTS, ambient: Any = AMBIENT, **options: Any
) -> Launch:
    return Spec(argv, **options).launch(ambient, settings, "build", MARK)


def refused(field: Any, make: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert caught.value.field == field
    return caught.value


# --- values of ours ------------------------------------------------------------------


@pytest.mark.parametrize("rows", [0, -1, 65536, True, 24.0, "24", None])
def test_a_terminal_has_between_1_and_65535_rows(rows: Any) -> None:
    refused("tty.rows", lambda: TtySize(rows, 80))
    refused("tty.cols", lambda: TtySize(24, rows))


def test_a_terminal_is_24_by_80_unless_told() -> None:
    assert TtySize() == TtySize(24, 80)
    assert TtySize(1, 65535).cols == 65535


@pytest.mark.parametrize("root", [b"", "", "a\0b", b"a\0b", 5, True])
def test_s8_a_scratch_root_names_a_directory(root: Any) -> None:
    refused("settings.scratch_root", lambda: Settings(scratch_root=root))


@pytest.mark.parametrize("root", [None, "/s", b"/s", pathlib.Path("/s"), "relative"])
def test_a_scratch_root_is_text_bytes_or_a_path(root: Any) -> None:
    assert Settings(scratch_root=root).scratch_root == root


@pytest.mark.parametrize("size", [0, -1, 2**53 + 1, True, 1.0, None])
def test_a_retention_holds_a_positive_number_of_bytes(size: Any) -> None:
    refused("retention.size", lambda: OutputPolicy.tail(size))
    refused("retention.size", lambda: OutputPolicy.head_tail(size))
    refused("retention.size", lambda: OutputPolicy.block(size))


@pytest.mark.parametrize("kind", ["ring", None, ["tail"]])
def test_a_retention_is_of_a_known_kind(kind: Any) -> None:
    refused("retention.kind", lambda: OutputPolicy(kind, 1))


def test_retentions_have_their_documented_sizes() -> None:
    assert OutputPolicy.tail().size == 2 * 1024 * 1024
    assert OutputPolicy.head_tail().size == 1024 * 1024
    assert OutputPolicy.block(7) == OutputPolicy("block", 7)


@pytest.mark.parametrize("wrong", [None, 5, "tail", [], ["tail"], ["tail", 1, 2]])
def test_a_retention_from_the_wire_is_a_pair(wrong: Any) -> None:
    refused("retention", lambda: OutputPolicy.from_wire(wrong))
    refused("tty", lambda: TtySize.from_wire(wrong))


def test_a_watch_checks_its_budget_and_action() -> None:
    assert Watch(5).action == "terminate"
    refused("watch.value", lambda: Watch(0))
    refused("watch.action", lambda: Watch(5, "explode"))  # type: ignore[arg-type]


def test_a_number_stands_for_a_watch_that_terminates() -> None:
    limits = Limits(output=10, tree_memory=Watch(5, "notify"))
    assert limits == Limits(output=Watch(10), tree_memory=Watch(5, "notify"))
    assert limits.watch("output") == Watch(10, "terminate")
    assert limits.watch("tree_memory") == Watch(5, "notify")
    assert limits.watch("tree_processes") is None


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("nofile", -1),
        ("nofile", True),
        ("core", 1.5),
        ("cpu", "1"),
        ("nice", -21),
        ("nice", 20),
        ("oom_score_adj", 1001),
        ("oom_score_adj", -1001),
        ("output", 0),
        ("tree_memory", True),
        ("tree_processes", 2**53 + 1),
    ],
)
def test_a_limit_out_of_range_is_refused_by_its_name(name: Any, wrong: Any) -> None:
    refused(f"limits.{name}", lambda: Limits(**{name: wrong}))


def test_a_limit_replaces_the_clients_and_others_stay() -> None:
    limits = Limits(nofile=64, cpu=1, core=0)
    assert limits.rlimits((NOFILE, CORE)) == (
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_CPU, 1, 2),
    )
    assert Limits().rlimits((NOFILE, CORE)) == (NOFILE, CORE)


def test_the_limits_of_the_system_that_were_asked_for_are_known() -> None:
    asked = Limits(nofile=64, core=0, nice=3, output=9)
    assert asked.named() == {resource.RLIMIT_NOFILE, resource.RLIMIT_CORE}
    assert Limits().named() == set()


def test_the_hard_limit_of_processor_time_leaves_room_for_a_signal_of_its_own() -> None:
    for most, hard in ((-1, 6), (9, 6), (6, 6), (5, 5), (4, 6)):
        ambient = ((resource.RLIMIT_CPU, 3, most),)
        assert Limits(cpu=5).rlimits(ambient) == ((resource.RLIMIT_CPU, 5, hard),)


def test_only_limits_that_are_set_travel() -> None:
    limits = Limits(core=0, output=Watch(9, "notify"))
    assert limits.to_wire() == {"core": 0, "output": [9, "notify"]}
    assert Limits.from_wire(limits.to_wire()) == limits
    assert Limits.from_wire({}) == Limits()


@pytest.mark.parametrize("wrong", [None, [], {"speed": 1}, {1: 1}])
def test_limits_from_the_wire_are_a_map_of_known_names(wrong: Any) -> None:
    refused("limits", lambda: Limits.from_wire(wrong))


def test_a_watch_from_the_wire_is_a_pair() -> None:
    refused("limits.output", lambda: Limits.from_wire({"output": 5}))
    refused("watch.value", lambda: Limits.from_wire({"output": [0, "notify"]}))


# --- settings ------------------------------------------------------------------------


def test_defaults_are_the_documented_ones() -> None:
    settings = Settings()
    assert settings.retention == OutputPolicy.tail(2 * 1024 * 1024)
    assert settings.window_chunks == 256
    assert settings.window_bytes == 256 * settings.chunk
    assert settings.post_exit_grace == 0.25
    assert settings.lease == 10.0


NUMBERS = [
    f.name
    for f in dataclasses.fields(Settings)
    if f.type in (int, float, int | None, float | None)
]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_setting_out_of_range_is_refused_by_its_name(name: Any) -> None:
    for wrong in (-1, 2**53 + 2, True, "1", float("nan"), float("inf"), [1]):
        options: Any = {name: wrong}
        refused(f"settings.{name}", lambda options=options: Settings(**options))


ZERO_MEANS_SOMETHING = {
    "post_exit_grace",
    "leftover_delay",
    "terminate_grace",
    "warm",
}


@pytest.mark.parametrize("name", NUMBERS)
def test_zero_is_a_setting_only_where_it_means_something(name: Any) -> None:
    zero: dict[str, Any] = {name: 0}
    if name in ZERO_MEANS_SOMETHING:
        assert getattr(Settings(**zero), name) == 0
    else:
        refused(f"settings.{name}", lambda: Settings(**zero))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("retention", "tail"),
        ("tty", (24, 80)),
        ("leftover", "adopt"),
        ("on_hung", True),
    ],
)
def test_a_setting_of_another_kind_is_refused_by_its_name(
    name: Any, wrong: Any
) -> None:
    refused(f"settings.{name}", lambda: Settings(**{name: wrong}))


def test_settings_are_checked_beside_each_other() -> None:
    refused("settings.window_bytes", lambda: Settings(window_bytes=1, chunk=2))
    refused("settings.lease_renewal", lambda: Settings(lease=1, lease_renewal=1))


def test_a_chunk_is_no_larger_than_the_wire_takes() -> None:
    most = wire.MAX_PAYLOAD
    assert launch(["x"], settings=Settings(chunk=most)).chunk == most
    wide: dict[str, Any] = {"chunk": most + 1, "window_bytes": 2 * most}
    refused("settings.chunk", lambda: Settings(**wide))


# --- the command ---------------------------------------------------------------------


class Odd:
    def __init__(self, path: Any) -> None:
        self.path = path

    def __fspath__(self) -> Any:
        return self.path


def test_a_command_is_text_bytes_and_paths() -> None:
    argv = ["é", b"\xff", pathlib.Path("/x"), Odd(b"y"), "\udcff", ""]
    assert launch(argv).argv == (b"\xc3\xa9", b"\xff", b"/x", b"y", b"\xff", b"")
    assert launch(("true",)).executable is None


@pytest.mark.parametrize("text", ["echo hi", b"echo hi"])
def test_a_command_line_goes_to_the_shell(text: Any) -> None:
    assert launch(text, shell=True).argv == (b"/bin/sh", b"-c", b"echo hi")


@pytest.mark.parametrize(
    "argv",
    [
        "true",
        b"true",
        pathlib.Path("true"),
        None,
        {"true"},
        iter(["true"]),
        [],
        [""],
        ["", "x"],
        [Odd("")],
        ["true", 1],
        ["true", None],
        [Odd(5)],
        ["true", "a\0b"],
        [b"\0"],
        ["true", "\ud800"],
    ],
)
def test_what_is_no_command_is_refused(argv: Any) -> None:
    refused("argv", lambda: Spec(argv))


@pytest.mark.parametrize("argv", [["echo", "hi"], None, "echo \0", "\ud800"])
def test_what_is_no_command_line_is_refused(argv: Any) -> None:
    refused("argv", lambda: Spec(argv, shell=True))


def test_arg0_replaces_the_name_and_not_the_program() -> None:
    order = launch(["/bin/sh", "-x"], arg0="-sh")
    assert order.argv == (b"-sh", b"-x")
    assert order.executable == b"/bin/sh"
    refused("arg0", lambda: Spec(["sh"], arg0="a\0"))


def test_a_variable_that_is_wrong_is_named_without_its_value() -> None:
    for name in ("env", "extra_env"):
        for value, why in ((7142, "must be text"), ("7142\0", "must not hold a NUL")):
            asked: dict[str, Any] = {name: {"GOOD": "1", "PIN": value}}
            error = refused(name, lambda asked=asked: Spec(["x"], **asked))
            assert error.message.startswith(f"variable PIN {why}")
            assert "7142" not in repr(error)


def test_a_terminal_of_a_wrong_kind_is_told_the_right_ones() -> None:
    wrong: Any = (24, 80)
    error = refused("tty", lambda: Spec(["x"], tty=wrong))
    assert error.message == "must be True, False or TtySize"


def test_a_refusal_never_repeats_the_value() -> None:
    error = refused("env", lambda: Spec(["x"], env={"TOKEN": "s3cr3t\ud800"}))
    assert "s3cr3t" not in str(error)
    assert error.__suppress_context__


def test_a_spec_and_its_order_do_not_show_the_environment_or_input() -> None:
    spec = Spec(["x"], env={"A": "s3cr3t"}, extra_env={"B": "s3cr3t"}, stdin=b"s3cr3t")
    assert "s3cr3t" not in repr(spec)
    assert "s3cr3t" not in repr(spec.launch(AMBIENT, Settings(), "x", MARK))


# --- where and with what it runs -----------------------------------------------------


@pytest.mark.parametrize(
    ("cwd", "where"),
    [
        (None, b"/home/me"),
        ("sub", b"/home/me/sub"),
        (b"/abs", b"/abs"),
        (pathlib.Path("a/b"), b"/home/me/a/b"),
    ],
)
def test_a_directory_is_the_clients_or_relative_to_it(cwd: Any, where: Any) -> None:
    assert launch(["x"], cwd=cwd).cwd == where


def test_a_directory_below_the_root_has_one_slash() -> None:
    ambient = dataclasses.replace(AMBIENT, cwd=b"/")
    assert launch(["x"], cwd="tmp", ambient=ambient).cwd == b"/tmp"


def test_observed_directories_start_in_the_childs() -> None:
    order = launch(["x"], cwd="/a", observe=["b", "/c", b"."])
    assert order.observe == (b"/a/b", b"/c", b"/a/.")
    assert launch(["x"]).observe == ()


@pytest.mark.parametrize("cwd", ["", "a\0", 5, "\ud800"])
def test_what_is_no_directory_is_refused(cwd: Any) -> None:
    refused("cwd", lambda: Spec(["x"], cwd=cwd))
    refused("observe", lambda: Spec(["x"], observe=[cwd]))


def env_of(**options: Any) -> dict[bytes, bytes]:
    return pairs(launch(["x"], **options))


def pairs(order: Launch) -> dict[bytes, bytes]:
    parts = (item.partition(b"=") for item in order.variables)
    return {name: value for name, _, value in parts}


def test_the_environment_is_the_clients_with_the_mark() -> None:
    assert env_of() == {**AMBIENT.env, b"CRECHE_MARK": MARK.encode()}
    assert env_of(marker=False) == AMBIENT.env


def test_a_map_is_the_whole_environment() -> None:
    env = {"A": "é", b"B": b"\xff", "C": pathlib.Path("/c")}
    assert env_of(env=env, marker=False) == {
        b"A": b"\xc3\xa9",
        b"B": b"\xff",
        b"C": b"/c",
    }
    assert env_of(env={}, marker=False) == {}


def test_an_overlay_adds_replaces_and_removes() -> None:
    overlay = {"LANG": None, "PATH": "/usr/bin", "NEW": "1", "ABSENT": None}
    assert env_of(extra_env=overlay, marker=False) == {
        b"PATH": b"/usr/bin",
        b"NEW": b"1",
    }


def test_a_variable_without_a_name_is_not_handed_on() -> None:
    ambient = dataclasses.replace(AMBIENT, env={b"": b"odd", b"A": b"1"})
    assert env_of(ambient=ambient, marker=False) == {b"A": b"1"}


def test_agents_get_a_quiet_environment() -> None:
    env = env_of(extra_env=AGENT_ENV)
    assert env[b"TERM"] == b"dumb"
    assert env[b"COLORTERM"] == b""
    assert env[b"CRECHE_AGENT"] == b"1"


@pytest.mark.parametrize(
    "env",
    [
        {"": "x"},
        {"A=B": "x"},
        {"=": "x"},
        {"A\0": "x"},
        {"A": "\0"},
        {"A": 1},
        {1: "A"},
        {"A": "\ud800"},
        [("A", "B")],
        "A=B",
    ],
)
def test_what_is_no_environment_is_refused(env: Any) -> None:
    refused("env", lambda: Spec(["x"], env=env))
    refused("extra_env", lambda: Spec(["x"], extra_env=env))


def test_a_whole_environment_has_nothing_to_remove() -> None:
    env: Any = {"A": None}
    refused("env", lambda: Spec(["x"], env=env))


@pytest.mark.parametrize(
    "mark", ["", "0" * 31, "G" * 32, "A" * 32, "\N{ARABIC-INDIC DIGIT ZERO}" * 32]
)
def test_a_mark_is_32_hexadecimal_digits(mark: Any) -> None:
    refused("mark", lambda: Spec(["x"]).launch(AMBIENT, Settings(), "x", mark))


def test_the_child_gets_what_the_client_has() -> None:
    order = launch(["x"])
    assert order.umask == 0o022
    assert order.rlimits == (NOFILE, CORE)
    assert (order.nice, order.oom_score_adj) == (3, 100)


def test_the_child_gets_the_limits_asked_for() -> None:
    limits = Limits(nofile=9, nice=0, oom_score_adj=0, output=5)
    order = launch(["x"], limits=limits)
    assert order.rlimits == ((resource.RLIMIT_NOFILE, 9, 9), CORE)
    assert (order.nice, order.oom_score_adj) == (0, 0)
    assert order.limits.watch("output") == Watch(5)


# --- streams -------------------------------------------------------------------------


@pytest.mark.parametrize("stdin", ["null", "pipe", b"", b"\0data"])
def test_input_is_nothing_a_pipe_or_bytes(stdin: Any) -> None:
    assert launch(["x"], stdin=stdin).stdin == stdin


def test_stderr_follows_stdout_even_to_nowhere() -> None:
    order = launch(["x"], stdout="null", stderr="stdout")
    assert (order.stdout, order.stderr) == ("null", "stdout")


def test_a_terminal_has_the_size_asked_for_or_the_default() -> None:
    settings = Settings(tty=TtySize(10, 20))
    assert launch(["x"], settings=settings).tty is None
    assert launch(["x"], settings=settings, tty=True).tty == TtySize(10, 20)
    assert launch(["x"], tty=TtySize(1, 2), stdin="pipe").tty == TtySize(1, 2)


@pytest.mark.parametrize("tty", [True, TtySize()])
@pytest.mark.parametrize(
    ("name", "value"), [("stdout", "null"), ("stderr", "stdout"), ("stdin", b"")]
)
def test_a_terminal_is_one_stream_and_is_not_fed(
    tty: Any, name: Any, value: Any
) -> None:
    refused(name, lambda: Spec(["x"], tty=tty, **{name: value}))


def test_descriptors_keep_their_numbers() -> None:
    assert launch(["x"], pass_fds=[9, 3]).pass_fds == (9, 3)


@pytest.mark.parametrize(
    "fds", [[2], [-1], [True], ["3"], [3, 3], 3, list(range(3, 257))]
)
def test_what_are_no_descriptors_is_refused(fds: Any) -> None:
    refused("pass_fds", lambda: Spec(["x"], pass_fds=fds))


# --- other options -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("shell", 1),
        ("marker", None),
        ("stdin", "hello"),
        ("stdin", None),
        ("stdout", "stderr"),
        ("stderr", 2),
        ("tty", 1),
        ("tty", (24, 80)),
        ("kill_on_drop", 0),
        ("detach_ttl", -1),
        ("retention", 1024),
        ("post_exit_grace", -0.1),
        ("post_exit_grace", "never"),
        ("leftover", True),
        ("limits", {"nofile": 1}),
        ("timeout", 0),
        ("timeout", float("nan")),
        ("idle_timeout", float("inf")),
        ("idle_timeout", False),
        ("metadata", [("a", "b")]),
        ("metadata", {"a": 1}),
        ("metadata", {1: "a"}),
        ("metadata", {"a": "\ud800"}),
        ("authority", 5),
        ("observe", "/tmp"),
        ("request_id", b"x"),
        ("request_id", ""),
        ("request_id", "x" * (wire.MAX_TOKEN + 1)),
        ("on_full", "wait"),
        ("queue", -1),
    ],
)
def test_an_option_that_is_not_possible_is_refused_by_its_name(
    name: Any, wrong: Any
) -> None:
    refused(name, lambda: Spec(["x"], **{name: wrong}))


def test_a_request_id_may_be_as_long_as_the_wire_takes() -> None:
    longest = "x" * wire.MAX_TOKEN
    assert Spec(["x"], request_id=longest).request_id == longest


def test_options_not_given_are_the_settings() -> None:
    settings = Settings(
        retention=OutputPolicy.block(5),
        post_exit_grace=None,
        leftover="report",
        quiet=0.5,
        chunk=100,
    )
    order = launch(["x"], settings=settings)
    assert order.retention == OutputPolicy.block(5)
    assert order.post_exit_grace is None
    assert order.leftover == "report"
    assert (order.quiet, order.chunk) == (0.5, 100)


def test_options_given_win_over_the_settings() -> None:
    order = launch(
        ["x"],
        retention=OutputPolicy.head_tail(8),
        post_exit_grace=None,
        leftover="keep",
        timeout=5,
        idle_timeout=0.5,
        kill_on_drop=False,
        metadata={"k": "v"},
        authority="root",
    )
    assert order.retention == OutputPolicy.head_tail(8)
    assert order.post_exit_grace is None
    assert order.leftover == "keep"
    assert (order.timeout, order.idle_timeout) == (5, 0.5)
    assert not order.kill_on_drop
    assert order.metadata == (("k", "v"),)
    assert (order.authority, order.scope, order.paused) == ("root", "build", False)
    assert launch(["x"], post_exit_grace=0).post_exit_grace == 0


def test_what_is_changed_after_the_request_changes_nothing() -> None:
    argv, env, fds, notes = ["x", "y"], {"A": "1"}, [3], {"k": "v"}
    spec = Spec(argv, env=env, pass_fds=fds, metadata=notes, observe=["d"])
    argv.append("z")
    env["A"] = "2"
    fds.append(4)
    notes["k"] = "w"
    order = spec.launch(AMBIENT, Settings(), "s", MARK)
    assert order.argv == (b"x", b"y")
    assert pairs(order)[b"A"] == b"1"
    assert order.pass_fds == (3,)
    assert order.metadata == (("k", "v"),)
    assert spec.observe == (b"d",)


def test_metadata_has_no_more_pairs_than_a_snapshot_tells() -> None:
    notes = {str(number): "" for number in range(checks.MOST_PAIRS)}
    order = launch(["x"], metadata=notes)
    assert wire.unpack(wire.pack(dict(order.metadata))) == notes
    assert Launch.from_wire(order.to_wire()) == order
    refused("metadata", lambda: Spec(["x"], metadata={**notes, "more": ""}))


# --- the order on the wire -----------------------------------------------------------

os_bytes = st.binary(max_size=20).map(lambda raw: raw.replace(b"\0", b"?"))
names = st.binary(min_size=1, max_size=9).map(
    lambda raw: raw.replace(b"\0", b"?").replace(b"=", b"?")
)
texts = st.text(max_size=20)
seconds = st.floats(0, 2**53)
some_seconds = st.floats(0, 2**53, exclude_min=True)
sizes = st.integers(1, 2**53)
limit_values = st.integers(-1, 2**63 - 1)
watches = st.none() | st.builds(Watch, sizes, st.sampled_from(["terminate", "notify"]))
policies = st.builds(
    OutputPolicy, st.sampled_from(["tail", "head_tail", "block"]), sizes
)
tty_sizes = st.builds(TtySize, st.integers(1, 65535), st.integers(1, 65535))
limits_asked = st.builds(
    Limits,
    nofile=st.none() | st.integers(0, 2**53),
    nice=st.none() | st.integers(-20, 19),
    output=watches,
    tree_processes=watches,
)


def rows(*cells: Any) -> Any:
    return st.lists(st.tuples(*cells), max_size=5).map(tuple)


orders = st.builds(
    Launch,
    argv=st.lists(os_bytes, min_size=1, max_size=5).map(tuple),
    executable=st.none() | os_bytes,
    cwd=os_bytes,
    env=st.dictionaries(names, os_bytes, max_size=5).map(
        lambda env: b"\0".join(b"=".join(item) for item in env.items())
    ),
    umask=st.integers(0, 0o777),
    rlimits=rows(st.integers(0, 20), limit_values, limit_values),
    nice=st.integers(-20, 19),
    oom_score_adj=st.integers(-1000, 1000),
    pass_fds=st.lists(st.integers(3, 999), unique=True, max_size=5).map(tuple),
    stdin=st.sampled_from(["null", "pipe"]) | st.binary(max_size=20),
    stdout=st.sampled_from(["pipe", "null"]),
    stderr=st.sampled_from(["pipe", "stdout", "null"]),
    tty=st.none() | tty_sizes,
    retention=policies,
    post_exit_grace=st.none() | seconds,
    leftover=st.sampled_from(["kill", "keep", "report"]),
    leftover_delay=seconds,
    timeout=st.none() | some_seconds,
    idle_timeout=st.none() | some_seconds,
    limits=limits_asked,
    terminate_grace=seconds,
    kill_timeout=some_seconds,
    kill_on_drop=st.booleans(),
    quiet=some_seconds,
    chunk=st.integers(1, wire.MAX_PAYLOAD),
    stdin_queue=sizes,
    metadata=rows(texts, texts),
    authority=st.none() | texts,
    scope=texts,
    paused=st.booleans(),
    observe=st.lists(os_bytes, max_size=3).map(tuple),
)


@given(orders)
def test_an_order_comes_back_from_the_wire(order: Any) -> None:
    assert Launch.from_wire(order.to_wire()) == order


def on_the_wire(order: Launch) -> tuple[dict[str, Any], dict[str, Any]]:
    packed, own = wire.unpack(order.to_wire())
    return wire.unpack(packed), own


def with_field(name: str, value: Any) -> bytes:
    """An order of which one field has another value, or is missing."""
    terms, own = on_the_wire(launch(["x"]))
    part = terms if name in terms else own
    part[name] = value
    if value is MISSING:
        del part[name]
    return wire.pack([wire.pack(terms), own])


MISSING = object()
FIELDS = [f.name for f in dataclasses.fields(Launch)]
wire_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
    ),
    max_leaves=6,
)


@given(st.sampled_from(FIELDS), wire_values)
def test_whatever_the_wire_brings_is_an_order_or_refused(name: Any, value: Any) -> None:
    try:
        order = Launch.from_wire(with_field(name, value))
    except InvalidRequest:
        return
    assert Launch.from_wire(order.to_wire()) == order


@given(wire_values)
def test_nonsense_from_the_wire_is_refused(value: Any) -> None:
    _, own = on_the_wire(launch(["x"]))
    refused("launch", lambda: Launch.from_wire(wire.pack([wire.pack(value), own])))
    with pytest.raises(InvalidRequest):
        Launch.from_wire(wire.pack(value))
    with pytest.raises((InvalidRequest, ProtocolError)):
        Launch.from_wire(wire.pack([value, own]))


def test_equal_terms_are_read_once_and_others_are_not_taken_for_them() -> None:
    one, same = (Launch.from_wire(launch(["x"]).to_wire()) for _ in range(2))
    other = Launch.from_wire(launch(["x"], timeout=9.0).to_wire())
    assert one.retention is same.retention
    assert (one.timeout, same.timeout, other.timeout) == (None, None, 9.0)


@pytest.mark.parametrize("name", FIELDS)
def test_an_order_with_a_field_missing_is_refused(name: Any) -> None:
    sent = with_field(name, MISSING)
    assert name in str(refused("launch", lambda: Launch.from_wire(sent)))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("argv", []),
        ("argv", "x"),
        ("argv", ["x"]),
        ("argv", [b"\0"]),
        ("executable", b"\0"),
        ("cwd", "x"),
        ("env", [[b"A", b"1"]]),
        ("env", "A=1"),
        ("env", None),
        ("rlimits", [[1, 2]]),
        ("rlimits", [[1, 2, -2]]),
        ("umask", 0o1000),
        ("chunk", wire.MAX_PAYLOAD + 1),
        ("stdin", "x"),
        ("pass_fds", [1]),
        ("metadata", [["a", b"b"]]),
        ("kill_on_drop", 1),
        ("scope", None),
        ("observe", ["x"]),
        ("mark", "x"),
        ("mark", b"x"),
    ],
)
def test_an_order_is_checked_again_where_it_arrives(name: Any, wrong: Any) -> None:
    refused(name, lambda: Launch.from_wire(with_field(name, wrong)))
