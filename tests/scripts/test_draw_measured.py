"""What is drawn are the ratios that the benchmarks kept, each with its target."""

from __future__ import annotations

import json

from scripts.draw_measured import Row, draw, rows_of


def write(path, **found):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found))


def test_ratios_are_those_of_the_pairs(tmp_path):
    write(
        tmp_path / "scaling/nlp.c1.json",
        **{"uniform: speed of 2 over 1": {"values": [1.5, 1.7]}},
    )
    write(
        tmp_path / "scaling/one_stage_nlp.c1.json",
        **{"uniform: speed of 1 over plain": {"values": [0.9, 1.1]}},
    )
    write(
        tmp_path / "scaling/one_stage_cv.c3.json",
        **{"spaced:8: speed of 1 over plain": {"values": [1.0]}},
    )
    sides = {"left": {"steps_per_second": 4.0}, "right": {"steps_per_second": 3.0}}
    write(tmp_path / "residency/pairs.json", pairs=[sides])
    write(
        tmp_path / "faults/checkpoint_cost.json", samplers={"uniform": {"pairs": [{"cost": 0.25}]}}
    )
    assert rows_of(tmp_path) == [
        Row("two stages over one, nlp.c1 uniform", [1.5, 1.7]),
        Row("one stage over a plain loop, nlp.c1 uniform", [0.9, 1.1], 0.97),
        Row("one stage over a plain loop, cv.c3 spaced:8", [1.0], 0.97),
        Row("memory for 1.5 subnets over enough, nlp.c2", [0.75], 1 / 1.1),
        Row("checkpoints over none, nlp.c1 uniform", [0.75], 0.97),
    ]


def test_a_picture_is_drawn(tmp_path):
    draw([Row("one", [0.9, 1.0], 0.97), Row("two", [1.5])], tmp_path / "it.png")
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
