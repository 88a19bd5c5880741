"""A keyword with one letter too many is refused in a line that names the one that was meant."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

import naspipe as npp
from naspipe.config.errors import ConfigError
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.settings import declared
from naspipe.config.text import knows_keywords

CALLS = (
    npp.Block, npp.Elastic, npp.Shared, npp.Space, npp.Lag, npp.Every, npp.Views, npp.Teacher,
    npp.Momentum,
    npp.chain, npp.open_run, npp.from_dataset, npp.export_subnet, npp.export_blocks, npp.to_nni,
    npp.validate_blocks, npp.train_together, npp.write_labels, npp.rate_blocks, npp.combine_blocks,
    npp.to_wandb, npp.to_mlflow, npp.from_nni, npp.compare_runs,
)  # fmt: skip
TAKES_MORE = {
    npp.train: (*declared(Recipe), *declared(Execution)),
    npp.workload: declared(Recipe),
    npp.search_subnets: declared(Execution),
    npp.retrain_subnets: declared(Execution),
}
"""Those that take settings, too, and which."""


def own(call):
    """What a call names itself."""
    parameters = inspect.signature(call).parameters.values()
    return [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_every_keyword_of_a_call(call):
    assert own(call)
    for key in own(call):
        with pytest.raises(ConfigError, match=rf"keyword {key}x \(did you mean {key}\?\)") as found:
            call(**{f"{key}x": 1})
        assert "\n" not in str(found.value)


@pytest.mark.parametrize(("call", "settings"), TAKES_MORE.items(), ids=lambda each: str(each)[:20])
def test_every_keyword_of_what_takes_settings(call, settings):
    how = {} if "steps" not in own(call) else {"steps": 1}
    for key in {*own(call), *settings}:
        with pytest.raises(ConfigError, match=rf"^{key}x: .*did you mean {key}\?"):
            call(npp.Space("one", [npp.Shared("a", list)]), dict, len, **how, **{f"{key}x": 1})


@pytest.mark.parametrize(("given", "said"), [
    ({"predict": True}, r"did you mean predicts\?\); write subnets=..., predicts=True; expected"),
    ({"predict": object(), "subnets": 1}, r"\(did you mean predicts\?\); write predicts=...; exp"),
])  # fmt: skip
def test_what_to_write(given, said):
    with pytest.raises(ConfigError, match=said):
        npp.Lag(**given)


def test_all_that_is_handed_out_is_tried():
    of_settings = {*TAKES_MORE, npp.Execution}
    known = {each for each in CALLS if callable(each)} | of_settings
    names = [name for name in npp.__all__ if callable(getattr(npp, name))]
    with_arguments = {name for name in names if not issubclass_of_error(getattr(npp, name))}
    left = {
        "Exact",
        "Frozen",
        "Observer",
        "Run",
        "Blockwise",
    }  # without arguments, or not made by users
    left |= {"distill_blockwise"}  # whose further keywords are those of workload
    assert {getattr(npp, name) for name in with_arguments - left} == known


def issubclass_of_error(kind):
    return isinstance(kind, type) and issubclass(kind, Exception)


def test_a_class_is_what_it_was():
    @knows_keywords
    class Point:
        """Two numbers."""

        def __init__(self, x, *, y=0):
            self.x, self.y = x, y

    assert (Point(1, y=2).x, Point(1, y=2).y, Point.__doc__) == (1, 2, "Two numbers.")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()
    assert replace(npp.Lag(2), momentum=0.5) == npp.Lag(2, momentum=0.5) != npp.Lag(2)
