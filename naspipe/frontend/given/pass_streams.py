"""The stream of a run, with every pass of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, repeat

from naspipe.config.ids import SequenceId, StreamId, Subnet
from naspipe.config.space import Space
from naspipe.planning.cost import first_of_kind
from naspipe.runtime.jobs.losses import distilling
from naspipe.runtime.jobs.workload import Workload
from naspipe.runtime.sketching.layer_sizes import sketch
from naspipe.streams.passes import ProbingStrategy, in_passes, num_draws, trained_passes
from naspipe.streams.ports import Choices, ExplorationStrategy
from naspipe.streams.samplers import draw_subnets, iterate_subnets

_STEPS = 16


def draw_passes(workload: Workload) -> list[Choices]:
    """The choices of every pass, in sequence order; see :func:`naspipe.streams.passes.in_passes`.

    Raises:
        ConfigError: for a sampler that cannot be used, or a space or loss without a sandwich.
    """
    space, definition = workload.space, workload.definition
    count = num_draws(definition.recipe.steps, definition.steps)
    drawn = draw_subnets(definition.sampler, space, definition.seed, count)
    return _expanded(workload)(drawn)


def iterate_passes(workload: Workload) -> Iterator[Choices]:
    """The same, a few steps at a time and without an end; raises as :func:`draw_passes`."""
    space, definition = workload.space, workload.definition
    drawn = iterate_subnets(definition.sampler, space, definition.seed)
    count, expanded = num_draws(definition.recipe.steps, _STEPS), _expanded(workload)
    while some := list(islice(drawn, count)):
        yield from expanded(some)


def in_whole_steps(workload: Workload, drawn: Sequence[Choices]) -> list[Choices]:
    """The passes of steps of these subnets, the last one repeated until its step is whole."""
    lacking = -len(drawn) % num_draws(workload.recipe.steps, 1)
    return _expanded(workload)([*drawn, *repeat(drawn[-1], lacking)])


def strategy_maker(workload: Workload) -> Callable[[], ExplorationStrategy] | None:
    """Makes what proposes the passes of a stream from losses; None where nothing does."""
    space, definition, steps = workload.space, workload.definition, workload.recipe.steps
    if not steps.probes:
        return workload.make_strategy
    expanded = _expanded(workload, trained_passes)
    return lambda: ProbingStrategy(
        iterate_subnets(definition.sampler, space, definition.seed), steps, expanded
    )


def filled(
    workload: Workload, stream: StreamId, first: int, passes: Iterable[Choices]
) -> Iterator[Subnet]:
    """The subnets of passes from sequence ID ``first`` on; one that nobody needs is empty."""
    steps, left_out, space = workload.recipe.steps, workload.left_out, workload.space
    for y, choices in enumerate(passes, first):
        is_empty = steps.pass_of(y) in left_out
        chain = space.chain(choices)
        yield Subnet(stream, SequenceId(y), ()) if is_empty else space.subnet(stream, y, chain)


def _expanded(
    workload: Workload, expand: Callable[..., list[Choices]] = in_passes
) -> Callable[[Sequence[Choices]], list[Choices]]:
    """Makes the passes of whole steps from what was drawn for them."""
    space, steps = workload.space, workload.recipe.steps
    if steps.distills:
        distilling(workload.loss)
    sizes = parameter_counts(space)
    return lambda drawn: expand(drawn, steps, space, sizes)


def parameter_counts(space: Space) -> Callable[[int, int], int]:
    """The number of parameters by block of the chain and candidate, looked up when asked for."""
    twins, known = first_of_kind(space), dict[tuple[int, int], int]()

    def count(block: int, candidate: int) -> int:
        layer = twins[block], candidate
        if layer not in known:
            module = sketch(space, *layer)
            known[layer] = sum(parameter.numel() for parameter in module.parameters())
        return known[layer]

    return count
