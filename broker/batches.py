"""KILL_MANY: one KILL for each session, and one answer for all of them. Pure.

The broker asks for each KILL itself (client 0, the number of the batch): a session
answers it as any other. Whatever the answer is, a receipt or an error, it is kept in
its place. The batch is answered once, when nothing is missing any more. Its sessions
need not exist, and one that is named twice is killed once.
"""

from collections.abc import Iterator

from broker.registry import Ask
from broker.wire import Kind, Message, pack


class Batch:
    """A KILL_MANY on its way.

    Args:
        client: whoever gets the answer.
        message: the KILL_MANY.

    Attributes:
        ask: who is answered once it is through.
        missing: sessions that did not answer so far.
    """

    def __init__(self, client: int, message: Message) -> None:
        self.ask = Ask(client, message.request)
        self.missing = set(message.body["sessions"])
        self._message = message
        self._answers: dict[int, list[object]] = {}

    def kills(self, number: int, timeout: float, cause: str) -> Iterator[Message]:
        """Return what asks each session, in order, to end within `timeout` seconds."""
        epoch = self._message.epoch
        body = {"grace": None, "timeout": timeout, "cause": cause, "release": False}
        for session in dict.fromkeys(self._message.body["sessions"]):
            yield Message(Kind.KILL, 0, number, session, epoch, 0.0, body)

    def note(self, answer: Message) -> None:
        """Keep one session's answer."""
        self.missing.remove(answer.session)
        body = answer.body
        self._answers[answer.session] = (
            [body["receipt"]]
            if answer.kind is Kind.REPLY
            else [body["code"], body["values"]]
        )

    def reply(self) -> Message:
        """Return the answer to the KILL_MANY; nothing is missing."""
        answers = [self._answers[n] for n in self._message.body["sessions"]]
        return self._message.reply(Kind.REPLY, payload=pack(answers))
