"""Draws what happens next, of all that a stage's controller could ask for now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from hypothesis import strategies as st

from naspipe.config.ids import LayerId
from naspipe.engine.events import LAYER, STATE
from tests.happens_before.clocks import Recorder
from tests.happens_before.torch_on_gpu import torch_on_gpu
from tests.happens_before.watched_captures import watched_captures
from tests.happens_before.watched_layers import LAYERS, STEM
from tests.happens_before.watched_stage import WatchedStage
from tests.happens_before.wire import Wire

MOST_RESIDENT = 2
"""Beside the permanent layer."""

MOST_UNDER_WAY = 4
COMPUTES = 3
"""How much more likely it is that a block is computed, or a layer saved, than anything else."""

Action = tuple[str, Callable[[], None]]

drawn_orders = st.binary(min_size=60, max_size=160)
"""Each byte chooses one of the actions that are possible then."""


def run_order(order: bytes, watches: bool = True) -> Counter[str]:
    """Do what was drawn, to the end; returns how often what was done.

    Args:
        order: the first byte says whether the stages share memory.
        watches: whether clocks look for races, beside the bytes that are found.

    Raises:
        RaceError: two accesses are not ordered.
        WrongBytesError: something else was read than what had to be there.
    """
    recorder, done = Recorder(watches), Counter[str]()
    with torch_on_gpu(recorder) as torch_, watched_captures(torch_):
        wire = Wire(torch_, has_rings=bool(order[0] & 1))
        with wire.installed():
            stage = WatchedStage(torch_, wire)
            for byte in order[1:]:
                possible = list(actions(stage))
                name, act = possible[byte % len(possible)]
                _checked(recorder, act)
                done[name] += 1
            _checked(recorder, stage.finish)
    done["accesses"] = recorder.accesses
    return done


def _checked(recorder: Recorder, act: Callable[[], None]) -> None:
    try:
        act()
    finally:
        recorder.check()


def actions(stage: WatchedStage) -> Iterator[Action]:
    """What may happen now."""
    yield from _beside(stage)
    for layer in LAYERS:
        for _ in range(COMPUTES):
            yield from _computing(stage, layer)
        yield from _moving(stage, layer)


def _beside(stage: WatchedStage) -> Iterator[Action]:
    """What others do, and what is done whatever the layers are."""
    for queue in stage.torch.gpu.queues:
        if queue.done < queue.launched:
            yield "the device goes on", queue.go_on
    if stage.swapper._copying:
        yield "take finished", stage.take_finished
    if stage.wire:
        yield "deliver", stage.wire.deliver
    if stage.wire.num_arrived:
        yield "receive", stage.receive
    elif len(stage.inputs) < MOST_UNDER_WAY:
        yield "input", stage.send_input
    if stage.away:
        yield "layer comes back", stage.return_layer
    if stage.outputs and len(stage.wire) < MOST_UNDER_WAY:
        yield "output", stage.send_output
    if stage.captures.waits:
        yield "writing thread", stage.captures.write
    if stage.captures.may_finish:
        yield "finish cut", stage.captures.finish_cut
    if stage.captures.checkpointer._outcomes:
        yield "report checkpoints", stage.captures.checkpointer.report
    yield "wait for the device", stage.placement.finish_block


def _computing(stage: WatchedStage, layer: LayerId) -> Iterator[Action]:
    """Forward, backward and WRITE, one pass after another, and the save of what was written."""
    if stage.where[layer] not in ("resident", "saving"):
        return
    if layer in stage.graphs:
        yield "backward", partial(stage.backward, layer)
    elif layer not in stage.gradients:
        yield "forward", partial(stage.forward, layer)
    elif stage.where[layer] == "resident":
        yield "write", partial(stage.write, layer)
    if stage.where[layer] == "resident" and layer in stage.dirty and layer != STEM:
        yield "save", partial(stage.save, layer)


def _moving(stage: WatchedStage, layer: LayerId) -> Iterator[Action]:
    """Loads, evictions, captures, and ways to the other stage."""
    where, is_free = stage.where[layer], layer not in stage.graphs
    there = [each for each in LAYERS if stage.swapper.holds(each) and each != STEM]
    is_done = is_free and layer not in stage.gradients and layer not in stage.dirty
    if where == "absent" and (layer == STEM or len(there) < MOST_RESIDENT):
        yield "load", partial(stage.load, layer)
    if layer != STEM and stage.may_evict(layer):
        yield "evict", partial(stage.evict, layer)
    if where == "away" or len(stage.wire) >= MOST_UNDER_WAY:
        return
    leaves_from = "resident" if layer == STEM else "absent"
    if where == leaves_from and is_free and layer not in stage.gradients:
        yield "hand over", partial(stage.push, layer, LAYER)
    if is_done or where in ("resident", "saving"):
        yield "copy to the other stage", partial(stage.push, layer, STATE)
    if stage.captures.may_capture(layer):
        yield "capture", partial(stage.captures.capture, layer, stage.writes[layer])
