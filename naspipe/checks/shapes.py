"""Follow the shapes of a batch through the candidates of a space, on torch's meta device.

No values are computed there. A layer that does not accept a shape is only suspected, and is tried
with real tensors before it is refused: :func:`compute_first` computes a subnet up to that layer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from naspipe.checks.sketched import SketchedLayers
from naspipe.config.errors import BlockInputEditedError, ConfigError, NaspipeError
from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.space import Space
from naspipe.config.user_code import users_code
from naspipe.jobs.losses import TORCHS
from naspipe.jobs.workload import Workload, field_of
from naspipe.worker.blocks.segment import Segment, autocast
from naspipe.worker.blocks.specs import Form, Tensors, form_of, spec_of
from naspipe.worker.layers.layer_store import LayerStore
from naspipe.worker.layers.stored_layer import StoredLayer

_OF_ONE_TYPE = {
    f"aten::{name}"
    for name in (
        "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "native_layer_norm", "native_group_norm",
        "native_batch_norm", "_native_batch_norm_legit",
    )
}  # fmt: skip
"""Operations that refuse tensors of different dtypes, but not on the meta device."""


class WatchedCalls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches operations within the context; ``given`` are tensors that must not be changed."""

    def __init__(self, given: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._given = {each.untyped_storage()._cdata for each in given}
        self.is_edited = False
        """True if an operation has changed one of them."""
        self.is_mixed = False
        """True if an operation was called with dtypes that it probably does not accept together."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        by_place = zip(func._schema.arguments, args, strict=False)
        by_name = ((each, named.get(each.name)) for each in func._schema.arguments)
        dtypes = set[torch.dtype]()
        for argument, value in chain(by_place, by_name):
            if isinstance(value, torch.Tensor):
                dtypes.add(value.dtype)
                if argument.is_write:
                    self.is_edited |= value.untyped_storage()._cdata in self._given
        self.is_mixed |= len(dtypes) > 1 and func._schema.name in _OF_ONE_TYPE
        return func(*args, **named)


MOST_FORMS = 32
"""Maximum number of tensor forms that are followed to one block; others are left to the profile."""

MOST_CALLS = 4000
"""Maximum number of layer calls; the remaining layers are left to the profile."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A form of the tensors that reach a block, with one subnet that produces it."""

    form: Form
    path: tuple[int, ...] = ()
    """The options of the preceding blocks."""
    made: tuple[Form, ...] = ()
    """The form that each of them returns."""

    def through(self, candidate: int, form: Form) -> Reached:
        return Reached(form, (*self.path, candidate), (*self.made, form))


@dataclass(frozen=True, slots=True)
class Suspected:
    """A layer, or the loss, that seems not to accept its input."""

    candidate: int | None
    """The candidate of the block that is reached; None for the loss."""
    bad: Reached
    good: Reached | None
    """A form that it accepts, if one reaches it."""

    @property
    def block(self) -> int:
        """Position in the chain; for the loss, the position after the last block."""
        return len(self.bad.path)

    def chain(self, reached: Reached) -> tuple[int, ...]:
        """Return the candidates of a subnet up to and including the block that is reached."""
        return reached.path if self.candidate is None else (*reached.path, self.candidate)

    @property
    def parting(self) -> int | None:
        """The first block after which the two forms differ."""
        if self.good is None:
            return None
        pairs = enumerate(zip(self.bad.made, self.good.made, strict=True))
        return next(block for block, (bad, good) in pairs if bad != good)


class _Unknown:
    """The result depends on values."""


class _Failed:
    """The layer does not accept its input."""


UNKNOWN, FAILED = _Unknown(), _Failed()
Result = Form | _Unknown | _Failed


class ShapeFollower:
    """Follows the forms of a batch's tensors through a space.

    ``first`` is the input of the first block, in addition to fields of the batch.
    """

    def __init__(
        self,
        space: Space,
        layers: SketchedLayers,
        first: Form,
        fields: Mapping[str, Form],
        trains: bool = True,
    ) -> None:
        self._space = space
        self._layers = layers
        self._first = first
        self._fields = fields
        self._trains = trains
        self._known: dict[Hashable, Result] = {}
        self._reached: list[dict[Form, Reached]] = [{} for _ in range(len(space) + 1)]

    def spread(self) -> Iterator[Suspected]:
        """Follow all chains, for spaces in which any candidate may follow any other."""
        self._reached[0] = {self._first: Reached(self._first)}
        for block in range(len(self._space)):
            here, after = self._reached[block], self._reached[block + 1]
            count = len(self._space.blocks[block].candidates)
            results = [
                (candidate, reached, self._call(block, candidate, reached.form))
                for candidate in range(count)
                for reached in here.values()
            ]
            for candidate, reached, result in results:
                if isinstance(result, tuple) and len(after) < MOST_FORMS:
                    after.setdefault(result, reached.through(candidate, result))
            for candidate, reached, result in results:
                if result is FAILED:
                    fits = (
                        r for c, r, form in results if c == candidate and isinstance(form, tuple)
                    )
                    yield Suspected(candidate, reached, next(fits, None))

    def walk(self, chains: Iterable[Sequence[int]]) -> Iterator[Suspected]:
        """Follow only these subnets, given as one option per block."""
        for options in dict.fromkeys(map(tuple, chains)):
            reached = Reached(self._first)
            for block, candidate in enumerate(options):
                self._reached[block].setdefault(reached.form, reached)
                result = self._call(block, candidate, reached.form)
                if result is FAILED:
                    others = self._reached[block].values()
                    fits = (
                        r for r in others if isinstance(self._call(block, candidate, r.form), tuple)
                    )
                    yield Suspected(candidate, reached, next(fits, None))
                if not isinstance(result, tuple):
                    break
                reached = reached.through(candidate, result)
            else:
                self._reached[len(self._space)].setdefault(reached.form, reached)

    def ends(self, loss: Callable[..., Any], fields: Sequence[str]) -> Iterator[Suspected]:
        """Yield the outputs that the loss does not accept; call this method last."""
        ends = list(self._reached[len(self._space)].values())
        given = [form for name in fields for form in self._fields[name]]
        results = [(end, _called(loss, end.form, tuple(given))) for end in ends]
        for end, result in results:
            if result is FAILED:
                fits = (each for each, form in results if isinstance(form, tuple))
                yield Suspected(None, end, next(fits, None))

    def _call(self, block: int, option: int, form: Form) -> Result:
        own = self._space.blocks[block]
        fields = tuple(each for name in self._space.fields(block) for each in self._fields[name])
        place = block, own.candidate(option)
        key = self._layers.key(*place), *own.setting(option).values(), form, fields
        if key not in self._known:
            if len(self._known) >= MOST_CALLS:
                return UNKNOWN
            module = self._layers.module(*place)
            self._known[key] = UNKNOWN
            if module is not None:
                forward = own.forward_of(module.train(self._trains), option)
                with unchanged(module, self._space, block, option):
                    self._known[key] = _called(forward, form, fields)
        return self._known[key]


@contextmanager
def unchanged(module: nn.Module, space: Space, block: int, option: int) -> Iterator[None]:
    """Check that a forward with a setting of an elastic layer restores the module's attributes."""
    before = _attributes(module) if space.blocks[block].setting(option) else {}
    yield
    for (part, name), value in (_attributes(module) if before else {}).items():
        if (part, name) not in before or before[part, name] is not value:
            raise ConfigError(
                f"layer {space.option_label(block, option)}: expected its setting to be an "
                f"argument of the forward and no state of the module, found its "
                f"{type(module).__name__} with another {f'{part}.' if part else ''}{name} behind "
                f"it; pass it on as an argument, by apply= if the module is not yours"
            )


def _attributes(module: nn.Module) -> dict[tuple[str, str], Any]:
    """Return all attributes of a module and its parts, except torch's internal ones."""
    return {
        (part, name): value
        for part, each in module.named_modules()
        for name, value in vars(each).items()
        if not name.startswith("_") or name not in TORCHS
    }


def _called(function: Callable[..., Any], form: Form, fields: Form) -> Result:
    """Return the result of a layer or a loss for tensors of these forms."""
    try:
        with torch.device("meta"), torch.enable_grad():
            inputs = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in form]
            for place, each in enumerate(inputs):
                if each.is_floating_point():  # not a leaf: in-place edits are allowed and detected
                    inputs[place] = each.requires_grad_().clone()
            given = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in fields]
            with WatchedCalls([*inputs, *given]) as seen:
                found = function(*inputs, *given)
    except NotImplementedError:
        return UNKNOWN
    except Exception as error:
        return UNKNOWN if "meta" in str(error).lower() else FAILED
    outputs = found if isinstance(found, tuple) else (found,)
    if not all(isinstance(each, torch.Tensor) for each in outputs):
        return FAILED
    if seen.is_edited or seen.is_mixed:  # edited tensors may be shared
        return FAILED
    if any(each.device.type != "meta" for each in outputs):
        return UNKNOWN
    return form_of(outputs)


class FirstBlocksError(NaspipeError):
    """Something other than the tried layer or loss failed."""


def compute_first(
    workload: Workload,
    batch: Mapping[str, torch.Tensor],
    chain: Sequence[int],
    said: str,
    with_loss: bool = False,
) -> None:
    """Compute the first blocks of a subnet, with one layer in memory at a time.

    Args:
        workload: the workload whose layers are computed.
        batch: the input.
        chain: the option of each block.
        said: start of the error message; the error of the last layer follows.
        with_loss: True if the chain is a whole subnet and the loss is tried.

    Raises:
        ConfigError: if the last layer, or the loss, raises.
        FirstBlocksError: if an earlier layer raises, or for other reasons.
    """
    space, recipe = workload.space, workload.definition.recipe

    def stored(block: int, option: int) -> StoredLayer:
        trains = workload.runs_in_training_mode
        store = LayerStore(space, workload.definition.seed, recipe, trains=trains)
        return store.make(LayerId(FIRST_STREAM, block, space.blocks[block].candidate(option)))

    def outputs(block: int, option: int, inputs: Tensors) -> Tensors:
        layer = stored(block, option)
        spec = spec_of(space, recipe, block, option)._replace(
            fields=tuple(field_of(batch, name, 0) for name in space.fields(block)),
        )
        return Segment(spec, layer.bind(layer.version), inputs, keeps_graph=False).forward()

    inputs = workload.tapped(batch) if workload.tapped else ()
    tried = len(chain) - (not with_loss)
    for block, option in enumerate(chain):
        if block == tried:
            with _refused(said):
                outputs(block, option, inputs)
            return
        try:
            inputs = outputs(block, option, inputs)
        except Exception as error:
            raise FirstBlocksError(str(error)) from error
    fields = [field_of(batch, name, 0) for name in workload.loss_fields]
    objective = workload.objective_of(stored(len(chain) - 1, chain[-1]).module)
    with _refused(said), autocast(workload.recipe.precision, "cpu"):
        objective(*inputs, *fields)


@contextmanager
def _refused(said: str) -> Iterator[None]:
    try:
        with users_code(said):
            try:
                yield
            except (MemoryError, torch.OutOfMemoryError) as error:
                raise FirstBlocksError(str(error)) from error
            except BlockInputEditedError as error:
                raise ConfigError(str(error)) from error
    except ConfigError:
        raise
    except NaspipeError as error:
        raise FirstBlocksError(str(error)) from error
