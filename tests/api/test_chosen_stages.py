"""``stages="auto"``: as many stages as are worth it, said in one line, and the same bits."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import naspipe as npp
from naspipe.api import chosen_stages
from naspipe.api.chosen_stages import choose_stages
from naspipe.cli.main import main
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.jobs.workload import Workload, wiring_of
from naspipe.plan.costs import CostTable, LayerCost, Shape

LOSS = nn.CrossEntropyLoss()
MS = 1_000_000


def batches(seed, number):
    made = torch.Generator().manual_seed(seed * 1000 + number)
    return {"input": torch.randn(4, 6, generator=made), "target": torch.arange(4) % 6}


def space(blocks=4, candidates=64):
    """With so many candidates neighbours hardly share a layer; with one they share all."""
    chain = [npp.Block([lambda: nn.Linear(6, 6)] * candidates) for _ in range(blocks)]
    return npp.Space("chosen", chain)


def workload(of=None, passes="one", steps=500, **definition):
    recipe = Recipe(passes=passes)
    return Workload.of(
        of or space(), batches, LOSS, recipe=recipe, seed=0, steps=steps, sampler="uniform",
        **definition,
    )  # fmt: skip


@pytest.fixture
def machine(monkeypatch):
    """Four devices, on which each layer of each block takes as long as any."""

    found = SimpleNamespace(devices=4, slower=1, write_ns=MS)

    def measured(workloads, execution, copies=1, say=None):
        cost = LayerCost(2 * MS * found.slower ** (copies > 1), 4 * MS, found.write_ns)
        return [
            CostTable({(block, 0): cost for block in range(len(each.space))}) for each in workloads
        ]

    monkeypatch.setattr(chosen_stages, "measured_costs", measured)
    monkeypatch.setattr(chosen_stages, "cores_for", lambda *_: found.devices)
    return found


def choose(*workloads, seconds=60.0, **execution):
    said = []
    asked, wiring = Execution(**execution), wiring_of(workloads)
    found = choose_stages(workloads, asked, wiring, said.append, seconds)
    assert said == [found.note]
    return found


def test_free_subnets_fill_every_device(machine):
    found = choose(workload())
    assert list(found.speeds) == [(1, 1), (1, 2), (1, 4)]
    assert found.execution == Execution(stages=4)
    assert found.speeds[1, 4] > 3 * found.speeds[1, 1]


def test_subnets_that_wait_for_each_other_get_one_stage(machine):
    """All that could run side by side are WRITEs, and here they take no time."""
    machine.write_ns = 0
    found = choose(workload(space(candidates=1)))
    assert found.execution.workers == 1
    assert found.speeds[1, 4] < 1.05 * found.speeds[1, 1]


def test_cores_that_slow_each_other_down_count(machine):
    machine.slower = 40
    assert choose(workload()).execution.workers == 1


def test_what_is_hardly_faster_is_not_worth_more_processes():
    speeds = {Shape(1, 1): 1.0, Shape(1, 2): 1.8, Shape(2, 1): 1.85, Shape(1, 4): 1.81}
    assert chosen_stages._best(speeds) == (1, 2)


def test_groups_share_the_passes_of_a_step(machine):
    """One block cannot be cut; four groups can have a pass each."""
    found = choose(workload(space(blocks=1), passes="accumulate:4"))
    assert found.execution == Execution(groups=4)
    assert "stages=auto: 4 groups of 1 stage, simulated" in found.note


def test_groups_that_are_given_are_kept(machine):
    found = choose(workload(passes="accumulate:4"), groups=2)
    assert {shape.groups for shape in found.speeds} == {2}
    assert found.note.startswith("stages=auto: 2 groups of ")
    assert " times as fast as 2 groups of 1 stage (2 x 1 1.00, " in found.note


def test_a_short_run_is_simulated_as_short_as_it_is(machine):
    """Four subnets fill and empty four stages, and little else."""
    short, long = workload(steps=4), workload(steps=500)
    gains = [choose(each).speeds[1, 4] / choose(each).speeds[1, 1] for each in (short, long)]
    assert gains[0] < 0.8 * gains[1]


def test_a_device_that_is_not_there_is_said(machine):
    with pytest.raises(ConfigError, match="device cuda:7: found"):
        choose(workload(), device="cuda:7")


def test_a_number_beside_it_is_refused(tmp_path, capfd):
    with pytest.raises(ConfigError) as raised:
        npp.train(
            space(), batches, LOSS, steps=2, stages="auto", execution={"stages": 4},
            run_dir=tmp_path / "run",
        )  # fmt: skip
    assert str(raised.value) == (
        "stages='auto': expected no number beside it, found stages=4; leave one of them out"
    )
    command = ["train", "vgg8", "--stages", "auto", "--set", "stages=4"]
    assert main([*command, "--run-dir", str(tmp_path / "run")]) == 2
    assert "--stages auto: expected no --set stages=N beside it" in capfd.readouterr().err


def test_what_there_is_no_time_for_is_said(machine):
    found = choose(workload(), seconds=0.0)
    assert (list(found.speeds), found.left_out) == ([(1, 1), (1, 2)], 1)
    assert found.note.endswith("; no time for 1 more)")
    assert choose(workload(), seconds=60.0).left_out == 0


def test_the_line(machine):
    found = choose(workload())
    speeds = [speed / found.speeds[1, 1] for speed in found.speeds.values()]
    assert found.note == (
        f"stages=auto: 4 stages, simulated {speeds[2]:.2f} times as fast as 1 stage "
        f"(1 1.00, 2 {speeds[1]:.2f}, 4 {speeds[2]:.2f}; {found.seconds:.1f} s)"
    )
    machine.devices = 1
    assert choose(workload()).note == "stages=auto: 1 stage, the only way that can be had here"


def test_results_that_depend_on_the_stages_are_refused(machine):
    with pytest.raises(ConfigError) as raised:
        choose(workload(policy="bsp"))
    assert str(raised.value) == (
        "stages=auto: expected the policy csp or sequential, found bsp, whose losses depend on the "
        "stages; say how many, as in --stages 2"
    )


def test_a_budget_that_is_too_small_for_all_is_the_plans_error(machine):
    with pytest.raises(ConfigError, match="memory budget"):
        choose(workload(), memory_budget="0.001KiB")


def test_what_cannot_be_measured_is_refused_by_the_run(tmp_path, capfd):
    def wrong(seed, number):
        return {"input": torch.randn(4, 5), "target": torch.arange(4)}

    with pytest.raises(ConfigError) as plain:
        npp.train(space(), wrong, LOSS, steps=2, run_dir=tmp_path / "one")
    with pytest.raises(ConfigError) as chosen:
        npp.train(space(), wrong, LOSS, steps=2, stages="auto", run_dir=tmp_path / "auto")
    assert str(chosen.value) == str(plain.value)
    assert "stages=auto" not in capfd.readouterr().err


def test_a_run_has_the_bits_of_any(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(chosen_stages, "_devices", lambda *_: 2)
    monkeypatch.setattr(chosen_stages, "_slower", lambda *_: 1.0)
    how = {"steps": 8, "seed": 1, "lr": 0.1}
    chosen = npp.train(space(), batches, LOSS, stages="auto", run_dir=tmp_path / "auto", **how)
    assert "naspipe: stages=auto: 2 stages, simulated" in capfd.readouterr().err
    one = npp.train(space(), batches, LOSS, run_dir=tmp_path / "one", **how)
    assert main(["compare", str(chosen.path), str(one.path)]) == 0
    assert "IDENTICAL" in capfd.readouterr().out


def test_the_command_takes_the_word_and_no_other(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(chosen_stages, "_devices", lambda *_: 1)
    run = tmp_path / "run"
    command = ["train", "vgg8", "--data", "digits", "--steps", "2", "--run-dir", str(run)]
    assert main([*command, "--stages", "auto"]) == 0
    assert "naspipe: stages=auto: 1 stage" in capfd.readouterr().err
    assert json.loads((run / "manifest.json").read_text())["execution"]["stages"] == 1
    assert main([*command, "--stages", "many"]) == 2
    assert "--stages: expected a whole number, found 'many'" in capfd.readouterr().err
