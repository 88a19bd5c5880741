"""scripts/check_memory.py: which runs it takes, what it skips, and that it sees a wrong bit."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys

import pytest
import torch
from torch import nn

from naspipe.config.recipe import Recipe
from naspipe.jobs.workload import Workload
from naspipe.worker.layers.stored_layer import StoredLayer
from scripts import check_memory
from tests.equivalence import spaces
from tests.equivalence.first_difference import first_difference, recorded
from tests.equivalence.harness import check, plain_loop

FACTORS = (
    ("nlp.c2", "cv.c2"), ("SGD", "Adam"), (1, 2, 4), tuple(check_memory.BUDGETS), (False, True),
    ("balanced", "static"),
)  # fmt: skip
CASES = [check_memory.Case(*values) for values in itertools.product(*FACTORS)]


def test_the_default_has_every_pair():
    chosen = check_memory.covering(CASES)
    assert len(CASES) == 288 and len(chosen) <= 24
    for one, other in itertools.combinations(range(len(FACTORS)), 2):
        wanted = set(itertools.product(FACTORS[one], FACTORS[other]))
        assert {(case[one], case[other]) for case in chosen} == wanted


def test_what_is_there_is_skipped_until_the_source_changes(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "bits.json"
    results = check_memory.Results(path, 100, "whole")
    assert results.of(CASES[3]) is None
    results.add(CASES[3], verdict="IDENTICAL")
    again = check_memory.Results(path, 100, "whole")
    assert again.of(CASES[3])["verdict"] == "IDENTICAL" and again.of(CASES[4]) is None
    assert check_memory.Results(path, 50, "whole").of(CASES[3]) is None, (
        "other steps are another run"
    )
    assert check_memory.Results(path, 100, "split").of(CASES[3]) is None, "so are other backwards"
    starved = check_memory.Results(tmp_path / "starved.json", 100, "whole")
    starved.add(CASES[3], verdict="FAILED: no sign of life")
    assert starved.of(CASES[3]) is None, "what did not end is run again"
    monkeypatch.setattr(check_memory, "source_digest", lambda: "other")
    changed = check_memory.Results(path, 100, "whole")
    assert changed.of(CASES[3]) is None
    changed.add(CASES[3], verdict="anew")
    rows = json.loads(path.read_text())["runs"]
    assert [(row["source"], row["verdict"]) for row in rows] == [("other, whole backwards", "anew")]


def test_the_source_is_that_of_naspipe_and_the_oracle(monkeypatch, tmp_path):
    before = check_memory.source_digest()
    assert before == check_memory.source_digest()
    for folder in ("naspipe", "search_spaces", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "tests/oracle.py").write_text("")
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts/check_memory.py"
    script.write_text("")
    monkeypatch.setattr(check_memory, "ROOT", tmp_path)
    monkeypatch.setattr(check_memory, "__file__", str(script))
    digests = [check_memory.source_digest()]
    for path in ("naspipe/new.py", "tests/oracle.py", "search_spaces/new.py"):
        (tmp_path / path).write_text("1")
        digests.append(check_memory.source_digest())
    assert len(set(digests)) == 4


@pytest.fixture
def small(monkeypatch):
    """A small space in the place of cv.c2."""

    named = Workload.of(
        spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), recipe=Recipe(), steps=1
    )
    monkeypatch.setattr(check_memory, "tiny_workload", lambda name, sizes: named)


def run(tmp_path, monkeypatch, *words):
    output = tmp_path / "bits.json"
    arguments = ["check_memory.py", "--spaces", "cv.c2", "--optimizers", "SGD", "--steps", "12",
                 "--partitions", "static", "--output", str(output), *words]  # fmt: skip
    monkeypatch.setattr(sys, "argv", arguments)
    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    try:
        return check_memory.main(), json.loads(output.read_text())["runs"]
    finally:
        torch.set_num_threads(threads)
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize(("words", "count"), [((), 18), (("--all",), 36)])
def test_the_whole_product_has_to_be_asked_for(tmp_path, monkeypatch, words, count):
    asked = []
    monkeypatch.setattr(check_memory, "check", lambda results, todo, *_: asked.extend(todo))
    (tmp_path / "bits.json").write_text('{"runs": []}')
    status, _ = run(tmp_path, monkeypatch, *words)
    assert status == 1 and len(asked) == count == len(set(asked))


@pytest.mark.usefixtures("small")
def test_runs_go_on_where_they_were_stopped(tmp_path, monkeypatch, capsys):
    status, rows = run(tmp_path, monkeypatch, "--stages", "1", "--budgets", "least")
    assert status == 0 and [row["verdict"] for row in rows] == ["IDENTICAL"] * 2
    assert all(row["peak_bytes"] <= row["budgets_bytes"] for row in rows)
    first = [row["seconds"] for row in rows]
    status, rows = run(tmp_path, monkeypatch, "--stages", "1", "2", "--budgets", "least")
    assert status == 0 and len(rows) == 4 and [row["seconds"] for row in rows[:2]] == first
    assert "4 runs, 2 of them there already" in capsys.readouterr().out


def test_a_signal_ends_the_script_and_not_one_run(tmp_path, monkeypatch, computes_here):
    batches = []

    def data(seed, y):
        batches.append(y)
        if len(batches) == 200 + 9:  # the plain loop has its 200 first
            os.kill(os.getpid(), signal.SIGTERM)
        return spaces.vectors(seed, y)

    named = Workload.of(spaces.mixed(), data, nn.CrossEntropyLoss(), recipe=Recipe(), steps=1)
    monkeypatch.setattr(check_memory, "tiny_workload", lambda name, sizes: named)
    with pytest.raises(SystemExit, match="143"):
        run(tmp_path, monkeypatch, "--stages", "1", "--budgets", "2", "--steps", "200")
    assert not (tmp_path / "bits.json").exists(), "what was stopped is no failure"


@pytest.mark.usefixtures("small")
def test_a_wrong_bit_is_found_and_named(tmp_path, monkeypatch, capsys, computes_here):
    write, calls = StoredLayer.write, []

    def wrong(stored, gradients, version, *more):
        write(stored, gradients, version, *more)
        if stored.label.startswith("1.") and stored.parameters and version >= 3 and not calls:
            calls.append(version)
            parameter = next(iter(stored.parameters.values()))
            flat = parameter.detach().reshape(-1).view(torch.int32)
            flat[0] ^= 1

    monkeypatch.setattr(StoredLayer, "write", wrong)
    status, rows = run(tmp_path, monkeypatch, "--stages", "1", "--budgets", "2")
    assert status == 1
    wrong_rows = [row for row in rows if row["verdict"] != "IDENTICAL"]
    assert len(wrong_rows) == 1 and "first difference: " in wrong_rows[0]["verdict"]
    assert "1 of 2 runs have the plain loop's bits" in capsys.readouterr().out


def test_the_first_difference_names_step_and_layer(tmp_path):
    space, loss = spaces.mixed(), nn.CrossEntropyLoss()
    (found,) = check(tmp_path, space, spaces.vectors, loss, stages=(1,), steps=8)
    oracle = plain_loop(space, spaces.vectors, loss, found, seed=1, optimizer="SGD", lr=0.05)
    stream = [tuple(json.loads(line)) for line in found.directory.stream.read_text().splitlines()]
    path = found.directory.path
    assert str(first_difference(recorded(oracle, space, stream), path)) == "IDENTICAL"
    (block, candidate, name), value = next(iter(oracle.tensors().items()))
    value.view(-1)[0] += 1
    label = space.label(block, candidate)
    text = str(first_difference(recorded(oracle, space, stream), path))
    assert f"layer {label}: tensor: {name} 1 of {value.numel()} elements differ" in text
