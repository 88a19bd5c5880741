"""Read the files of a run, complete or not: its log, its losses, and remarks on missing parts.

If a run is too long to show every record, this module selects the steps that are shown in full, and
computes the metrics over all steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from naspipe.config.errors import ConfigError, LogError
from naspipe.config.ids import Access, LayerId
from naspipe.config.rules import Exact
from naspipe.config.steps import recorded_steps
from naspipe.engine.policies import TRAITS, PolicyTraits
from naspipe.plan.costs import WIDEST
from naspipe.report.needs import Schedule
from naspipe.store.access_columns import Life
from naspipe.store.access_log import RunLog, read_joint_columns
from naspipe.store.access_order import is_complete, recorded_spans
from naspipe.store.access_segments import EVERYTHING, Wanted
from naspipe.store.checkpoints import cut_name, tensor_names
from naspipe.store.compare import RecordedRun
from naspipe.store.labels import SpaceLabels
from naspipe.store.losses import Loss
from naspipe.store.metrics import Summary, summarize_parts
from naspipe.store.run_directory import RunDirectory, run_state
from naspipe.store.teacher_events import read_teacher_events
from naspipe.store.validations import Validation, read_validations

SHOWN_RECORDS = 20_000
"""Maximum number of records that a page shows in full, unless certain steps are requested."""
SHOWN_LOSSES = 4_000
"""Maximum number of points of the loss curve."""


class Asked(NamedTuple):
    """Requested steps, both inclusive; None for all, or for as many as can be shown."""

    first: int | None = None
    last: int | None = None


NOT_ASKED = Asked()


class Stretch(NamedTuple):
    """Steps that are shown in full, both inclusive."""

    first: int
    last: int


def _choose_stretch(log: RunLog, asked: Asked, passes: int) -> Stretch | None:
    """Return the requested steps, or the middle of a long run; None for all steps of a short run.

    Raises:
        ConfigError: for steps that the run does not have.
    """
    records = sum(head.records for head in log.heads)
    last = max((last for head in log.heads for _, _, last in head.subnets), default=0) // passes
    if asked == NOT_ASKED:
        if records <= SHOWN_RECORDS:
            return None
        length = max(1, (last + 1) * SHOWN_RECORDS // records)
        first = (last + 1 - length) // 2
        return Stretch(first, first + length - 1)
    first = asked.first or 0
    found = Stretch(first, last if asked.last is None else min(asked.last, last))
    if not 0 <= found.first <= found.last:
        until = "" if asked.last is None else f" --to {asked.last}"
        raise ConfigError(f"--from {first}{until}: expected steps from 0 to {last}, in this order")
    return found


def thinned(losses: Sequence[Loss]) -> tuple[list[int], list[int], list[float]]:
    """Return streams, sequence IDs and values of a curve; many losses are averaged in groups."""
    width = -(-len(losses) // SHOWN_LOSSES) or 1
    streams, subnets, values = [], [], []
    for begin in range(0, len(losses), width):
        some = losses[begin : begin + width]
        streams.append(int(some[0].stream))
        subnets.append(int(some[-1].sequence_id))
        values.append(sum(loss.value for loss in some) / len(some))
    return streams, subnets, values


def _ordered_layers(
    directory: RunDirectory, labels: SpaceLabels, recipe: Mapping[str, Any]
) -> frozenset[LayerId]:
    """Return the layers with buffers, whose forwards are therefore ordered within a step.

    They are not in the log, but follow from the names of the tensors in the last checkpoint that
    can be read. There is no order within a step of one pass, or if the ``recipe`` defers
    statistics.
    """
    if recorded_steps(recipe).passes == 1 or recipe.get("norms", "ordered") != "ordered":
        return frozenset()
    for name in ("final", *map(cut_name, directory.checkpoints.cuts)):
        try:
            found = (text.split("/") for text in tensor_names(directory.checkpoint(name)))
            layers = {labels.layer(f"{each[0]}:{each[1]}") for each in found if each[2] == "buffer"}
        except (ConfigError, LogError, IndexError):
            continue  # the next one may be intact
        return frozenset(layer for layer in layers if isinstance(labels.rule(layer), Exact))
    return frozenset()


class Recorded(NamedTuple):
    """One run as read from its directory.

    ``remarks`` are lines that a reader must know. ``ordered`` is that of
    :class:`naspipe.report.needs.Schedule`. ``teacher`` is the log of the run's teacher, if any, and
    ``lives`` are the attempts of the run, both on the run's clock. ``teacher_events`` are those of
    elastic teachers. ``whole`` has the metrics of all steps if only some are shown in full.
    """

    path: Path
    manifest: Mapping[str, Any]
    labels: SpaceLabels
    accesses: list[Access]
    losses: list[Loss]
    remarks: list[str]
    validations: Sequence[Validation] = ()
    ordered: frozenset[LayerId] = frozenset()
    teacher: Sequence[Access] = ()
    lives: Sequence[Life] = ()
    teacher_events: Sequence[Mapping[str, Any]] = ()
    whole: Summary | None = None

    @property
    def num_stages(self) -> int:
        """Number of stages of all groups in the manifest, or that have records, if more."""
        told = _whole(self, "stages") * self.num_groups
        return max([told, *(access.stage + 1 for access in self.accesses)])

    @property
    def has_every_step(self) -> bool:
        """Return True if the accesses of every step were recorded."""
        return is_complete(recorded_spans(self.manifest))

    @property
    def num_groups(self) -> int:
        return _whole(self, "groups")

    @property
    def schedule(self) -> Schedule:
        """Properties that determine when records could start; see ``naspipe.engine.builder``."""
        definition = section(self.manifest, "definition")
        policy, bulk = str(definition.get("policy", "csp")), definition.get("bulk")
        size = bulk if type(bulk) is int and bulk > 0 else self.num_stages
        traits = TRAITS.get(policy, PolicyTraits())
        return Schedule(
            window=traits.under_way(_whole(self, "window", WIDEST), self.num_stages),
            bulk=size if traits.has_bulks else 0,
            waits_for_versions=traits.waits_for_versions,
            is_partly_clear=bool(section(self.manifest, "execution").get("partly_clear", True)),
            steps=recorded_steps(section(definition, "recipe")),
            ordered=self.ordered,
        )


def section(manifest: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a manifest; empty if it is absent."""
    part = manifest.get(name)
    return part if isinstance(part, Mapping) else {}


def read_run(path: Path, asked: Asked = NOT_ASKED) -> Recorded:
    """Read a run directory; if the run has not ended, read the files that exist.

    Of a long run, only the records of the requested steps, or of some in the middle, are read.

    Raises:
        ConfigError: if the path is not a run directory, or one of its files is damaged.
    """
    run = RecordedRun(path)
    state = run_state(run.directory, run.manifest)
    remarks = []
    if state.status != "complete":
        lines = str(run.manifest.get("failure") or "").strip().splitlines()
        cause = f" First cause: {lines[0]:.300}" if lines else ""
        remarks.append(f"This run is not complete: {state.said}.{cause}")
    passes = run.passes_per_step
    try:
        has_losses = not remarks or run.directory.losses.exists()
        losses = run.losses if has_losses else []
        stretch = _choose_stretch(run.log, asked, passes)
        wanted = EVERYTHING
        if stretch:
            wanted = Wanted(first=stretch.first * passes, end=(stretch.last + 1) * passes)
        has_teacher = (path / "teacher" / "manifest.json").is_file()
        columns, lives = read_joint_columns([path, *[path / "teacher"] * has_teacher], wanted)
        accesses, *teacher = (list(each.accesses()) for each in columns)
        whole = summarize_parts(run.log.parts, run.num_stages) if stretch else None
        teacher_events = read_teacher_events(path)
        validations = read_validations(run.directory.validation)
    except (LogError, OSError) as error:
        raise ConfigError(
            f"cannot report on {path}: {error}; restore the file or leave this run out"
        ) from error
    recipe = section(section(run.manifest, "definition"), "recipe")
    recorded = Recorded(
        path=path,
        manifest=run.manifest,
        labels=run.labels,
        accesses=accesses,
        losses=losses,
        remarks=remarks,
        validations=validations,
        ordered=_ordered_layers(run.directory, run.labels, recipe),
        teacher=teacher[0] if teacher else (),
        lives=lives,
        teacher_events=teacher_events,
        whole=whole,
    )
    if stretch:
        remarks.append(
            f"Timeline, waits, orders and balance are those of steps {stretch.first} to "
            f"{stretch.last}; the numbers at the top and the losses are those of all. Others: "
            f"naspipe report RUN --from STEP --to STEP."
        )
    _check(recorded)
    return recorded


def _check(run: Recorded) -> None:
    """Add remarks on missing parts; ConfigError for layers that are not in the manifest's space."""
    for access in run.accesses:
        layer = access.layer
        is_known = 0 <= layer.block < len(run.labels) and access.stage >= 0
        if not is_known:
            raise ConfigError(
                f"cannot report on {run.path}: expected layers of space {run.labels.name} "
                f"({len(run.labels)} blocks), found {access} in its access log; the log is of "
                f"another run"
            )
    if not run.accesses:
        run.remarks.append("No access log was recorded: there is no timeline.")
    else:
        if not run.has_every_step:
            run.remarks.append(
                "Not every access was recorded (access_log): timeline, waits, orders and balance "
                "are those of the recorded steps, and the bubble ratio is not known."
            )
        seen = {access.stage for access in run.accesses}
        silent = [stage for stage in range(run.num_stages) if stage not in seen]
        if silent:
            names = ", ".join(map(str, silent))
            run.remarks.append(f"Nothing was recorded by stage {names}.")
    streams = section(run.manifest, "execution").get("streams", 1)
    if streams != 1:
        run.remarks.append(
            f"{streams} streams shared this pipeline: while a stage ran another one, it waits here."
        )
    if not run.losses:
        run.remarks.append("No loss was recorded.")


def _whole(run: Recorded, name: str, usual: int = 1) -> int:
    """Return an integer of the execution, or ``usual`` if the manifest has none."""
    found = section(run.manifest, "execution").get(name, usual)
    if type(found) is not int or found < 1:
        raise ConfigError(
            f"cannot report on {run.path}: expected execution.{name} of its manifest to be a "
            f"whole number from 1, found {found!r:.80}"
        )
    return found
