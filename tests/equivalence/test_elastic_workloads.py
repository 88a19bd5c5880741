"""The check of elastic teachers on real data, in small; and that it would see another bit."""

from __future__ import annotations

import json

import pytest

from naspipe.distill.label_network import LabelNetwork
from scripts import check_elastic

SMALL = ["--cases", "digits", "--stages", "2", "--teachers", "2"]
MOMENTS = ["--moments", "3", "--moment-case", "digits", "--moment-steps", "30"]


@pytest.mark.long
def test_all_sources_moments_and_resumes(tmp_path, capsys):
    output = tmp_path / "bits.json"
    assert check_elastic.main([*SMALL, *MOMENTS, "--steps", "4", "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["identical"] == found["runs"] == len(found["rows"])
    assert found["moments"] >= 5
    assert {row["beside"] for row in found["rows"]} == {"plain loop", "first run"}
    assert all(row["resumed_at"] > 0 for row in found["rows"] if "resumed_at" in row)
    assert "runs IDENTICAL" in capsys.readouterr().out


@pytest.mark.long
def test_another_bit_of_the_labels_is_seen(tmp_path, monkeypatch):
    whole = LabelNetwork.label_of

    def label_of(network, number, fields):
        label = whole(network, number, fields)
        label[0, 0] += 0.25
        return label

    monkeypatch.setattr(LabelNetwork, "label_of", label_of)
    output = tmp_path / "bits.json"
    words = ["--moments", "0", "--steps", "4", "--output", str(output)]
    assert check_elastic.main([*SMALL, *words]) == 1
    rows = json.loads(output.read_text())["rows"]
    wrong = {row["what"] for row in rows if row["verdict"] != "IDENTICAL"}
    assert not any("pipeline" in what for what in wrong)
    assert {"inline, 2 stages", "file, 2 stages", "2 teachers, 2 stages"} <= wrong
