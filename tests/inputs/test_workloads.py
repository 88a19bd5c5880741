"""What a name on the command line defines."""

from __future__ import annotations

from torch import nn

import naspipe as npp
from examples.first_run import space
from naspipe.inputs.named import find_workload


def test_a_space_of_ones_own_is_the_same_run_from_the_command_line_as_from_python():
    """``--scale`` has a default there, which such a space has no use for."""
    named = find_workload("examples.first_run:space", "tiny", "digits", None, {"batch_size": 8})
    given = npp.workload(space, named.data, nn.CrossEntropyLoss(), steps=1)
    assert named.definition.scale == given.definition.scale == ""
