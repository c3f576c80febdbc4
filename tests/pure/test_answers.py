"""Answers that may get lost with a broker: known when they are asked for again."""

from actors.answers import Answers
from actors.outlet import Ask
from actors.session import Session
from actors.settings import Settings
from actors.spec import Ambient, Spec
from broker.wire import Kind, Message

ONE, TWO, THREE = Ask(1, 1), Ask(1, 2), Ask(2, 1)


def test_nothing_is_known_while_the_broker_lives() -> None:
    answers = Answers(2)
    answers.note(ONE, Kind.REPLY, {"a": 1})
    assert answers.known == {}


def test_the_last_answers_are_known_after_its_loss() -> None:
    answers = Answers(2)
    for number, ask in enumerate((ONE, TWO, THREE)):
        answers.note(ask, Kind.REPLY, {"a": number})
    answers.cut_off([])
    assert answers.known == {
        TWO: (Kind.REPLY, {"a": 1}),
        THREE: (Kind.REPLY, {"a": 2}),
    }


def test_what_is_pending_at_the_loss_is_known_once_it_is_answered() -> None:
    answers = Answers(2)
    answers.cut_off([ONE])
    assert answers.known == {ONE: None}
    answers.note(ONE, Kind.ERROR, {})
    answers.note(TWO, Kind.REPLY, {})
    assert answers.known == {ONE: (Kind.ERROR, {})}


def test_a_second_loss_adds_what_came_meanwhile() -> None:
    answers = Answers(2)
    answers.cut_off([ONE])
    answers.note(TWO, Kind.REPLY, {})
    answers.cut_off([ONE])
    assert answers.known == {ONE: None, TWO: (Kind.REPLY, {})}


def test_where_nobody_asks_again_nothing_is_remembered() -> None:
    answers = Answers(0)
    answers.note(ONE, Kind.REPLY, {})
    answers.cut_off([])
    assert answers.known == {}


class Ears:
    """A leg that nobody listens to."""

    def send(self, message: Message) -> None:
        pass

    def room(self) -> bool:
        return True


def test_what_a_broker_asks_itself_is_not_asked_again() -> None:
    ambient = Ambient(b"/", {b"PATH": b"/bin"}, 0o022, (), 0, 0)
    launch = Spec(["x"]).launch(ambient, Settings(), "", "0" * 32)
    session = Session(1000, 7, launch, Ears(), None, memory=9)
    for ask in (Ask(0, 1), ONE):
        session.say(Kind.REPLY, ask, {"receipt": [1, 0, []]})
    session.answers.cut_off([])
    assert session.answers.known.keys() == {ONE}
