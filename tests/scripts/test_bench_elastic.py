"""The bench of elastic teachers goes through, and says what does not hold."""

from __future__ import annotations

import json

import pytest

from scripts.bench import elastic
from scripts.bench.elastic import MOST_BYTES, judged


@pytest.mark.long
def test_a_few_steps(tmp_path, capsys):
    output = tmp_path / "real.json"
    words = ["--only", "bytes", "label", "--pairs", "1", "--seconds", "0.1", "--batch-size", "4"]
    elastic.main([*words, "--output", str(output)])
    found, said = json.loads(output.read_text()), capsys.readouterr().out
    assert 0 < found["bytes"]["most"] <= found["bytes"]["greatest"] <= MOST_BYTES
    assert found["bytes"]["requests"] >= 48
    assert len(found["label"]["file"]) == len(found["label"]["service"]) == 1
    assert "bytes of a request" in said


def verdicts(found):
    return [holds for *_, holds in judged(found)]


def test_what_holds():
    law = {"1": [0.2, 0.21, 0.22], "5": [0.95]}
    assert verdicts({"law": law}) == [True, True]
    assert verdicts({"law": {"2": [0.3], "3": [0.69]}}) == [False, False]
    assert verdicts({"label": {"file": [1.05], "service": [1.2]}}) == [False, True]
    assert verdicts({"apart": {"gain": [1.6], "label_over_step": [1.0]}}) == [True]
    memory = {"steps": [500, 2000], "rss_bytes": {"student": [100, 101], "teacher": [100, 103]}}
    assert verdicts({"memory": memory}) == [True, False]
    assert verdicts({"bytes": {"requests": 9, "most": 6, "greatest": 14}}) == [True]
