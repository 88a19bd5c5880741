"""What a composition is made of: flat cases of named values, drawn from the declarations.

A case is a mapping from keys to plain values. It names everything that the definition and the
execution of one run are made of, so it can be written down as JSON, drawn, and shrunk value by
value. Keys of the recipe, of a momentum teacher, of rules and of the execution come from the
declarations in ``naspipe.config``: a setting that is declared tomorrow is drawn tomorrow, with its
default, its words or its example.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from itertools import product
from typing import Any, get_args

from naspipe.config.definition import MOMENTUM
from naspipe.config.execution import Execution
from naspipe.config.recipe import Recipe
from naspipe.config.rules import Follows, Rule
from naspipe.config.settings import Setting, declared
from naspipe.config.steps import ROUND, Steps, parse_passes

Case = dict[str, Any]
"""Values by key; what a case does not name has the first value of its key."""

Domain = Mapping[str, Sequence[Any]]
"""The values of each key. The first is the simplest one, to which a failure is shrunk."""

FAMILIES = ("supernet", "teacher", "momentum", "blockwise", "mixed")

NOT_DRAWN = {
    "device": "needs a GPU; scripts/gpu_check.py compares devices",
    "teacher_registry": "needs a Redis server, or the address of another host",
    "teacher_keys": "belongs to teachers that others started",
    "interface": "has a meaning under torchrun alone",
    "port": "chosen by the runner, so that two runs at a time do not meet",
    "metrics_port": "answers HTTP requests and does nothing else",
    "metrics_address": "goes with metrics_port",
    "timeout_seconds": "a short one ends a slow run, which is its purpose",
    "silence_seconds": "a short one ends a slow run, which is its purpose",
    "teacher_ttl": "a short one ends a slow teacher, which is its purpose",
    "validate_probe": "fits features of a network that learns without labels",
    "validate_features": "goes with validate_probe",
    "validate_probe_batches": "goes with validate_probe",
    "stages": "drawn as run.stages with the number of workers",
    "groups": "drawn as run.groups with the number of workers",
}
"""Settings of the execution that stay at their default, and why."""

_RECIPE: Domain = {
    "optimizer": ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "Adadelta"],
    "schedule": ["constant", "linear", "cosine", "inverse_sqrt", "table(0:1.0,2:0.5,4:0.25)"],
    "warmup_steps": [0, 2],
    "restart_steps": [0, 3],
    "feedback_delay": [15, 2],
    "clip_layer_norm": [0.0, 0.05],
    "clip_global_norm": [0.0, 0.05],
    "passes": [
        "one", "accumulate:2", "accumulate:4", "accumulate:3", "subnets:2", "subnets:3:passes",
        "subnets:2:users", "subnets:4", "sandwich:1", "fair",
    ],
    "probes": ["none", "best:2", "worst:2"],
    "ema": [0.0, 0.9],
}  # fmt: skip
"""Where a setting's declaration does not say which values are worth drawing in a short run."""

_EXECUTION: Domain = {
    "window": [0, 1, 2, 5],
    "teacher_window": [0, 1, 3],
    "partition": ["auto", "balanced", "rotated", "static"],
    "data_path": ["shm", "zmq"],
    "labels": ["pipeline", "inline", "service", "file"],
    "teachers": [0, 1, 2],
    "labels_ahead": [64, 4],
    "labels_again": [48, 1],
    "teacher_pace": [0.0, 0.002],
    "memory_budget": ["", "0.001x", "1x", "2.5x"],
    "activation_memory": ["", "2GB"],
    "link_bandwidth": [0.0, 1e9],
    "max_restarts": [0, 1],
    "checkpoint_every": [0, 1, 2, 3],
    "keep_checkpoints": [2, 1, 4],
    "validate_every": [0, 1, 2],
    "validate_subnets": ["4", "1"],
    "validate_batches": [8, 2],
    "access_log": ["full", "sampled:2", "off"],
}

BLOCKWISE_PARTITIONS = ["auto", "free", "pairs", "packed", "layers", "hybrid", "shared"]

PALETTES = {
    "linear": ["linear", "relu"],
    "norms": ["batchnorm", "layernorm", "identity"],
    "draws": ["dropout", "noise", "numpy"],
    "gradients": ["absent", "added", "twice"],
    "state": ["counting", "linear", "batchnorm"],
    "free": ["relu", "identity"],
}
"""Layers of a choice block."""

WIDTHS = (2, 4, 6)
"""Options of an elastic layer."""

_SPACE: Domain = {
    "seed": [0, 1, 2],
    "steps": [4, 2, 7],
    "policy": ["csp", "sequential"],
    "space.stem": ["linear", "batchnorm", "layernorm", "dropout", "added", "counting"],
    "space.blocks": [1, 0, 2, 3],
    "space.palette": list(PALETTES),
    "space.same": [False, True],
    "space.elastic": ["none", "layer", "slice"],
    "space.middle": ["none", "scaled", "batchnorm", "linear", "relu"],
    "space.pairs": [False, True],
    "space.head": ["linear", "layernorm"],
    "sampler": ["uniform", "fair", "spaced:2", "greedy"],
    "streams": [1, 2],
    "optimizer_options": ["none", "momentum", "decay"],
    "parameter_groups": ["none", "bias", "head", "several"],
    "loss": ["cross_entropy", "weighted", "drawing"],
    "infinite": ["never", "once", "first"],
    "rows": ["same", "varying"],
}

_OF_TEACHERS: Domain = {
    "teacher.mode": ["eval", "train"],
    "teacher.top": [0, 3],
    "teacher.loss": ["soft", "own", "labels"],
}

_OF_MOMENTUM: Domain = {
    "momentum.network": ["copy", "given"],
    "momentum.loss": ["by_pass", "joint"],
    "views": [0, 2],
    "views.batches": [1, 2],
    "views.local": [0, 1],
}

_OF_BLOCKWISE: Domain = {
    "blockwise.students": ["modules", "supernets", "wide"],
    "blockwise.loss": ["default", "own"],
    "blockwise.blocks": [2, 3],
}

_OF_MIXED: Domain = {
    "mixed.as": ["chain", "blocks"],
    "mixed.gates": ["full", "pair"],
    "mixed.every": [2, 3],
    "mixed.start": [0, 2],
    "mixed.costs": [False, True],
}

_ENDS: Domain = {
    "stop.how": ["none", "interrupt", "kill", "fail"],
    "stop.at": [2, 1, 5],
}


@cache
def rules() -> tuple[str, ...]:
    """The text of each rule with each of its options alone, and with all of them."""
    found = []
    for kind in get_args(Rule):
        if kind is Follows:  # of teachers; nobody writes it
            continue
        options = [each for each in fields(kind) if each.default is not MISSING]
        numbers = [each.name for each in fields(kind) if each.default is MISSING]
        sizes = ((1, 2, 3) if kind.__name__ == "Lag" else (2, 3)) if numbers else (None,)
        for size, chosen in product(sizes, _some_of(options)):
            required = dict.fromkeys(numbers, size)
            found.append(str(kind(**required, **{each.name: _other(each) for each in chosen})))
    return tuple(dict.fromkeys(found))


def _some_of(options: Sequence[Any]) -> list[Sequence[Any]]:
    """None of them, each alone, each pair, and all."""
    pairs = [(a, b) for n, a in enumerate(options) for b in options[n + 1 :]]
    return [(), *((each,) for each in options), *pairs, tuple(options)]


def _other(field: Any) -> Any:
    """A value of a rule's option that is not its default."""
    return {bool: True, int: 4, float: 0.5}[
        type(field.default) if field.default is not None else float
    ]


def values_of(setting: Setting) -> list[Any]:
    """The values of a declared setting that are drawn: its default, and others that it allows."""
    if setting.kind is bool:
        return [setting.default, not setting.default]
    words = [word for each in setting.allowed for word in each.words]
    others = words or [setting.read(setting.example)]
    return [setting.default, *(each for each in others if each != setting.default)]


@cache
def domain(family: str) -> Domain:
    """Every key that a case of a family has, with its values."""
    found: dict[str, Sequence[Any]] = dict(_SPACE)
    for block in ("stem", "elastic", "middle", "head"):
        found[f"space.{block}_rule"] = rules()
    for key, setting in declared(Recipe).items():
        if key != "lr":
            found[f"recipe.{key}"] = _RECIPE.get(key) or values_of(setting)
    found |= _ENDS
    if family == "teacher":
        found |= _OF_TEACHERS
    if family == "momentum":
        momentum = {key: [None, setting.read(setting.example)] for key, setting in MOMENTUM.items()}
        words = {
            key: [None, *(word for each in setting.allowed for word in each.words)]
            for key, setting in MOMENTUM.items()
            if any(each.words for each in setting.allowed)
        }
        found |= momentum | words | {"momentum.lag": [None, 0, 2]} | _OF_MOMENTUM
    if family == "blockwise":
        found |= _OF_BLOCKWISE
    if family == "mixed":
        found |= _OF_MIXED
    for part in ("run", "then"):
        found |= {f"{part}.stages": [1, 2, 3], f"{part}.groups": [1, 2, 3]}
        for key, setting in declared(Execution).items():
            if key not in NOT_DRAWN:
                found[f"{part}.{key}"] = _EXECUTION.get(key) or values_of(setting)
    if family in ("blockwise", "mixed"):
        found |= {f"{part}.partition": BLOCKWISE_PARTITIONS for part in ("run", "then")}
    return found


_SHARE = {"recipe": 0.3, "run": 0.22, "then": 0.2, "momentum": 0.5, "stop": 0.25, "space": 0.6}
"""How often a key has another value than its first, by the first word of its name."""


def draw(random_: random.Random, family: str | None = None) -> Case:
    """A case that can be trained, as far as that can be said without trying."""
    family = family or random_.choices(FAMILIES, (40, 15, 25, 12, 8))[0]
    case: Case = {"family": family}
    for key, values in domain(family).items():
        if len(values) > 1 and random_.random() < _share(key):
            case[key] = random_.choice(values[1:])
    return settled(case)


def _share(key: str) -> float:
    if key in ("run.stages", "run.groups", "recipe.passes"):
        return 0.6
    return _SHARE.get(key.partition(".")[0], 0.35)


def get(case: Case, key: str) -> Any:
    """The value of a key, which is the simplest one where the case does not name it."""
    return case.get(key, domain(case["family"])[key][0])


def recipe_of(case: Case) -> dict[str, Any]:
    """The fields of the recipe that a case names."""
    return {key.partition(".")[2]: case[key] for key in case if key.startswith("recipe.")}


def execution_of(case: Case, part: str = "run") -> dict[str, Any]:
    """The settings of the execution that a case names, of its first or of its second attempt."""
    return {key.partition(".")[2]: case[key] for key in case if key.startswith(f"{part}.")}


def steps_of(case: Case) -> Steps:
    """How passes form steps."""
    passes = get(case, "recipe.passes")
    if passes != ROUND:
        return parse_passes(passes)
    options = [len(PALETTES[get(case, "space.palette")])] * (get(case, "space.blocks") > 0)
    options += [len(WIDTHS)] * (get(case, "space.elastic") != "none")
    return parse_passes(f"{ROUND}:{max(options, default=1)}")


def settled(case: Case) -> Case:
    """The case without the values that cannot be combined; what is refused stays out of it.

    These are the combinations that the pages refuse. Every rule here names one.
    """
    case = dict(case)
    for rule in _SETTLING:
        rule(case)
    simplest = domain(case["family"])
    return {
        key: value
        for key, value in case.items()
        if key == "family" or (key in simplest and value != simplest[key][0])
    }


def _drop(case: Case, *keys: str) -> None:
    for key in keys:
        case.pop(key, None)


def _of_family(case: Case) -> None:
    family = case["family"]
    if family != "supernet":
        _drop(case, "streams", "recipe.probes", "loss")
        if case.get("sampler") == "greedy":
            _drop(case, "sampler")
        for part in ("run", "then"):
            _drop(case, *(f"{part}.validate_{each}" for each in _VALIDATION))
    if family not in ("blockwise", "mixed"):
        _drop(case, "run.relay", "then.relay")
    if family in ("supernet", "mixed"):
        _drop(case, "run.teacher_window", "then.teacher_window")
    if family in ("blockwise", "mixed"):
        _drop(case, *(key for key in case if key.startswith("space.")), "infinite", "policy")
        if get(case, "recipe.passes").partition(":")[0] not in ("one", "accumulate"):
            _drop(case, "recipe.passes")
        _drop(case, "recipe.weight", "recipe.label_smoothing")
        if get(case, "parameter_groups") != "bias":
            _drop(case, "parameter_groups")  # of layers that these have not
    if family == "mixed":
        _drop(case, *(key for key in case if key.startswith("recipe.") and key not in _OF_EDGES))
        _drop(case, "optimizer_options", "parameter_groups", "rows", "sampler")
        _drop(case, "run.groups", "then.groups")
        if get(case, "mixed.as") == "chain":
            _drop(case, "run.relay", "then.relay", "run.partition", "then.partition")


_VALIDATION = ("every", "subnets", "batches", "calibrate", "ema")
_OF_EDGES = ("recipe.schedule", "recipe.warmup_steps", "recipe.restart_steps")


def _of_spaces(case: Case) -> None:
    if case.get("space.elastic", "none") != "none":
        _drop(case, "space.pairs")
        _drop(case, "space.same")
    if get(case, "space.blocks") == 0 and case.get("space.elastic", "none") == "none":
        if case["family"] == "supernet":
            _drop(case, "space.blocks")
        if get(case, "sampler") != "uniform":
            _drop(case, "sampler")
    if get(case, "policy") == "sequential":
        _drop(case, "run.window", "then.window")


def _of_passes(case: Case) -> None:
    family, passes = case["family"], get(case, "recipe.passes")
    has_choice = get(case, "space.blocks") > 0
    if passes.startswith("sandwich") and (family != "supernet" or not has_choice):
        _drop(case, "recipe.passes")  # its first pass teaches; there must be a largest subnet
    if passes.startswith("sandwich") and get(case, "space.palette") == "free":
        _drop(case, "space.palette")
    if passes != "one" and get(case, "sampler") == "greedy":
        _drop(case, "sampler")  # a strategy that learns proposes subnets one by one
    if passes.startswith(("fair", "sandwich")) or get(case, "sampler") == "greedy":
        _drop(case, "recipe.probes")
    if passes.startswith("sandwich"):
        _drop(case, "loss")  # one that can be taught
    if get(case, "recipe.probes") != "none" or get(case, "sampler") == "greedy":
        _drop(case, "run.groups", "then.groups")
        for part in ("run", "then"):
            if get(case, f"{part}.order") not in ("auto", "paper"):
                _drop(case, f"{part}.order")  # the others need the whole stream
    if family == "momentum":
        _of_views(case)
    steps = steps_of(case)
    if get(case, "recipe.probes") != "none":
        _drop(case, "recipe.weight")
    is_round = passes == ROUND  # of as many passes as a block has candidates
    if is_round or steps.passes.bit_count() != 1 or get(case, "recipe.probes") != "none":
        _drop(case, "recipe.reduction")
    if not steps.is_average or steps.passes == 1 or get(case, "infinite") != "never":
        _drop(case, "recipe.weight")
    if get(case, "policy") == "sequential" and steps.passes == 1:
        _drop(case, "run.groups", "then.groups")
    blocks = (
        2
        + get(case, "space.blocks")
        + sum(get(case, f"space.{each}") != "none" for each in ("elastic", "middle"))
    )
    for part in ("run", "then"):
        if get(case, f"{part}.groups") > steps.passes:
            _drop(case, f"{part}.groups")
        if family in ("supernet", "teacher", "momentum") and get(case, f"{part}.stages") > blocks:
            _drop(case, f"{part}.stages")


def _of_views(case: Case) -> None:
    is_joint = get(case, "momentum.loss") == "joint"
    if get(case, "views"):
        passes = (get(case, "views") + get(case, "views.local")) * get(case, "views.batches")
        case["recipe.passes"] = f"accumulate:{passes}"
    else:
        _drop(case, "views.batches", "views.local")
    kind = get(case, "recipe.passes").partition(":")[0]
    if is_joint and kind not in ("one", "accumulate"):
        _drop(case, "recipe.passes")
    if is_joint:
        _drop(case, "recipe.weight")
    if get(case, "space.blocks") or get(case, "space.elastic") != "none":
        _drop(case, "momentum.network")  # of a supernet's layers there are copies alone
    if get(case, "views.local"):
        _drop(case, "run.groups", "then.groups")
    has_choice = get(case, "space.blocks") or get(case, "space.elastic") != "none"
    if kind not in ("one", "accumulate") and has_choice:
        _drop(case, "run.groups", "then.groups")  # of supernets: one subnet a step on groups
    if get(case, "infinite") != "never" and is_joint:
        _drop(case, "infinite")


def _of_rates(case: Case) -> None:
    schedule = get(case, "recipe.schedule")
    if schedule not in ("linear", "cosine"):
        _drop(case, "recipe.restart_steps")
    if schedule.startswith("table"):
        _drop(case, "recipe.warmup_steps")
    if not case.get("recipe.restart_steps"):
        _drop(case, "recipe.restart_factor")
    if get(case, "sampler") != "greedy" and get(case, "recipe.probes") == "none":
        _drop(case, "recipe.feedback_delay")


_NORMED = ("batchnorm", "counting")
_WITHOUT_MOMENTUM = ("Adagrad", "Adadelta")


def _of_norms(case: Case) -> None:
    """Layers that are read late keep no running statistics of their own."""
    family = case["family"]
    is_late = {
        block: get(case, f"space.{block}_rule").startswith(("lag", "every"))
        for block in ("stem", "middle")
    }
    for block, late in is_late.items():
        if late and get(case, f"space.{block}") == "counting":
            _drop(case, f"space.{block}_rule")
        if late and get(case, f"space.{block}") == "batchnorm":
            case["recipe.norms"] = "deferred"
    for block, kind in (("stem", get(case, "space.stem")), ("middle", get(case, "space.middle"))):
        if kind in _NORMED and get(case, f"space.{block}_rule") == "frozen":
            _drop(case, f"space.{block}_rule")
    if get(case, "recipe.optimizer") in _WITHOUT_MOMENTUM:
        for block in ("stem", "elastic", "middle", "head"):
            if "momentum=" in get(case, f"space.{block}_rule"):
                _drop(case, f"space.{block}_rule")
    if family == "momentum":
        case["recipe.norms"] = "deferred"
        if case.get("space.stem") == "counting":
            _drop(case, "space.stem")
        if case.get("space.palette") == "state":
            _drop(case, "space.palette")
    if get(case, "space.elastic") == "slice":
        if get(case, "recipe.optimizer") in ("Rprop", "ASGD", "Adafactor", "LARS"):
            _drop(case, "recipe.optimizer")
        if get(case, "space.elastic_rule").startswith("every"):
            _drop(case, "space.elastic_rule")


def _of_losses(case: Case) -> None:
    if get(case, "loss") != "cross_entropy" or case["family"] not in ("supernet", "teacher"):
        _drop(case, "recipe.label_smoothing")
    if case["family"] == "teacher" and get(case, "teacher.loss") != "labels":
        _drop(case, "recipe.label_smoothing")
    if get(case, "infinite") == "never":
        _drop(case, "recipe.nonfinite")
    elif get(case, "recipe.nonfinite") == "stop":
        case["recipe.nonfinite"] = "skip"
    if case["family"] == "teacher" and get(case, "teacher.top"):
        _drop(case, "teacher.loss", "recipe.label_smoothing")
    if get(case, "loss") == "weighted" or case["family"] in ("momentum",):
        _drop(case, "recipe.weight")


def _of_executions(case: Case) -> None:
    family = case["family"]
    for part in ("run", "then"):
        source = get(case, f"{part}.labels")
        if family != "teacher" or get(case, "teacher.mode") == "train":
            _drop(case, f"{part}.labels")  # other sources compute each label by itself
            source = "pipeline"
        if source == "service":
            case[f"{part}.teachers"] = case.get(f"{part}.teachers") or 1
        else:
            of_service = ("teachers", "teachers_most", "teacher_stages", "teacher_inputs")
            _drop(case, *(f"{part}.{each}" for each in of_service))
        if get(case, f"{part}.labels_ahead") == 4 and get(case, f"{part}.labels_again") == 48:
            case[f"{part}.labels_again"] = 1
        if family in ("supernet", "mixed", "momentum") or source != "pipeline":
            _drop(case, f"{part}.teacher_cuts")
        if family in ("blockwise", "mixed"):
            _of_relays(case, part)
        every, judged = get(case, f"{part}.checkpoint_every"), get(case, f"{part}.validate_every")
        if judged and every and judged % every:
            _drop(case, f"{part}.validate_every")
        if not get(case, f"{part}.validate_every"):
            _drop(case, f"{part}.validate_every")
        if get(case, f"{part}.validate_ema") and not get(case, "recipe.ema"):
            _drop(case, f"{part}.validate_ema")
        if get(case, f"{part}.memory_budget") == "":
            _drop(case, f"{part}.host_memory")
    if get(case, "stop.how") == "none":
        _drop(case, "stop.at", *(key for key in case if key.startswith("then.")))
    if get(case, "stop.how") == "kill":
        case.setdefault("run.checkpoint_every", 1)


def _of_relays(case: Case, part: str) -> None:
    """What blocks with teachers of their own can be carried out like."""
    _drop(case, f"{part}.teacher_cuts", f"{part}.groups")
    if "barrier" in (get(case, "run.relay"), get(case, "then.relay")):
        _drop(case, "run.teacher_window", "then.teacher_window")  # what is not set again stays
    if part == "then" and "apart" in (get(case, "run.relay"), get(case, "then.relay")):
        case["then.relay"] = get(case, "run.relay")  # one with, one without cannot take turns
    blocks = get(case, "blockwise.blocks") if case["family"] == "blockwise" else 3
    if case["family"] == "mixed" and get(case, "mixed.as") == "chain":
        blocks = 4
    most = steps_of(case).passes if get(case, f"{part}.partition") == "shared" else blocks
    if get(case, f"{part}.stages") > most:
        _drop(case, f"{part}.partition")
    if get(case, f"{part}.stages") > blocks:
        case[f"{part}.stages"] = blocks


_SETTLING: tuple[Callable[[Case], None], ...] = (
    _of_family, _of_spaces, _of_passes, _of_rates, _of_norms, _of_losses, _of_executions,
)  # fmt: skip


def text_of(case: Case) -> str:
    """A case as one line of JSON."""
    return json.dumps(case, sort_keys=True)


def simpler(case: Case) -> Iterator[Case]:
    """Cases with one value made simpler; those that simplify most come first."""
    prefixes = ("then.", "run.", "recipe.", "space.", "momentum.", "")
    seen = set()
    for prefix in prefixes[:-1]:
        yield {key: value for key, value in case.items() if not key.startswith(prefix)}
    for prefix in prefixes:
        for key in sorted(case):
            if key.startswith(prefix) and key not in seen and key != "family":
                seen.add(key)
                yield {other: value for other, value in case.items() if other != key}
    for key in sorted(set(case) - {"family"}):
        values = domain(case["family"])[key]
        for value in values[1 : list(values).index(case[key])]:
            yield {**case, key: value}
