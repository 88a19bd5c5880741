"""Where code of the user's runs: in the forward of a layer, or in a loss."""

from __future__ import annotations

from torch import nn

from naspipe.core.space import AnyBlock, Elastic

_OURS = ("torch.nn.", "naspipe.", "search_spaces.")
_HOOKS = [name for name in vars(nn.Module()) if name.endswith("_hooks")]


def has_users_class(thing: object) -> bool:
    """Whether its class is neither torch's nor naspipe's; a function's class is neither."""
    return not type(thing).__module__.startswith(_OURS)


def has_users_code(block: AnyBlock, module: nn.Module) -> bool:
    """Whether the forward of a layer of a block runs anything but torch's and naspipe's code."""
    return (isinstance(block, Elastic) and block.apply is not None) or any(
        has_users_class(part) or "forward" in vars(part) or any(vars(part)[name] for name in _HOOKS)
        for part in module.modules()
    )
