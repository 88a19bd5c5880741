"""Subnets judged through the pipeline: the bits of a plain evaluation, on any number of stages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import naspipe
from naspipe.evaluation.calibration import (
    blocks_to_calibrate,
    find_norms,
    fresh_statistics,
)
from naspipe.export.assembly import assemble
from naspipe.search.search_directory import find_best, find_searches
from naspipe.search.strategies import make_strategy
from naspipe.store.checkpoints import read_checkpoint
from naspipe.streams.feedback import FeedbackLoop
from tests.equivalence import spaces
from tests.equivalence.harness import plain_loop
from tests.search.plain import held_out, judge

LOSS = nn.CrossEntropyLoss()
SPACES = {
    "mixed": (spaces.mixed, spaces.vectors),
    "memory": (spaces.memory, spaces.sequences),
    "maps": (spaces.maps, spaces.images),
}


def trained(tmp_path, name, steps=20):
    make, data = SPACES[name]
    space = make()
    run = naspipe.train(
        space, data, LOSS, steps=steps, seed=1, sampler="uniform", run_dir=tmp_path / name
    )
    return run, data, plain_loop(space, data, LOSS, run, seed=1, optimizer="SGD", lr=0.05)


def search(run, data, **options):
    options = {"budget": 14, "calibrate": 3, "validate": 2, "delay": 3, **options}
    return naspipe.search_subnets(run, data, LOSS, held_out=held_out(data), **options)


def lines_of(search):
    return search.path.joinpath("candidates.jsonl").read_bytes()


@pytest.mark.parametrize("name", SPACES)
def test_scores_are_those_of_a_plain_evaluation_on_any_number_of_stages(tmp_path, name):
    run, data, loop = trained(tmp_path, name)
    before = read_checkpoint(run.directory.checkpoint("final"))
    found = {
        stages: search(run, data, stages=stages, name=f"on-{stages}", strategy="evolution",
                       options={"population": 4, "tournament": 2})
        for stages in (1, 2, 4)
    }  # fmt: skip
    assert lines_of(found[1]) == lines_of(found[2]) == lines_of(found[4])
    calibration = [data(1, number) for number in range(3)]
    validation = [held_out(data)(1, number) for number in range(2)]
    torch.set_num_threads(1)
    for candidate in found[1].candidates:
        chain = run.space.chain(candidate.choices)
        expected = judge(loop, chain, calibration, validation, LOSS)
        assert candidate.scores[:3] == expected
    assert read_checkpoint(run.directory.checkpoint("final")) == before


def test_statistics_matter_and_leave_no_trace(tmp_path, one_thread):
    run, data, loop = trained(tmp_path, "maps")
    validation = [held_out(data)(1, 0), held_out(data)(1, 1)]
    own = search(run, data, calibrate=0, strategy="random")
    anew = search(run, data, calibrate=1, strategy="random")
    pairs = list(zip(own.candidates, anew.candidates, strict=True))
    for number, (one, other) in enumerate(pairs):
        assert one.choices == other.choices
        chain = run.space.chain(one.choices)
        assert one.scores[:3] == judge(loop, chain, [], validation, LOSS), number
        assert other.scores[:3] == judge(loop, chain, [data(1, 0)], validation, LOSS), number
    assert any(one.scores[:3] != other.scores[:3] for one, other in pairs)


def test_only_what_leads_to_statistics_is_calibrated():
    assert blocks_to_calibrate(spaces.mixed(blocks=3)) == 4  # not the head
    assert blocks_to_calibrate(spaces.memory()) == 0


def test_a_memory_budget_changes_no_score(tmp_path):
    run, data, _ = trained(tmp_path, "mixed")
    free = search(run, data, stages=2, name="free")
    tight = search(run, data, stages=2, name="tight", execution={"memory_budget": "1x"})
    assert lines_of(free) == lines_of(tight)
    assert sum(stage["load_copies"] for stage in tight.manifest["measured"]["stages"]) > 0


def test_a_run_that_goes_on_is_searched_at_its_newest_checkpoint(tmp_path):
    make, data = SPACES["mixed"]
    run = naspipe.train(
        make(), data, LOSS, steps=20, seed=1, run_dir=tmp_path / "run", sampler="uniform",
        execution={"checkpoint_every": 8},
    )  # fmt: skip
    whole = search(run, data, name="whole")
    run.directory.checkpoint("final").rename(tmp_path / "away")
    early = search(run, data, name="early")
    assert (early.manifest["run"]["subnets"], whole.manifest["run"]["subnets"]) == (16, 20)
    assert early.candidates[0].scores != whole.candidates[0].scores
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "none")
    with pytest.raises(naspipe.ConfigError, match="expected a checkpoint to take weights from"):
        search(run, data)


def test_averaged_weights(tmp_path):
    make, data = SPACES["mixed"]
    plain = naspipe.train(make(), data, LOSS, steps=8, seed=1, run_dir=tmp_path / "plain")
    with pytest.raises(naspipe.ConfigError, match="average"):
        search(plain, data, ema=True)
    run = naspipe.train(
        make(), data, LOSS, steps=12, seed=1, run_dir=tmp_path / "ema", recipe={"ema": 0.5}
    )
    newest, averages = search(run, data), search(run, data, ema=True, strategy="random")
    assert newest.candidates[0].choices == averages.candidates[0].choices
    assert newest.candidates[0].scores != averages.candidates[0].scores
    chain = assemble(run, averages.candidates[0].choices, ema=True)
    loop = SimpleNamespace(
        layer=lambda block, candidate: chain.layers[block].module,
        fields=[run.space.fields(block) for block in range(len(run.space))],
        device=torch.device("cpu"),
    )
    batches = [[data(1, n) for n in range(3)], [held_out(data)(1, n) for n in range(2)]]
    expected = judge(loop, run.space.chain(chain.choices), *batches, LOSS)
    assert averages.candidates[0].scores[:3] == expected


def test_the_best_of_the_newest_search_is_found(tmp_path):
    run, data, _ = trained(tmp_path, "mixed")
    with pytest.raises(naspipe.ConfigError, match="expected a finished search, found none"):
        find_best(run.directory.path)
    first = search(run, data, seed=1)
    second = search(run, data, seed=2, score="top1")
    assert [each.name for each in find_searches(run.directory.path)] == ["2", "1"]
    best = max(second.candidates, key=lambda c: (c.scores.top1, -c.sequence_id))
    assert find_best(run.directory.path).choices == best.choices == second.ranked()[0].choices
    assert first.ranked()[0].scores.loss == min(c.scores.loss for c in first.candidates)


def test_the_strategy_is_told_the_scores_in_order(tmp_path):
    run, data, _ = trained(tmp_path, "mixed")
    options = {"population": 4, "tournament": 3}
    found = search(run, data, budget=30, strategy="evolution", options=options, stages=2)

    def stream(score):
        counts = run.space.candidate_counts
        strategy = make_strategy("evolution", counts, 0, lambda choices: True, options)
        loop = FeedbackLoop(strategy, 3, 30)
        proposed = loop.start()
        for number, candidate in enumerate(found.candidates):
            proposed += loop.take(number, score(candidate))
        return proposed

    choices = [candidate.choices for candidate in found.candidates]
    assert stream(lambda candidate: -candidate.scores.loss) == choices
    assert stream(lambda candidate: candidate.scores.loss) != choices


def test_statistics_are_as_they_were_afterwards():
    norm = nn.BatchNorm1d(3)
    norm(torch.randn(5, 3))
    norm.eval()
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    norms = find_norms("norm", norm, lambda: norm(torch.ones(5, 3)))
    with fresh_statistics("norm", norm, norms):
        norm(torch.randn(5, 3))
        assert not torch.equal(norm.running_mean, before["running_mean"])
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    assert (norm.momentum, norm.training) == (0.1, False)


def test_limits_are_kept(tmp_path):
    run, data, _ = trained(tmp_path, "mixed")
    free = search(run, data, strategy="random", budget=20)
    middle = sorted(each.cost.params for each in free.candidates)[10]
    bound = search(run, data, budget=20, limits={"params": middle})
    assert all(each.cost.params <= middle for each in bound.candidates)
    assert any(each.cost.params > middle for each in free.candidates)
    cheapest = free.candidates[0]
    layers = enumerate(run.space.chain(cheapest.choices))
    modules = [run.space.blocks[block].candidates[choice]() for block, choice in layers]
    counts = [p.numel() for module in modules for p in module.parameters()]
    assert cheapest.cost.params == sum(counts)
    with pytest.raises(naspipe.ConfigError, match="no subnet within the limits"):
        search(run, data, limits={"params": 1})


class Observed(nn.Linear):
    """Scales by the largest value that it has seen, also in evaluation mode, as observers do."""

    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x):
        self.largest = torch.maximum(self.largest, x.detach().abs().max())
        return super().forward(x / self.largest)


def test_buffers_that_an_evaluation_changes_leave_no_trace(tmp_path):
    """The score of a subnet does not depend on those that were judged before it."""
    blocks = [observed_block() for _ in range(3)]
    space = naspipe.Space("observed", [*blocks, naspipe.Shared("head", lambda: Observed(16, 10))])
    run = naspipe.train(space, spaces.vectors, LOSS, steps=4, run_dir=tmp_path / "run")
    scores = []
    for number, rows in enumerate((SUBNETS, SUBNETS[::-1])):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(f"{row}\n" for row in rows))
        found = search(
            run, spaces.vectors, strategy=f"file:{path}", budget=len(rows), calibrate=0,
            name=str(number), verify="2",
        )  # fmt: skip
        scores.append({each.choices: each.scores[:3] for each in found.candidates})
    assert scores[0] == scores[1]


SUBNETS = [[0, 0, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]]


def observed_block():
    return naspipe.Block([lambda: Observed(16, 16), lambda: nn.Linear(16, 16)])
