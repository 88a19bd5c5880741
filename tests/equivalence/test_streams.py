"""Streams that share a pipeline: each leaves the bits of its solo run."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from torch import nn

import naspipe
from naspipe import ConfigError, Execution, train_together
from naspipe.cli.main import main
from naspipe.store.compare import compare_runs
from naspipe.store.run_directory import RunDirectory
from tests.equivalence import spaces
from tests.thinned import long


def workload(space, data, seed, steps=16, **identity):
    return naspipe.workload(
        space, data, nn.CrossEntropyLoss(), seed=seed, steps=steps,
        optimizer_options={"momentum": 0.9}, **identity,
    )  # fmt: skip


def assert_as_alone(tmp_path, workloads, execution):
    together = train_together(workloads, execution, tmp_path / "together")
    for number, (run, each) in enumerate(zip(together, workloads, strict=True)):
        alone = train_together([each], Execution(stages=1), tmp_path / f"alone-{number}")[0]
        (comparison,) = compare_runs([alone.directory.path, run.directory.path])
        assert comparison.is_identical, str(comparison)
        assert run.losses == alone.losses and run.manifest["execution"]["streams"] > 1
    return together


@pytest.mark.parametrize(
    "execution",
    [
        long(Execution(stages=1)),
        Execution(stages=2, order="critical-path"),
        Execution(stages=3, order="paper", memory_budget="1x"),
    ],
    ids=["one stage", "critical path", "swapped"],
)
def test_seeds_of_one_space(tmp_path, execution):
    space = spaces.mixed()
    together = assert_as_alone(
        tmp_path, [workload(space, spaces.vectors, seed) for seed in (1, 2)], execution
    )
    assert together[0].losses != together[1].losses


def test_two_spaces_of_different_length(tmp_path):
    first, second = spaces.mixed(), spaces.memory()
    assert len(first) != len(second)
    workloads = [
        workload(first, spaces.vectors, 1, steps=20),
        workload(second, spaces.sequences, 1, steps=9, sampler="fair"),
    ]
    assert_as_alone(tmp_path, workloads, Execution(stages=2))
    assert_as_alone(tmp_path / "budget", workloads, Execution(stages=2, memory_budget="1x"))


def test_one_policy_for_all(tmp_path):
    space = spaces.mixed()
    workloads = [workload(space, spaces.vectors, 1)]
    definition = replace(workloads[0].definition, policy="bsp")
    workloads.append(replace(workloads[0], definition=definition))
    with pytest.raises(ConfigError, match="policy: expected the same for all streams"):
        train_together(workloads, Execution(stages=2), tmp_path / "run")


def test_a_file_of_streams(tmp_path, capsys):
    """What a line leaves out is the command's."""
    streams = tmp_path / "streams.jsonl"
    lines = [{"seed": 5}, {"space": "cv.c3", "steps": 3, "sampler": "fair"}]
    streams.write_text("\n".join(map(json.dumps, lines)))
    path = tmp_path / "run"
    command = ["train", "cv.c2", "--data", "digits", "--steps", "2", "--quiet", "--run-dir"]
    assert main([*command, str(path), "--streams", str(streams)]) == 0
    assert capsys.readouterr().out.split() == [f"{path}/stream-0", f"{path}/stream-1"]
    found = [RunDirectory(path / f"stream-{n}").read_manifest()["definition"] for n in (0, 1)]
    assert [(d["space"], d["seed"], d["steps"]) for d in found] == [
        ("cv.c2", 5, 2),
        ("cv.c3", 0, 3),
    ]


@pytest.mark.parametrize(
    ("streams", "message"),
    [
        ("0", "--streams: expected 1 to 64 or a file, found 0"),
        ("65", "--streams: expected 1 to 64 or a file, found 65"),
        ("nowhere.jsonl", "expected a number or a file with a JSON object a line, found 'nowhere"),
    ],
)
def test_bad_streams(tmp_path, capsys, streams, message):
    command = ["train", "cv.c3", "--data", "digits", "--run-dir", str(tmp_path / "run")]
    assert main([*command, "--streams", streams]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize("line", ["[]", '{"lr": 1}', '{"seed": "1"}', "{", '{"seed": true}'])
def test_bad_lines(tmp_path, capsys, line):
    file = tmp_path / "streams.jsonl"
    file.write_text(f'{{"seed": 1}}\n{line}\n')
    command = ["train", "cv.c3", "--data", "digits", "--run-dir", str(tmp_path / "run")]
    assert main([*command, "--streams", str(file)]) == 2
    assert f"{file}:2: expected a JSON object with some of space" in capsys.readouterr().err
