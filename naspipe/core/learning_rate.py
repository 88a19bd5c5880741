"""The learning rate as a pure function of the number of the step."""

from __future__ import annotations

import math

from naspipe.core.config import Recipe


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """The rate of one step, whatever the order in which steps are computed.

    Warm-up rises linearly over the first ``warmup_steps`` steps; after it the rate is
    constant, falls to 0 at ``steps`` linearly or by a half cosine, or falls with the inverse
    square root of the number of the step (Vaswani et al. 2017, section 5.3).
    """
    warmup = recipe.warmup_steps
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    match recipe.schedule:
        case "linear":
            return recipe.lr * (1.0 - progress)
        case "cosine":
            return recipe.lr * 0.5 * (1.0 + math.cos(math.pi * progress))
        case "inverse_sqrt":
            start = max(1, warmup)
            return recipe.lr * math.sqrt(start / (step - warmup + start))
        case _:
            return recipe.lr
