"""Paths drawn from architecture parameters: the bits of a plain loop with two kinds of rounds."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.config.errors import RunInterruptedError
from naspipe.config.recipe import Recipe, learning_rate
from naspipe.mixed import edges as mixed_edge
from tests.equivalence import spaces
from tests.equivalence.harness import assert_same_bits, plain_torch
from tests.equivalence.plain_paths import PlainBlock
from tests.equivalence.test_timing_and_mutations import inject_delays
from tests.faults.helpers import Calm, Ends, assert_identical, interrupt
from tests.keyed_draws import keyed_seed
from tests.thinned import long

SEED, LR, STEPS, EVERY, START = 4, 0.05, 24, 3, 6
MOMENTUM = {"momentum": 0.9, "nesterov": True, "weight_decay": 4e-5}
TABLES = [[[900.0, 1200.0, 40.0], [700.0, 10.0]], [[500.0, 0.0, 800.0]], [[30.0, 60.0], [240.0]]]
REFERENCES = [1500.0, 700.0, 350.0]


def teachers():
    torch.manual_seed(5)
    return [
        nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU()),
        nn.Sequential(nn.Linear(24, 24), nn.Tanh()),
        nn.Sequential(nn.Linear(24, 10)),
    ]


def wide(a, b, hidden):
    return nn.Sequential(
        nn.Linear(a, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(hidden, b),
    )


def layers():
    def choice(a, b, *more):
        return [*(lambda h=h: wide(a, b, h) for h in (8, 12)), *more]

    return [
        [choice(16, 24, lambda: nn.Linear(16, 24)), [lambda: wide(24, 24, 8), nn.Identity]],
        [choice(24, 24, nn.Identity)],
        [choice(24, 24)[:2], [lambda: nn.Linear(24, 10)]],
    ]


def students(with_costs=False, gates="full"):
    names = ("first", "second", "third")
    if not with_costs:
        return [npp.mixed.student(*each, gates=gates) for each in zip(names, layers(), strict=True)]
    return [
        npp.mixed.student(name, chain, operations=table, reference=reference, gates=gates)
        for name, chain, table, reference in zip(names, layers(), TABLES, REFERENCES, strict=True)
    ]


def held_out(seed, number):
    return spaces.vectors(seed, 50_000 + number)


def rounds(data=spaces.vectors):
    return npp.mixed.Rounds(data, held_out, every=EVERY, start=START)


def distill(path, stages, *, data=None, steps=STEPS, with_costs=False, gates="full", **more):
    losses = {}
    if with_costs:
        losses = {
            "loss": npp.losses.CostTerm(weight=1.5),
            "last_loss": npp.losses.CostTerm(nn.CrossEntropyLoss(), weight=1.5),
        }
    return npp.distill_blockwise(
        teachers(), students(with_costs, gates), data or rounds(), steps=steps, stages=stages,
        seed=SEED, lr=LR, optimizer_options={**MOMENTUM, "alpha_lr": 0.1},
        recipe={"schedule": "cosine"}, run_dir=path, **losses, **more,
    )  # fmt: skip


def plain_blocks(steps=STEPS, with_costs=False, block=PlainBlock):
    """The teacher through a batch, then one step of each block."""
    teacher, recipe = [each.eval() for each in teachers()], Recipe(lr=LR, schedule="cosine")
    costs = zip(TABLES, REFERENCES, strict=True) if with_costs else [()] * 3
    loops = [
        block(chain, SEED + number, lambda y: learning_rate(recipe, y, steps),
                   {"lr": LR, **MOMENTUM}, *cost)
        for number, (chain, cost) in enumerate(zip(layers(), costs, strict=True))
    ]  # fmt: skip
    told = {True: 0, False: 0}
    with plain_torch():
        for y in range(steps):
            is_architecture = y >= START and (y - START) % EVERY == EVERY - 1
            source = held_out if is_architecture else spaces.vectors
            x = source(SEED, told[is_architecture])["input"]
            told[is_architecture] += 1
            for number, part in enumerate(teacher):
                with torch.no_grad():
                    taught = part(x)

                def learn(output, taught=taught, number=number):
                    if number == 2:
                        return functional.cross_entropy(output, taught.softmax(1))
                    return functional.mse_loss(output, taught)

                loops[number].step(y, is_architecture, x, learn)
                x = taught
    return loops


def check(found, **how):
    for run, loop in zip(found.blocks, plain_blocks(**how), strict=True):
        assert_same_bits(run, loop)


@pytest.mark.parametrize(
    ("stages", "execution"),
    [long(1, {}), (2, {"recompute": True}), (2, {"window": 2}), (3, {"checkpoint_every": 3})],
)
@pytest.mark.parametrize("with_costs", [False, True])
def test_bits_of_the_plain_loop(tmp_path, stages, execution, with_costs):
    found = distill(tmp_path / "run", stages, execution=execution, with_costs=with_costs)
    check(found, with_costs=with_costs)
    alphas = [run.layer(0, 0).alpha for run in found.blocks]
    assert all(float(alpha.detach().abs().max()) > 0.05 for alpha in alphas)


def test_delays(tmp_path, monkeypatch):
    inject_delays(monkeypatch, 2)
    check(distill(tmp_path / "run", 2))


def test_it_is_interrupted_and_goes_on_on_other_stages(tmp_path):
    data = Ends(rounds(), 9, interrupt, tmp_path / "marker")
    with pytest.raises(RunInterruptedError):
        distill(tmp_path / "run", 2, data=data, steps=80, execution={"window": 3})
    found = distill(tmp_path / "run", 3, data=Calm(rounds()), steps=80, resume=True)
    check(found, steps=80)


def gated(edge, x, *kind):
    """As an architecture round is, in rounds of both kinds."""
    drawn = edge._draw()
    outputs = [candidate(x) for candidate in edge.candidates]
    return (
        outputs[0] if edge.alpha is None else mixed_edge._Gates.apply(edge.alpha, drawn, *outputs)
    )


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("alpha learns in weight rounds", (mixed_edge.MixedEdge, "forward", gated)),
        ("weights in architecture rounds", (mixed_edge, "functional_call", lambda m, _, x: m(*x))),
        ("all paths alike", (mixed_edge.MixedEdge, "_draw", lambda edge: 0)),
        ("no other candidate runs", (mixed_edge.MixedEdge, "_learned",
                                         lambda edge, x: (edge.candidates[edge._draw()](x), None))),
    ],
)  # fmt: skip
def test_a_broken_rule_is_seen(tmp_path, monkeypatch, name, mutant):
    monkeypatch.setattr(*mutant)
    found = distill(tmp_path / "run", 1, steps=12)
    with pytest.raises(AssertionError):
        check(found, steps=12)


class Noted(nn.Linear):
    """Remembers that it was run, in this process."""

    paths: list[tuple[int, int]] = []  # noqa: RUF012

    def __init__(self, layer, candidate):
        super().__init__(16, 16)
        self.place = layer, candidate

    def forward(self, x):
        if self.training:
            Noted.paths.append(self.place)
        return super().forward(x)


def test_paths_depend_on_seed_step_and_block_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(Noted, "paths", [])
    chain = [[lambda b=b, c=c: Noted(b, c) for c in range(4)] for b in range(3)]
    data = npp.mixed.Rounds(spaces.vectors, spaces.vectors, start=1000)
    run = npp.train(
        npp.mixed.student("noted", chain), data, nn.CrossEntropyLoss(), steps=12, seed=3,
        run_dir=tmp_path / "run",
    )  # fmt: skip
    expected = []
    for step in range(12):
        for block in range(3):
            torch.manual_seed(keyed_seed(f"3/{step}/{block}/0"))
            expected.append((block, int(torch.multinomial(torch.full((4,), 0.25), 1))))
    assert Noted.paths[-36:] == expected  # behind those of checks
    assert len(set(expected)) == 11
    assert run.layer(0, 0).alpha.tolist() == [0.0] * 4


def train(path, stages, *, data=None, **more):
    chain = [*layers()[0], [lambda: nn.Linear(24, 10)]]
    return npp.train(
        npp.mixed.student("labelled", chain), data or rounds(), nn.CrossEntropyLoss(), steps=STEPS,
        seed=SEED, lr=LR, optimizer_options={**MOMENTUM, "alpha_lr": 0.1}, stages=stages,
        run_dir=path, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "execution"),
    [long(1, {}), (2, {"memory_budget": "1x"}), (3, {"recompute": True})],
)
def test_an_ordinary_run_has_them_too(tmp_path, stages, execution):
    """A whole network of mixed edges, trained on labels, on stages that share it."""
    run = train(tmp_path / "run", stages, execution=execution)
    chain = [*layers()[0], [lambda: nn.Linear(24, 10)]]
    loop = PlainBlock(chain, SEED, lambda y: LR, {"lr": LR, **MOMENTUM})
    with plain_torch():
        for y in range(STEPS):
            batch = rounds()(SEED, y)

            def learn(output, target=batch["target"]):
                return functional.cross_entropy(output, target)

            loop.step(y, bool(batch["round"]), batch["input"], learn)
    assert_same_bits(run, loop)


def test_micro_batches_on_groups(tmp_path):
    """Passes of a step are of one kind, and go over copies of the pipeline."""
    data = npp.mixed.Rounds(spaces.vectors, held_out, every=EVERY, start=START, batches=4)
    recipe = {"passes": "accumulate:4", "norms": "deferred"}
    runs = [
        train(tmp_path / str(groups), stages, data=data, recipe=recipe,
              execution={"groups": groups})
        for stages, groups in ((1, 1), (2, 2))
    ]  # fmt: skip
    assert_identical(*runs)
    assert float(runs[0].layer(0, 0).alpha.detach().abs().max()) > 0.05


def test_the_chosen_paths_become_one_network(tmp_path):
    found = distill(tmp_path / "run", 2, with_costs=True)
    network = found.network()
    assert [len(edge.candidates) for edge in network] == [3, 2, 3, 2, 1]
    chosen = nn.Sequential(*(edge.chosen for edge in network))
    x = spaces.vectors(SEED, 0)["input"]
    assert torch.equal(network(x), chosen(x)) and chosen(x).shape == (len(x), 10)
    assert all(int(edge.alpha.argmax()) == edge.path for edge in network if edge.alpha is not None)
