"""The engine that the tests of the rules use."""

import pytest

import actors
from tests.live.children import Opened


@pytest.fixture
def opened() -> Opened:
    """Return what opens an engine for a block: the asynchronous face."""
    return actors.Engine
