"""The output of one job until it has ended: in memory while it is little, else files.

Files without a name, in the directory for temporary ones, or those that become its
results. Either way a batch that is killed leaves nothing that could be mistaken for a
result.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

STREAMS: Final = ("stdout", "stderr")
RESULTS: Final = (*STREAMS, "seq")
"""Files of a job's results, in the order in which they are put in their place."""
IN_MEMORY: Final = 32 * 1024
"""Bytes of a stream that are kept in memory; more goes into a file."""
PIECE: Final = 64 * 1024
"""Bytes read back at once."""


@contextmanager
def named(path: str) -> Iterator[None]:
    """Have an error of a file that is open tell which file that is.

    Raises:
        OSError: with its name.
    """
    try:
        yield
    except OSError as refused:
        if refused.filename is not None:
            raise
        raise OSError(refused.errno, refused.strerror, path) from refused


class Spool:
    """The two streams of one attempt of a job.

    Attributes:
        sizes: Name of a stream → bytes written to it.
    """

    def __init__(self) -> None:
        self.sizes = dict.fromkeys(STREAMS, 0)
        self._files: dict[str, IO[bytes]] = {}
        try:
            for stream in STREAMS:
                self._files[stream] = self._open(stream)
        except OSError:
            self.close()
            raise

    def _open(self, _stream: str) -> IO[bytes]:
        return tempfile.SpooledTemporaryFile(IN_MEMORY)

    def write(self, stream: str, data: bytes) -> None:
        """Add output.

        Raises:
            OSError: it is refused, by a full disk for one; it says where.
        """
        self.sizes[stream] += len(data)
        with named(self._path(stream)):
            self._files[stream].write(data)

    def _path(self, _name: str) -> str:
        """Return where it goes, for people."""
        return tempfile.gettempdir()

    def pieces(self, stream: str) -> Iterator[bytes]:
        """Yield what was written to a stream.

        Raises:
            OSError: see `write`; some of it may not have been tried before.
        """
        file = self._files[stream]
        with named(self._path(stream)):
            file.seek(0)
            while data := file.read(PIECE):
                yield data

    def last(self, size: int) -> bytes:
        """Return the last bytes of stderr, or of stdout if that is empty.

        Raises:
            OSError: see `pieces`.
        """
        stream = STREAMS[1] if self.sizes[STREAMS[1]] else STREAMS[0]
        file = self._files[stream]
        with named(self._path(stream)):
            file.seek(max(0, self.sizes[stream] - size))
            return file.read(size)

    def close(self) -> None:
        """Let go of it; harmless to repeat."""
        for file in self._files.values():
            with suppress(OSError):  # what a full disk refused before, it does again
                file.close()


class Results(Spool):
    """The streams of a job whose results are kept: files that are renamed at the end.

    Args:
        directory: of these results.
        seq: number of the job: part of the files' names until then.

    Raises:
        OSError: they cannot be made.
    """

    def __init__(self, directory: str, seq: int) -> None:
        self._directory = directory
        self._seq = seq
        self._loose: tuple[str, ...] = RESULTS
        os.makedirs(directory, exist_ok=True)
        super().__init__()

    def _open(self, stream: str) -> IO[bytes]:
        return open(self._path(stream), "w+b")

    def keep(self) -> None:
        """Put the results in their place: each whole, in place of an older one.

        Raises:
            OSError: that is refused.
        """
        with named(self._path("seq")), open(self._path("seq"), "wb") as file:
            file.write(str(self._seq).encode())
        for stream in STREAMS:
            with named(self._path(stream)):
                self._files[stream].flush()
        for name in RESULTS:
            os.replace(self._path(name), os.path.join(self._directory, name))
        self._loose = ()

    def close(self) -> None:
        """Let go of it, and of what was not kept; harmless to repeat."""
        super().close()
        for name in self._loose:
            with suppress(OSError):  # it may never have been made
                os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        """Return the name of a file until it is whole: the same in every attempt."""
        return os.path.join(self._directory, f"{name}.part-{self._seq}")
