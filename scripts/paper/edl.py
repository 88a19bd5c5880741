"""EDL-Dist's Tables 1 and 2, sections 4.3 and 4.4 by their shape: elastic teachers, simulated."""

from __future__ import annotations

from typing import Any

from naspipe.api.teacher_plans import check_rates, teachers_needed
from scripts.paper import published
from scripts.paper.common import Headline, Options, Result, grouped_bars
from scripts.paper.table6 import span
from scripts.paper.tutored import simulate_tutored
from scripts.paper.tutored_script import Joins, TutoredScript


def busy_share(teachers: int, student_rate: float, teacher_rate: float) -> float:
    """The student's rate over its rate without a teacher: min(1, n * t_t / t_s)."""
    check_rates(student_rate, teacher_rate)
    return min(1.0, teachers * teacher_rate / student_rate)


def online_rate(student_rate: float, forward_rate: float) -> float:
    """Batches per second if the student's device runs the teacher's forwards as well."""
    check_rates(student_rate, forward_rate)
    return 1.0 / (1.0 / student_rate + 1.0 / forward_rate)


STEPS = 2000
TOLERANCE = 0.03
"""Off a published figure of a table, or off the law."""
BATCH, V100_BATCH = 64, 32
CORE_FORWARD, SERIAL = 10.17, 0.05
"""Table 1's teacher on a student's cores: images per second of one core, from its first column, and
the part of a forward that more cores do not shorten. Both together give the row of Online."""
P4_FORWARD = 1 / (1 / 46.04 - 1 / 57.14)
"""Images per second of a teacher on a P4, by Table 2's Online: 237."""
CORE_TEACHER = 35.68 / 8
"""Images per second of a teacher on one core, by Table 2's first column."""
EIGHT, JITTER = 8, 0.2
"""Students that step together in section 4.4, and how uneven times are there."""


def run(options: Options) -> Result:
    """Both tables and both sections."""
    steps = options.steps or STEPS
    rows = [*table1(steps), *table2(steps), *section43(steps), *section44(steps)]
    wrong = faults(rows)
    return Result(
        experiment="edl",
        title="EDL-Dist: speed with teachers elsewhere, over training without one",
        kind="simulated",
        rows=rows,
        headlines=headlines(rows, wrong),
        differs=DIFFERS,
        settings={"steps": steps, "jitter": JITTER},
        extra={"students": published.EDL_STUDENTS, "teachers": published.EDL_TEACHERS},
        holds=not wrong,
    )


DIFFERS = (
    "rates of the student alone and of one teacher are the paper's, or follow from one of its "
    "columns; the queue between them is simulated. A request takes nothing on its way, because "
    "teachers make batches themselves; the paper puts 12.8 % down to moving inputs. That more P4 "
    "than needed are slightly slower, by the upkeep of labels, is not so here: no more than "
    "`upper` labels are kept. In section 4.4 five P4 for each V100 do as well as six. How uneven "
    "times are there is a guess of 20 %"
)


def simulated(
    student: float, teacher: float, teachers: int, batch: int, steps: int, **more: Any
) -> float:
    """Share of its time that a student is busy; rates are images per second."""
    script = TutoredScript(
        step_seconds=batch / student,
        steps=steps,
        lives=[Joins(0.0, f"teacher{n:03}", batch / teacher) for n in range(teachers)],
        **more,
    )
    return simulate_tutored(script).busy_share(script)


def row_of(
    part: str,
    case: str,
    way: str,
    ours: float,
    paper: float | None = None,
    law: float | None = None,
) -> dict[str, Any]:
    """One figure beside the published one, or the law that the published figure follows."""
    known = law if paper is None else paper
    off = None if known is None else ours / known - 1.0
    return {"part": part, "case": case, "way": way, "ours": ours, "paper": paper, "law": law,
            "off": off}  # fmt: skip


def table1(steps: int) -> list[dict[str, Any]]:
    """A student on CPU cores, its teacher on one P4."""
    rows = []
    for cores, cell in published.EDL_STUDENTS.items():
        forward = CORE_FORWARD * cores / (1 + SERIAL * (cores - 1))
        online = online_rate(cell.normal, forward)
        elastic = cell.normal * simulated(cell.normal, P4_FORWARD, 1, BATCH, steps)
        case = f"{cores} core" + "s" * (cores > 1)
        rows += [
            row_of("table 1", case, "online", online, cell.online),
            row_of("table 1", case, "elastic", elastic, cell.elastic),
        ]
    return rows


def table2(steps: int) -> list[dict[str, Any]]:
    """A student on a P4, teachers on CPU cores, one on each."""
    rows = []
    for cores, cell in published.EDL_TEACHERS.items():
        online = online_rate(cell.normal, P4_FORWARD)
        elastic = cell.normal * simulated(cell.normal, CORE_TEACHER, cores, BATCH, steps)
        case = f"{cores} cores"
        rows += [
            row_of("table 2", case, "online", online, cell.online),
            row_of("table 2", case, "elastic", elastic, cell.elastic),
        ]
    return rows


def section43(steps: int) -> list[dict[str, Any]]:
    """One V100 and 1 to 8 P4, of which the paper has a curve without numbers."""
    student, teacher = published.EDL_V100, published.EDL_P4
    rows = [
        row_of(
            "section 4.3",
            f"{count} P4",
            "elastic",
            simulated(student, teacher, count, V100_BATCH, steps),
            law=busy_share(count, student, teacher),
        )
        for count in range(1, 9)
    ]
    online = 1 / (1 + published.EDL_LONGER)
    return [*rows, row_of("section 4.3", "on the V100", "online", online)]


def section44(steps: int) -> list[dict[str, Any]]:
    """Eight V100 that step together, over as many that never wait for a label."""
    student, teacher = published.EDL_V100, published.EDL_P4
    how: dict[str, Any] = {
        "batch": V100_BATCH, "steps": steps // 4, "is_joined": True, "jitter": JITTER,
        "students": tuple(f"student{n}" for n in range(EIGHT)),
    }  # fmt: skip
    never = simulated(student, 1000 * teacher, EIGHT, **how)
    return [
        row_of(
            "section 4.4",
            f"{count} P4",
            "elastic",
            simulated(student, teacher, count, **how) / never,
        )
        for count in (32, *published.EDL_EIGHT)
    ]


def figure(rows: list[dict[str, Any]], part: str, case: str, way: str = "elastic") -> float:
    """Our value of one row."""
    found: float = next(
        row["ours"] for row in rows if (row["part"], row["case"], row["way"]) == (part, case, way)
    )
    return found


def faults(rows: list[dict[str, Any]]) -> list[str]:
    """What of the shape is not so."""
    found = [
        f"{row['part']}, {row['case']}: {row['way']} {row['ours']:.3g}, off by {row['off']:.1%}"
        for row in rows
        if row["off"] is not None and abs(row["off"]) > TOLERANCE
    ]
    few, many = (figure(rows, "table 2", f"{cores} cores") for cores in (8, 12))
    if not few < figure(rows, "table 2", "8 cores", "online") < many:
        found.append("table 2: Online is not passed between 8 and 12 cores")
    busy = {count: figure(rows, "section 4.4", f"{count} P4") for count in (32, 40, 48, 56)}
    if busy[32] > busy[40] - 0.02:
        found.append("section 4.4: four P4 for each V100 are as good as five")
    if max(busy.values()) > busy[48] + 0.01:
        found.append("section 4.4: 48 P4 are not the best")
    return found


def headlines(rows: list[dict[str, Any]], wrong: list[str]) -> list[Headline]:
    """Both tables, the number of teachers, eight students, and what does not hold."""

    def line(part: str, way: str) -> list[float]:
        return [row["ours"] for row in rows if (row["part"], row["way"]) == (part, way)]

    def beside(cells: list[float]) -> str:
        return ", ".join(f"{each:.2f}" for each in cells)

    students, teachers = published.EDL_STUDENTS.values(), published.EDL_TEACHERS.values()
    gains = [e / o for e, o in zip(line("table 1", "elastic"), line("table 1", "online"),
                                   strict=True)]  # fmt: skip
    normal = published.EDL_GAIN * published.EDL_OVER_NORMAL
    best = figure(rows, "section 4.4", "48 P4")
    found = [
        Headline("table 1, images/s on 1 to 16 cores", beside(line("table 1", "elastic")),
                 beside([each.elastic for each in students])),
        Headline("table 1: over Online", span(gains),
                 span(each.elastic / each.online for each in students)),
        Headline("table 2, images/s with 8, 12, 16 cores", beside(line("table 2", "elastic")),
                 f"{beside([each.elastic for each in teachers])}; Online 46.04"),
        Headline("section 4.3: share of time busy with 1 to 8 P4",
                 beside(line("section 4.3", "elastic")), "linear up to 5, slightly lower beyond"),
        Headline("section 4.3: teachers needed",
                 str(teachers_needed(published.EDL_V100, published.EDL_P4)), "5"),
        Headline("section 4.4: 40, 48, 56 P4 over no teacher",
                 beside(line("section 4.4", "elastic")[1:]), "48 best; 0.89 of normal"),
        Headline("section 4.4: 48 P4 over Online", f"{best * normal:.2f}", "1.24"),
    ]  # fmt: skip
    return found + ([Headline("not so", "; ".join(wrong), "-")] if wrong else [])


def draw(result: Result, figure: Any) -> None:
    """Both tables and section 4.3, ours beside the paper's."""
    figure.set_size_inches(12, 4)
    for axes, part in zip(
        figure.subplots(1, 3), ("table 1", "table 2", "section 4.3"), strict=True
    ):
        rows = [row for row in result.rows if row["part"] == part and row["off"] is not None]
        beside = "law" if part == "section 4.3" else "paper"
        cases = list(dict.fromkeys(row["case"] for row in rows))
        series = {
            f"{way}, {whose}": [row[key] for row in rows if row["way"] == way]
            for way in dict.fromkeys(row["way"] for row in rows)
            for whose, key in (("ours", "ours"), (f"the {beside}", beside))
        }
        grouped_bars(axes, [case.replace(" ", "\n") for case in cases], series)
        axes.set_title(f"{part}: " + ("busy" if part == "section 4.3" else "images per second"))
        axes.legend(fontsize="x-small")
