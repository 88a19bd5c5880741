"""The gates of a stage, together."""

from __future__ import annotations

import pytest

from naspipe.config.errors import InvariantError
from naspipe.config.ids import SequenceId, StageId, StreamId
from naspipe.config.steps import ONE_PASS
from naspipe.engine.events import ContributionArrived
from naspipe.engine.gates import Gates, StepGate


def arrived(exchange):
    return ContributionArrived(0, exchange, StreamId(0), SequenceId(0), StageId(1))


def test_a_contribution_that_no_gate_here_waits_for():
    with pytest.raises(
        InvariantError, match=r"contributed to 'sums', but the gates here are .'norms'"
    ):
        Gates([StepGate(ONE_PASS)]).arrive(arrived("sums"))
    with pytest.raises(InvariantError, match=r"the gates here are \[\]"):
        Gates([]).arrive(arrived("norms"))
    with pytest.raises(InvariantError, match="no gate waits for the norms of stage 1"):
        Gates([StepGate(ONE_PASS)]).arrive(arrived("norms"))
