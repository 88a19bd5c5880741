"""How alike two orders are: Kendall's tau, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

RESAMPLES = 2000


def kendalls_tau(one: ArrayLike, other: ArrayLike) -> float:
    """Tau-b, from -1 to 1; 0 where either has no order at all (Kendall 1945)."""
    from scipy.stats import kendalltau

    tau = float(kendalltau(one, other).statistic)
    return 0.0 if math.isnan(tau) else tau


def interval(
    one: Sequence[float], other: Sequence[float], level: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Where ``level`` of the taus lie of pairs that are drawn anew from these (bootstrap)."""
    from scipy.stats import bootstrap

    found = bootstrap(
        (one, other), kendalls_tau, paired=True, vectorized=False, n_resamples=RESAMPLES,
        confidence_level=level, method="percentile", rng=np.random.default_rng(seed),
    )  # fmt: skip
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
