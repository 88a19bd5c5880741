"""A space of naspipe's with its data, for scripts that begin on a fresh machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import search_spaces
from naspipe.config.rules import Lag
from naspipe.data import registry
from naspipe.data.cache import ConsoleProgress
from naspipe.inputs.named import find_workload
from naspipe.jobs.workload import Workload


def flowing(named: Workload) -> Workload:
    """The same once all lags have grown: of a run that is timed, however short it is."""
    shared = named.space.shared_rules
    grown = {name: replace(rule, over=0) for name, rule in shared.items() if isinstance(rule, Lag)}
    return named.redefined(grown)


def tiny_workload(name: str, sizes: Mapping[str, int] | None = None) -> Workload:
    """The space of that name at scale tiny; its data is prepared first where it is not yet."""
    return workload_with_data(name, "tiny", sizes)


def workload_with_data(name: str, scale: str, sizes: Mapping[str, int] | None = None) -> Workload:
    """The same at any scale."""
    prepare_data(search_spaces.defaults(name, scale).data)
    return find_workload(name, scale, None, None, sizes)


def prepare_data(name: str) -> None:
    """Prepare a data set, where it is not yet; says how far it is."""
    if not registry.is_prepared(name):
        with ConsoleProgress() as progress:
            registry.prepare(name, progress=progress)
