"""How many held-out batches subnets are judged by."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError
from naspipe.inputs.held_out import batches_there, judged_by, part_of


def told(batches):
    def held_out(seed, number):
        return {}

    held_out.batches_per_epoch = batches
    return held_out


def untold(seed, number):
    return {}


@pytest.mark.parametrize(
    ("held_out", "asked", "expected"),
    [
        (told(38), None, 8), (told(3), None, 3), (told(38), 0, 38), (told(38), 38, 38),
        (untold, None, 8), (untold, 20, 20),
    ],
)  # fmt: skip
def test_counts(held_out, asked, expected):
    assert judged_by(untold, held_out, asked) == (held_out, expected)


def test_all_that_nobody_can_count_are_refused():
    with pytest.raises(ConfigError, match=r"^validate: expected a number of held-out batches, as"):
        batches_there(untold, 0)


def test_more_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=r"^validate: expected at most 38, .* found 39$"):
        judged_by(untold, told(38), 39)


def test_a_part_is_said():
    assert part_of(told(38), 8) == "8 of 38 held-out batches"
    assert part_of(told(38), 38) == "38 held-out batches"
    assert part_of(untold, 8) == "8 held-out batches"
