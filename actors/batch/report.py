"""What programs are told of jobs: JSON objects. Pure.

Fields of a job that ended: `event` (`ended`), `seq`, `id`, `command`, `inputs`,
`started` (Unix time), `wall_time` (seconds), `attempts`, `ok`, `code` (None unless it
exited), `signal` (None unless it died of one), `cause` (of `ExitStatus`, or `failed`),
`error` and `message` (a code and a sentence, if it could not be started), `usage` (of
`ExitStatus`), `written` (bytes of each stream), and either `stdout` and `stderr`, as
UTF-8 with a mark in place of what is not, or `results`, their directory.
"""

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import actors
from actors.batch.jobs import Job
from actors.batch.outcome import Outcome

Streams = Mapping[str, Iterable[bytes]]
"""Name of a stream → its output, in pieces."""


def ended(job: Job, outcome: Outcome) -> dict[str, Any]:
    """Return the fields of a job that ended, but for its output."""
    status = outcome.status
    usage = actors.Usage() if status is None else status.usage
    return {
        "event": "ended",
        "seq": job.seq,
        "id": job.id,
        "command": job.command,
        "inputs": list(job.inputs),
        "started": round(outcome.started, 6),
        "wall_time": round(outcome.wall_time, 6),
        "attempts": outcome.attempts,
        "ok": outcome.ok,
        "code": None if status is None else status.code,
        "signal": None if status is None else status.signal,
        "cause": outcome.cause,
        "error": outcome.error,
        "message": outcome.failure,
        "usage": asdict(usage),
        "written": {"stdout": outcome.stdout, "stderr": outcome.stderr},
    }


def pieces(facts: Mapping[str, Any], streams: Streams) -> Iterator[bytes]:
    """Yield an object in one line without its end, its output last, piece by piece."""
    yield json.dumps(facts).removesuffix("}").encode()
    for name, output in streams.items():
        yield f', "{name}": "'.encode()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for data in output:
            yield _inside(decoder.decode(data))
        yield _inside(decoder.decode(b"", final=True))
        yield b'"'
    yield b"}"


def _inside(text: str) -> bytes:
    """Return a text as it stands between the quotes."""
    return json.dumps(text)[1:-1].encode()
