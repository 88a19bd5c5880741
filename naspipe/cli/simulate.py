"""Simulate the schedule of a training run on a virtual clock, without training anything.

The stage controllers are the same as in `naspipe train`, so the order of tasks is that of a real
run whose layers take the given times.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from naspipe.cli.data import add_data_place
from naspipe.cli.options import add_flags, add_options, flags, given
from naspipe.cli.output import add_json
from naspipe.config.definition import Definition
from naspipe.config.execution import Execution

if TYPE_CHECKING:
    from naspipe.api.simulate import Scenario
    from naspipe.plan.simulation import Outcome

_EXAMPLE = """\
examples:
  naspipe simulate nlp.c1 --stages 4 --costs table5             the paper's costs, no data needed
  naspipe simulate nlp.c1 --stages 2 --sampler spaced:8         costs measured on this machine
  naspipe simulate nlp.c3 --stages 8 --costs table5 --memory-budget 3x --run-dir runs/eight
  naspipe simulate --like runs/two                              a real run next to its simulation

bubble: fraction of time that the stages are idle, after the first tenth of the subnets
bound: lowest bubble ratio that any schedule of this stream can have on this number of stages
costs: profiled (measured on this machine, and cached) or table5 (NASPipe's Table 5, with recompute)
A run directory written with --run-dir has an access log like that of a real run, for `naspipe log`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLE
    add_options(
        parser,
        """
        space SPACE?  name of a space, or MODULE:ATTRIBUTE
        --like RUN    simulate a recorded run instead of a space
        """,
    )
    add_flags(parser, flags(Definition, "steps", "sampler", "policy", "bulk"), {"steps": 300})
    add_flags(parser, flags(Execution, "stages", "memory_budget"), {"stages": 4})
    add_scenario_arguments(parser)
    add_options(
        parser,
        """
        --streams K [1]  number of runs that share the stages
        --run-dir DIR    directory for the access log
        """,
    )


def add_scenario_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the source of a space's costs; `naspipe plan` has the same options."""
    add_options(
        parser,
        """
        --costs [profiled]  source of the costs: profiled or table5
        --scale [tiny]      scale of a named space, for profiled costs: tiny, small or paper
        """,
    )
    add_flags(parser, flags(Definition, "seed"), {})
    add_flags(parser, flags(Execution, "order", "partition", "recompute"), {})
    add_options(
        parser,
        """
        --no-shared  leave out shared layers (only with table5 costs)
        --data NAME  name of a data set, or MODULE:FUNCTION
        """,
    )
    add_data_place(parser)
    add_json(parser, "text")
    add_options(parser, "--set KEY=VALUE...  any setting, as for naspipe train")


def run(arguments: argparse.Namespace) -> int:
    """Simulate and print the metrics; return the exit status."""
    from naspipe.api.simulate import write_simulated
    from naspipe.config.errors import ConfigError
    from naspipe.plan.pipeline import as_planned
    from naspipe.plan.simulation import bound_of, outcome_of
    from naspipe.store.run_directory import stream_directories

    if (arguments.space is None) == (arguments.like is None):
        raise ConfigError(
            "expected a space, or --like with a run directory; see naspipe simulate --help"
        )
    if arguments.like is not None:
        return _imitate(arguments)
    scenario, execution = open_scenario(arguments)
    scenario = scenario.on_workers(execution.workers)
    pipeline = scenario.pipeline(
        arguments.sampler,
        arguments.seed,
        arguments.steps,
        streams=arguments.streams,
        policy=arguments.policy,
        bulk=arguments.bulk or execution.pipeline.stages,
    )
    directories = []
    if arguments.run_dir is not None:
        directories = stream_directories(arguments.run_dir, arguments.streams)
    for directory in directories:
        directory.check_new()
    simulated = scenario.run(pipeline, execution)
    outcome = outcome_of(simulated, pipeline, bound_of(as_planned(pipeline, simulated.plan)))
    keys = ("seed", "steps", "sampler", "policy", "streams")
    definition = {
        "space": scenario.space.name,
        "costs": scenario.costs_from,
        **{key: getattr(arguments, key) for key in keys},
    }
    for number, directory in enumerate(directories):
        write_simulated(
            directory,
            scenario.space,
            pipeline.streams[number],
            simulated,
            execution,
            outcome,
            {**definition, "seed": arguments.seed + number},
        )
    if arguments.json:
        print(json.dumps({**definition, **outcome.as_dict()}, indent=1))
    else:
        _print(outcome)
    return 0


def open_scenario(arguments: argparse.Namespace, **execution: Any) -> tuple[Scenario, Execution]:
    """Return the scenario and the execution for a command line."""
    from naspipe.api import simulate as scenario
    from naspipe.config.definition import Settings, apply_settings
    from naspipe.config.errors import ConfigError

    how = Execution(**given(Execution, arguments), **execution)
    if arguments.costs not in scenario.COSTS:
        raise ConfigError(
            f"--costs {arguments.costs!r:.80}: expected {' or '.join(scenario.COSTS)}"
        )
    if arguments.costs == "table5":
        settings = apply_settings(Settings(execution=how), arguments.set)
        space = scenario.table5_scenario(
            arguments.space,
            with_shared=not arguments.no_shared,
            recipe=settings.recipe,
            rules=settings.rules,
        )
        return space, settings.execution.changed(recompute=True)
    from naspipe.inputs.named import find_measurable  # needs torch

    if arguments.no_shared:
        raise ConfigError("--no-shared: expected --costs table5, as a real run has shared layers")
    workload, how = find_measurable(
        arguments.space, arguments.scale, arguments.data, arguments.data_dir, how, arguments.set
    )
    return scenario.profiled_scenario(workload, how), how


def _print(outcome: Outcome) -> None:
    rows = {
        "subnets per second": f"{outcome.passes_per_second:.3f}",
        "bubble ratio": f"{outcome.bubble_ratio:.3f}",
        "causal bound": f"{outcome.bound:.3f}",
        "above the bound": f"{outcome.distance:+.3f}",
        "cache hit rate": f"{outcome.hit_rate:.1%}",
        "stalled": f"{outcome.stall_ratio:.2%}",
        "order": outcome.order,
        "subnets under way": f"at most {outcome.window}",
    }
    for stage, use in enumerate(outcome.uses):
        layers = f", layers {use.layer_bytes / 2**20:.1f} MiB" if use.layer_bytes else ""
        held = f", activations {use.activation_bytes / 2**20:.1f} MiB"
        held = held if use.activation_bytes else ""
        rows[f"stage {stage}"] = f"busy {use.busy:.1%}{layers}{held}"
    for name, value in rows.items():
        print(f"{name:20} {value}")


def _imitate(arguments: argparse.Namespace) -> int:
    """Print a recorded run next to its simulation."""
    from naspipe.api.simulate import simulate_again

    fidelity = simulate_again(arguments.like)
    if arguments.json:
        print(json.dumps(fidelity.as_dict(), indent=1))
        return 0
    rows = [
        ("bubble, real", f"{fidelity.real_bubble:.3f}"),
        ("bubble, simulated", f"{fidelity.simulated_bubble:.3f}"),
        ("difference", f"{fidelity.bubble_error:+.3f}"),
        ("seconds, real", f"{fidelity.real_seconds:.3f}"),
        ("seconds, simulated", f"{fidelity.simulated_seconds:.3f}"),
        ("tasks", str(fidelity.tasks)),
        ("neighbours in order", f"{fidelity.order_agreement:.1%}"),
        ("median start apart", f"{fidelity.start_deviation:.2%} of the run"),
    ]
    for name, value in rows:
        print(f"{name:20} {value}")
    return 0
