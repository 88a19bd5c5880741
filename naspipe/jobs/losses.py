"""The loss of a run: its arguments, its form for students, and its description."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from naspipe.config.blocks import Elastic
from naspipe.config.errors import ConfigError
from naspipe.config.space import AnyBlock
from naspipe.config.user_code import full_name

Loss = Callable[..., torch.Tensor]
"""Called with the last block's outputs and batch fields, by default ``target``."""

Metric = Callable[..., Any]
"""Called like a loss; returns a single number that is not used for training."""


def loss_fields(loss: Loss) -> tuple[str, ...]:
    """Return the batch fields that are passed to a loss: its ``fields``, or ``target``."""
    return tuple(getattr(loss, "fields", ("target",)))


def distilled_fields(loss: Loss) -> tuple[str, ...]:
    """Return the batch fields that are passed to a loss if every pass has a teacher output.

    A loss may define them as ``distilled_fields``. By default they are its ``fields``, and empty
    for ``torch.nn.CrossEntropyLoss``, which then compares with the teacher output alone.
    """
    if type(loss) is torch.nn.CrossEntropyLoss:
        return ()
    return tuple(getattr(loss, "distilled_fields", loss_fields(loss)))


def name_of_loss(loss: object) -> str:
    return str(getattr(loss, "__qualname__", type(loss).__qualname__))


def not_one_number(what: str, found: Any) -> ConfigError:
    """Return the error for a loss or metric ``what`` that returned ``found``."""
    todo = "use reduction='mean', or end in .mean()"
    said = "None" if found is None else type(found).__name__
    if isinstance(found, torch.Tensor):
        said = f"a tensor of shape {list(found.shape)} (reduction='none' gives one for each item)"
    elif what.startswith("metric"):
        todo = "return a number, or a tensor of one element"
    else:
        todo = "return a tensor that gradients go back from, and no .item() of it"
    return ConfigError(f"{what}: expected one number for a batch, found {said}; {todo}")


def check_one_number(what: str, found: Any) -> None:
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        raise not_one_number(what, found)


def is_joined(loss: Loss) -> bool:
    """Return True if ``loss`` is computed over the outputs of all passes of a step."""
    return callable(getattr(loss, "joined", None))


def needs_teacher(loss: Loss) -> bool:
    """Return True if ``loss`` has no form without a teacher."""
    return bool(getattr(loss, "needs_teacher", not callable(loss) and not is_joined(loss)))


def wants_hidden(loss: Loss) -> bool:
    """Return True if ``loss`` also takes the input of the teacher's last block after the output."""
    return bool(getattr(loss, "wants_hidden", False))


def untaught(
    loss: Loss, passes: int, lessons: int, *, fields: int = 0, is_taught: bool = False
) -> Loss:
    """Return the loss without a teacher, for callers that have no teacher outputs.

    Outputs are compared with themselves if the loss has no such form, or a run never uses it.

    Args:
        loss: the loss as modified by the recipe.
        passes: the number of passes of a step.
        lessons: the number of teacher outputs of a step.
        fields: the number of batch fields, which are the last arguments.
        is_taught: whether every pass of a run has a teacher output.
    """
    if is_joined(loss):
        joined: Any = loss
        return lambda output, *_: joined.joined([output] * passes, [output.detach()] * lessons)
    if callable(loss) and not is_taught:
        return loss
    compare, costs = distilling(loss), int(getattr(loss, "needs_cost", False))

    def taught_by_itself(*given: torch.Tensor) -> torch.Tensor:
        count = len(given) - fields
        own = (output.detach() for output in given[: count - costs])
        return compare(*given[:count], *own, *given[count:])

    return taught_by_itself


def smoothed(loss: Loss, label_smoothing: float) -> Loss:
    """Return the loss with a different label smoothing; 0 leaves it unchanged."""
    if not label_smoothing:
        return loss
    if not isinstance(getattr(loss, "label_smoothing", None), float | int):
        raise ConfigError(
            f"label_smoothing={label_smoothing:g}: expected a loss with an attribute "
            f"label_smoothing (torch.nn.CrossEntropyLoss, or that of a named space), found "
            f"{name_of_loss(loss)}; leave it out and smooth in "
            f"your loss"
        )
    own = loss.label_smoothing  # type: ignore[attr-defined]
    if own not in (0, label_smoothing):
        raise ConfigError(
            f"label_smoothing={label_smoothing:g}: expected it to be given once, found "
            f"{own:g} in {name_of_loss(loss)}(label_smoothing={own:g}), too; leave one of them out"
        )
    changed: Any = copy.copy(loss)
    changed.label_smoothing = label_smoothing
    found: Loss = changed
    return found


def distilling(loss: Loss) -> Loss:
    """Return the distillation loss, a function of (output, teacher output, target).

    A loss may have a method ``distill``, which takes its ``fields`` in place of the target. For
    ``torch.nn.CrossEntropyLoss``, it is the mean cross entropy with the softmax of the teacher
    output.
    """
    own = getattr(loss, "distill", None)
    if callable(own):
        found: Loss = own
        return found
    if type(loss) is torch.nn.CrossEntropyLoss:
        return _soft_cross_entropy
    raise ConfigError(
        f"passes=sandwich, or a teacher: expected torch.nn.CrossEntropyLoss, the loss of a named "
        f"space, or one with a method distill(output, taught_output, target) or "
        f"joined(outputs, lessons), found "
        f"{name_of_loss(loss)}"
    )


def _soft_cross_entropy(
    output: torch.Tensor, taught: torch.Tensor, *_: torch.Tensor
) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, taught.softmax(1))


_PLAIN = (bool, int, float, str, type(None))
_DEEPEST = 8
"""Maximum nesting depth of callables that are described; cycles are possible."""


def described(loss: object, depth: int = 0) -> str:
    """Return the name of a loss, with the values of its attribute ``record``.

    Without a ``record``, the values are the arguments of its ``__init__`` that are attributes of
    the same names and differ from the defaults: numbers, texts, tensors (by digest), and nested
    losses. ``depth`` is the number of callables that contain the loss.
    """
    name = full_name(loss.func if isinstance(loss, functools.partial) else loss)
    record = getattr(loss, "record", None)
    values = dict(record) if record else dict(sorted(_given(loss, depth)))
    said = ", ".join(f"{key}={value}" for key, value in values.items())
    return f"{name}({said})" if values else name


def _given(loss: object, depth: int) -> Iterator[tuple[str, str]]:
    if depth > _DEEPEST:
        return
    if isinstance(loss, functools.partial):
        given: Mapping[str, Any] = {
            **{str(place): value for place, value in enumerate(loss.args)},
            **loss.keywords,
        }
        usual: dict[str, Any] = {}
    elif inspect.isroutine(loss) or isinstance(loss, type):
        return
    else:
        parameters = inspect.signature(type(loss).__init__).parameters.values()
        usual = {each.name: each.default for each in parameters}
        given = {name: getattr(loss, name) for name in usual if hasattr(loss, name)}
    for name, value in given.items():
        text = text_of(value, depth + 1)
        if text and text != text_of(usual.get(name, inspect.Parameter.empty)):
            yield name, text


def text_of(value: Any, depth: int = 0) -> str:
    """Return text that identifies a value; empty if none is known.

    ``depth`` is that of :func:`described`.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, tuple | list) and all(isinstance(each, _PLAIN) for each in value):
        return repr(list(value))
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    is_empty = value is inspect.Parameter.empty
    return described(value, depth) if callable(value) and not is_empty else ""


def _tensor_text(value: torch.Tensor) -> str:
    """Return the shape of a tensor and a digest of its bytes.

    A tensor on the meta device has no bytes, and those of a sparse or nested tensor cannot be
    viewed. Such tensors are described by their type alone.
    """
    if value.is_meta or value.layout is not torch.strided or value.is_nested or value.is_quantized:
        return f"{'' if value.is_nested else list(value.shape)}:{value.dtype}"
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{list(value.shape)}:{hashlib.blake2b(content, digest_size=8).hexdigest()}"


_OURS = ("torch.nn.", "naspipe.", "search_spaces.")
TORCHS = {*vars(nn.Module())}
"""The attributes that every module has."""
HOOKS = [name for name in TORCHS if name.endswith("_hooks")]


def has_users_class(thing: object) -> bool:
    """Return True for a plain function, or if the class is outside ``torch.nn`` and naspipe."""
    return not type(thing).__module__.startswith(_OURS)


def has_users_code(block: AnyBlock, module: nn.Module) -> bool:
    """Return True if a layer of a block runs code other than that of torch and naspipe.

    Hooks of modules, parameters and buffers count as user code.
    """
    if isinstance(block, Elastic) and block.apply is not None:
        return True
    tensors = chain(module.parameters(), module.buffers())
    if any(
        each._backward_hooks or getattr(each, "_post_accumulate_grad_hooks", None)
        for each in tensors
    ):
        return True
    return any(
        has_users_class(part) or "forward" in vars(part) or any(vars(part)[name] for name in HOOKS)
        for part in module.modules()
    )
