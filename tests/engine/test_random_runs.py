"""Whatever is run, forecast and moved: within budget, never stuck, and no byte lost."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.device import Stage, cases

seeds = st.integers(0, 1 << 32)


@settings(max_examples=300)
@given(cases(), seeds)
def test_every_run_ends_with_the_right_bytes(case, seed):
    """The device checks every command, and every use that it sees what was last written."""
    stage = Stage(case, random.Random(seed)).run()
    device, manager = stage.device, stage.manager
    assert not stage.runs and not stage.running and not stage.away
    assert manager.ledger.used_bytes == device.used <= manager.ledger.peak_bytes <= case.budget
    assert manager.ledger.resident == tuple(sorted(device.copies))
    for layer, content in device.copies.items():
        if layer.block not in case.permanent:
            assert device.host[layer] == content == stage.truth[layer], "in time all is saved"
            assert not manager.needs_save(layer)


@given(cases(budget=200, prefetches=True, is_accurate=True, moves=False), seeds)
def test_with_room_for_all_each_layer_is_loaded_once(case, seed):
    device = Stage(case, random.Random(seed)).run().device
    used = {layer for run in case.runs for layer, _ in run}
    sized = {layer for layer in used if case.sizes.of(*layer[1:]).state_bytes}
    assert device.loads == dict.fromkeys(sized, 1)


@given(cases(), seeds)
def test_a_token_changes_no_command(case, seed):
    """A plan that is skipped because nothing changed would have been empty."""
    plain = Stage(case, random.Random(seed)).run()
    assert Stage(case, random.Random(seed), has_token=True).run().trace == plain.trace
