"""A line a minute while a label is missing, and an end of the run that names it."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError
from naspipe.distill.label_sources import MissingLabels


def test_a_line_a_minute_and_an_end():
    missing = MissingLabels(200.0, 0.0)
    said = [missing.update(float(now), 7, 0) for now in range(0, 200)]
    assert [number for number, text in enumerate(said) if text] == [60, 120, 180]
    assert said[60] == "the label of batch 7 is missing for 60 s; teachers: none"
    with pytest.raises(ConfigError, match=r"within 200 s .*found none; .* is that of batch 7;"):
        missing.update(200.0, 7, 0)


def test_teachers_that_do_not_answer_are_no_reason_to_wait_for_ever():
    missing = MissingLabels(50.0, 0.0)
    missing.update(0.0, 7, 2)
    with pytest.raises(ConfigError, match="found 2 teachers that do not answer"):
        missing.update(50.0, 7, 2)


def test_each_label_has_all_of_the_time():
    missing = MissingLabels(50.0, 0.0)
    for number in range(10):
        assert not missing.update(40.0 * number, number, 1)
    missing.update(400.0, None, 1)
    assert missing.seconds == 400.0
    missing.update(1000.0, None, 1)
    assert missing.seconds == 400.0
    assert not missing.update(1001.0, 3, 0)
