"""Where code of the user's runs: in the forward of a layer, or in a loss."""

from __future__ import annotations

from itertools import chain

from torch import nn

from naspipe.config.space import AnyBlock, Elastic

_OURS = ("torch.nn.", "naspipe.", "search_spaces.")
_HOOKS = [name for name in vars(nn.Module()) if name.endswith("_hooks")]


def has_users_class(thing: object) -> bool:
    """Whether it comes from outside ``torch.nn`` and naspipe; a plain function counts as such."""
    return not type(thing).__module__.startswith(_OURS)


def has_users_code(block: AnyBlock, module: nn.Module) -> bool:
    """Whether a layer of a block runs anything but torch's and naspipe's code.

    Hooks of modules, parameters and buffers count as the user's code.
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
        has_users_class(part) or "forward" in vars(part) or any(vars(part)[name] for name in _HOOKS)
        for part in module.modules()
    )
