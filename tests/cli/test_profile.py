"""``naspipe profile``: the table, the JSON, what is kept, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from naspipe.cli import main as cli
from naspipe.cli.profile import summarize_kinds
from naspipe.config.blocks import Block, Shared
from naspipe.config.space import Space
from naspipe.plan.costs import CostTable, LayerCost, LayerSize, SizeTable
from naspipe.profiling import profiler
from tests.cli.refusals import MODULE

MINE = (f"{MODULE}:space", "--data", f"{MODULE}:data")


@pytest.fixture(autouse=True)
def _own_cache(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert cli.main(["profile", *words]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_a_table_and_where_it_is_kept(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, *MINE)
    rows = {line.split()[0]: line.split() for line in out.splitlines() if " of " in line}
    assert rows.pop("whole:")[1:3] == ["0.1:", "no"]
    assert list(rows) == ["stem", "block", "head"]
    assert rows["stem"][1:4] == ["1", "of", "1"] and rows["block"][1:5] == ["0", "2", "of", "2"]
    (kept,) = (place / "cache" / "naspipe" / "profiles").iterdir()
    assert f"measured now, kept in {kept}" in out
    again = run(capsys, *MINE)
    assert f"read from {kept}; --fresh" in again
    table, again = (text.rpartition("\n \n")[0] for text in (out, again))
    assert table == again


def test_fresh_measures_anew(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *MINE)
    (kept,) = (place / "cache" / "naspipe" / "profiles").iterdir()
    record = json.loads(kept.read_text())
    record["layers"]["0"][0][1] = 10**15
    kept.write_text(json.dumps(record))
    assert "1000000000" in run(capsys, *MINE)
    assert "1000000000" not in run(capsys, *MINE, "--fresh")
    assert "1000000000" not in run(capsys, *MINE)


def test_json_has_every_layer(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, *MINE, "--json", "--set", "optimizer=Adam"))
    assert (found["space"], found["recompute"], found["cache"]["state"]) == ("mine", False, "kept")
    kinds = {kind["kind"]: kind for kind in found["kinds"]}
    assert list(kinds) == ["stem", "block 0", "head"]
    linear, identity = kinds["block 0"]["layers"]
    assert (linear["candidate"], linear["parameter_bytes"], linear["state_bytes"]) == (
        0,
        1024,
        3072,
    )
    assert (identity["candidate"], identity["state_bytes"]) == (1, 0)
    assert linear["activation_bytes"] == identity["activation_bytes"] == 6 * 8 * 4
    assert linear["forward_ns"] > 0 and not linear["writes_forward"]
    again = json.loads(run(capsys, *MINE, "--json", "--set", "optimizer=Adam"))
    assert again["kinds"] == found["kinds"] and again["cache"]["state"] == "read"


def test_recompute_is_another_profile(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--recompute",), ("--set", "recompute=true")):
        run(capsys, *MINE, *words)
    assert len([*(place / "cache" / "naspipe" / "profiles").iterdir()]) == 2


def test_a_cache_that_cannot_be_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "cache").write_text("a file")
    out = run(capsys, *MINE)
    assert f"measured now; {place / 'cache'}" in out and "cannot be written" in out


def test_a_space_of_naspipes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "MAX_ROUNDS", profiler.MIN_ROUNDS)
    out = run(capsys, "cv.c3", "--data", "digits")
    assert "32 blocks" in out and "12 of 12" in out
    assert max(map(len, out.splitlines()[:-1])) <= 120


@pytest.mark.parametrize(
    ("words", "piece"),
    [
        (("cv.c9",), "unknown search space 'cv.c9'"),
        (("cv.c3", "--data", "digits", "--scale", "huge"), "unknown scale 'huge'"),
        (("cv.c3", "--data", "digit"), "data set 'digit'"),
        ((f"{MODULE}:space",), "needs --data module:function"),
        ((f"{MODULE}:tied", "--data", f"{MODULE}:data"), "share one parameter"),
        ((f"{MODULE}:no_module", "--data", f"{MODULE}:data"), "torch.nn.Module, found int"),
        ((f"{MODULE}:space", "--data", f"{MODULE}:no_target"), "a tensor called 'target'"),
        ((*MINE, "--set", "optimizer=LBFGS"), "does not work per layer"),
        ((*MINE, "--set", "lr=fast"), "expected a number"),
        ((*MINE, "--set", "rule.tail=exact"), "no shared layer 'tail'"),
        ((*MINE, "--stages", "2"), "unrecognized arguments"),
        (("bad_shapes:space", "--data", f"{MODULE}:data"), "layers, data and a loss that compute"),
        (("bad_second:space", "--data", f"{MODULE}:data"), "ZeroDivisionError"),
    ],
)
def test_what_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], piece: str
) -> None:
    start = "import naspipe as npp\nfrom torch import nn\nspace = npp.Space('bad', ["
    (place / "bad_shapes.py").write_text(f"{start}npp.Block([lambda: nn.Linear(5, 4)])])\n")
    (place / "bad_second.py").write_text(f"{start}npp.Block([nn.Identity, lambda: 1 / 0])])\n")
    assert cli.main(["profile", *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1, output.err
    assert output.err.startswith("naspipe: ") and piece in output.err
    assert not (place / "cache").exists()


def test_help_has_an_example_and_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["profile", "--help"])
    assert caught.value.code == 0
    assert "naspipe profile nlp.c1" in capsys.readouterr().out


def test_kinds_by_hand() -> None:
    two = [int, int]
    space = Space(
        "s", [Shared("stem", int), Block(two, kind="k"), Block(two), Block(two, kind="k")]
    )
    size = LayerSize(512, 512, False)
    sizes = SizeTable((0, 1, 2, 1), {0: (size,), 1: (size, size), 2: (size, size)})
    cost = LayerCost(1, 2, 3)
    costs = CostTable({(0, 0): cost, (1, 1): cost, (2, 0): cost, (2, 1): cost, (3, 1): cost})
    kinds = summarize_kinds(space, costs, sizes)
    assert [(kind.name, kind.blocks, sorted(kind.costs)) for kind in kinds] == [
        ("stem", ("stem",), [0]),
        ("k", ("0", "2"), [1]),
        ("block 1", ("1",), [0, 1]),
    ]
    assert math.prod(len(kind.sizes) for kind in kinds) == 4


def test_what_stays_whole_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "hooked.py").write_text(
        "import naspipe as npp\n"
        "from torch import nn\n"
        "class Hooked(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        y = super().forward(x)\n"
        "        y.register_hook(lambda gradient: gradient)\n"
        "        return y\n"
        "linear = lambda: nn.Linear(8, 8)\n"
        "hooked = [linear, *[lambda: Hooked(8, 8)] * 5]\n"
        "space = npp.Space('hooked', [npp.Block([linear]), npp.Block(hooked),\n"
        "    npp.Block([lambda: nn.LayerNorm(8)]), npp.Block([lambda: nn.Linear(8, 4)])])\n"
    )
    words = ("hooked:space", "--data", f"{MODULE}:data")
    for _ in range(2):
        out = run(capsys, *words)
        lines = out.splitlines()
        assert "whole: 1.1, 1.2, 1.3 and 2 more: its forward puts a hook on a tensor" in lines
        assert "whole: 2.0: no weight of it can be left for later" in lines
        assert any(line.split()[-8:].count("whole") == 2 for line in lines if "block 2" in line)
        assert out.count("5 whole") == 2
    layers = json.loads(run(capsys, *words, "--json"))["kinds"][1]["layers"]
    assert [layer.get("whole") for layer in layers] == [
        None, *["its forward puts a hook on a tensor"] * 5
    ]  # fmt: skip
