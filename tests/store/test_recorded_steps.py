"""Which steps a log holds, over the attempts of a run."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError
from naspipe.store.access_order import (
    RecordedSpan,
    SharedSpan,
    as_listed,
    continued,
    is_complete,
    recorded_spans,
    shared_spans,
)


def test_an_attempt_replaces_what_it_does_again() -> None:
    spans = continued((), 0, 1)
    assert spans == ((0, 1),) and is_complete(spans)
    spans = continued(spans, 20, 0)
    assert spans == ((0, 1), (20, 0)) and not is_complete(spans)
    assert continued(spans, 20, 1) == ((0, 1),)
    assert continued(spans, 10, 3) == ((0, 1), (10, 3))
    assert continued(spans, 40, 1) == ((0, 1), (20, 0), (40, 1))
    assert continued(spans, 0, 1) == ((0, 1),)


def test_spans_are_read_from_a_manifest() -> None:
    assert recorded_spans({}) == ((0, 1),)
    spans = (RecordedSpan(0, 3), RecordedSpan(20, 1))
    assert recorded_spans({"recorded_steps": as_listed(spans)}) == spans


@pytest.mark.parametrize("listed", [3, [3], [{"first": 0}], [{"first": 0, "every": -1}]])
def test_a_damaged_manifest_is_refused(listed: object) -> None:
    with pytest.raises(ConfigError, match="recorded_steps"):
        recorded_spans({"recorded_steps": listed})


def test_two_logs_share_what_both_have() -> None:
    one = (RecordedSpan(0, 2), RecordedSpan(20, 1))
    other = (RecordedSpan(0, 3), RecordedSpan(10, 0), RecordedSpan(30, 1))
    assert list(shared_spans(one, other)) == [
        SharedSpan(0, 10, 6), SharedSpan(10, 30, 0), SharedSpan(30, None, 1),
    ]  # fmt: skip
    assert list(shared_spans(one, one)) == [SharedSpan(0, 20, 2), SharedSpan(20, None, 1)]
    whole = (RecordedSpan(0, 1),)
    assert list(shared_spans(whole, whole)) == [SharedSpan(0, None, 1)]
