"""Spaces and data of a user's own that cannot be used: see ``test_bad_input``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.refusals import MODULE, Refusal, expect


@pytest.mark.parametrize(
    ("space", "pieces"),
    [
        (f"{MODULE}:nowhere", ("expected module:attribute", "no attribute 'nowhere'")),
        ("no_such_module:space", ("expected module:attribute", "No module named")),
        (f"{MODULE}:number", ("expected a naspipe.Space, found int",)),
        (f"{MODULE}:make", ("found function; call it in the module, space = make(...), and name",)),
        (f"{MODULE}:", ("expected module:attribute",)),
        (f"{MODULE}:tied", ("layers a and b share one parameter", "make its own")),
        (f"{MODULE}:no_module", ("layer stem: expected", "torch.nn.Module, found int")),
        (":space", ("expected module:attribute",)),
        ("broken_module:space", ("broken_module",)),
        ("raising_module:space", ("raising_module",)),
        (f"{MODULE}:broken_factory", ("layer stem",)),
        (f"{MODULE}:lagging_norm", ("stem", "lag")),
        (f"{MODULE}:no_candidate", ("layer 0.0", "found int")),
    ],
)
def test_spaces_of_ones_own(
    refused: Refusal, place: Path, space: str, pieces: tuple[str, ...]
) -> None:
    (place / "broken_module.py").write_text("def f(:\n")
    (place / "raising_module.py").write_text("1 / 0\n")
    expect(refused(space, "--data", f"{MODULE}:data", "--steps", "3"), *pieces)


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        ("no_target", ("expected a tensor called 'target'", "found input")),
        ("number", ("expected a function of (seed, sequence_id)",)),
        ("nowhere", ("expected module:attribute", "no attribute 'nowhere'")),
        ("no_batch", ("list",)),
        ("nothing", ("NoneType",)),
        ("no_arguments", ("no_arguments",)),
        ("raises", ("no such row",)),
        ("loader", ("found a DataLoader", "npp.from_dataset(loader.dataset, batch_size=3, shuf")),
        ("fresh", ("expected the same batch whenever data(0, 0) is called", "'input'")),
    ],
)
def test_data_of_ones_own(refused: Refusal, data: str, pieces: tuple[str, ...]) -> None:
    line = refused(f"{MODULE}:space", "--data", f"{MODULE}:{data}", "--steps", "3")
    expect(line, *pieces)


def test_a_space_of_ones_own_without_data(refused: Refusal) -> None:
    line = refused(f"{MODULE}:space", "--steps", "3")
    expect(line, "needs --data module:function", "naspipe data list")
