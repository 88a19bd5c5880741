"""What differs between hosts, and between a run and what would go on with it: by its key."""

from __future__ import annotations

import importlib
import json
from functools import partial

import pytest

import naspipe as npp
from naspipe.api.attempts import check_resumable
from naspipe.api.workers import check_facts
from naspipe.checks.fingerprint import code_digest, code_digests
from naspipe.config.definition import Definition
from naspipe.config.errors import ConfigError, StageFailedError
from naspipe.config.recipe import Recipe
from naspipe.machine.determinism import describe_environment
from naspipe.store.run_directory import RunDirectory

FACTS = {
    "software": {"torch": "2.11", "numpy": "2"},
    "code": {"naspipe/a.py": "1", "naspipe/b.py": "2", "mine.py": "3"},
    "processor": {"processor": "x", "cpu_capability": "AVX2"},
    "definition": {"seed": 1, "recipe": {"threads": 1, "lr": 0.1}},
}


def differ(**parts):
    with pytest.raises(ConfigError) as caught:
        check_facts(1, {**FACTS, **parts}, FACTS, ("one", "two"))
    assert "\n" not in str(caught.value)
    return str(caught.value).partition("; every host needs the same command")[0]


def test_the_key_that_differs_between_hosts():
    whose = "rank 1 on two and rank 0 on one differ: "
    recipe = {"seed": 1, "recipe": {"threads": 2, "lr": 0.1}}
    assert (
        differ(definition=recipe) == f"{whose}definition.recipe.threads is 1 on rank 0, 2 on rank 1"
    )
    assert (
        differ(software={"torch": "2.11"})
        == f"{whose}software.numpy is '2' on rank 0, absent on rank 1"
    )
    other = {"processor": "x", "cpu_capability": "DEFAULT"}
    said = f"{whose}processor.cpu_capability is 'AVX2' on rank 0, 'DEFAULT' on rank 1"
    assert differ(processor=other) == said
    check_facts(1, FACTS, FACTS, ("one", "two"))


def test_kernels_that_were_chosen_by_a_variable_are_facts_of_a_host(monkeypatch):
    for name in ("DNNL_MAX_CPU_ISA", "MKL_CBWR", "OPENBLAS_CORETYPE"):
        monkeypatch.delenv(name, raising=False)
    assert "kernels" not in describe_environment()["hardware"]
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert describe_environment()["hardware"]["kernels"] == {"MKL_CBWR": "COMPATIBLE"}


def test_the_files_of_code_that_differ():
    code = {"naspipe/a.py": "1", "naspipe/b.py": "9", "new.py": "4"}
    assert differ(code=code).endswith("the code differs in mine.py, naspipe/b.py, new.py")
    many = {f"file-{number}.py": "0" for number in range(9)}
    assert differ(code=FACTS["code"] | many).endswith("file-3.py, file-4.py and 4 more")


def test_code_is_what_was_imported():
    found = code_digests([])
    assert {"naspipe/config/errors.py", "search_spaces/table5.py"} < found.keys()
    changed = {**found, "naspipe/config/errors.py": "0"}
    assert code_digest(found) != code_digest(changed) and len(code_digest(found)) == 16


@pytest.mark.parametrize("step", ["whole", "slice"])
def test_a_cut_is_part_of_the_code_where_it_says_what_is_stepped(tmp_path, monkeypatch, step):
    (tmp_path / "own_cut.py").write_text("def cut(module, width):\n    return module\n")
    monkeypatch.syspath_prepend(tmp_path)
    width = {"width": [2, 4]}
    make = partial(npp.elastic.Linear, 4, 4, outputs="width")
    cut = importlib.import_module("own_cut").cut
    space = npp.Space("own", [npp.Elastic("fc", make, width, cut=cut, step=step)])
    workload = npp.workload(space, print, print, steps=1)
    assert ("own_cut.py" in code_digests([workload])) == (step == "slice")


def test_the_key_that_differs_from_a_run(tmp_path):
    directory = RunDirectory(tmp_path)
    made = Definition(space="s", steps=9, recipe=Recipe(threads=1))
    directory.write_manifest({"format": 1, "definition": json.loads(json.dumps(made.as_dict()))})
    other = Definition(space="s", steps=9, recipe=Recipe(threads=2))
    with pytest.raises(
        ConfigError, match=r"its recipe\.threads is 1, you asked for 2; resume it as"
    ):
        check_resumable(directory, other, None)
    check_resumable(directory, made, None)


def test_a_cause_is_on_the_first_line_and_only_once():
    error = StageFailedError(1, "0.3F@1", "its process was killed by signal 9", "far")
    assert str(error) == "stage 1 failed in 0.3F@1 on far: its process was killed by signal 9"
    first, *more = str(StageFailedError(0, "x", "Traceback\nValueError: y\n", "h")).splitlines()
    assert first == "stage 0 failed in x on h: ValueError: y"
    assert more == ["Traceback", "ValueError: y"]
