"""A momentum teacher: a moving average of the student, whose output the student learns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from torch import nn

from naspipe.checks.sketched import buffered_layers
from naspipe.config.blocks import Block
from naspipe.config.errors import ConfigError
from naspipe.config.ids import FIRST_STREAM, LayerId, StreamId
from naspipe.config.rules import Follows, Frozen, MomentumUpdate
from naspipe.config.space import AnyBlock, Space
from naspipe.config.text import knows_keywords
from naspipe.config.wiring import Tap, TapRole
from naspipe.data.views import Views
from naspipe.distill.distillation import Distillation, only_student
from naspipe.distill.teachers import pass_pairs, weights_digest
from naspipe.engine.policies import causal_policies, traits_of
from naspipe.inputs.ends import network_length, teacher_chain
from naspipe.jobs.workload import Workload
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.layers.stored_layer import check_pair

PREDICTOR = "predictor"
"""Label of a last block that the teacher omits by default."""

_STUDENT, _TEACHER = StreamId(0), StreamId(1)


@knows_keywords
class Momentum:
    """A teacher that moves towards the student after each of the student's steps (BYOL, MoCo-v3).

    It starts as a copy of the student. ``without`` names the last blocks of the student that the
    teacher does not have, such as a predictor. With ``lag=K`` a step of the student learns from the
    teacher as it was K steps earlier: 0 is the ordinary loop; 1 is TSPipe's asymmetric update
    (ICML'22, section 4.2), in which the teacher's forwards need not wait for the student's last
    step.

    If the data have several views of each sample (:class:`naspipe.Views`), the views are crossed:
    the output for each view is passed to the loss of the other views.

    Args:
        tau: fraction of the teacher that is kept in each step, from 0 to 1.
        end: tau of the last step, reached by a half cosine; None for a constant ``tau``.
        lag: K, in steps.
        without: labels of the last blocks of the student that have no teacher; by default the last
            block, if it is called ``predictor``.
        mode: ``train``, in which norms use the batch's statistics, or ``eval``.
        buffers: ``own``, ``copied`` or ``averaged``: see
            :class:`naspipe.config.rules.MomentumUpdate`.
        network: initial modules, one for each block, instead of copies of the student's.

    Raises:
        ConfigError: for an invalid value.
    """

    def __init__(
        self,
        tau: float,
        end: float | None = None,
        *,
        lag: int = 1,
        without: Sequence[str] | None = None,
        mode: str = "train",
        buffers: str = "own",
        network: Iterable[nn.Module] | None = None,
    ) -> None:
        if lag < 0:
            raise ConfigError(f"momentum: expected a lag of 0 steps or more, found {lag}")
        self.update = MomentumUpdate(tau=tau, end=end, mode=mode, buffers=buffers)
        self._lag = lag
        self._without = None if without is None else tuple(without)
        self._network = None if network is None else teacher_chain(network)

    def beside(self, students: Sequence[Workload]) -> Distillation:
        student = only_student(students)
        self._check(student)
        space = self._space(student)
        weights = weights_digest(self._network) if self._network else ""
        described = {
            **self.update.as_dict(),
            "lag": self._lag,
            "weights": weights,
            "without": list(self._left_out(student.space)),
        }
        own = replace(student.definition, momentum=described)
        rules = {name: str(rule) for name, rule in space.shared_rules.items()}
        definition = replace(own, space=space.name, rules=rules)
        window = (self._lag + 2) * student.recipe.steps.passes
        # With lag 0 the student waits for the teacher in the same step.
        rank = 0 if self._lag else -1
        teacher = replace(
            student,
            space=space,
            definition=definition,
            make_strategy=None,
            held_out=None,
            is_trained=False,
            follows=self.update,
            rank=rank,
            window=window,
            objectives={},
            field_sources={},
        )
        student = replace(student, definition=own)
        tap = Tap(
            source=(_TEACHER, len(space) - 1),
            sink=(_STUDENT, len(student.space) - 1),
            role=TapRole.LESSON,
            passes=pass_pairs(student, are_crossed=True),
        )
        return Distillation((student, teacher), (tap,), ("", "teacher"))

    def _check(self, student: Workload) -> None:
        definition = student.definition
        if not traits_of(definition.policy).is_causal:
            raise ConfigError(
                f"momentum: expected the policy {causal_policies()}, found {definition.policy}, "
                f"whose steps have no order that a teacher could follow"
            )
        if student.is_proposed:
            raise ConfigError(
                f"momentum: expected a sampler that is known from the beginning, found "
                f"{definition.sampler}, probes={definition.recipe.probes}"
            )
        is_chosen = any(count > 1 for count in student.space.candidate_counts)
        has_local = isinstance(student.data, Views) and student.data.local > 0
        if has_local and is_chosen and student.recipe.steps.draws_each:
            raise ConfigError(
                f"momentum: expected one subnet a step with local views, as in "
                f"passes=accumulate:N, found {student.recipe.passes}: layers that they alone use "
                f"would have no teacher"
            )

    def _left_out(self, space: Space) -> tuple[str, ...]:
        if self._without is not None:
            return self._without
        last = space.labels[: network_length(space)][-1:]
        return last if last == (PREDICTOR,) else ()

    def _space(self, student: Workload) -> Space:
        """Return the student's space without the omitted blocks; blocks follow the student's."""
        space, without = student.space, self._left_out(student.space)
        count = network_length(space)
        count, last = count - len(without), space.labels[count - len(without) : count]
        if set(last) != set(without) or count < 1:
            raise ConfigError(
                f"momentum: expected the last blocks of {space.name}, such as {last[-1]!r}, as "
                f"those without a teacher, found {', '.join(without)}"
            )
        if any(isinstance(block, Block) for block in space.blocks[count:]) and any(
            many > 1 for many in space.candidate_counts
        ):
            raise ConfigError(
                f"momentum: expected choice blocks to have a teacher, found {last[0]!r} without"
            )
        given: Sequence[AnyBlock] = space.blocks[:count]
        if self._network is not None:
            given = self._alike(student, given)
        blocks = []
        for position, block in enumerate(given):
            is_fixed = isinstance(space.blocks[position].rule, Frozen)
            rule = Frozen() if is_fixed else Follows(_STUDENT, position, self._lag)
            blocks.append(replace(block, rule=rule))
        found = Space(space.name, blocks, space.decisions)
        keeps_statistics = self.update.mode == "eval" and self.update.buffers == "own"
        if student.recipe.norms != "deferred" and not keeps_statistics:
            # Statistics may change only at WRITEs, because readers of older versions are running.
            for layer in sorted(buffered_layers(found, defers_norms=False)):
                raise ConfigError(
                    f"momentum: expected norms=deferred, as layer {found.label(*layer)} keeps "
                    f"running statistics, found norms={student.recipe.norms}"
                )
        return found

    def _alike(self, student: Workload, blocks: Sequence[AnyBlock]) -> Sequence[AnyBlock]:
        """Replace the student's layers with the user's modules."""
        given = self._network.blocks if self._network else ()
        if len(given) != len(blocks):
            raise ConfigError(
                f"momentum: expected a network of {len(blocks)} modules, one for each block that "
                f"has a teacher, found {len(given)}"
            )
        made = []
        for block, other in zip(blocks, given, strict=True):
            if len(block.candidates) > 1:
                raise ConfigError("momentum: expected no network of a supernet's, found one")
            factory = other.candidates[0]
            made.append(
                replace(block, candidates=(factory,))
                if isinstance(block, Block)
                else replace(block, factory=factory)
            )
        stores = [
            LayerStore(Space(student.space.name, each), 0, student.recipe)
            for each in (made, blocks)
        ]
        for position in range(len(made)):
            layer = LayerId(FIRST_STREAM, position, 0)
            check_pair(stores[0][layer], stores[1][layer])
        return made
