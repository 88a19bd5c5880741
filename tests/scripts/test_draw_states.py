"""docs/states.md shows the states that the code goes through now."""

from __future__ import annotations

import pytest

from scripts import draw_states
from scripts.states_seen import Drawings, drawn


def test_the_page_is_that_of_the_code():
    found = draw_states.PLACE.read_text("utf-8")
    assert draw_states.page(drawn()) == found, "run scripts/draw_states.py"


def test_a_state_without_a_meaning_is_refused():
    drawings = Drawings()
    drawings.forwards["ready", "lost"].add("InputArrived")
    with pytest.raises(ValueError, match="lost"):
        draw_states.page(drawings)
