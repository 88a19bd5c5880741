"""The script about blockwise distillation on images goes through, and writes what it found."""

from __future__ import annotations

import json

import pytest

from scripts import distill_images


@pytest.mark.long
def test_a_few_steps_on_digits(tmp_path, capsys):
    output = tmp_path / "losses.json"
    distill_images.main(["--quick", "--output", str(output)])
    said, found = capsys.readouterr().out, json.loads(output.read_text())
    assert [pair["student"] for pair in found["pairs"]] == ["proxyless", "separable"]
    for pair in found["pairs"]:
        assert f"{pair['student']} of {pair['teacher']}, seed 7: teacher" in said.replace("\n", " ")
        assert len(pair["losses"]) == 6 and 0.0 <= pair["teacher_top1"] <= 1.0
        own, of_teacher = pair["params"]
        assert own < of_teacher and 0.0 <= pair["tuned_top1"] <= 1.0


def test_first_and_last_losses():
    losses = [float(number) for number in range(20)]
    assert distill_images.ends(losses) == (0.5, 18.5)
    assert distill_images.ends([3.0]) == (3.0, 3.0)
    with pytest.raises(ValueError, match="mean"):
        distill_images.ends([])
