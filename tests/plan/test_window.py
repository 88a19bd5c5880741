"""How many subnets may be under way, by default and as memory allows."""

from __future__ import annotations

import pytest

from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.steps import ONE_PASS, Steps
from naspipe.plan.costs import plan_window


@pytest.mark.parametrize(
    ("stages", "passes", "options", "expected"),
    [
        (2, 1, {}, 16),
        (2, 1, {"memory_budget": "2x"}, 6),
        (8, 1, {"memory_budget": "2x"}, 12),
        (16, 1, {"memory_budget": "2x"}, 16),
        (2, 2, {"memory_budget": "2x"}, 12),
        (2, 4, {"memory_budget": "2x"}, 16),
        (2, 1, {"memory_budget": "2x", "window": 16}, 16),
        (2, 1, {"window": 3}, 3),
        (2, 1, {"activation_memory": "500"}, 5),
        (2, 1, {"activation_memory": "900", "memory_budget": "2x"}, 6),
        (2, 1, {"activation_memory": "900", "memory_budget": "2x", "window": 8}, 8),
    ],
)
def test_a_window_follows_from_stages_and_memory(stages, passes, options, expected):
    assert plan_window(Execution(stages=stages, **options), Steps(passes), 100) == expected


def test_a_step_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="expected at least 100 bytes, which one subnet keeps"):
        plan_window(Execution(activation_memory="99"), ONE_PASS, 100)
    with pytest.raises(ConfigError, match="at least 400 bytes, which the 4 passes of a step keep"):
        plan_window(Execution(activation_memory="399"), Steps(4), 100)
