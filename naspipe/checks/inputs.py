"""Check teachers, groups and probes, and one layer of every kind, before a run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from naspipe.checks.loss import check_costs
from naspipe.checks.optimizer import check_optimizer
from naspipe.checks.sketched import sketch, sketches
from naspipe.checks.space import check_settings
from naspipe.config.blocks import Block, Elastic, Shared
from naspipe.config.definition import Definition
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.recipe import group_of
from naspipe.config.rules import Exact, Follows, Frozen, own_step, steps_behind
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.config.wiring import Tap, TapRole
from naspipe.engine.builder import READY_TASKS
from naspipe.engine.history import check_groups
from naspipe.jobs.batches_apart import first_batch
from naspipe.jobs.losses import is_joined, needs_teacher
from naspipe.jobs.workload import Workload
from naspipe.machine.determinism import deterministic_torch
from naspipe.plan.costs import first_of_kind
from naspipe.plan.joint_placements import JOINT_PLACEMENTS
from naspipe.worker.layers.kept_state import unknown_norm
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.layers.optimizers import ENTRY_BY_ENTRY, named_parameters
from naspipe.worker.layers.stored_layer import StoredLayer


def check_taught(workloads: Sequence[Workload], taps: Sequence[Tap]) -> None:
    """Check that a distillation loss has a teacher, and that probes have no taps."""
    if taps and (probed := next((w for w in workloads if w.recipe.steps.probes), None)):
        raise ConfigError(
            f"probes={probed.recipe.probes}: expected streams that hand nothing to one another, "
            f"found taps between them; leave probes out"
        )
    lessons = (tap for tap in taps if tap.role is TapRole.LESSON)
    taught = {tap.sink[0] for tap in lessons if tap.source[0] != tap.sink[0]}
    for number, workload in enumerate(workloads):
        is_taught = number in taught or workload.lesson_fields
        if workload.is_trained and needs_teacher(workload.loss) and not is_taught:
            raise ConfigError(
                f"loss {type(workload.loss).__name__}: expected a teacher, whose output it "
                f"compares with, found none; use --momentum TAU, or --teacher RUN"
            )


def check_grouping(workload: Workload, groups: int) -> None:
    """Check that the passes of a step are independent, so that groups can compute them.

    Raises:
        ConfigError: if steps have too few passes for the groups, if the loss sums over its batch,
            if batches have one item under batch normalization, or if a teacher's layers would have
            to move between groups.
    """
    definition = workload.definition
    check_groups(groups, definition.policy, definition.recipe.steps)
    if groups == 1:
        return
    is_chosen = any(count > 1 for count in workload.space.candidate_counts)
    if workload.follows is not None and definition.recipe.steps.draws_each and is_chosen:
        raise ConfigError(
            f"groups={groups}: expected one subnet a step with a momentum teacher, as in "
            f"passes=accumulate:N, found {definition.recipe.passes}: its layers would be made by "
            f"one group, and by another one next; use fewer groups, or stages"
        )
    if workload.follows is not None and workload.left_out:
        raise ConfigError(
            f"groups={groups}: expected one group with a momentum teacher and local views, as the "
            f"last group has none of its passes, and all of the student's layers; use more stages"
        )
    if getattr(workload.loss, "reduction", "mean") == "sum":
        raise ConfigError(
            f"groups={groups}: expected a loss that is a mean over its batch, as the passes of a "
            f"step are averaged, found reduction='sum'; use reduction='mean'"
        )
    with users_code(f"data: expected a batch from data({definition.seed}, 0), found"):
        batch = first_batch(workload)
    tensors = (value for value in batch.values() if isinstance(value, torch.Tensor))
    items = min(len(value) for value in tensors if value.dim())
    if items != 1 or not workload.runs_in_training_mode:
        return
    for block, candidate, module in sketches(workload.space):
        if any(isinstance(each, _BatchNorm) for each in module.modules()):
            normed = workload.space.label(block, candidate)
            raise ConfigError(
                f"groups={groups}: expected passes of two items or more, as {normed} normalises "
                f"over them, found batches of one; use larger batches, or fewer passes of a step"
            )


def check_layers(workload: Workload) -> None:
    """Make every shared layer and the first candidate of every kind of block, and discard them.

    Raises:
        ConfigError: if a factory raises or makes no module, if two shared layers have a parameter
            in common, if a layer keeps statistics that its rule does not allow, if the loss needs a
            cost that the layers do not return, or if the space's proof fails.
    """
    space, definition = workload.space, workload.definition
    if workload.is_trained and torch.is_inference_mode_enabled():
        raise ConfigError(
            "expected a run outside torch.inference_mode(), where nothing can be trained, found it "
            "on; call naspipe after that block"
        )
    defers_norms = definition.recipe.norms == "deferred"
    if defers_norms and workload.runs_in_training_mode:
        _check_norms(space)
    store = LayerStore(space, definition.seed, definition.recipe)
    if workload.is_trained:  # a teacher shares its student's recipe, but has no optimizer
        _check_groups_match(space, definition)
    check_settings(space)
    with deterministic_torch(definition.recipe.threads):
        for position, block in enumerate(space.blocks):
            if not isinstance(block, Block):
                if workload.is_trained:
                    _check_own_step(block, definition)
                _check_statistics(_made(store, space, position), block, defers_norms)
        kinds: set[str] = set()
        for position, block in enumerate(space.blocks):
            if isinstance(block, Block) and block.kind not in kinds:
                if block.kind is not None:  # a block without a kind is its own kind
                    kinds.add(block.kind)
                _made(LayerStore(space, definition.seed, definition.recipe), space, position)
    if workload.is_trained:
        check_costs(space, workload.loss)
    check_proof(workload)


def _check_groups_match(space: Space, definition: Definition) -> None:
    """Refuse a parameter group that matches no parameter of any layer."""
    groups = definition.recipe.groups
    if not groups:
        return
    twins, found = first_of_kind(space), set[int]()
    for twin, candidate, module in sketches(space):
        for position in (each for each, own in enumerate(twins) if own == twin):
            named = named_parameters(space.label(position, candidate), module).values()
            found |= {group_of(each, groups) for each in named}
    for number, group in enumerate(groups, 1):
        if number not in found:
            names = []  # the first parameter of the first and of the last layer with parameters
            for position in range(len(space)):
                own = named_parameters(space.label(position, 0), sketch(space, position, 0))
                names += [each.name for each in own.values()][:1]
            some = ", ".join(dict.fromkeys(names[:1] + names[-1:]))
            raise ConfigError(
                f"parameter_groups[{number - 1}]: expected match={', '.join(group.match)} to name "
                f"parameters that no group before it has, found none; names are such as "
                f"{some or 'those of layers with parameters'}"
            )


def _check_own_step(block: Shared | Elastic, definition: Definition) -> None:
    own = own_step(block.rule)
    if own.momentum is not None:
        check_optimizer(definition.recipe, own)
    name = definition.recipe.optimizer
    if isinstance(block, Elastic) and block.step == "slice" and name not in ENTRY_BY_ENTRY:
        raise ConfigError(
            f"elastic layer {block.name}: expected one of {', '.join(ENTRY_BY_ENTRY)} with "
            f'step="slice", as each entry has to be stepped alone, found {name}; choose one of '
            f'these, or step="whole"'
        )


def check_proof(workload: Workload) -> Mapping[str, Any]:
    """Check that layers which replace others compute the same; return what was compared."""
    proof = workload.space.proof
    return {} if proof is None else proof.prove(first_batch(workload))


def _made(store: LayerStore, space: Space, position: int) -> StoredLayer:
    label = space.label(position, 0)
    with users_code(f"layer {label}: expected its factory to return a torch.nn.Module, found"):
        return store[LayerId(FIRST_STREAM, position, 0)]


def _check_statistics(layer: StoredLayer, block: Shared | Elastic, defers_norms: bool) -> None:
    """Refuse running statistics of a layer whose older versions are read.

    Deferred statistics are allowed, because they are not read before the step ends.
    """
    if isinstance(block.rule, Exact | Follows) or (
        defers_norms and steps_behind(block.rule) is not None
    ):
        return
    for module in layer.module.modules():
        if keeps_statistics(module):
            raise ConfigError(
                f"layer {block.name}: its {type(module).__name__} keeps running statistics, which "
                f"rule {block.rule} does not allow; use the rule exact, "
                f"{'' if isinstance(block.rule, Frozen) else '--set norms=deferred, '}or "
                f"track_running_stats=False"
            )


def _check_norms(space: Space) -> None:
    for position, candidate, module in sketches(space):
        label = space.label(position, candidate)
        if isinstance(space.blocks[position], Elastic):
            for each in module.train().modules():
                if keeps_statistics(each):
                    raise ConfigError(
                        f"norms=deferred: expected no running statistics in an elastic layer, of "
                        f"which each setting sees a part, found {type(each).__name__} in layer "
                        f"{label}; use norms=ordered"
                    )
        if found := unknown_norm(module):
            raise ConfigError(
                f"norms=deferred: expected BatchNorm1d, 2d or 3d, found {found} in layer {label}, "
                f"whose statistics follow other rules; use norms=ordered"
            )


def keeps_statistics(module: nn.Module) -> bool:
    """Return True for a norm whose forwards change its running statistics."""
    return isinstance(module, _NormBase) and module.training and module.track_running_stats


def check_is_space(space: object) -> None:
    """Refuse anything but a space, such as a network, with a message that says what to write."""
    if not isinstance(space, Space):
        raise ConfigError(
            f"space: expected a naspipe.Space, found {type(space).__name__}; list its blocks: "
            f"npp.Space('mine', [npp.Shared('stem', ...), npp.Block([...])]) (docs/spaces.md), or "
            f"of NNI's use npp.from_nni(...)"
        )


def check_probes(workload: Workload, execution: Execution) -> None:
    """Refuse probes with a teacher, with a loss over several passes, with groups, with a placement
    that assigns passes to stages, and with an order that delays tasks."""
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
