"""Labels from processes that come and go: a run's own teachers, and how its student asks."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.space import Space
from naspipe.label_scheduler.scheduler import Desk, DeskSettings
from naspipe.runtime.jobs.ports import SourceSeat
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.labels.applicants import Asking, Terms
from naspipe.runtime.labels.entrance_exam import make_exam
from naspipe.runtime.labels.label_file import label_key
from naspipe.runtime.labels.label_network import fields_of
from naspipe.runtime.labels.label_reader import LabelReader
from naspipe.runtime.registries.open_registry import open_registry
from naspipe.runtime.registries.own_registry import OwnRegistry
from naspipe.runtime.registries.registry_watch import RegistryWatch
from naspipe.runtime.registries.teacher_card import numeric_class
from naspipe.runtime.registries.teacher_keys import read_keys
from naspipe.runtime.teachers.teacher_pool import PoolSettings, TeacherPool

_GRACE_SECONDS = 0.1
"""That an answer may take longer, for a machine that is busy with something else."""


_RELEASE_SECONDS = 300.0
"""After which a teacher of the run's own goes that is not needed; others go when they like."""


class LabelService:
    """What a run with ``labels=service`` needs, on both sides.

    Args:
        teacher: its network, with the student's data; its definition names its digest.
        execution: of the run.

    Raises:
        ConfigError: for a file of keys that cannot be read, or without what the registry needs.
        TransportError: when there is no registry.
    """

    def __init__(self, teacher: Workload, execution: Execution) -> None:
        self._teacher, self._execution = teacher, execution
        way = execution.teaching
        check_stages(teacher.space, way.teacher_stages)
        if is_elsewhere(way.registry):
            open_registry(way.registry).cards()
        self._keys = read_keys(Path(way.keys)) if way.keys else frozenset[str]()
        self._pool = TeacherPool(
            PoolSettings(
                workload=teacher,
                device=execution.hardware.device,
                count=way.teachers,
                most=way.teachers_most or way.teachers,
                ttl_seconds=way.ttl_seconds,
                pace_seconds=way.pace_seconds,
                stages=way.teacher_stages,
                listens_at="" if is_elsewhere(way.registry) else way.registry,
            )
        )

    @property
    def attendants(self) -> tuple[AbstractContextManager[Any], ...]:
        """What has to be there while the run is."""
        return (self._pool,)

    def begin(self, seat: SourceSeat) -> LabelReader:
        """The student's reader, in the process of the stage that computes the loss."""
        way, recipe = self._execution.teaching, self._teacher.recipe
        device = self._execution.hardware.device
        most = way.teachers_most or way.teachers
        settings = DeskSettings(
            upper=way.ahead,
            lower=way.again,
            deadline_factor=way.deadline,
            grace_seconds=_GRACE_SECONDS,
            audit=way.audit,
            most=max(1, most) if not way.registry else 1 << 16,
            release_seconds=0.0 if way.registry else _RELEASE_SECONDS,
            load_seconds=max(1.0, way.ttl_seconds),
            last_batch=len(seat.batches) - 1,
        )
        terms = Terms(
            digest=self._teacher.definition.teacher,
            numeric_class=numeric_class(device, recipe.threads),
            exam=make_exam(self._teacher, device, seat.batches),
            keys=self._keys,
            private=self._pool.private,
        )
        asking = Asking(
            desk=Desk(settings, self._teacher.definition.seed),
            key=label_key(self._teacher.definition),
            terms=terms,
            timeout_seconds=self._execution.watch.timeout_seconds,
            fields=partial(fields_of, self._teacher),
            sends_fields=way.inputs == "sent",
        )
        more = [open_registry(way.registry)] if is_elsewhere(way.registry) else []
        if self._pool.directory:
            own = OwnRegistry(self._pool.registry_address)
            watch = RegistryWatch([own, *more], way.ttl_seconds, own.hire, own.release)
        else:  # a stage on another host
            watch = RegistryWatch(more, way.ttl_seconds)
        return LabelReader(asking, seat, watch)


def check_stages(space: Space, stages: int) -> None:
    """Every process of a teacher has a block or more.

    Raises:
        ConfigError: when there are more.
    """
    if stages > len(space):
        raise ConfigError(
            f"teacher: expected one process per block at most, found {stages} for {len(space)} "
            f"blocks"
        )


def is_elsewhere(registry: str) -> bool:
    """Whether it is a server, and not an address at which the run's own one listens, too."""
    return bool(registry) and not registry.startswith("tcp://")
