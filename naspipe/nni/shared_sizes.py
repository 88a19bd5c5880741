"""``share="slice"``: one set of weights for all sizes of a layer, as in NNI's one-shot models.

A layer is created with its largest sizes. An architecture uses parts of its tensors: the first rows
and columns, the middle of a kernel, and the first rows of each of an attention's joined
projections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import gt
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from naspipe.config.errors import ConfigError
from naspipe.machine.determinism import kept_draws
from naspipe.nni.candidates import make_candidate
from naspipe.nni.counterparts import counterparts, fixed_model
from naspipe.nni.cut import Draft, Kind
from naspipe.nni.decisions import BlockLayers, LabelDecisions
from naspipe.nni.library import Sample, labels_in, library
from naspipe.nni.proof import cover
from naspipe.nni.trace import Traced

SETTING = "values"
"""Name of a sliced layer's only setting; its values are texts such as ``24,2.0``."""

LEFT_OUT = "none"
"""Text for a layer in a repetition that an architecture omits."""

_Convolution = torch.nn.modules.conv._ConvNd
_JOINED = {"in_proj_weight", "in_proj_bias"}


@dataclass(frozen=True, eq=False)
class Slices:
    """The sizes that one layer has in architectures; all sequences have an entry for each size.

    Args:
        where: name of the block in messages.
        traced: the model space.
        draft: the block.
        samples: for each size, an architecture that has it.
        texts: for each size, its name in logs.
        made: for each size, its module on the meta device.
        groups: for each size, the candidate of a LayerChoice that it belongs to; candidates share
            no weights.
    """

    where: str
    traced: Traced
    draft: Draft
    samples: Sequence[Sample]
    texts: tuple[str, ...]
    made: Sequence[nn.Module]
    groups: Sequence[int]

    def __post_init__(self) -> None:
        for size, module in enumerate(self.made):
            for name, tensor in _tensors(module).items():
                self._check(size, name, tensor)

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """For each group, the size with the most numbers, of which all others are parts."""
        counts = [_count(_tensors(module).values()) for module in self.made]
        sizes: dict[int, int] = {}
        for size, group in enumerate(self.groups):
            best = sizes.setdefault(group, size)
            sizes[group] = size if counts[size] > counts[best] else best
        return tuple(sizes[group] for group in sorted(sizes))

    def make(self) -> nn.Module:
        """Create the layer with its largest sizes."""
        samples = [self.samples[size] for size in self.largest]
        made = [make_candidate(self.traced, self.draft, sample) for sample in samples]
        return made[0] if len(made) == 1 else nn.ModuleList(made)

    def apply(self, module: nn.Module, *tensors: torch.Tensor, values: str) -> Any:
        """Compute the output of the layer with one of its sizes."""
        size = self.texts.index(values)
        small = self.made[size]
        small.train(module.training)
        parts = _parts(self._whole(module, size), small)
        return functional_call(small, parts, tensors, tie_weights=False)

    def cut(self, module: nn.Module, values: str) -> nn.Module:
        """Return a module of one size only, with its part of the weights."""
        size = self.texts.index(values)
        if any(tensor.is_meta for tensor in _tensors(module).values()):
            return deepcopy(self.made[size])
        with kept_draws():
            made = make_candidate(self.traced, self.draft, self.samples[size])
        parts = _parts(self._whole(module, size), made)
        with torch.no_grad():
            for name, tensor in _tensors(made).items():
                tensor.copy_(parts[name])
        return made.train(module.training)

    def _whole(self, module: nn.Module, size: int) -> nn.Module:
        return module[self.groups[size]] if isinstance(module, nn.ModuleList) else module

    def _check(self, size: int, name: str, tensor: torch.Tensor) -> None:
        largest = self.largest[self.groups[size]]
        whole = _tensors(self.made[largest]).get(name)
        found = f"{self.where}, {self.texts[size]}, {name} of shape {list(tensor.shape)}"
        most = f"the size with the most numbers, {self.texts[largest]}"
        if whole is None:
            raise ConfigError(
                f'share="slice": expected sizes that are parts of one largest, found {found}, '
                f"which {most}, has not"
            )
        if len(tensor.shape) != len(whole.shape) or any(map(gt, tensor.shape, whole.shape)):
            raise ConfigError(
                f'share="slice": expected sizes that are parts of one largest, found {found} '
                f"beside {list(whole.shape)} of {most}"
            )


def find_slices(
    traced: Traced,
    drafts: Sequence[Draft],
    layers: Sequence[BlockLayers],
    decisions: LabelDecisions,
) -> list[Slices | None]:
    """Return the sizes of each block whose layers depend on label values; None for other blocks.

    Raises:
        ConfigError: if the sizes are not parts of one largest size; or if there are none to share.
    """
    shared = {
        place: dict[int, nn.Module]()
        for place, (draft, own) in enumerate(zip(drafts, layers, strict=True))
        if draft.kind in (Kind.VALUES, Kind.LAYERS)
        and not draft.cells
        and len(own.samples) > 1
        and any(_size_labels(draft, sample) for sample in own.samples)
    }
    if not shared:
        raise ConfigError(
            f'space {traced.name}: expected modules that are made with values for share="slice", '
            f"found none; leave share out"
        )
    total = sum(len(own.samples) for own in layers)
    for sample in cover(decisions, total).samples:
        numbers = {place: layers[place].number(sample) for place in shared}
        missing = [place for place in shared if numbers[place] not in shared[place]]
        if missing:
            with kept_draws():
                model = counterparts(traced, sample, fixed_model(traced.space, sample))
        for place in missing:
            made = make_candidate(traced, drafts[place], sample, model)
            shared[place][numbers[place]] = made.to("meta")
    return [
        _slices(traced, draft, own, shared[place]) if place in shared else None
        for place, (draft, own) in enumerate(zip(drafts, layers, strict=True))
    ]


def _slices(
    traced: Traced, draft: Draft, own: BlockLayers, sizes: Mapping[int, nn.Module]
) -> Slices:
    """Describe the sizes of one block; ``sizes`` are their modules on the meta device by number."""
    labels = [each.label for each in _layer_choices(draft)]
    chosen = [tuple(str(sample[label]) for label in labels) for sample in own.samples]
    is_there = [all(r.is_active(sample) for r in draft.regions) for sample in own.samples]
    kinds = dict.fromkeys(each for each, there in zip(chosen, is_there, strict=True) if there)
    numbers = {each: number for number, each in enumerate(kinds)}
    texts = []
    for sample, names, there in zip(own.samples, chosen, is_there, strict=True):
        values = (str(sample[label]) for label in _size_labels(draft, sample))
        texts.append(",".join((*names, *values)) if there else LEFT_OUT)
    made = [sizes[number] for number in range(len(own.samples))]
    own.parameters = tuple(_count(module.parameters()) for module in made)
    groups = [numbers.get(each, 0) for each in chosen]
    return Slices(own.where, traced, draft, own.samples, tuple(texts), made, groups)


def _layer_choices(draft: Draft) -> list[Any]:
    return [each for each in draft.modules if isinstance(each, library().layer_choice)]


def _size_labels(draft: Draft, sample: Sample) -> list[str]:
    """Return the labels from whose values an architecture's modules in a block are constructed."""
    chosen = [each[sample[each.label]] for each in _layer_choices(draft)]
    return [*draft.labels, *(label for module in chosen for label in labels_in(module))]


def _count(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(chain(module.named_parameters(), module.named_buffers()))


def _parts(module: nn.Module, small: nn.Module) -> dict[str, torch.Tensor]:
    """Return the part of each tensor of a layer that a module of a smaller size uses."""
    whole = _tensors(module)
    found = {}
    for path, part in small.named_modules():
        own = chain(part.named_parameters(recurse=False), part.named_buffers(recurse=False))
        for name, tensor in own:
            full = f"{path}.{name}" if path else name
            found[full] = _part(part, name, whole[full], tensor.shape)
    return found


def _part(owner: nn.Module, name: str, whole: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    if list(whole.shape) == list(shape):
        return whole
    if isinstance(owner, nn.MultiheadAttention) and name in _JOINED:
        thirds = whole.chunk(3)
        rest = shape[1:]
        return torch.cat([_part(owner, "", each, (shape[0] // 3, *rest)) for each in thirds])
    is_kernel = isinstance(owner, _Convolution) and name == "weight"
    places = []
    for dimension, (most, size) in enumerate(zip(whole.shape, shape, strict=True)):
        begin = (most - size) // 2 if is_kernel and dimension > 1 else 0
        places.append(slice(begin, begin + size))
    return whole[tuple(places)]
