"""scripts/compare_code.py: where its two versions lie, and what their processes find."""

from __future__ import annotations

import subprocess
import time

import pytest

from scripts.comparing import versions
from scripts.comparing.versions import BOTH, CompareError, Version, Workplace


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository of two commits, the first of which is old.py's."""
    root = tmp_path / "repository"
    (root / "naspipe").mkdir(parents=True)
    (root / "naspipe/__init__.py").write_text("")

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(
            ["git", "-C", str(root), *who, *words], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    git("init", "--quiet")
    (root / "naspipe/old.py").write_text("")
    git("add", ".")
    git("commit", "--quiet", "-m", "one")
    git("tag", "old")
    git("mv", "naspipe/old.py", "naspipe/new.py")
    git("commit", "--quiet", "-m", "two")
    monkeypatch.setattr(versions, "ROOT", root)
    yield root, git
    assert len(git("worktree", "list").splitlines()) == 1, "the work tree is gone"


def test_a_revision_is_checked_out_for_a_while(repository, tmp_path):
    root, git = repository
    with versions.version_before("old", tmp_path) as before:
        assert (before.root / "naspipe/old.py").is_file() and before.root != root
        assert before.revision == git("rev-parse", "--short=12", "old")
        assert before.digest != Version("present", root, "").digest
    assert not before.root.exists()
    with pytest.raises(KeyError), versions.version_before("old", tmp_path) as before:
        raise KeyError
    assert not before.root.exists()


def test_a_path_is_taken_as_it_lies(repository, tmp_path):
    root, _ = repository
    with versions.version_before(str(root), tmp_path) as before:
        assert before.root == root and "changes" not in before.revision
    digest = before.digest
    (root / "naspipe/new.py").write_text("1")
    with versions.version_before(str(root), tmp_path) as before:
        assert before.revision.endswith(" with changes") and before.digest != digest
    with (
        pytest.raises(CompareError, match="no-such: expected a revision of this repository or"),
        versions.version_before("no-such", tmp_path),
    ):
        pass


def test_code_from_elsewhere_is_refused(tmp_path):
    for folder in ("naspipe", "search_spaces"):
        (tmp_path / "code" / folder).mkdir(parents=True)
        (tmp_path / "code" / folder / "__init__.py").write_text("")
    place = Workplace(tmp_path / "work")
    place.check(Version("before", tmp_path / "code", ""))
    with pytest.raises(CompareError, match="before: expected processes to import the code in"):
        place.check(Version("before", tmp_path / "nothing", ""))


def test_a_command_is_stopped_when_it_is_time(tmp_path, monkeypatch):
    place, nobody = Workplace(tmp_path / "work"), Version("before", tmp_path, "")
    asked = iter([False, False, True])
    start = time.monotonic()
    sleep = ("-c", "import time; time.sleep(60)")
    assert place.python(nobody, *sleep, stop_when=lambda: next(asked)).status == -15
    monkeypatch.setattr(versions, "LIMIT_SECONDS", 0.3)
    late = place.python(nobody, *sleep)
    assert late.status == -15 and late.said == "no end after 0.3 s"
    assert time.monotonic() - start < 30


def test_processes_find_the_version_and_what_is_for_both(tmp_path):
    place = Workplace(tmp_path / "work")
    code = "import os, compared_strategy as c; print(os.environ['PYTHONPATH'], c.__file__)"
    done = place.python(Version("before", tmp_path, ""), "-c", code)
    assert done.out.split() == [f"{tmp_path}:{BOTH}", f"{BOTH}/compared_strategy.py"]
    assert done.status == 0, done.said
