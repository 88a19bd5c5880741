"""What is around a training knows settings, too: validation, weights to begin with, teachers."""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from torch import nn

import naspipe as npp
from naspipe.cli.main import main
from naspipe.elastic import Linear
from naspipe.machine.staging import same_bits
from naspipe.report.recorded import read_run
from naspipe.report.run_tables import run_tables
from tests.equivalence import elastic_spaces as elastic

LOSS = nn.CrossEntropyLoss()
HOW = {"lr": 0.05, "progress": False, "seed": 1}


def trained(path, space, data=elastic.vectors, **more):
    return npp.train(space, data, LOSS, **{"steps": 6, "run_dir": path, **HOW, **more})


def largest_only(space):
    """The first phase of a progressive shrinking."""
    blocks = []
    for block in space.blocks:
        if isinstance(block, npp.Elastic):
            settings = {name: [max(values)] for name, values in block.settings.items()}
            block = replace(block, settings=settings)
        blocks.append(block)
    return npp.Space(space.name, blocks)


def test_a_second_phase_begins_with_the_weights_of_the_first(tmp_path):
    first = trained(tmp_path / "one", largest_only(elastic.linears()))
    assert {choices[:2] for choices in first.stream} == {(0, 0)}
    second = trained(tmp_path / "two", elastic.linears(), init_from=first)
    assert second.manifest["definition"]["weights"]
    begun = second.space.blocks[1].factory()
    assert not torch.equal(begun.weight, second.shared("fc").weight)
    scratch = trained(tmp_path / "three", elastic.linears())
    assert scratch.losses != second.losses


def test_validation_on_the_way(tmp_path):
    """Subnets of their own, with statistics taken anew; the same on two stages."""
    how = {"held_out": elastic.maps, "validate_every": 2, "checkpoint_every": 2,
           "validate_subnets": "2", "validate_batches": 1}  # fmt: skip
    runs = [
        trained(tmp_path / f"{stages}", elastic.images(), elastic.maps, stages=stages, **how)
        for stages in (1, 2)
    ]
    one, two = ([each.scores for each in run.validations] for run in runs)
    assert one == two and len(one) >= 3


def test_a_subnet_of_an_elastic_run_teaches(tmp_path):
    """It is the cut network."""
    run = trained(tmp_path / "large", elastic.linears())
    choices = run.space.decisions.choices_of({"width": 8, "inner": 16, "2": 2})
    modules = [run.chosen(*place) for place in enumerate(run.space.chain(choices))]
    assert [type(each).__name__ for each in modules][1::2] == ["Linear", "Linear", "Linear"]
    assert modules[1].weight.shape == (8, 8)
    teacher = npp.Teacher(run, choices=choices)
    student = npp.Space("student", [npp.Shared("only", lambda: nn.Linear(12, 3))])
    loss = npp.losses.SoftTarget()
    taught = npp.train(
        student, elastic.vectors, loss, teacher=teacher, steps=2, run_dir=tmp_path / "s", **HOW
    )
    x = elastic.vectors(1, 0)["input"]
    with torch.no_grad():
        expected = nn.Sequential(*modules).eval()(x)
        torch.manual_seed(0)
        assert same_bits(expected, nn.Sequential(*modules)(x)) and len(taught.losses) == 2


def test_a_profile_lists_settings(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "mine_of_widths.py").write_text(
        "from tests.equivalence.elastic_spaces import linears, vectors\nspace = linears()\n"
    )
    given = ["profile", "mine_of_widths:space", "--data", "mine_of_widths:vectors", "--json"]
    assert main(given) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    rows = kinds[3]["layers"]
    assert [row["setting"] for row in rows][::5] == [
        {"width": 4, "inner": 8}, {"width": 16, "inner": 16},
    ]  # fmt: skip
    assert len(rows) == 6 and sum("forward_ns" in row for row in rows) >= 3
    assert len({row["state_bytes"] for row in rows}) == 1, "the layer's"


def test_log_and_report_say_settings(tmp_path, capsys):
    run = trained(tmp_path / "run", elastic.linears(), passes="sandwich:1")
    assert main(["log", str(run.directory.path), "--layer", "inner"]) == 0
    order = capsys.readouterr().out.strip()
    assert order.startswith("0F[16,16]-1F[4,8]-2F[") and order.endswith("]")
    assert main(["log", str(run.directory.path), "--layer", "2.0"]) == 0
    assert "[" not in capsys.readouterr().out, "a choice block has none"
    assert order in json.dumps(run_tables(read_run(run.directory.path), "run"))


def test_a_momentum_teacher_has_the_settings_of_its_student(tmp_path):
    runs = [
        trained(
            tmp_path / f"{stages}", elastic.linears(npp.Lag(1)), stages=stages, steps=4,
            teacher=npp.Momentum(0.9),
        )
        for stages in (1, 2)
    ]  # fmt: skip
    assert runs[0].losses == runs[1].losses and len(set(runs[0].stream)) > 1


def test_blocks_of_a_teacher_are_taught_to_elastic_ones(tmp_path):
    wide = {"width": [4, 16]}
    teachers = [nn.Sequential(nn.Linear(12, 16), nn.Tanh()), nn.Linear(16, 3)]
    students = [
        npp.Space("one", [
            npp.Elastic("in", lambda: Linear(12, 16, outputs="width"), wide),
            npp.Elastic("out", lambda: Linear(16, 16, inputs="width"), wide),
        ]),
        npp.Space("two", [npp.Shared("last", lambda: nn.Linear(16, 3))]),
    ]  # fmt: skip
    found = npp.distill_blockwise(
        teachers, students, elastic.vectors, steps=4, run_dir=tmp_path / "run"
    )
    network = found.network([(0, 0), ()])
    assert [tuple(each.weight.shape) for each in network] == [(4, 12), (16, 4), (3, 16)]
