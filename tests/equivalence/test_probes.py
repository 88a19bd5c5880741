"""Steps that begin with probes: the plain loop's choices and bits, however they are carried out."""

from __future__ import annotations

import math

import pytest
from torch import nn

import naspipe as npp
from naspipe.streams.passes import ProbingStrategy
from naspipe.worker.blocks import compute, forward_only
from tests.equivalence import elastic_spaces as elastic
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits
from tests.equivalence.probing_loop import probing_loop
from tests.faults.helpers import Calm, Ends, assert_identical, fail, interrupt
from tests.thinned import long

LOSS = nn.CrossEntropyLoss()
EXTREMES = [(3,) * 6, (2,) * 6]
"""The largest and the smallest subnet of ``spaces.mixed()``."""
MOMENTUM = {"momentum": 0.9}


def compared(
    tmp_path, recipe, stages=(1, 2, 4), steps=8, make=spaces.mixed, data=spaces.vectors,
    extremes=EXTREMES, execution=None, **how,
):  # fmt: skip
    """Train on each number of stages, and compare each with one loop."""
    space, oracle = make(), None
    for number in stages:
        run = npp.train(
            space, data, LOSS, steps=steps, seed=1, stages=number, lr=0.05,
            optimizer=how.get("optimizer", "SGD"), optimizer_options=how.get("options"),
            recipe=recipe, execution=execution, run_dir=tmp_path / f"run{number}",
        )  # fmt: skip
        oracle = oracle or probing_loop(space, data, LOSS, run, extremes=extremes, **recipe, **how)
        assert_same_bits(run, oracle)
    return run


@pytest.mark.parametrize(
    "recipe",
    [
        {"passes": "sandwich:2", "probes": "worst:3"}, {"probes": "best:2", "ema": 0.9},
        long({"passes": "accumulate:3", "probes": "best:2"}),
        long({"passes": "subnets:2", "probes": "worst:2", "clip_global_norm": 1.0}),
        {"passes": "accumulate:4", "probes": "best:2", "reduction": "tree"},
    ],
)  # fmt: skip
def test_bits_of_the_plain_loop(tmp_path, recipe):
    """Batch normalisation, dropout, absent gradients, a lagging stem."""
    compared(tmp_path, recipe, options=MOMENTUM)


@pytest.mark.parametrize(
    "execution",
    [
        {"recompute": True, "memory_budget": "0.001x"}, {"window": 32, "partly_clear": True},
        long({"partition": "balanced", "window": 4}),
    ],
)  # fmt: skip
def test_however_it_is_carried_out(tmp_path, execution):
    recipe = {"passes": "sandwich:1", "probes": "worst:3", "norms": "deferred"}
    compared(tmp_path, recipe, stages=(3,), optimizer="Adam", execution=execution)


@pytest.mark.parametrize(
    ("make", "data", "passes"),
    [
        long(elastic.linears, elastic.vectors, "sandwich:2"),
        (elastic.images, elastic.maps, "subnets:2"),
    ],
)
def test_elastic_layers(tmp_path, make, data, passes):
    """As AttentiveNAS has them: settings of one set of weights, norms of every width."""
    extremes = [(2, 2, 0, 5, 5, 2), (0, 0, 2, 0, 0, 0)]
    recipe = {"passes": passes, "probes": "worst:3"}
    compared(tmp_path, recipe, (1, 3), 6, make, data, extremes, optimizer="AdamW")


@pytest.mark.parametrize("how", [long(fail), interrupt])
def test_it_goes_on_behind_a_whole_step(tmp_path, how):
    recipe = {"passes": "sandwich:1", "probes": "worst:2"}

    def train(data, stages, **kw):
        return npp.train(
            spaces.mixed(), data, LOSS, steps=12, seed=1, stages=stages, recipe=recipe,
            run_dir=tmp_path / "run", execution={"checkpoint_every": 2, "window": 10}, **kw,
        )  # fmt: skip

    with pytest.raises(npp.NaspipeError, match=r"injected|interrupted"):
        train(Ends(spaces.vectors, 7, how, tmp_path / "marker"), 2)
    run = train(Calm(spaces.vectors), 3, resume=True)
    first = run.manifest["life"]["first"][0]
    assert first > 0 and first % 5 == 0
    oracle = probing_loop(run.space, spaces.vectors, LOSS, run, extremes=EXTREMES, **recipe)
    assert_same_bits(run, oracle)


def test_layers_that_only_probes_used_are_not_trained(tmp_path):
    """They are in no checkpoint, of a whole run and of one that went on."""

    def space():
        blocks = [npp.Block([lambda: nn.Linear(16, 16)] * 20, alike=True) for _ in range(2)]
        return npp.Space("wide", [*blocks, npp.Shared("head", lambda: nn.Linear(16, 10))])

    def train(name, data, **kw):
        return npp.train(
            space(), data, LOSS, steps=6, seed=1, stages=2, recipe={"probes": "best:3"},
            run_dir=tmp_path / name, execution={"checkpoint_every": 2, "window": 1}, **kw,
        )  # fmt: skip

    whole = train("whole", Calm(spaces.vectors))
    assert_same_bits(whole, probing_loop(space(), spaces.vectors, LOSS, whole, probes="best:3"))
    with pytest.raises(npp.NaspipeError, match="injected"):
        train("resumed", Ends(spaces.vectors, 4, fail, tmp_path / "marker"))
    resumed = train("resumed", Calm(spaces.vectors), resume=True)
    assert resumed.manifest["life"]["first"][0] > 0
    assert_identical(whole, resumed)
    probed = {choices[0] for y, choices in enumerate(whole.stream) if y % 4 < 3}
    trained = {choices[0] for choices in whole.stream[3::4]}
    with pytest.raises(npp.ConfigError, match="the checkpoint holds nothing of it"):
        whole.layer(0, min(probed - trained))


def test_subnets_of_a_file(tmp_path):
    """Only what is listed is looked at, before the run, too."""
    path = tmp_path / "subnets.jsonl"
    path.write_text("[0, 1]\n[1, 0]\n" * 8)
    first = npp.Block([lambda: nn.Linear(16, 8), lambda: nn.Linear(16, 12)])
    second = npp.Block([lambda: nn.Linear(12, 10), lambda: nn.Linear(8, 10)])
    run = npp.train(
        npp.Space("fits", [first, second]), spaces.vectors, LOSS, steps=4, run_dir=tmp_path / "run",
        sampler=f"file:{path}", recipe={"probes": "best:2"},
    )  # fmt: skip
    assert {*run.stream} <= {(0, 1), (1, 0)} and len(run.stream) == 12


def test_activations_of_probes_are_not_kept(tmp_path):
    how = {"steps": 2, "seed": 1, "stages": 2, "execution": {"activation_memory": "64KiB"}}
    for name, recipe in (("without", {}), ("with", {"probes": "worst:30"})):
        recipe |= {"passes": "accumulate:2"}
        npp.train(
            spaces.mixed(), spaces.vectors, LOSS, run_dir=tmp_path / name, recipe=recipe, **how
        )


def test_one_probe_for_each_draw_changes_nothing(tmp_path):
    """What is trained then is what is trained without."""
    sandwich = {"passes": "sandwich:2", "norms": "deferred"}
    runs = [
        npp.train(
            spaces.mixed(),
            spaces.vectors,
            LOSS,
            steps=5,
            seed=1,
            stages=2,
            run_dir=tmp_path / name,
            recipe=sandwich | more,
        )
        for name, more in (("with", {"probes": "best:1"}), ("without", {}))
    ]
    assert [loss for y, loss in enumerate(runs[0].losses) if y % 6 > 1] == runs[1].losses
    assert runs[0].manifest["passes_per_step"] == 6


def test_streams_side_by_side(tmp_path):
    recipe = {"passes": "sandwich:1", "probes": "best:2"}
    workloads = [
        npp.workload(spaces.mixed(), spaces.vectors, LOSS, seed=seed, steps=5, recipe=recipe)
        for seed in (1, 2)
    ]
    runs = npp.train_together(workloads, npp.Execution(stages=2), tmp_path / "both")
    for run, seed in zip(runs, (1, 2), strict=True):
        how = {"seed": seed, "extremes": EXTREMES, **recipe}
        assert_same_bits(run, probing_loop(run.space, spaces.vectors, LOSS, run, **how))


def the_other_end(self):
    kept = own_kept(self)
    return [self._probes[0] if each != self._probes[0] else self._probes[1] for each in kept]


own_kept = ProbingStrategy._kept


def touching_statistics(spec, layer, inputs):
    return forward_only._computed(spec, layer, inputs)


@pytest.mark.parametrize(
    ("where", "name", "wrong"),
    [(ProbingStrategy, "_kept", the_other_end), (compute, "probe", touching_statistics)],
)
def test_a_wrong_probe_is_seen(tmp_path, monkeypatch, where, name, wrong):
    """Another subnet than the worst; statistics of norms that a probe has written."""
    monkeypatch.setattr(where, name, wrong)
    with pytest.raises(AssertionError):
        compared(tmp_path, {"passes": "sandwich:1", "probes": "worst:2"}, stages=(2,))


def test_a_loss_that_is_no_number_is_never_the_worst(tmp_path):
    def data(seed, step):
        batch = spaces.vectors(seed, step)
        return {**batch, "input": batch["input"] * (math.inf if step == 2 else 1.0)}

    recipe = {"probes": "worst:2", "nonfinite": "skip"}
    run = npp.train(
        spaces.mixed(), data, LOSS, steps=6, seed=1, stages=2, recipe=recipe,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    assert_same_bits(run, probing_loop(run.space, data, LOSS, run, **recipe))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"execution": {"groups": 2}, "stages": 2}, "expected groups=1"),
        ({"execution": {"order": "model-parallel"}}, "found order=model-parallel"),
        ({"execution": {"partition": "hybrid"}}, "found partition=hybrid"),
        ({"policy": "bsp"}, "policy bsp: expected csp"),
        ({"sampler": "evolution"}, "expected passes=one and probes=none with a strategy"),
    ],
)
def test_where_there_are_no_probes(tmp_path, how, said):
    with pytest.raises(npp.ConfigError, match=said):
        npp.train(
            spaces.mixed(), spaces.vectors, LOSS, steps=4, run_dir=tmp_path / "run",
            recipe={"passes": "subnets:2", "probes": "best:2"}, **how,
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


def test_a_list_that_is_too_short(tmp_path):
    path = tmp_path / "subnets.jsonl"
    path.write_text("[0, 0, 0, 0, 0, 0]\n" * 7)
    with pytest.raises(npp.ConfigError, match="holds 7 subnets"):
        npp.train(
            spaces.mixed(), spaces.vectors, LOSS, steps=4, run_dir=tmp_path / "run",
            sampler=f"file:{path}", recipe={"probes": "best:2"},
        )  # fmt: skip
