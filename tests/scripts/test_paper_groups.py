"""GroPipe's tables and figure: counts of layers, closed forms, and checks that can fail."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from naspipe.config.ids import FIRST_STREAM, LayerId
from naspipe.config.partition import make_partition
from naspipe.plan.costs import CostTable
from scripts.paper import figure8, figure14, published, table6
from scripts.paper.common import Options
from scripts.paper.grouped import IMAGES, LinkCosts, layers_of, setting_of


@pytest.mark.parametrize(
    ("network", "multiply_adds", "parameters"),
    [("resnet50", 4.09e9, 25_557_032), ("vgg16", 15.47e9, 138_357_544)],
)
def test_layers_are_those_of_the_published_networks(network, multiply_adds, parameters):
    layers = layers_of(network)
    assert sum(each.operations for each in layers) / 2 == pytest.approx(multiply_adds, rel=0.01)
    assert sum(each.parameter_bytes for each in layers) == 4 * parameters


@pytest.mark.parametrize(("network", "stages"), table6.EQUAL[:3])
def test_equal_stages_gain_what_the_closed_form_says(network, stages):
    found = table6.equal_stages(network, stages)
    assert found["gain"] == pytest.approx(found["closed_form"], rel=0.01)


def test_pushes_queue_on_the_link_as_they_come():
    costs = LinkCosts(CostTable({}), make_partition((0, 3)), (0, 0, 0), (10, 5, 0))
    layers = [LayerId(FIRST_STREAM, block, 0) for block in range(3)]
    assert [costs.push_ns(layer) for layer in layers] == [10, 15, 0]
    costs.clock.after(12, lambda: None)
    costs.clock.run()
    assert costs.push_ns(layers[1]) == 8, "3 are left of what is under way"


def test_a_slow_link_makes_steps_longer_and_a_step_is_at_least_its_work():
    setting = setting_of("vgg16", (2, 2), 4)
    free = setting.step_ns()
    assert figure14.work_ns(setting) < free
    layers = layers_of("vgg16")
    slow = setting.step_ns(figure14.pushes(setting, layers, 1.0))
    assert free + 0.3 * figure14.work_ns(setting) < slow < free + figure14.work_ns(setting)


def test_what_stages_hand_on_takes_its_bytes_there_and_back():
    setting = setting_of("vgg16", (1, 2), 1)
    between = setting.outputs[setting.cut.bounds[1] - 1]
    assert setting.step_ns() - replace(setting, outputs=()).step_ns() == 2 * between > 0


def test_a_run_of_one_network_has_the_papers_figures_beside_ours():
    result = table6.run(Options(spaces=("vgg16",), stages=(2,)))
    assert result.holds, result.headlines
    row = next(row for row in result.rows if row["groups"] == 4)
    assert (row["paper_best"], row["paper_micro_batches"]) == (252, 8)
    curve = result.extra["curves"]["vgg16 4x2"]
    assert max(curve.values()) == row["best"] == pytest.approx(row["gain"] * row["plain"])
    setting = setting_of("vgg16", (4, 2), 1)
    assert row["plain"] < IMAGES / setting.step_ns() * 1e9, "the link costs something"


def table_rows(gains=(1.5, 1.8, 2.0), micro_batches=8, best=(400, 300)):
    rows = [
        {"network": "vgg16", "groups": 2, "stages": stages, "gain": gain, "best": best[1],
         "micro_batches": micro_batches}
        for stages, gain in zip((2, 3, 4), gains, strict=True)
    ]  # fmt: skip
    four = {**rows[0], "groups": 4, "best": best[0]}
    return [*rows, four]


def test_shapes_of_the_tables_that_do_not_hold_are_named():
    equal = [{"stages": 2, "gain": 1.78, "closed_form": 16 / 9}]
    assert table6.faults(table_rows(), equal) == []
    (fault,) = table6.faults(table_rows(gains=(1.5, 2.0, 1.9)), equal)
    assert "does not grow" in fault
    assert len(table6.faults(table_rows(micro_batches=24), equal)) == 4
    (fault,) = table6.faults(table_rows(best=(350, 300)), equal)
    assert "4x2 is 1.17" in fault
    (fault,) = table6.faults(table_rows(), [{**equal[0], "gain": 1.8}])
    assert "equal stages" in fault


def test_the_papers_own_tables_have_the_shape_that_is_asked_of_ours():
    rows = [
        {"network": network, "groups": groups, "stages": stages, "best": cell.best,
         "gain": cell.best / cell.plain, "micro_batches": cell.passes}
        for (network, (groups, stages)), cell in published.GROPIPE.items()
    ]  # fmt: skip
    assert len(rows) == 25 and table6.faults(rows, []) == []


def test_backwards_in_the_order_of_gpipe():
    assert figure14.backward_ends([1, 1], [2, 2], [0], 2) == [[7, 9], [5, 7]]
    assert figure14.backward_ends([1, 1], [2, 2], [1], 2) == [[9, 11], [6, 8]]


def test_one_link_sends_what_is_ready_first():
    assert figure14.link_end([(4, 1), (0, 3), (1, 2)]) == 6
    assert figure14.link_end([(4, 1)]) == 5


def test_the_later_a_sum_is_sent_the_longer_the_step():
    setting, layers = setting_of("vgg16", (2, 2), 8), layers_of("vgg16")
    times = [figure14.model_ns(setting, layers, 0.25, name) for name in figure14.STRATEGIES]
    assert times == sorted(times, reverse=True) and len(set(times)) == 4
    end = figure14.model_ns(setting, layers, 0.0, "at_the_end")
    assert times[1] == pytest.approx(end + 0.25 * figure14.work_ns(setting))
    fewer = replace(setting, micro_batches=4)
    assert figure14.model_ns(fewer, layers, 0.0, "per_layer") < end


@pytest.mark.parametrize("strategy", figure14.STRATEGIES)
def test_no_strategy_leaves_a_byte_out(strategy):
    setting, layers = setting_of("resnet50", (2, 2), 4), layers_of("resnet50")
    least_ns = 100 * figure14.work_ns(setting) * (4 if strategy == "every_micro_batch" else 1)
    assert 1 < figure14.model_ns(setting, layers, 100.0, strategy) / least_ns < 1.02


def test_gains_of_the_figure_that_do_not_hold_are_named():
    row = {"network": "vgg16", "groups": 4, "stages": 2, "reduction": 0.5,
           "every_micro_batch": 2.0, "at_the_end": 1.1, "per_partition": 1.05, "per_layer": 1.0,
           "simulated": 1.02, "simulated_partition": 1.1, "once_a_step": 2.0,
           "launch_per_partition": 1.05, "launch_per_layer": 1.1}  # fmt: skip
    assert figure14.faults([row]) == []
    assert "out of order" in figure14.faults([{**row, "per_layer": 1.07}])[0]
    assert (
        "simulated" in figure14.faults([{**row, "simulated": 1.6, "simulated_partition": 1.6}])[0]
    )
    assert "partitions is faster" in figure14.faults([{**row, "simulated_partition": 1.01}])[0]
    assert "at most" in figure14.faults([{**row, "once_a_step": 1.7}])[0]
    assert "alone gains" in figure14.faults([{**row, "launch_per_layer": 1.8}])[0]


def test_what_is_drawn_of_a_step():
    """Each pass once forward and back on each of its stages; each block's sum and copy once."""
    setting = setting_of("resnet50", figure8.SHAPE, figure8.MICRO_BATCHES)
    push = figure14.pushes(setting, layers_of("resnet50"), figure8.RATIO)
    steps = [figure8.step_of(setting, push, launch) for launch in ("layer", "partition", "end")]
    rows = [figure8.row_of("any", step) for step in steps]
    assert figure8.faults(rows) == [] and len(figure8.faults(rows[::-1])) > 2
    for step in steps:
        bars = figure8.bars_of(step, step.end_ns)
        for kind in ("forward", "backward"):
            found = sorted((bar.number, bar.stage) for bar in bars if bar.kind == kind)
            assert found == [(n, 4 * (n // 4) + stage) for n in range(8) for stage in range(4)]
        for kind in figure8.PARCELS:
            found = sorted(bar.number for bar in bars if bar.kind == kind)
            assert found == list(range(len(push)))
        on_link = sorted(bar[3:] for bar in bars if bar.kind in (figure8.SENT, figure8.BACK))
        assert all(one[1] <= other[0] for one, other in pairwise(on_link)), "one after the other"
