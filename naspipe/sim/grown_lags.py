"""A pipeline as it flows: every lag that grows has grown."""

from __future__ import annotations

from dataclasses import replace

from naspipe.config.rules import grown_up
from naspipe.sim.chains import Stream
from naspipe.sim.pipeline import Pipeline


def with_grown_lags(pipeline: Pipeline) -> Pipeline:
    """The same streams, without the beginning in which lags grow."""
    return replace(pipeline, streams=tuple(map(_grown, pipeline.streams)))


def _grown(stream: Stream) -> Stream:
    rules = tuple(map(grown_up, stream.chain.rules))
    return replace(stream, chain=replace(stream.chain, rules=rules))
