"""How full a pipeline is that a student and its teacher share: simulated, beside the formulas.

Stages cost the same, messages nothing. A backward takes as long as two forwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from naspipe.config.ids import AccessKind, LayerId, StreamId, Subnet
from naspipe.config.partition import Partition
from naspipe.config.rules import Exact, Follows
from naspipe.config.steps import Steps
from naspipe.config.wiring import StreamWiring, Tap, TapRole, Wiring
from naspipe.distill.teachers import crossed
from naspipe.engine.builder import build_admission, build_controller, new_history
from naspipe.plan.virtual_driver import simulate
from scripts.paper.costs import BlockCosts

FORWARD_NS = 9600
"""Of the student, on a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is simulated."""

    stages: int
    batches: int
    """Micro-batches of each view in a step."""
    views: int = 1
    ratio: float = 1.0
    """The teacher's forward over the student's."""
    lag: int | None = None
    """Of a momentum teacher; None for a frozen one."""
    is_ahead: bool = True
    """Whether a frozen teacher may be ahead of the student's step."""
    parts: int = 4
    """Blocks of each network on a stage: between them a stage may switch."""
    steps: int = 14
    order: str = "paper"
    """Dispatch order; those of :mod:`scripts.paper.orders` have to be registered before."""

    @property
    def passes(self) -> int:
        """Of a step."""
        return self.views * self.batches

    @property
    def waits(self) -> bool:
        """Whether the teacher's forwards wait for the student's last step."""
        return self.lag == 0 or not self.is_ahead

    @property
    def rank(self) -> int:
        """Of the teacher's tasks."""
        return -1 if self.waits else int(self.lag is None)

    @property
    def formula(self) -> float:
        """The utilisation of a pipeline that is never idle but for filling up and draining."""
        if self.order == "model-parallel":
            return 1 / self.stages
        work, others = self.passes * (self.ratio + 3), self.stages - 1
        if self.waits:  # the slower of the two networks fills it
            return work / (work + (max(self.ratio, 1) + 2) * others)
        return work / max(work, 3 * self.passes + 3 * others)

    @property
    def is_filled(self) -> bool:
        """Whether the teacher's forwards are enough to fill the student's bubbles."""
        return not self.waits and self.ratio * self.passes >= 3 * (self.stages - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs(BlockCosts):
    ratio: float
    """What the teacher's forwards cost over the student's."""

    def access_ns(self, layer: LayerId, kind: AccessKind, sequence_id: int = -1) -> int:
        """See :class:`BlockCosts`."""
        own = BlockCosts.access_ns(self, layer, kind, sequence_id)
        return int(own * self.ratio) if layer.stream else own


def utilisation(setting: Setting) -> float:
    """Of all stages, between the WRITEs of the third step and of the third from the end."""
    blocks = setting.stages * setting.parts
    bounds = tuple(range(0, blocks + 1, setting.parts))
    steps, count = Steps(setting.passes), setting.steps * setting.passes
    teacher = [
        Exact() if setting.lag is None else Follows(0, block, setting.lag)
        for block in range(blocks)
    ]
    rules = [[Exact()] * blocks, teacher]
    end = blocks - 1
    tap = Tap(
        (StreamId(1), end), (StreamId(0), end), TapRole.LESSON,
        crossed(setting.views, setting.passes),
    )  # fmt: skip
    wiring = Wiring(
        streams=(StreamWiring(), StreamWiring(is_trained=False, rank=setting.rank)),
        taps=(tap,),
    )
    history = new_history(rules, wiring)
    controllers = [
        build_controller(
            stage, rules, history=history, wiring=wiring, steps=steps, order=setting.order
        )
        for stage in range(setting.stages)
    ]
    costs = _Costs(
        forward_ns={(block, 0): FORWARD_NS // setting.parts for block in range(blocks)},
        ratio=setting.ratio,
    )
    ahead = (setting.lag + 2 if setting.lag is not None else 3) if setting.is_ahead else 1

    def admitted(stream, number):  # type: ignore[no-untyped-def]
        subnet = Subnet(StreamId(stream), number, (0,) * blocks)
        return subnet, Partition(bounds), None, stream == 0

    def admissions():  # type: ignore[no-untyped-def]
        windows = (3 * setting.passes, ahead * setting.passes)
        return [build_admission("csp", count, window=window, steps=steps) for window in windows]

    accesses = [each for own in simulate(admitted, controllers, costs, admissions) for each in own]
    writes = [0] * setting.steps
    for access in accesses:
        if access.layer.stream == 0 and access.kind is AccessKind.WRITE:
            step = steps.step(access.sequence_id)
            writes[step] = max(writes[step], access.end_ns)
    first, last = 2, setting.steps - 3
    per_step = setting.stages * setting.passes * FORWARD_NS * (setting.ratio + 3)
    elapsed = writes[last] - writes[first]
    return (last - first) * per_step / (setting.stages * elapsed)
