"""Whether a run can have probes: passes before each step, whose losses say what it trains."""

from __future__ import annotations

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.planning.joint_placements import JOINT_PLACEMENTS
from naspipe.runtime.jobs.losses import is_joined
from naspipe.runtime.jobs.workload import Workload
from naspipe.stage.builder import READY_TASKS


def check_probes(workload: Workload, execution: Execution) -> None:
    """Probes need one group, and a loss at the end of the chain.

    Raises:
        ConfigError: for groups, a teacher, a loss over several passes, a placement that deals
            passes to stages, or an order that holds tasks back.
    """
    recipe, pipeline = workload.recipe, execution.pipeline
    who = f"probes={recipe.probes}"
    is_taught = bool(workload.objectives or workload.field_sources or workload.lesson_fields)
    if is_taught or not workload.is_trained or is_joined(workload.loss):
        raise ConfigError(
            f"{who}: expected a loss of each pass's own output and target, found one that needs a "
            f"teacher or other passes; leave probes out"
        )
    if pipeline.groups > 1:
        raise ConfigError(
            f"{who}: expected groups=1, as a step's subnets are not known before its probes are "
            f"through, found groups={pipeline.groups}"
        )
    if pipeline.partition in JOINT_PLACEMENTS:
        raise ConfigError(
            f"{who}: expected partition=static, which all passes of a step have in common, found "
            f"partition={pipeline.partition}"
        )
    if pipeline.order in READY_TASKS:
        raise ConfigError(
            f"{who}: expected an order that holds no task back, found order={pipeline.order}"
        )
