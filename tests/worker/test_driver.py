"""One stage's loop with a real controller, layers and checkpoints; its neighbour is played."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from naspipe.config.errors import InvariantError, TransportError
from naspipe.config.ids import FIRST_STREAM, INITIAL
from naspipe.engine.events import Priorities
from naspipe.launch.claim import merge_parts
from naspipe.machine.out_of_memory import DeviceFullError
from naspipe.store.checkpoints import cut_name, read_checkpoint
from naspipe.wire.messages import (
    HOLD,
    STOP,
    ContributionMessage,
    ControlMessage,
    SubnetsMessage,
)
from tests.worker.checkpoints.bench import held, read
from tests.worker.second_stage import Bench, FirstStage, Script, assert_as_plain
from tests.worker.small_parts import layer, planned, space

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("window", [1, 4])
def test_inputs_become_losses_gradients_and_writes(tmp_path, window):
    first = FirstStage()
    script = Script(*(first.input(y) for y in range(4)))
    with Bench(tmp_path, script, window=window) as bench:
        bench.driver.run()
        assert_as_plain(bench, first)
        assert bench.of("held") == [([4],)]
        kinds = [kind for _, y, kind in bench.of("access") if y == 0]
        assert sorted(kinds) == ["BACKWARD"] * 2 + ["FORWARD"] * 2 + ["WRITE"] * 2


def test_what_comes_during_a_write_goes_before_the_next_one(tmp_path):
    first = FirstStage()

    def later():
        return first.input(1) if bench.driver.current.startswith("0.0 WRITE") else None

    script = Script(first.input(0), later, first.input(2), first.input(3))
    levels = Priorities((90,) * 4, (80,) * 4, (10,) * 4)
    with Bench(tmp_path, script, levels=levels) as bench:
        bench.driver.run()
        assert_as_plain(bench, first)
        kinds = [kind for *_, kind in bench.of("access")]
        assert kinds[:6] == ["FORWARD"] * 2 + ["BACKWARD"] * 2 + ["WRITE", "FORWARD"]


def test_an_input_of_a_subnet_that_nobody_has_told_of_waits(tmp_path):
    """A stream that grows: the other stage was told sooner."""
    first = FirstStage()
    subnets = planned()
    script = Script(
        first.input(0), first.input(1), SubnetsMessage(FIRST_STREAM, 0, tuple(subnets[:1])),
        first.input(2), SubnetsMessage(FIRST_STREAM, 1, tuple(subnets[1:])), first.input(3),
    )  # fmt: skip
    with Bench(tmp_path, script, known=0) as bench:
        bench.driver.run()
        assert_as_plain(bench, first)


def test_a_message_for_a_younger_subnet_admits_all_before_it(tmp_path):
    """The sender knows of retirements that this stage has not seen."""
    first = FirstStage()
    script = Script(first.input(1), first.input(0), first.input(2), first.input(3))
    with Bench(tmp_path, script, window=1) as bench:
        bench.driver.run()
        names = [name for (name,) in bench.of("event")]
        assert names[:3] == ["SubnetAdmitted", "SubnetAdmitted", "InputArrived"]
        assert sorted(y for y, _ in bench.of("loss")) == [0, 1, 2, 3]


def test_silence_is_given_up_and_the_oldest_work_is_named(tmp_path):
    script = Script(FirstStage().input(0))
    with Bench(tmp_path, script) as bench:
        with pytest.raises(
            TransportError, match=r"stage 1: nothing arrived for 0\.2 s; oldest work: .*0\.1"
        ):
            bench.driver.run()
        assert bench.driver.current == "waiting"


def test_asked_to_hold_it_says_how_far_it_is_and_ends_at_the_cut(tmp_path):
    first = FirstStage()
    script = Script(
        first.input(0), ControlMessage(HOLD), ControlMessage(HOLD), ControlMessage(STOP, (2,)),
        first.input(1),
    )  # fmt: skip
    with Bench(tmp_path, script, window=1) as bench:
        bench.driver.run()
        assert [cuts for (cuts,) in bench.of("held")] == [[1]], "once"
        (part,) = bench.reported
        assert part["cut"] == 2
        bench.folder.publish(cut_name(2), 0, merge_parts(2, [part]))
        found = read_checkpoint(bench.folder.path / cut_name(2))
        for y in (0, 1):
            used = layer(y, 2)
            key = f"0/{space().label(used.block, used.candidate)}"
            assert read(found, key) == held(bench.compute.layer(used))
        assert [y for y, _ in bench.of("loss")] == [0, 1]


def test_checkpoints_take_their_place_between_the_subnets(tmp_path):
    first = FirstStage()
    script = Script(*(first.input(y) for y in range(4)))
    with Bench(tmp_path, script, every=2) as bench:
        bench.driver.run()
        assert [part["cut"] for part in bench.reported] == [2]
        names = [name for (name,) in bench.of("event")]
        assert names.index("CutAdmitted") == 2, "behind the subnets 0 and 1"


class Short(nn.Module):
    """Out of memory as often as it is told."""

    left = 0

    def forward(self, x):
        if Short.left:
            Short.left -= 1
            raise torch.OutOfMemoryError("injected")
        return x


@pytest.mark.parametrize("times", [1, 2])
def test_a_block_without_memory_is_tried_once_more(tmp_path, monkeypatch, times):
    monkeypatch.setattr("tests.worker.small_parts.Residual", Short)
    monkeypatch.setattr(Short, "left", times)
    first = FirstStage()
    script = Script(*(first.input(y) for y in range(4)))
    with Bench(tmp_path, script) as bench:
        if times == 2:
            with pytest.raises(DeviceFullError, match=r"0\.0F@1 block 2 \(layer 1\.0\)"):
                bench.driver.run()
            return
        bench.driver.run()
        assert bench.driver.measured["memory_retries"] == 1
        assert len(bench.of("loss")) == 4


def test_what_a_layer_raises_is_raised_with_what_it_was_at(tmp_path, monkeypatch):
    class Breaks(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError("a layer's own")

    monkeypatch.setattr("tests.worker.small_parts.Residual", Breaks)
    with Bench(tmp_path, Script(FirstStage().input(0))) as bench:
        with pytest.raises(ZeroDivisionError):
            bench.driver.run()
        assert bench.driver.current == "0.0F@1 block 2 (layer 1.0)"


def test_digests_are_those_of_the_bytes_that_a_write_leaves(tmp_path):
    first = FirstStage()
    digests = {}

    class Watches(Bench):
        def access(self, access):
            if access.kind.name == "WRITE":
                digests[access.layer, access.sequence_id] = access.digest

    with Watches(tmp_path, Script(*(first.input(y) for y in range(4))), digests=True) as bench:
        bench.driver.run()
        for used, y in dict(digests.keys()).items():
            assert digests[used, y] == bench.compute.layer(used).digest() != ""


def test_what_only_a_training_knows_is_refused_elsewhere(tmp_path):
    message = ContributionMessage("norms", FIRST_STREAM, 0, 0, {})
    refused = pytest.raises(InvariantError, match="this stage trains nothing")
    with Bench(tmp_path, Script(message), updates=None) as bench, refused:
        bench.driver.run()


def test_layers_are_made_while_it_waits(tmp_path):
    """Those of the subnets that it was told of, before their inputs are here."""
    first, waits = FirstStage(), [0]

    def later():
        waits[0] += 1
        made = len(bench.compute.stores[0].items())
        return first.input(0) if made == 3 or waits[0] > 100 else None

    script = Script(later, *(first.input(y) for y in range(1, 4)))
    with Bench(tmp_path, script, timeout_seconds=5.0) as bench:
        bench.driver.run()
        assert waits[0] <= 10
        assert bench.compute.layer(layer(0, 2)).version != INITIAL
