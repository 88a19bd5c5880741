"""How a run is carried out: groups of settings, which users know by their keys."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self

from naspipe.core.settings.checks import expect
from naspipe.core.settings.declare import declared, group, unknown_key
from naspipe.core.settings.label_groups import LabelSettings
from naspipe.core.settings.pipeline_groups import (
    HardwareSettings,
    MemorySettings,
    PipelineSettings,
    WireSettings,
)
from naspipe.core.settings.run_groups import (
    CheckpointSettings,
    RecordSettings,
    ValidationSettings,
    VerifySettings,
    WatchSettings,
)


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class Execution:
    """How a run is carried out: never a matter of its bits.

    Made from settings by their keys, as in ``Execution(stages=2, memory_budget="3x")``, from
    groups, or from both. Keys are also what manifests hold.

    Raises:
        ConfigError: for an unknown key or a value that is not allowed.
    """

    pipeline: PipelineSettings = group(PipelineSettings(), "pipeline")
    teaching: LabelSettings = group(LabelSettings(), "labels of a teacher")
    memory: MemorySettings = group(MemorySettings(), "memory")
    hardware: HardwareSettings = group(HardwareSettings(), "hardware")
    wire: WireSettings = group(WireSettings(), "between stages")
    watch: WatchSettings = group(WatchSettings(), "failures")
    checkpoints: CheckpointSettings = group(CheckpointSettings(), "checkpoints")
    validation: ValidationSettings = group(ValidationSettings(), "validation", is_of_recipes=True)
    verification: VerifySettings = group(VerifySettings(), "verification")
    records: RecordSettings = group(RecordSettings(), "records")

    def __init__(self, **values: Any) -> None:
        known = declared(type(self))
        nodes = {each.name: values.pop(each.name, each.default) for each in fields(self)}
        given: dict[str, dict[str, Any]] = {name: {} for name in nodes}
        for key, value in values.items():
            if key not in known:
                raise unknown_key(key, known)
            given[known[key].group][known[key].name] = value
        for each in fields(self):
            node, kind = nodes[each.name], type(each.default)
            expect(isinstance(node, kind), each.name, kind.__name__, node)
            object.__setattr__(self, each.name, replace(node, **given[each.name]))
        every, apart = self.validation.every_steps, self.checkpoints.every_steps
        allowed = f"a multiple of checkpoint_every, {apart}, as checkpoints are what is judged"
        expect(not apart or every % apart == 0, "validate_every", allowed, every)

    @property
    def workers(self) -> int:
        """Stages of all groups together: stage j of group g is stage g * stages + j of the run."""
        return self.pipeline.groups * self.pipeline.stages

    @property
    def cut_every_steps(self) -> int:
        """Steps of a stream from one checkpoint to the next: a validation needs one, too."""
        return self.checkpoints.every_steps or self.validation.every_steps

    def changed(self, **values: Any) -> Self:
        """This with other values, by the keys of settings or as whole groups.

        Raises:
            ConfigError: as for a new one.
        """
        return replace(self, **values)

    def as_dict(self) -> dict[str, Any]:
        """Plain values by their keys, for the manifest."""
        known = declared(type(self))
        return {key: getattr(getattr(self, each.group), each.name) for key, each in known.items()}


def first_gpu(device: str) -> str:
    """The device that a measurement for all stages is taken on."""
    return "cuda:0" if device == "cuda" else device
