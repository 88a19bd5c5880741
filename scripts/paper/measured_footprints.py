"""Footprints of a space's layers, from shapes alone: torch's meta device holds no values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from naspipe.checks.sketched import measure_sizes, sketch
from naspipe.config.blocks import Elastic
from naspipe.config.errors import ConfigError
from naspipe.config.space import SettingDecisions, Space
from naspipe.jobs.workload import Workload
from naspipe.plan.costs import SizeTable, first_of_kind
from scripts.paper.footprint import Footprint, FootprintTable

MetaBatch = Callable[[int], Mapping[str, torch.Tensor]]
"""Batch fields of so many samples, on the meta device."""

_SAMPLES = 8


def measure_footprints(workload: Workload, batch: MetaBatch) -> FootprintTable:
    """What every layer holds, and what each sample adds; no memory is taken for tensors.

    A module whose factory needs values is a real one, and moved to the meta device.

    Raises:
        ConfigError: when a layer cannot be computed without values.
    """
    sizes = measure_sizes(workload)
    space = workload.space
    twins, largest = first_of_kind(space), _largest(space)
    fields = batch(_SAMPLES)
    rows: dict[int, tuple[Footprint, ...]] = {}
    inputs: tuple[torch.Tensor, ...] = ()
    for block, twin in enumerate(twins):
        if block != twin:
            continue
        inputs = (*map(_leaf, inputs), *(fields[name] for name in space.fields(block)))
        is_last = block == len(space) - 1
        found = []
        for option in largest.get(block, range(space.blocks[block].num_options)):
            kept, outputs = _kept_bytes(workload, block, option, inputs, is_last, fields)
            handed_on = set(map(_storage, outputs))
            passed = _bytes(tensor for tensor in inputs if _storage(tensor) in handed_on)
            layer = block, space.blocks[block].candidate(option)
            found.append(_footprint(sizes, *layer, _bytes(inputs) - passed, passed, kept))
        rows[block] = tuple(found)
        inputs = outputs
    return FootprintTable(twins, rows)


def _largest(space: Space) -> dict[int, tuple[int]]:
    """Of each elastic layer, its part of the largest subnet: the others take less."""
    if not isinstance(space.decisions, SettingDecisions):
        return {}
    choices, _ = space.decisions.extremes(lambda _, candidate: candidate)
    options = enumerate(space.chain(choices))
    return {block: (n,) for block, n in options if isinstance(space.blocks[block], Elastic)}


def _footprint(sizes: SizeTable, block: int, candidate: int, *batch_bytes: int) -> Footprint:
    """Of a layer, from what its inputs, those passed on, and what autograd saves take."""
    size = sizes.of(block, candidate)
    return Footprint(
        size.state_bytes, size.parameter_bytes, *(count / _SAMPLES for count in batch_bytes)
    )


def _kept_bytes(
    workload: Workload,
    block: int,
    option: int,
    inputs: tuple[torch.Tensor, ...],
    is_last: bool,
    fields: Mapping[str, torch.Tensor],
) -> tuple[int, tuple[torch.Tensor, ...]]:
    """Bytes that autograd saves, inputs and parameters left out; and the outputs."""
    own_block = workload.space.blocks[block]
    module = sketch(workload.space, block, own_block.candidate(option)).to("meta")
    forward = own_block.forward_of(module, option)
    own = set(map(_storage, (*module.parameters(), *module.buffers(), *inputs)))
    saved: dict[int, torch.UntypedStorage] = {}

    def see(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            saved[storage._cdata] = storage  # held, so that the address is not given out again
        return tensor

    try:
        with torch.device("meta"), torch.autograd.graph.saved_tensors_hooks(see, lambda t: t):
            outputs = forward(*inputs)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            if is_last:
                loss = workload.objective_of(module)
                outputs = (loss(*outputs, *(fields[name] for name in workload.loss_fields)),)
    except (RuntimeError, NotImplementedError) as error:
        raise ConfigError(
            f"layer {workload.space.option_label(block, option)}: expected a layer that computes "
            f"shapes without values, found {str(error).splitlines()[0]:.200}"
        ) from error
    return sum(storage.nbytes() for storage in saved.values()), outputs


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())


def _storage(tensor: torch.Tensor) -> int:
    """Which memory a tensor would lie in; meta tensors have no addresses."""
    address: int = tensor.untyped_storage()._cdata
    return address


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
