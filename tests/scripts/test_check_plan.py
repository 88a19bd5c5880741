"""What the check of a plan calls right."""

from __future__ import annotations

import pytest

from scripts.check_plan import verdict


def test_the_first_row_is_right_where_no_other_is_much_faster():
    first = [10.0, 20.0, 10.0]
    assert verdict([first]) == (True, [1.0])
    is_right, over = verdict([first, [5.0, 10.0, 5.0], [10.2, 20.4, 10.2]])
    assert is_right and over == pytest.approx([1.0, 0.5, 1.02])
    assert not verdict([first, [10.4, 20.8, 10.4]])[0]


def test_pairs_count_by_their_median_so_that_one_disturbed_run_decides_nothing():
    assert verdict([[10.0, 2.0, 10.0], [9.0, 9.0, 9.0]])[0]
