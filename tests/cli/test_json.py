"""``--json``: the same results, for scripts and dashboards."""

from __future__ import annotations

import json

import pytest

from naspipe.cli.main import main

SPACE = "tests.faults.small_space"
WORDS = ["train", f"{SPACE}:space", "--data", f"{SPACE}:batches", "--steps", "6", "--quiet"]


@pytest.fixture
def printed(capsys):
    def call(*words, status=0):
        assert main([str(word) for word in words]) == status
        return json.loads(capsys.readouterr().out)

    return call


def test_what_was_trained_how_it_compares_and_who_used_what(printed, tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    (trained,) = printed(*WORDS, "--run-dir", one, "--json")
    assert (trained["run"], trained["status"], trained["steps"]) == (str(one), "complete", 6)
    assert (
        trained["loss"] == json.loads((one / "losses.jsonl").read_text().splitlines()[-1])["loss"]
    )
    assert trained["measured"]["steps_per_second"] > 0
    (seeded,) = printed(*WORDS, "--run-dir", other, "--seed", "2", "--json")
    assert seeded["loss"] != trained["loss"]

    found = printed("compare", one, one, other, "--json", status=2)
    assert [each["verdict"] for each in found["runs"]] == [
        "reference", "IDENTICAL", "NOT COMPARABLE"
    ]  # fmt: skip
    assert found["runs"][0]["passes"] == 6 and found["runs"][0]["bubble_ratio"] < 1
    assert [each["is_identical"] for each in found["comparisons"]] == [True, False]
    assert "definition.seed is 0 in" in found["comparisons"][1]["reason"]

    layers = printed("log", one, "--json")
    used = [each for each in layers if each["layer"].startswith("1.")]
    assert sum("F" in access for each in used for access in each["order"]) == 6
    assert all((each["writes"] == 0) == (each["rule"] == "no state") for each in used)
    (layer,) = printed("log", one, "--layer", layers[0]["layer"], "--json")
    assert layer == layers[0] and layer["order"][0].endswith("F")

    (run, _) = printed("runs", tmp_path, "--json")
    assert (run["run"], run["step"], run["steps"]) == ("one", 6, 6)
