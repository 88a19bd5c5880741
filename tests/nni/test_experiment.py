"""Scripts of NNI's with one import changed."""

from __future__ import annotations

import nni
import nni.nas.nn.pytorch as nas
import pytest
import torch
from nni.nas.evaluator import FunctionalEvaluator
from nni.nas.evaluator.pytorch import Classification, DataLoader, Lightning, Regression
from nni.nas.hub.pytorch import NasBench201
from nni.nas.strategy import DARTS, TPE, GridSearch, Random, RegularizedEvolution
from torch import nn
from torch.utils.data import Dataset, WeightedRandomSampler

from naspipe.config.errors import ConfigError
from naspipe.experiment.nas_experiment import evaluated
from naspipe.export.assembly import assemble, calibrate
from naspipe.nni import NasExperiment
from naspipe.nni.strategies import check_explores
from tests.oracle import bits

LOUD = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}


class Points(Dataset):
    def __init__(self, seed, size, shape=(4,), outputs=()):
        draw = torch.Generator().manual_seed(seed)
        self.points = torch.randn(size, *shape, generator=draw)
        self.targets = (
            torch.randn(size, *outputs, generator=draw)
            if outputs
            else torch.randint(3, (size,), generator=draw)
        )

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.targets[index]


class Hello(nas.ModelSpace):
    """As the tutorial's: a layer, a rate of dropout and a width to choose."""

    def __init__(self, outputs=3):
        super().__init__()
        self.first = nas.LayerChoice([nn.Linear(4, 6), nn.Linear(4, 6, bias=False)], label="first")
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nas.MutableDropout(nni.choice("dropout", [0.25, 0.5]))
        width = nni.choice("width", [4, 8])
        self.fc1, self.fc2 = nas.MutableLinear(6, width), nas.MutableLinear(width, outputs)

    def forward(self, x):
        return self.fc2(torch.relu(self.fc1(self.dropout(self.norm(self.first(x))))))


def classification(rate=0.05, **more):
    return Classification(
        learning_rate=rate, weight_decay=1e-4, num_classes=3, max_epochs=2,
        train_dataloaders=DataLoader(Points(1, 24), batch_size=4, shuffle=True),
        val_dataloaders=DataLoader(Points(2, 12), batch_size=4), **LOUD, **more,
    )  # fmt: skip


def run(directory, evaluator, strategy, stages=1, id="first", resume=False, space=None, **more):
    torch.manual_seed(5)
    exp = NasExperiment(
        space or Hello(), evaluator, strategy, id=id, directory=directory, stages=stages,
        progress=False, **more,
    )  # fmt: skip
    exp.config.max_trial_number = 8
    exp.config.trial_concurrency = 2
    assert exp.resume(port=8081) if resume else exp.run(port=8081)
    return exp


def test_a_classification(tmp_path, capfd):
    evaluator = classification()
    strategies = [
        RegularizedEvolution(population_size=4, sample_size=2, dedup=False, seed=1)
        for _ in range(3)
    ]
    exp = run(tmp_path, evaluator, strategies[0])
    said = capfd.readouterr().err
    assert said.count("is trained for 12 steps (max_epochs=2, 6 batches each), and 8 models") == 1
    best = exp.export_top_models(3, formatter="dict")
    assert len({str(each) for each in best}) == len(best) > 1
    other = run(tmp_path, evaluator, strategies[1], stages=2, id="other")
    assert other.export_top_models(3, formatter="dict") == best
    again = run(tmp_path, evaluator, strategies[2], resume=True)
    assert again.export_top_models(3, formatter="dict") == best
    assert exp.strategy is strategies[0]
    models = exp.export_top_models(2)
    assert [each.sample for each in models] == best[:2]
    assert models[0].metric == next(strategies[0].list_models(limit=1)).metric
    _check_instance(exp, best[0])


def _check_instance(exp, sample):
    """A model of NNI's whose bits are those of the run's layers, with statistics taken anew."""
    model = exp.export_top_models(1, formatter="instance")[0]
    assert type(model) is Hello and not model.training
    chain = assemble(exp._run, exp._space.decisions.choices_of(sample))
    assert calibrate(chain, exp._run, exp._evaluated.data, 4)
    x = Points(2, 12).points
    (expected,) = chain({"input": x})
    assert bits(model(x)) == bits(expected)


def test_a_space_of_the_hub_with_a_function(tmp_path, capfd):
    """The function is not called; data and loss stand beside it."""

    def evaluate_model(model):
        raise AssertionError

    def data(seed, number):
        draw = torch.Generator().manual_seed(seed * 100 + number)
        target = torch.randint(10, (4,), generator=draw)
        return {"input": torch.randn(4, 3, 32, 32, generator=draw), "target": target}

    evaluator = FunctionalEvaluator(evaluate_model, data=data, loss=nn.CrossEntropyLoss())
    strategy = Random(seed=2)
    small = NasBench201(stem_out_channels=4, num_modules_per_stack=1)
    exp = run(tmp_path, evaluator, strategy, space=small, steps=3)
    assert "judged by the data that they are trained on; give" in capfd.readouterr().err
    found = exp.export_top_models(2, formatter="dict")
    assert sorted(found[0]) == sorted(exp._space.decisions.values)
    assert type(exp.export_top_models(formatter="instance")[0]).__name__ == "NasBench201"
    assert exp.export_top_models(1)[0].metric == -exp._search.ranked()[0].scores.loss


def test_what_evaluators_stand_for():
    what = evaluated(classification(limit_train_batches=0.5), {})
    assert (what.steps, what.score, what.validate) == (6, "top1", 3)
    assert what.training == {
        "optimizer": torch.optim.Adam, "lr": 0.05, "optimizer_options": {"weight_decay": 1e-4},
    }  # fmt: skip
    assert type(what.loss) is nn.CrossEntropyLoss
    points = Points(1, 10, outputs=(2,))
    loader = DataLoader(points, batch_size=4, drop_last=True)
    regression = Regression(
        train_dataloaders=loader, optimizer=torch.optim.SGD, max_epochs=-1, max_steps=7, **LOUD
    )
    what = evaluated(regression, {"score": "loss"})
    assert (what.steps, what.score, what.validate) == (7, "loss", 2)
    assert what.held_out is what.data and type(what.loss) is nn.MSELoss
    batch = what.data(0, 0)
    assert torch.equal(batch["input"], points.points[:4])
    assert torch.equal(batch["target"], points.targets[:4])


@pytest.mark.parametrize(
    ("given", "steps", "why"),
    [
        ({}, 6000, "1000 epochs of 6 batches, as Lightning has it without max_epochs"),
        ({"max_steps": 7}, 7, "max_steps=7"),
        ({"max_epochs": 3}, 18, "max_epochs=3, 6 batches each"),
        ({"max_epochs": 3, "max_steps": 20}, 18, "max_epochs=3"),
        ({"max_epochs": -1, "max_steps": 20}, 20, "max_steps=20"),
    ],
)
def test_as_many_steps_as_lightning_trains_and_why(given, steps, why):
    what = evaluated(with_limits(**given), {})
    assert what.steps == steps and what.why.startswith(why)
    what = evaluated(with_limits(**given), {"steps": 2})
    assert (what.steps, what.why) == (2, "steps=")


@pytest.mark.parametrize("given", [{"max_epochs": -1}, {"max_steps": 0}, {"max_epochs": 0}])
def test_limits_that_train_nothing_or_without_end(given):
    with pytest.raises(ConfigError, match="max_steps that train something, found max_epochs="):
        evaluated(with_limits(**given), {})


def with_limits(**given):
    loader = DataLoader(Points(1, 24), batch_size=4)
    return Classification(num_classes=3, train_dataloaders=loader, **LOUD, **given)


def test_an_id_that_is_there_is_said_in_nnis_words(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "something").touch()
    exp = NasExperiment(Hello(), classification(), Random(), id="mine", directory=tmp_path)
    exp.config.max_trial_number = 8
    with pytest.raises(ConfigError, match=r"experiment mine is there .* by resume\(\), or choose"):
        exp.run()


def test_a_strategy_is_warned_of_once():
    evolution = RegularizedEvolution(population_size=10, sample_size=2)
    for strategy, said in ((TPE(), "looks for the least"), (evolution, "population_size of")):
        with pytest.warns(UserWarning) as found:
            for _ in range(3):
                check_explores(strategy, 0, 5, is_begun=False)
        assert [said in str(each.message) for each in found] == [True]


def of_sampler():
    sampler = WeightedRandomSampler([1.0] * 8, 8)
    loader = DataLoader(Points(1, 8), batch_size=4, sampler=sampler)
    return Classification(num_classes=3, train_dataloaders=loader, **LOUD)


class Given(Lightning):
    def __init__(self):
        pass


REFUSED = {
    "one-shot": (classification, DARTS, "DARTS of NNI trains a supernet of its own"),
    "no strategy": (
        classification, dict, r"strategy: expected an object of NNI's, as in .*, found dict",
    ),
    "a strategy's name": (classification, lambda: "evolution", "found 'evolution'; naspipe"),
    "a strategy's class": (
        classification, lambda: Random, r"found the class Random; make one, as in Random\(...\)",
    ),
    "no data": (lambda: FunctionalEvaluator(print), GridSearch, "steps=1000.*found no data"),
    "own module": (Given, Random, "expected Classification, Regression or FunctionalEvaluator"),
    "sampler": (of_sampler, Random, "found the sampler WeightedRandomSampler; give data="),
    "its own choices": (
        lambda: classification(nni.choice("rate", [0.1, 0.2])), Random, "found choices of its own",
    ),
    "several batches a step": (
        lambda: classification(accumulate_grad_batches=2), Random,
        "no accumulate_grad_batches, found 2; .* give passes='accumulate:N'",
    ),
    "a limit of gradients": (
        lambda: classification(gradient_clip_val=0.01), Random, "give clip_global_norm=",
    ),
    "half precision": (
        lambda: classification(precision="bf16-mixed"), Random, "give precision='bf16'",
    ),
    "a time": (lambda: classification(max_time="00:00:01:00"), Random, "found max_time"),
    "no loader": (
        lambda: Regression(max_epochs=1, **LOUD), Random, "a DataLoader, found none",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_counterpart(name):
    make_evaluator, make_strategy, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        NasExperiment(Hello(), make_evaluator(), make_strategy())


def test_an_unknown_score_is_found_before_anything_is_trained():
    with pytest.raises(ConfigError, match=r"unknown score 'acc': expected loss or top1"):
        NasExperiment(Hello(), classification(), Random(), score="acc")


def test_what_is_missing_when_it_runs(tmp_path):
    exp = NasExperiment(Hello(), classification(), RegularizedEvolution(), directory=tmp_path)
    with pytest.raises(ConfigError, match=r"exp\.config\.max_trial_number = 100, found none"):
        exp.run()
    with pytest.raises(ConfigError, match="expected an experiment that has run"):
        exp.export_top_models()
    exp.config.max_trial_number, exp.config.max_experiment_duration = 200, "1h"
    with pytest.raises(ConfigError, match="expected max_trial_number alone"):
        exp.run()
    exp.config.max_experiment_duration, exp.config.trial_concurrency = None, 120
    with pytest.raises(ConfigError, match="above the delay, 119, found 100"):
        exp.run()
    assert not list(tmp_path.iterdir())
