"""GroPipe's Figure 8: one step on 2 groups of 4 stages, its sums on the link, at three launches.

What the figure shows is a guess: a time line of micro-batches on the devices, with the reduction of
each partition beside the backwards of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from naspipe.config.ids import Access, AccessKind, LayerId
from naspipe.engine.builder import LAUNCHES
from naspipe.engine.events import COPY, LAYER, SUM, Parcel
from naspipe.plan.pipeline import plan_pipeline
from naspipe.plan.simulation import simulate_run
from scripts.paper import orders
from scripts.paper.common import Headline, Options, Result
from scripts.paper.figure14 import pushes
from scripts.paper.grouped import LinkCosts, Setting, layers_of, setting_of

NETWORK = "resnet50"
SHAPE = (2, 4)
MICRO_BATCHES = 4
"""Of each group; few, so that single ones can be seen."""
RATIO = 0.4
"""All layers' sums and copies on the link, over a device's mean work of a step."""
TITLES = {
    "layer": "behind each layer's last backward (reduction_launch=layer)",
    "partition": "behind each partition's last backward (partition), as GroPipe",
    "end": "behind all backwards of the group (end)",
}
WAITS, SENT, BACK, JOINED = PARCELS = (
    "sum waits for the link", "sum on the link", "copy back", "sum joined"
)  # fmt: skip
COLOURS = {
    "forward": "#9ecae1", "backward": "#2171b5", "next step": "#dddddd", WAITS: "#fdd49e",
    SENT: "#d7301f", JOINED: "#000000", BACK: "#41ab5d",
}  # fmt: skip
MS = 1e6


class Bar(NamedTuple):
    """Something on a device, or a parcel that left it; in nanoseconds."""

    stage: int
    kind: str
    number: int
    """Of the micro-batch in its step; of a parcel, the block."""
    start_ns: int
    end_ns: int


@dataclass(slots=True)
class WatchedLink(LinkCosts):
    """A link that notes what went over it."""

    bars: list[Bar] = field(default_factory=list)

    def push_ns(self, layer: LayerId, parcel: Parcel = LAYER) -> int:
        """The first group sends sums, the second copies."""
        now_ns, block = self.clock.now_ns, layer.block
        took_ns = LinkCosts.push_ns(self, layer, parcel)
        own = sum(bound <= block for bound in self.cut.bounds[1:-1])
        begin_ns, end_ns = now_ns + took_ns - self.push[block], now_ns + took_ns
        if parcel == SUM:
            self.bars.append(Bar(own, WAITS, block, now_ns, begin_ns))
            self.bars.append(Bar(own, SENT, block, begin_ns, end_ns))
        elif parcel == COPY:
            self.bars.append(Bar(own + SHAPE[1], BACK, block, begin_ns, end_ns))
        return took_ns


class Step(NamedTuple):
    """The first step of a run."""

    accesses: list[Access]
    """Of the next step, too."""
    parcels: list[Bar]
    passes: int

    @property
    def own(self) -> list[Access]:
        """Its own accesses."""
        return [access for access in self.accesses if access.sequence_id < self.passes]

    @property
    def backward_ns(self) -> int:
        """When the last backward was over."""
        return max(each.end_ns for each in self.own if each.kind is AccessKind.BACKWARD)

    @property
    def end_ns(self) -> int:
        """When the last copy for the next step had come."""
        return max(bar.end_ns for bar in self.parcels)


def step_of(setting: Setting, push: tuple[int, ...], launch: str) -> Step:
    """A step whose forwards go first where they are ready, by naspipe's own controllers."""
    orders.register()
    execution = setting.execution.changed(order="gpipe", reduction_launch=launch)
    pipeline, _ = setting.planned()
    plan = plan_pipeline(pipeline, execution)
    link = WatchedLink(setting.table, setting.cut, setting.outputs, push, setting.fixed_ns)
    run = simulate_run(pipeline, plan, execution, link, link.clock)
    accesses = sorted(run.accesses, key=lambda access: access.start_ns)
    parcels = []
    for kind in PARCELS:  # each block has one of a kind in a step
        of_kind = [bar for bar in link.bars if bar.kind == kind]
        parcels += of_kind[: len(push)]
    return Step(accesses, parcels, pipeline.steps.passes)


def bars_of(step: Step, until_ns: int) -> list[Bar]:
    """All that is drawn of a step, and of the next one until some moment."""
    joins = [
        Bar(each.stage, JOINED, each.layer.block, each.start_ns, each.start_ns)
        for each in step.own
        if each.kind is AccessKind.WRITE and each.sequence_id == step.passes // 2
    ]
    return tasks(step.accesses, step.passes, until_ns) + step.parcels + joins


def tasks(accesses: Sequence[Access], passes: int, until_ns: int) -> list[Bar]:
    """A bar for each forward and backward on a stage."""
    spans: dict[tuple[int, str, int], tuple[int, int]] = {}
    for access in accesses:
        if access.kind is AccessKind.WRITE or access.start_ns >= until_ns:
            continue
        is_next = access.sequence_id >= passes
        kind = "next step" if is_next else access.kind.name.lower()
        key = (access.stage, kind, access.sequence_id % passes)
        start_ns, end_ns = spans.get(key, (access.start_ns, 0))
        spans[key] = (start_ns, max(end_ns, min(access.end_ns, until_ns)))
    return [Bar(*key, *span) for key, span in spans.items()]


def run(options: Options) -> Result:
    """The same step at each launch."""
    setting, layers = setting_of(NETWORK, SHAPE, MICRO_BATCHES), layers_of(NETWORK)
    push = pushes(setting, layers, RATIO)
    steps = {launch: step_of(setting, push, launch) for launch in LAUNCHES}
    until_ns = max(step.end_ns for step in steps.values())
    bars = {launch: [list(bar) for bar in bars_of(s, until_ns)] for launch, s in steps.items()}
    rows = [row_of(launch, each) for launch, each in steps.items()]
    return Result(
        experiment="figure8",
        title=f"GroPipe's Figure 8: one step of {NETWORK} on 2 groups of 4 stages",
        kind="simulated",
        rows=rows,
        headlines=headlines(rows),
        differs=DIFFERS,
        settings={
            "network": NETWORK, "shape": list(SHAPE), "micro_batches": MICRO_BATCHES,
            "reduction": RATIO, "order": "gpipe",
        },
        extra={"bars": bars},
        holds=not faults(rows),
    )  # fmt: skip


DIFFERS = (
    "what Figure 8 shows is guessed, as its drawing was not at hand: from GroPipe's text alone, "
    "micro-batches on devices, and reductions that begin behind partitions. Network, micro-batches "
    "and the length of the reductions are chosen here. A forward goes before a backward where both "
    "are ready; GPipe holds all backwards back until the forwards are through. GroPipe adds up "
    "with an all-reduce among equals; here the first group's sums go to the second one, which "
    "takes the optimizer step and sends the parameters back, over one link that all devices share"
)


def row_of(launch: str, step: Step) -> dict[str, Any]:
    """When sums left, and how much of them was on the link before the last backward was over."""
    waits, sums, copies = (
        [bar for bar in step.parcels if bar.kind == kind] for kind in (WAITS, SENT, BACK)
    )
    backward_ns = step.backward_ns
    hidden_ns = sum(max(0, min(bar.end_ns, backward_ns) - bar.start_ns) for bar in sums)
    return {
        "launch": launch,
        "first_sum_leaves_ms": min(bar.start_ns for bar in waits) / MS,
        "last_backward_ms": backward_ns / MS,
        "last_sum_comes_ms": max(bar.end_ns for bar in sums) / MS,
        "last_copy_comes_ms": max(bar.end_ns for bar in copies) / MS,
        "next_step_ends_ms": max(each.end_ns for each in step.accesses) / MS,
        "hidden": hidden_ns / sum(bar.end_ns - bar.start_ns for bar in sums),
    }


def faults(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What must be so and is not."""
    found = []
    for column in ("first_sum_leaves_ms", "last_sum_comes_ms", "last_copy_comes_ms",
                   "next_step_ends_ms"):  # fmt: skip
        values = [row[column] for row in rows]
        if values != sorted(values):
            found.append(f"{column} does not rise with later launches")
    if rows[-1]["first_sum_leaves_ms"] < rows[-1]["last_backward_ms"] - 1e-3:
        found.append("at the end, a sum leaves before the last backward is over")
    if rows[0]["hidden"] <= rows[1]["hidden"]:
        found.append("behind layers no more is hidden than behind partitions")
    return found


def headlines(rows: Sequence[dict[str, Any]]) -> list[Headline]:
    """How much of the sums each launch hides."""
    found = [
        Headline(
            f"sums beside backwards, {row['launch']}; the next step ends",
            f"{row['hidden']:.0%}; {row['next_step_ends_ms']:.0f} ms",
            "-",
        )
        for row in rows
    ]
    if wrong := faults(rows):
        found.append(Headline("not so", "; ".join(wrong), "-"))
    return found


def draw(result: Result, figure: Any) -> None:
    """A panel for each launch: a lane for each stage, and under it what left the stage."""
    figure.set_size_inches(14, 13)
    panels = figure.subplots(len(TITLES), 1, sharex=True)
    groups, stages = SHAPE
    for axis, row in zip(panels, result.rows, strict=True):
        for bar in (Bar(*each) for each in result.extra["bars"][row["launch"]]):
            draw_bar(axis, bar)
        axis.axvline(row["last_backward_ms"], color="#444444", ls=":", lw=1.2)
        axis.set_title(
            f"sums leave {TITLES[row['launch']]}: {row['hidden']:.0%} of them beside backwards",
            loc="left", fontsize="medium",
        )  # fmt: skip
        names = [
            f"group {group}, stage {stage}" for group in range(groups) for stage in range(stages)
        ]
        axis.set_yticks(range(groups * stages), names, fontsize="small")
        axis.axhline(stages - 0.47, color="black", lw=0.6)
        axis.set_ylim(groups * stages - 0.4, -0.5)
    panels[-1].set_xlabel("ms; dotted: the last backward of the step is over")
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize="small")


def draw_bar(axis: Any, bar: Bar) -> None:
    """Tasks above with their number, parcels in a strip below, joins as a mark."""
    start, width = bar.start_ns / MS, (bar.end_ns - bar.start_ns) / MS
    colour = COLOURS[bar.kind]
    if bar.kind in ("forward", "backward", "next step"):
        axis.barh(bar.stage - 0.12, width, 0.5, start, color=colour, ec="white", lw=0.6)
        if bar.kind != "next step":
            ink = "black" if bar.kind == "forward" else "white"
            axis.text(start + width / 2, bar.stage - 0.1, str(bar.number), ha="center",
                      va="center", fontsize=7, color=ink)  # fmt: skip
    elif bar.kind == JOINED:
        axis.plot([start], [bar.stage + 0.28], "|", color=colour, ms=7, mew=1, zorder=4)
    else:
        above = 2 if bar.kind == WAITS else 3
        axis.barh(bar.stage + 0.28, width, 0.24, start, color=colour, ec="none", zorder=above)
