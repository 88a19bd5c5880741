"""Runs that are there already, what objects say of themselves, and what the package lists."""

from __future__ import annotations

import json

import pytest
from torch import nn

import naspipe as npp
from naspipe.cli.main import main
from naspipe.config.errors import ConfigError
from naspipe.search.search_directory import SearchDirectory
from naspipe.streams.stream_file import read_stream
from tests.equivalence import spaces


def trained(path):
    return npp.train(spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=4, run_dir=path)


def test_everything_public_is_listed_before_it_is_loaded():
    assert set(npp.__all__) <= set(dir(npp))
    assert not {name for name in dir(npp) if not name.startswith("__")} - set(npp.__all__)
    assert set(npp._LATER) <= set(npp.__all__)
    for name in npp.__all__:
        assert getattr(npp, name) is not None


def test_an_opened_run_is_the_run(tmp_path):
    run = trained(tmp_path / "run")
    alone = npp.open_run(str(tmp_path / "run"))
    assert alone.losses == run.losses and alone.manifest == run.manifest
    assert repr(alone) == repr(run)
    assert alone.stream == [tuple(each) for each in read_stream(run.directory.stream)]
    assert len(alone.stream) == 4 and {len(each) for each in alone.stream} == {
        len(run.space.candidate_counts)
    }
    last = f"{run.losses[-1]:.4g}"
    assert repr(run) == (
        f"<Run {tmp_path / 'run'}: space {run.space.name}, 4 steps, complete, last loss {last}>"
    )
    with pytest.raises(ConfigError, match=r"a space of your own: expected it as in naspipe.open_r"):
        alone.layer(0, 0)
    given = npp.open_run(tmp_path / "run", spaces.mixed())
    assert given.access_order(0, 0) == run.access_order(0, 0)
    with pytest.raises(ConfigError, match="expected the blocks"):
        npp.open_run(tmp_path / "run", npp.Space("other", [npp.Block([nn.Identity])]))


def test_a_run_of_the_command_line_finds_its_space(tmp_path):
    """With the rules that it was trained with."""
    path = str(tmp_path / "run")
    words = ["--steps", "3", "--data", "digits", "--set", "rule.stem=lag(1)", "--run-dir", path]
    assert main(["train", "cv.c3", "--quiet", *words]) == 0
    run = npp.open_run(path)
    assert run.space.shared_rules["stem"] == npp.Lag(1)
    assert isinstance(run.shared("stem"), nn.Module)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({}, "is not a run directory: expected .*manifest.json, found No such file"),
        ({"manifest.json": "{"}, "is not a run directory: .* is damaged"),
        ({"manifest.json": "[]"}, "not a run directory of this version: expected format 1"),
        (
            {"manifest.json": '{"format": 1, "status": "complete"}'},
            "expected the manifest of a run",
        ),
        ({"stream-0/manifest.json": "{}"}, r"a folder of several.*open_run\('.*stream-0'\)"),
    ],
)
def test_what_is_no_run_is_refused_in_one_line(tmp_path, written, said):
    for name, text in written.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said) as refused:
        npp.open_run(tmp_path)
    assert "\n" not in str(refused.value)


def test_a_run_that_is_gone_still_prints(tmp_path):
    run = npp.Run(spaces.mixed(), tmp_path / "none")
    assert repr(run) == f"<Run {tmp_path / 'none'}: not a run directory that can be read>"


def test_a_space_says_what_it_is_made_of():
    stem = npp.Shared("stem", nn.Identity, rule=npp.Lag(4))
    pair, triple = npp.Block([nn.Identity, nn.ReLU]), npp.Block([nn.Identity, nn.ReLU, nn.GELU])
    assert repr(npp.Space("a", [stem, pair, pair])) == (
        "<Space a: 2 choice blocks of 2 candidates, stem lag(4)>"
    )
    assert repr(npp.Space("b", [pair, triple])) == "<Space b: 2 choice blocks of 2 to 3 candidates>"
    many = [npp.Shared(f"s{number}", nn.Identity) for number in range(9)]
    assert repr(npp.Space("c", many)).endswith("s5 exact, ...>")
    assert len(repr(npp.Space("d", [*many, pair]))) < 120


def test_a_search_says_what_it_found(tmp_path):
    line = {"subnet": 0, "choices": [1], "loss": 0.5, "top1": "nan", "top5": "nan", "bleu": "nan"}
    cost = {"flops": 1, "params": 2, "latency_ms": 3}
    manifest = {"format": 1, "status": "complete", "definition": {"score": "loss"}, "finished": 1}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    (tmp_path / "candidates.jsonl").write_text(json.dumps({**line, **cost}) + "\n")
    found = SearchDirectory(tmp_path).read()
    assert repr(found) == f"<Search {tmp_path}: complete, 1 subnet, best loss 0.5>"
    assert repr(found._replace(candidates=())).endswith("0 subnets, none has a loss>")
