"""What is a job, and what is told of one that is none."""

import json
import shlex
from typing import Any

import pytest
from hypothesis import given, strategies as st

import actors
from actors.batch.jobs import BadJob, Job, Template, of_line
from actors.batch.wording import LONGEST_NAME, Tagger, command_line, place, quote

# -- words --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("plain-1.0_+/x", "plain-1.0_+/x"),
        ("", "''"),
        ("a b", "'a b'"),
        ("it's", "'it'\"'\"'s'"),
        ("'x", "\"'\"'x'"),
        ("x'", "'x'\"'\""),
        ("'", '"\'"'),
        ("~", "'~'"),
        ("a=b,c:d", "'a=b,c:d'"),
        ("$HOME", "'$HOME'"),
    ],
)
def test_a_word_is_quoted_as_gnu_parallel_does(word: str, quoted: str) -> None:
    assert quote(word) == quoted


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


@given(st.lists(words, min_size=1, max_size=4))
def test_quoted_words_are_read_back(texts: list[str]) -> None:
    assert shlex.split(command_line(texts)) == texts


@pytest.mark.parametrize(
    ("inputs", "path"),
    [
        (("a b",), "1/a b"),
        (("c/d", "y\tz"), "1/c\\_d/2/y\\tz"),
        (("e\\f",), "1/e\\\\f"),
        (("",), "1/\\"),
        (("nul\0",), "1/nul\\0"),
        ((".", ".."), "1/\\./2/\\.."),
        (("", "stdout"), "1/\\/2/stdout"),
    ],
)
def test_results_are_where_gnu_parallel_has_them(
    inputs: tuple[str, ...], path: str
) -> None:
    assert place(inputs) == path


def test_long_inputs_have_places_of_their_own() -> None:
    first, second = (place(("é" * 200 + end,)) for end in "ab")
    assert first != second
    assert all(len(path.encode()) <= LONGEST_NAME + 2 for path in (first, second))


def test_a_tag_stands_before_every_line() -> None:
    tagger = Tagger("t")
    pieces = [b"one\ntw", b"o\n", b"\n", b"last"]
    tagged = b"".join(tagger.tagged(piece) for piece in pieces)
    assert tagged == b"t\tone\nt\ttwo\nt\t\nt\tlast"


# -- lines --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    ["echo hi", "", "  # nothing", "{ echo a; }", '{ "$CMD" x; }', "{}x", "é\udcff"],
)
def test_a_line_is_a_command_for_the_shell(line: str) -> None:
    assert of_line(7, line) == Job(7, line, line, {"shell": True}, (line,))


def test_an_object_has_the_options_of_a_spawn() -> None:
    line = {
        "argv": ["cat", "a b"],
        "id": "first",
        "cwd": "/",
        "extra_env": {"A": "1", "B": None},
        "timeout": 5,
        "stdin": "né",
        "limits": {"nofile": 64},
    }
    job = of_line(2, f" {json.dumps(line)}")
    assert (job.seq, job.command, job.argv) == (2, "cat 'a b'", ["cat", "a b"])
    assert (job.id, job.inputs, job.tag) == ("first", ("first",), "first")
    assert job.options == {
        "shell": False,
        "cwd": "/",
        "extra_env": {"A": "1", "B": None},
        "timeout": 5,
        "stdin": "né".encode(),
        "limits": actors.Limits(nofile=64),
    }


@pytest.mark.parametrize(
    "line", ['{"shell": "echo $A"}', '{"argv": "echo $A", "shell": true}']
)
def test_an_object_may_be_a_command_for_the_shell(line: str) -> None:
    job = of_line(1, line)
    assert (job.argv, job.options["shell"]) == ("echo $A", True)
    assert job.inputs == (job.command,) == ("echo $A",)


def test_objects_that_differ_in_options_alone_have_places_of_their_own() -> None:
    one, other = (
        of_line(seq, json.dumps({"argv": ["sort"], "stdin": text}))
        for seq, text in enumerate("ab", 1)
    )
    assert (one.place, other.place) == ("1/sort #1", "1/sort #2")
    assert one.tag == other.tag == "sort"
    named = of_line(3, '{"argv": ["sort"], "stdin": "c", "id": "c"}')
    assert (named.place, of_line(4, "sort").place) == ("1/c", "1/sort")


def test_an_object_without_input_reads_nothing() -> None:
    assert of_line(1, '{"argv": ["cat"], "stdin": null}').options["stdin"] == "null"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"argv": ["a"', "is no JSON object"),
        ('{"a":' * 100_000, "is no JSON object"),
        ("{}", "argv: is missing"),
        ('{ "id": "x" }', "argv: is missing"),
        ('{"argv": ["a"], "timout": 1}', "timout: is not known"),
        ('{"argv": "a b"}', "argv: must be a list of texts"),
        ('{"argv": ["a", 1]}', "argv: must be a list of texts"),
        ('{"argv": []}', "argv: must name a program"),
        ('{"argv": ["a"], "shell": true}', "argv: must be one text"),
        ('{"argv": ["a"], "shell": "b"}', "shell: must be true or false beside argv"),
        ('{"argv": ["a"], "shell": 1}', "shell: must be a command line"),
        ('{"argv": ["a"], "id": 3}', "id: must be text"),
        ('{"argv": ["a"], "id": "\\ud83d"}', "id: holds half a character"),
        ('{"argv": ["a"], "stdin": 3}', "stdin: must be the text"),
        ('{"argv": ["a"], "stdin": "\\ud800"}', "stdin: holds half a character"),
        ('{"argv": ["a"], "limits": {"files": 3}}', "limits: must be an object"),
        ('{"argv": ["a"], "limits": 3}', "limits: must be an object"),
        ('{"argv": ["a"], "limits": {"nofile": -1}}', "limits.nofile: "),
        ('{"argv": ["a"], "timeout": "soon"}', "timeout: "),
        ('{"argv": ["a"], "env": {"A": 1}}', "env: "),
        ('{"argv": ["a"], "tty": true, "stdin": "x"}', "stdin: "),
    ],
)
def test_a_line_that_is_no_job_is_refused_in_a_sentence(line: str, said: str) -> None:
    with pytest.raises(BadJob) as refused:
        of_line(1, line)
    assert str(refused.value).startswith(said)


def test_a_line_that_cannot_be_started_is_a_job_that_will_fail() -> None:
    assert of_line(1, "echo \0").argv == "echo \0"


# -- a command and its arguments ----------------------------------------------------


def commands(*given: str) -> list[str]:
    return [job.command for job in Template(given).jobs(set()) if job]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["echo", ":::", "a b", "c"], ["echo 'a b'", "echo c"]),
        (["echo {} {#}", ":::", "a"], ["echo a 1"]),
        (["echo", "{#}", ":::", "a"], ["echo 1"]),
        (["x{}y{}", ":::", "a b"], ["x'a b'y'a b'"]),
        (["cp {2} {1}", ":::", "a", ":::", "b"], ["cp b a"]),
        ([":::", "echo a", "exit 1"], ["echo a", "exit 1"]),
        (["echo", ":::"], []),
        (["printf", "%s {.}", ":::", "a"], ["printf %s {.} a"]),
    ],
)
def test_arguments_take_their_places(given: list[str], expected: list[str]) -> None:
    assert commands(*given) == expected


def test_several_lists_give_every_combination_the_last_changing_fastest() -> None:
    template = Template(["echo", ":::", "a", "b", ":::", "1", "2", "3"])
    jobs = [job for job in template.jobs(set()) if job]
    assert template.total == len(jobs) == 6
    assert [job.inputs for job in jobs[:4]] == [
        ("a", "1"),
        ("a", "2"),
        ("a", "3"),
        ("b", "1"),
    ]
    assert (jobs[3].seq, jobs[3].command, jobs[3].tag) == (4, "echo b 1", "b 1")


def test_what_is_done_keeps_its_number() -> None:
    found = list(Template(["echo", ":::", "a", "b", "c"]).jobs({1, 3}))
    assert [job and job.seq for job in found] == [None, 2, None]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["echo {2}", ":::", "a"], "{2}: lists behind ::: are 1"),
        (["echo {0}", ":::", "a"], "{0}: lists behind ::: are 1"),
        (["echo {" + "1" * 5000 + "}", ":::", "a"], "{1111"),
        (["echo", "::::", "file"], "'::::' is not known"),
        (["echo", ":::+", "a"], "':::+' is not known"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused(
    given: list[str], said: str
) -> None:
    with pytest.raises(BadJob) as refused:
        Template(given)
    assert str(refused.value).startswith(said)


def test_an_argument_that_cannot_be_one_is_named_by_its_job() -> None:
    jobs: Any = Template(["echo", ":::", "a", "b\0"]).jobs(set())
    assert next(jobs).command == "echo a"
    with pytest.raises(BadJob, match="job 2: argv"):
        next(jobs)
