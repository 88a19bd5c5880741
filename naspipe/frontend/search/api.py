"""``naspipe.search_subnets``: the best subnets of a run, by the scores of inherited weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from naspipe.config.definition import Execution
from naspipe.config.errors import ConfigError
from naspipe.config.settings import declared, groups
from naspipe.frontend.checks.loss_checks import check_is_loss
from naspipe.frontend.checks.made_of_checks import check_run_loss
from naspipe.frontend.display.search_progress import SearchProgress
from naspipe.frontend.given.held_out import judged_by
from naspipe.frontend.given.keywords import gathered
from naspipe.frontend.given.loss_layer import with_run_loss
from naspipe.frontend.given.run import Run
from naspipe.frontend.given.strategies import check_is_object, name_of
from naspipe.frontend.search.ports import SearchObserver
from naspipe.frontend.search.search_parts import title_of
from naspipe.frontend.search.search_record import SilentSearchObserver
from naspipe.frontend.search.searching import Searching
from naspipe.frontend.search.verifying_scores import note_verified
from naspipe.runtime.jobs.losses import Loss
from naspipe.runtime.jobs.workload import Batches
from naspipe.search.definition import SearchDefinition
from naspipe.search.limits import Limits
from naspipe.search.search_directory import Search
from naspipe.search.strategies import options_of


def search_subnets(
    run: Run, data: Batches, loss: Loss,
    *, held_out: Batches | None = None, strategy: str | Any = "evolution",
    options: Mapping[str, float] | None = None, budget: int = 100, seed: int = 0, delay: int = 8,
    score: str = "loss", calibrate: int = 4, validate: int | None = None,
    limits: Mapping[str, float] | None = None, ema: bool = False, stages: int | None = None,
    name: str = "", settings: Mapping[str, Any] | None = None,
    execution: Mapping[str, Any] | None = None, observer: SearchObserver | None = None,
    progress: bool = True, **more: Any,
) -> Search:  # fmt: skip
    """Judge subnets of a run with its weights; the same ones, bit for bit, on any number of stages.

    The search is written into the run's directory, as ``search-NAME``.

    Args:
        run: with a final checkpoint, or one on the way.
        data, loss: those of the run.
        held_out: ``held_out(seed, number)``, batches to judge by; ``data.validation`` by default.
        strategy: ``random``, ``evolution``, ``nni:NAME``, ``MODULE:FUNCTION``, or ``file:PATH``; or
            an object, of NNI's or with ``propose`` and ``observe``, which is used as it is.
        options: of the strategy, such as ``population``.
        budget: subnets to judge.
        seed: of the strategy's draws.
        delay: subnets from one to the first that is proposed with its score known.
        score: ``loss``, ``top1`` or ``top5``; ``synflow`` or ``naswot``, of the weights that layers
            begin with (Tanaka et al. 2020, Mellor et al. 2021); or a sum, as in ``loss+naswot``.
        calibrate: batches of ``data`` that running statistics are taken from; 0 for the run's own.
        validate: batches of ``held_out``; 8, or all where there are fewer; 0 for all.
        limits: ``flops`` (of one sample), ``params``, ``latency_ms``.
        ema: judge by the moving averages of the weights.
        stages, name: stage processes, 1 for this process; of the search, or the next number.
        settings: ``execution``, too; settings of :class:`naspipe.Execution` by keys.
        observer: told of every subnet, in place of progress on stderr.
        progress: False shows none.
        more: such settings as keywords, as in ``memory_budget="2x"``, and those of the strategy.

    Raises:
        ConfigError: for input that cannot be used.
        StageFailedError: when a layer, the data or the loss raises in any stage.
        VerificationError: with ``verify``, when the first or the best score has other bits than
            the plain network's.
    """
    check_is_loss(loss)
    check_is_object(strategy)
    given, strategy = strategy, name_of(strategy)
    said = {"keywords": {"stages": stages, **more}, "settings": settings, "execution": execution}
    chosen_options, how = _stated(strategy, options=options, **said)
    costs = gathered(Limits, [each.name for each in fields(Limits)], limits=limits)
    run = with_run_loss(run, loss)
    check_run_loss(run.directory, run.space, loss)
    chosen, count = judged_by(data, held_out, validate)
    definition = SearchDefinition(
        strategy=strategy, options=chosen_options, budget=budget, seed=seed, delay=delay,
        score=score, calibration=calibrate, validation=count, limits=Limits(**costs), ema=ema,
    )  # fmt: skip
    searching = Searching(
        run=run, data=data, held_out=chosen, loss=loss, definition=definition, name=name,
        execution=how, strategy=None if isinstance(given, str) else given,
        observer=observer or SilentSearchObserver(),
    )  # fmt: skip
    if observer is not None or not progress:
        return searching.start()
    return _shown(searching)


def _shown(searching: Searching) -> Search:
    """With progress on stderr."""
    asked = searching.definition
    title = title_of(searching.run.directory.path, asked, searching.held_out)
    with SearchProgress(title, asked.budget, asked.score) as shown:
        search = replace(searching, observer=shown).start()
        note_verified(search, shown)
        return search


def _stated(strategy: str, **said: Mapping[str, Any] | None) -> tuple[dict[str, Any], Execution]:
    """The options of the strategy and how stages work, from keywords and mappings together."""
    of_execution, of_strategy = [*declared(Execution), *groups(Execution)], options_of(strategy)
    if said["options"] and not of_strategy:
        raise ConfigError(f"strategy {strategy}: expected no options, found {said['options']}")
    given = gathered(search_subnets, [*of_execution, *of_strategy], **said)
    options = {key: value for key, value in given.items() if key not in of_execution}
    return options, Execution(**{key: given[key] for key in given.keys() - options.keys()})
