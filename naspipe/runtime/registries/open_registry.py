"""A registry by its address."""

from __future__ import annotations

import re

from naspipe.config.errors import ConfigError
from naspipe.runtime.registries.own_registry import OwnRegistry
from naspipe.runtime.registries.ports import Registry
from naspipe.runtime.registries.redis_registry import RedisRegistry


def open_registry(url: str) -> Registry:
    """``redis://...`` or ``rediss://...``, or ``tcp://HOST:PORT`` of a run's own.

    Raises:
        ConfigError: for another one, or without the extra ``redis``.
    """
    if url.startswith(("redis://", "rediss://")):
        return RedisRegistry(url)
    if re.fullmatch(r"tcp://[^:/]+:\d{1,5}", url):
        return OwnRegistry(url)
    raise ConfigError(f"registry: expected redis://HOST or tcp://HOST:PORT, found {url:.80}")
