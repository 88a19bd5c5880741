"""Recipes for teachers that may be taken away are what Kubernetes, Slurm and naspipe can read."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from naspipe.cli import teach, train
from naspipe.config.definition import Settings, apply_settings
from tests.test_architecture import ROOT

KUBERNETES = ROOT / "docs/teachers-kubernetes.yaml"
SLURM = ROOT / "docs/teachers.sbatch"


def parser(command) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(made)
    return made


def test_the_deployment_can_be_read() -> None:
    yaml = pytest.importorskip("yaml")
    found = list(yaml.safe_load_all(KUBERNETES.read_text()))
    kinds = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert ("Deployment", "naspipe-teachers") in kinds and len(set(kinds)) == len(kinds) == 5
    labels = set()
    for each in found:
        if each["kind"] == "Deployment":
            spec = each["spec"]
            of_pod = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"] == of_pod
            labels.add(of_pod["app"])
    (teachers,) = [each for each in found if each["metadata"]["name"] == "naspipe-teachers"][:1]
    pod = teachers["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in pod["volumes"]}
    name, verb, *words = container["command"]
    assert (name, verb) == ("naspipe", "teach")
    given = parser(teach).parse_args(words)
    assert given.registry == "redis://naspipe-registry" and given.key == Path("/key/teacher.key")
    assert pod["volumes"][1]["secret"]["defaultMode"] == 0o400
    (service,) = [each for each in found if each["kind"] == "Service"]
    assert service["spec"]["selector"]["app"] in labels


@pytest.mark.parametrize("script", [SLURM, ROOT / "scripts/registry.sh"], ids=lambda it: it.name)
def test_scripts_are_bash(script) -> None:
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_array_of_tasks_starts_teachers() -> None:
    text = SLURM.read_text().replace("\\\n", " ")
    (command,) = re.findall(r"^exec naspipe teach (.*)$", text, re.MULTILINE)
    given = parser(teach).parse_args([word or "x" for word in shlex.split(command)])
    assert given.registry == "${REGISTRY:-redis://head}"
    directives = re.findall(r"^#SBATCH --([a-z-]+)", text, re.MULTILINE)
    assert {"array", "requeue", "signal"} <= set(directives)


@pytest.mark.parametrize(
    "page", [KUBERNETES, SLURM, ROOT / "docs/elastic.md"], ids=lambda it: it.name
)
def test_commands_of_students_and_teachers_can_be_read(page) -> None:
    """Options and settings that a page names are there."""
    text = page.read_text().replace("\\\n", " ")
    found = re.findall(r"^(?:#  | {3}) *naspipe (train|teach) (.*)$", text, re.MULTILINE)
    for verb, words in found:
        plain = shlex.split(words.split(" # ")[0])
        given = parser(teach if verb == "teach" else train).parse_args(plain)
        apply_settings(Settings(), given.set)
    settings = re.findall(r"--set ((?:teacher|label)\w*=\S+)", text)
    apply_settings(Settings(), [each.strip("`'.;") for each in settings])
    assert found or settings
