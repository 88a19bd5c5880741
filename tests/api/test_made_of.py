"""A run is made of what it began with: other layers, or captured values, are told in one line."""

from __future__ import annotations

import functools
import importlib
import json
import shutil
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

import naspipe as npp
from naspipe.checks.fingerprint import (
    captured,
    changed_code_note,
    check_made_of,
    record_made_of,
    untold_notes,
)
from naspipe.checks.sketched import structure, structures
from naspipe.config.errors import ConfigError
from naspipe.inputs.run import Run
from naspipe.jobs.workload import Workload
from naspipe.store.compare import compare_runs
from naspipe.store.run_directory import RunDirectory
from tests.store.fake_run import SPACE


class Own(nn.Module):
    made = 0

    def __init__(self, activation, share=0.5):
        super().__init__()
        Own.made += 1
        self.activation, self.share, self.number = activation, share, Own.made
        self.inner = nn.Linear(4, 4)


class Setting:
    def __init__(self, width):
        self.width = width


class WithFunction(nn.Module):
    def extra_repr(self):
        return repr(lambda: None)


def candidates(activation=nn.ReLU, p=0.1):
    return [
        lambda: nn.Sequential(nn.Linear(4, 4), activation(), nn.Dropout(p)),
        lambda: nn.Linear(4, 4),
    ]


def workload(made, loss=functional.cross_entropy, **more):
    space = npp.Space("s", [npp.Block(made, fields=("x",)), npp.Shared("head", nn.Identity)])
    return npp.workload(space, lambda seed, number: {}, loss, steps=4, **more)


@pytest.fixture
def begun(tmp_path):
    """Records a run of a workload; the same one may go on."""

    def begin(first):
        directory = RunDirectory(tmp_path)
        record_made_of(directory, first)
        check_made_of(directory, first)
        return directory

    return begin


def refused(directory, then: Workload) -> str:
    with pytest.raises(ConfigError) as caught:
        check_made_of(directory, then)
    said = str(caught.value)
    assert "\n" not in said and said.startswith(f"{directory.path} is another run: its ")
    return said.partition("another run: its ")[2].partition("; resume it as it was defined")[0]


@pytest.mark.parametrize(("now", "said"), [
    (candidates(p=0.3), "layer 0.0 was (2): Dropout(p=0.1, inplace=False), and is now "
     "(2): Dropout(p=0.3, inplace=False)"),
    (candidates(nn.Tanh), "layer 0.0 was (1): ReLU(), and is now (1): Tanh()"),
    (candidates()[::-1], "layer 0.0 was Sequential(, and is now Linear(in_features=4, "
     "out_features=4, bias=True) (the candidates of block 0 are the same in another order)"),
])  # fmt: skip
def test_other_layers_of_the_same_shapes(begun, now, said):
    assert refused(begun(workload(candidates())), workload(now)) == said


def test_what_no_repr_shows(begun):
    directory = begun(workload([lambda: Own(functional.relu), nn.Identity]))
    other = workload([lambda: Own(functional.gelu), nn.Identity])
    assert "activation=torch.nn.functional.relu" in refused(directory, other)
    other = workload([lambda: Own(functional.relu, 0.1), nn.Identity])
    assert refused(directory, other) == "layer 0.0 was share=0.5, and is now share=0.1"
    heads = [str(structure(nn.MultiheadAttention(8, each))) for each in (2, 4)]
    assert heads[0] != heads[1]


def test_the_same_made_again_is_the_same(begun):
    check_made_of(
        begun(workload([lambda: Own(functional.relu), WithFunction])),
        workload([lambda: Own(functional.relu), WithFunction]),
    )
    assert not any(" at 0x" in line for line in structure(WithFunction()))


def test_nothing_is_drawn():
    before = torch.get_rng_state()
    structures(workload(candidates()).space)
    assert torch.equal(before, torch.get_rng_state())


def test_a_directory_without_the_file_is_not_asked(tmp_path):
    check_made_of(RunDirectory(tmp_path), workload(candidates()))


def test_a_damaged_file_is_named(begun):
    directory = begun(workload(candidates()))
    for text in (
        "{", "[]", '{"texts": [], "layers": [[3]], "captured": {}, "files": {}}',
        '{"texts": [], "layers": [], "captured": {}}',
    ):  # fmt: skip
        directory.made_of.write_text(text)
        with pytest.raises(ConfigError, match=r"made_of\.json is damaged"):
            check_made_of(directory, workload(candidates()))


def scaled(scale, beside=None):
    def loss(output, target):
        return functional.cross_entropy(output, target) * scale if beside is None else beside

    return loss


def with_default(scale):
    return lambda output, target, scale=scale: output.mean() * scale


@pytest.mark.parametrize(("was", "now", "said"), [
    (scaled(1.0), scaled(2.0), "loss's scale was 1.0, and is now 2.0"),
    (scaled("a"), scaled(None), "loss's scale was 'a', and is now None"),
    (scaled((1, 2)), scaled((1, 3)), "loss's scale was [1, 2], and is now [1, 3]"),
    (scaled(1, object()), scaled(1), "loss's beside was of type object, and is now None"),
    (with_default(1), with_default(2), "loss's scale was 1, and is now 2"),
    (functools.partial(scaled(1), target=0), functools.partial(scaled(2), target=0),
     "loss's scale was 1, and is now 2"),
    (scaled(Setting({"a": [1]})), scaled(Setting({"a": [2]})),
     f"loss's scale was {__name__}.Setting(width: {{a: [1]}}), and is now "
     f"{__name__}.Setting(width: {{a: [2]}})"),
    (scaled(scaled(1)), scaled(scaled(2)), "loss's scale.scale was 1, and is now 2"),
    (scaled(nn.L1Loss()), scaled(nn.L1Loss(reduction="sum")),
     "loss's scale was torch.nn.modules.loss.L1Loss, and is now "
     "torch.nn.modules.loss.L1Loss(reduction='sum')"),
])  # fmt: skip
def test_what_a_loss_captures(begun, was, now, said):
    directory = begun(workload(candidates(), was))
    assert refused(directory, workload(candidates(), now)) == said


def test_a_captured_tensor_goes_by_its_values(begun):
    directory = begun(workload(candidates(), scaled(torch.ones(3))))
    check_made_of(directory, workload(candidates(), scaled(torch.ones(3))))
    assert "loss's scale was [3]:" in refused(
        directory, workload(candidates(), scaled(torch.zeros(3)))
    )


def test_a_captured_function_that_captures_itself():
    def loss(output, target):
        return loss

    assert captured(loss).values.keys() == {"loss"}


def test_what_an_optimizer_captures(begun):
    def sgd(momentum):
        return lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=momentum)

    directory = begun(workload(candidates(), optimizer=sgd(0.5), lr=0.1))
    found = refused(directory, workload(candidates(), optimizer=sgd(0.9), lr=0.1))
    assert found == "optimizer's momentum was 0.5, and is now 0.9"


def test_what_cannot_be_told_is_noted():
    assert untold_notes([workload(candidates(), scaled(1.0))]) == []
    (note,) = untold_notes([workload(candidates(), scaled(1.0, object()))])
    assert note.startswith("loss: a resume cannot tell whether beside (of type object) is the same")


def test_compare_says_that_definitions_differ(tmp_path):
    for name, made in (("one", candidates()), ("two", candidates(p=0.3))):
        directory = RunDirectory(tmp_path / name)
        directory.create()
        space = {**SPACE, "labels": ["0", "head"], "shared": [False, True]}
        directory.write_manifest({"format": 1, "status": "complete", "space": {
            **space, "rules": ["exact"] * 2, "candidates": [2, 1]}, "definition": {}})  # fmt: skip
        record_made_of(directory, workload(made))
    (found,) = compare_runs([tmp_path / "one", tmp_path / "two"])
    assert "different runs: the definition's layer 0.0 is (2): Dropout(p=0.1" in found.reason
    assert json.loads((tmp_path / "one" / "made_of.json").read_text())["layers"] == [[0, 1], [2]]


def test_a_refused_resume_leaves_the_run_as_it_is(tmp_path):
    def train(made, **how):
        data = {"x": torch.ones(2, 4), "target": torch.zeros(2, dtype=torch.long)}
        space = npp.Space("s", [npp.Block(made, fields=("x",))])
        return npp.train(
            space, lambda *_: data, functional.cross_entropy, steps=2, run_dir=tmp_path / "run",
            progress=False, **how,
        )  # fmt: skip

    before = train(candidates()).directory.manifest.read_bytes()
    with pytest.raises(ConfigError, match="are the same in another order"):
        train(candidates()[::-1], resume=True)
    assert (tmp_path / "run" / "manifest.json").read_bytes() == before


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two candidates, and what it was trained on."""
    data = {"x": torch.ones(2, 4), "target": torch.zeros(2, dtype=torch.long)}
    space = npp.Space("s", [npp.Block(candidates(), fields=("x",))])
    where = tmp_path_factory.mktemp("trained") / "run"
    return data, npp.train(space, lambda *_: data, scaled(1.0), steps=2, run_dir=where,
                           progress=False)  # fmt: skip


@pytest.mark.parametrize("use", ["search", "export", "open"])
def test_a_run_is_used_with_its_own_layers(trained, tmp_path, use):
    data, run = trained
    space = npp.Space("s", [npp.Block(candidates(nn.Tanh), fields=("x",))])
    with pytest.raises(ConfigError, match=r"expected its layer 0.0 as it was trained, \(1\): ReLU"):
        if use == "open":
            npp.open_run(run.path, space)
        elif use == "search":
            given = {"held_out": lambda *_: data}
            npp.search_subnets(Run(space, run.path), lambda *_: data, scaled(1.0), **given)
        else:
            npp.export_subnet(Run(space, run.path), [0], tmp_path / "model")
    assert not (tmp_path / "model").exists() and not list(run.path.glob("search-*"))


def test_a_run_is_searched_with_its_own_loss(trained):
    data, run = trained
    for loss, said in (
        (scaled(2.0), "expected its loss's scale as it was trained, 1.0, found 2.0"),
        (functional.cross_entropy, "expected its loss as it was trained, .*scaled.*, found torch"),
    ):
        with pytest.raises(ConfigError, match=said):
            npp.search_subnets(run, lambda *_: data, loss)
    assert not list(run.path.glob("search-*"))


def test_changed_code_is_noted(begun, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "own_loss.py"

    def with_rate(text):
        module.write_text(f"rate = {text}\ndef loss(output, target): return output.mean() * rate")
        sys.modules.pop("own_loss", None)
        return workload(candidates(), importlib.import_module("own_loss").loss)

    directory = begun(with_rate("1.0"))
    assert changed_code_note(directory, with_rate("1.0")) is None
    said = changed_code_note(directory, with_rate("2.00"))
    assert "was begun with other code: own_loss.py changed since; where that" in said


def test_a_value_of_which_only_the_type_was_told_is_another(begun):
    setting = Setting(1)
    directory = begun(workload(candidates(), scaled(setting)))
    recorded = json.loads(directory.made_of.read_text())
    assert "Setting(width: 1)" in recorded["captured"]["loss"]["scale"]
    recorded["captured"]["loss"]["scale"] = "of type Setting"
    directory.made_of.write_text(json.dumps(recorded))
    assert "loss's scale was of type Setting" in refused(
        directory, workload(candidates(), scaled(setting))
    )


def test_compare_names_what_is_written_otherwise(trained, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(trained[1].path, copy)
    values = json.loads((copy / "made_of.json").read_text())
    (name,) = values["files"]
    assert name == "test_made_of.py"
    values["files"][name] = "another"
    (copy / "made_of.json").write_text(json.dumps(values))
    (found,) = compare_runs(trained[1].path, copy)
    assert found.is_identical
    assert f"these files differ between {trained[1].path} and {copy}: {name}" in found.warnings


class _Scales:
    def __init__(self, table):
        self.table = table

    def __call__(self, x):
        return x * self.table


class _Holding(nn.Module):
    """Keeps a tensor inside a callable, where ``Module.to`` does not reach it."""

    def __init__(self, wrap):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = wrap(torch.linspace(0.5, 1.5, 4))

    def forward(self, x):
        return self.scale(self.inner(x))


@pytest.mark.parametrize("wrap", [_Scales, lambda table: functools.partial(torch.mul, table)])
def test_a_layer_may_keep_a_callable_that_holds_a_tensor(tmp_path, wrap):
    space = npp.Space("s", [npp.Block([lambda: _Holding(wrap), nn.Identity])])

    def data(seed, number):
        drawn = torch.Generator().manual_seed(number)
        return {"input": torch.randn(3, 4, generator=drawn), "target": torch.ones(3, 4)}

    more = {"steps": 4, "progress": False, "run_dir": tmp_path / "run"}
    assert len(npp.train(space, data, functional.mse_loss, **more).losses) == 4
    npp.train(space, data, functional.mse_loss, resume=True, **more)
