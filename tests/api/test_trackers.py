"""Observers for MLflow and Weights & Biases: recording stand-ins, the real ones offline."""

from __future__ import annotations

import sys
import types
from types import SimpleNamespace

import pytest
from torch import nn

import naspipe as npp
from naspipe.config.errors import ConfigError
from tests.equivalence import spaces

LOSS = nn.CrossEntropyLoss()


class WandbRun:
    """With the calls of ``wandb.sdk.wandb_run.Run``."""

    def __init__(self):
        self.defined, self.rows = [], []

    def define_metric(self, name=None, step_metric=None, step_sync=None, hidden=None, summary=None):
        self.defined.append((name, step_metric))

    def log(self, data, step=None, commit=None):
        self.rows.append(data)


def recording_mlflow(active):
    """A module with the calls of ``mlflow``'s fluent interface, and what it is told."""
    told = []

    def log_metrics(
        metrics, step=None, synchronous=None, run_id=None, timestamp=None, model_id=None,
        dataset=None,
    ):  # fmt: skip
        told.append((run_id, step, metrics))

    module = types.ModuleType("mlflow")
    module.active_run = lambda: active
    module.log_metrics = log_metrics
    return module, told


def recording_wandb(run=None):
    module = types.ModuleType("wandb")
    module.run = run
    return module


def train(path, observer, **how):
    how = {"steps": 6, "metrics": {"one": lambda output, target: 1.0}, **how}
    return npp.train(
        spaces.mixed(), spaces.vectors, LOSS, run_dir=path, observer=observer, **how
    )  # fmt: skip


@pytest.mark.parametrize("stages", [1, 2])
def test_wandb_is_told_of_every_pass(tmp_path, monkeypatch, stages):
    active = WandbRun()
    monkeypatch.setitem(sys.modules, "wandb", recording_wandb(active))
    run = train(tmp_path / "run", npp.to_wandb(), stages=stages)
    assert active.defined == [("*", "sequence_id")]
    rows = sorted(active.rows, key=lambda row: row["sequence_id"])
    assert [row["loss"] for row in rows] == run.losses
    assert [row["sequence_id"] for row in rows] == list(range(6))
    assert all(row["metrics/one"] == 1.0 for row in rows)


def test_mlflow_is_told_of_every_pass_and_of_validations(tmp_path, monkeypatch):
    module, told = recording_mlflow(SimpleNamespace(info=SimpleNamespace(run_id="a")))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    run = train(
        tmp_path / "run", npp.to_mlflow(), held_out=spaces.vectors, validate_every=3,
        validate_batches=1, validate_subnets=1,
    )  # fmt: skip
    losses = {step: values["loss"] for _, step, values in told if "loss" in values}
    assert [losses[y] for y in range(6)] == run.losses and {run_id for run_id, *_ in told} == {"a"}
    judged = [values for _, _, values in told if "validation/loss" in values]
    assert len(judged) == len(run.validations) == 2


def test_a_run_by_its_id_and_streams_apart(monkeypatch):
    module, told = recording_mlflow(None)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    observer = npp.to_mlflow("b")
    observer.on_begin(0, [0, 0])
    observer.on_busy(0, 1, 4)
    observer.on_loss(1, 7, 0.5)
    assert told == [("b", 7, {"stream-1/loss": 0.5, "stream-1/bubble_ratio": 0.75})]


def test_without_a_run_it_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", recording_mlflow(None)[0])
    monkeypatch.setitem(sys.modules, "wandb", recording_wandb())
    with pytest.raises(ConfigError, match=r"expected a run.*call mlflow.start_run\(\) before"):
        npp.to_mlflow()
    with pytest.raises(ConfigError, match=r"expected a run.*call wandb.init\(...\) before"):
        npp.to_wandb()


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_package_that_is_missing_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=f"expected the package {name}.*pip install {name}$"):
        getattr(npp, f"to_{name}")()


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.filterwarnings("ignore")
def test_real_mlflow_keeps_the_losses(tmp_path, monkeypatch, stages):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow", reason="needs mlflow")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as active:
        run = train(tmp_path / "run", npp.to_mlflow(), stages=stages)
    history = mlflow.MlflowClient().get_metric_history(active.info.run_id, "loss")
    assert {each.step: each.value for each in history} == dict(enumerate(run.losses))


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.filterwarnings("ignore")
def test_real_wandb_keeps_the_losses_offline(tmp_path, monkeypatch, stages):
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb = pytest.importorskip("wandb", reason="needs wandb")
    with wandb.init(project="p", mode="offline", dir=str(tmp_path)) as active:
        run = train(tmp_path / "run", npp.to_wandb(active), stages=stages)
        assert active.summary["loss"] in run.losses and active.summary["sequence_id"] in range(6)
    assert [*tmp_path.glob("wandb/offline-run-*/*.wandb")]
