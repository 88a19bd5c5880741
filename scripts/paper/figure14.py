"""GroPipe's Figure 14: what its communication gains, as two effects apart.

One is to reduce once a step and not behind every micro-batch. The other is when a sum is sent:
at the end of all backwards, behind a partition's last one, or behind each layer's last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from naspipe.config.ids import StageId
from naspipe.engine.builder import LAUNCHES
from scripts.paper import published
from scripts.paper.common import Headline, Options, Result, mean
from scripts.paper.grouped import Layer, Setting, layers_of, setting_of
from scripts.paper.table6 import NETWORKS, span

SHAPES = ((4, 2), (2, 2), (2, 4))
RATIOS = (0.1, 0.25, 0.5)
"""All layers' sums and copies on the link, over a device's mean work of a step."""
MICRO_BATCHES = 8
PAPER_GAIN = 1.76
STRATEGIES = ("every_micro_batch", "at_the_end", "per_partition", "per_layer")
"""When sums go onto the link."""
SLOWER = (("every_micro_batch", "per_partition"), ("at_the_end", "per_partition"),
          ("per_partition", "per_layer"))  # fmt: skip
"""The first of two never makes a shorter step than the second."""


def run(options: Options) -> Result:
    """Every network, shape and ratio."""
    networks = [name for name in options.spaces or NETWORKS if name in NETWORKS]
    shapes = [s for s in SHAPES if not options.stages or s[1] in options.stages]
    rows = [
        row for network in networks for shape in shapes for row in rows_of(network, shape, RATIOS)
    ]
    return Result(
        experiment="figure14",
        title="GroPipe's Figure 14: gains of communication, 8 micro-batches a group",
        kind="simulated",
        rows=rows,
        headlines=headlines(rows),
        differs=DIFFERS,
        settings={"ratios": list(RATIOS), "micro_batches": MICRO_BATCHES},
        holds=not faults(rows),
    )


DIFFERS = (
    "GroPipe does not say what it compares itself with, nor how long its reductions take: the "
    "two effects are apart here, at three lengths; its 76 % is out of reach of the moment of the "
    "launch. The four strategies are a small model of events (GPipe's order, one link for all "
    "devices, first ready first sent, nobody waits for a sum before the step ends). The three "
    "moments are simulated too (reduction_launch), in naspipe's order, with its sums from group to "
    "group: there a next step may begin before all sums are through. So a launch at the end is "
    "even faster on 2x2 where the link is slow: the first stage's sums, which the next step needs "
    "first, then do not queue behind those of the last stage. Reducing behind every micro-batch "
    "costs little at 0.1, where the link has time for it; real reductions also take time of the "
    "devices, which is left out"
)


def rows_of(network: str, shape: tuple[int, int], ratios: Sequence[float]) -> list[dict[str, Any]]:
    """One network on one shape: the model of each strategy, and naspipe's own controllers."""
    setting, layers = setting_of(network, shape, MICRO_BATCHES), layers_of(network)
    alone_ns = setting.step_ns()
    rows = []
    for ratio in ratios:
        all_ns = ratio * work_ns(setting)
        push = pushes(setting, layers, ratio)
        simulated = {launch: setting.step_ns(push, launch) for launch in LAUNCHES}
        times = {name: model_ns(setting, layers, ratio, name) for name in STRATEGIES}
        rows.append(
            {
                "network": network,
                "groups": shape[0],
                "stages": shape[1],
                "reduction": ratio,
                **{name: ns / alone_ns for name, ns in times.items()},
                "simulated": simulated["layer"] / alone_ns,
                "simulated_partition": simulated["partition"] / alone_ns,
                "simulated_end": simulated["end"] / alone_ns,
                "once_a_step": times["every_micro_batch"] / times["per_partition"],
                "launch_per_partition": times["at_the_end"] / times["per_partition"],
                "launch_per_layer": times["at_the_end"] / times["per_layer"],
                "simulated_gain": (alone_ns + all_ns) / simulated["layer"],
                "simulated_launch": simulated["end"] / simulated["layer"],
            }
        )
    return rows


def work_ns(setting: Setting) -> float:
    """Mean work of a device in one step."""
    costs = [setting.table.of(block, 0) for block in range(len(setting.space))]
    mean_ns = sum(each.total_ns for each in costs) / setting.stages
    return setting.micro_batches * (mean_ns + setting.fixed_ns)


def shares(layers: Sequence[Layer]) -> list[float]:
    """Of each layer in the bytes of all."""
    total = sum(layer.parameter_bytes for layer in layers)
    return [layer.parameter_bytes / total for layer in layers]


def pushes(setting: Setting, layers: Sequence[Layer], ratio: float) -> tuple[int, ...]:
    """Nanoseconds of one sum or copy: each layer has groups - 1 of both in a step."""
    one_ns = ratio * work_ns(setting) / (2 * (setting.groups - 1))
    return tuple(round(one_ns * share) for share in shares(layers))


def model_ns(setting: Setting, layers: Sequence[Layer], ratio: float, strategy: str) -> float:
    """A step in GPipe's order whose reductions go one after the other over one link.

    A partition's reduction takes its share of the bytes, and a step ends with the last one.
    """
    cut, table = setting.cut, setting.table
    blocks = [cut.blocks(StageId(stage)) for stage in range(setting.stages)]
    fixed_ns = setting.fixed_ns / 2
    forward = [fixed_ns + sum(table.of(block, 0).forward_ns for block in own) for own in blocks]
    backward = [fixed_ns + sum(table.of(block, 0).backward_ns for block in own) for own in blocks]
    hops = [setting.outputs[own.stop - 1] for own in blocks[:-1]]
    ends = backward_ends(forward, backward, hops, setting.micro_batches)
    compute_ns, all_ns = ends[0][-1], ratio * work_ns(setting)
    part = shares(layers)
    sent: list[tuple[float, float]] = []
    for stage, own in enumerate(blocks):
        own_ns = all_ns * sum(part[block] for block in own)
        if strategy == "every_micro_batch":
            sent += [(end, own_ns) for end in ends[stage]]
        elif strategy == "at_the_end":
            sent.append((compute_ns, own_ns))
        elif strategy == "per_partition":
            sent.append((ends[stage][-1], own_ns))
        else:
            ready_ns = ends[stage][-1] - backward[stage]
            for block in reversed(own):
                ready_ns += table.of(block, 0).backward_ns
                sent.append((ready_ns, all_ns * part[block]))
    return max(compute_ns, link_end(sent))


def backward_ends(
    forward: Sequence[float],
    backward: Sequence[float],
    hops: Sequence[float],
    micro_batches: int,
) -> list[list[float]]:
    """When each stage is through each of its backwards: all forwards first, as GPipe does.

    Args:
        forward: of one micro-batch, by stage.
        backward: the same.
        hops: from each stage but the last to the next, and back.
        micro_batches: how many.
    """
    free = [0.0] * len(forward)
    for _ in range(micro_batches):
        arrived = 0.0
        for stage, cost in enumerate(forward):
            free[stage] = max(free[stage], arrived) + cost
            arrived = free[stage] + (hops[stage] if stage < len(hops) else 0)
    ends: list[list[float]] = [[] for _ in forward]
    for _ in range(micro_batches):
        arrived = 0.0
        for stage in reversed(range(len(backward))):
            free[stage] = max(free[stage], arrived) + backward[stage]
            arrived = free[stage] + (hops[stage - 1] if stage else 0)
            ends[stage].append(free[stage])
    return ends


def link_end(sent: Sequence[tuple[float, float]]) -> float:
    """When the last message is through: first ready, first sent."""
    free = 0.0
    for ready, duration in sorted(sent):
        free = max(free, ready) + duration
    return free


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What must be so and is not."""
    found = []
    for row in rows:
        name = f"{row['network']} {row['groups']}x{row['stages']} {row['reduction']}"
        if any(row[slow] < row[fast] - 1e-9 for slow, fast in SLOWER):
            found.append(f"{name}: strategies are out of order")
        if not row["simulated"] <= row["simulated_partition"] * (1 + 1e-3):
            found.append(f"{name}: simulated, a launch behind partitions is faster")
        if not 1 - 1e-3 <= row["simulated"] <= 1 + row["reduction"]:
            found.append(f"{name}: simulated, a step takes {row['simulated']:.3f}")
        if row["launch_per_layer"] >= PAPER_GAIN:
            found.append(f"{name}: the moment of the launch alone gains {PAPER_GAIN}")
    for stages in {row["stages"] for row in rows}:
        most = max(row["once_a_step"] for row in rows if row["stages"] == stages)
        if most < PAPER_GAIN:
            found.append(f"{stages} stages: once a step gains {most:.2f} at most")
    gains = mean_gains(rows, "launch_per_partition")
    if (2, 2) in gains and (2, 4) in gains and gains[2, 4] <= gains[2, 2]:
        found.append("launching behind a partition does not gain more with more stages")
    return found


def mean_gains(rows: list[dict[str, Any]], column: str) -> dict[tuple[int, int], float]:
    """Over networks and ratios, by shape."""
    shapes = dict.fromkeys((row["groups"], row["stages"]) for row in rows)
    return {
        shape: mean([r[column] for r in rows if (r["groups"], r["stages"]) == shape])
        for shape in shapes
    }


def headlines(rows: list[dict[str, Any]]) -> list[Headline]:
    """Each effect by shape."""
    found = []
    for groups, stages in dict.fromkeys((row["groups"], row["stages"]) for row in rows):
        some = [r for r in rows if (r["groups"], r["stages"]) == (groups, stages)]
        for column, what in (
            ("once_a_step", "once a step over every micro-batch"),
            ("launch_per_partition", "launch behind partitions over at the end"),
            ("launch_per_layer", "launch behind layers over at the end"),
            ("simulated_gain", "behind layers over no overlap, naspipe's controllers"),
            ("simulated_launch", "behind layers over at the end, naspipe's controllers"),
        ):
            paper = f"GroPipe: {published.GROPIPE_COMMUNICATION}" if not found else "-"
            ours = span(row[column] for row in some)
            found.append(Headline(f"{groups}x{stages}: {what}", ours, paper))
    if wrong := faults(rows):
        found.append(Headline("not so", "; ".join(wrong), "-"))
    return found


def draw(result: Result, figure: Any) -> None:
    """The mean over networks of both effects, by ratio and shape."""
    figure.set_size_inches(16, 4.4)
    rows = list(result.rows)
    shapes = list(dict.fromkeys((row["groups"], row["stages"]) for row in rows))
    ratios = sorted({row["reduction"] for row in rows})
    axes = figure.subplots(1, 4)
    panels = (
        (axes[0], "once_a_step", "once a step /\nbehind every micro-batch"),
        (axes[1], "launch_per_partition", "launch behind partitions /\nat the end"),
        (axes[2], "launch_per_layer", "launch behind layers /\nat the end"),
        (axes[3], "simulated_launch", "behind layers / at the end,\nnaspipe's controllers"),
    )
    for axis, column, title in panels:
        for number, shape in enumerate(shapes):
            lines = [
                [r[column] for r in rows
                 if (r["groups"], r["stages"], r["reduction"]) == (*shape, ratio)]
                for ratio in ratios
            ]  # fmt: skip
            axis.plot(ratios, [mean(each) for each in lines], "o-", color=f"C{number}",
                      label=f"{shape[0]}x{shape[1]}")  # fmt: skip
            axis.fill_between(ratios, [min(each) for each in lines], [max(e) for e in lines],
                              color=f"C{number}", alpha=0.15, lw=0)  # fmt: skip
        axis.set_title(title)
        axis.set_xlabel("reduction / compute")
        axis.set_xticks(ratios)
    axes[0].axhline(PAPER_GAIN, color="black", ls=":", lw=1, label="GroPipe's most")
    axes[0].set_ylabel("gain; bands: all networks")
    axes[0].legend(fontsize="small")
    top = max(axis.get_ylim()[1] for axis in axes[1:])
    for axis in axes[1:]:
        axis.set_ylim(1, top)
