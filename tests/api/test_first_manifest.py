"""What a manifest says of where a run comes from."""

from __future__ import annotations

import sys
import time

from naspipe.api.training import allocator, git_commit, provenance
from naspipe.store.run_directory import RESERVED, RunDirectory, reserve, write_last

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def test_what_is_said(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["naspipe", "train", "redis://me:secret@head:6379", "a@b"])
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = provenance([], ["one", "two", "one"])
    assert found["hosts"] == ["one", "two"] and abs(found["started"] - time.time()) < 60
    assert found["command"] == ["naspipe", "train", "redis://***@head:6379", "a@b"]
    assert found["threads"]["OMP_NUM_THREADS"] == "3" and len(found["code"]) == 16
    assert found["allocator"] == allocator() != ""


def test_commits(tmp_path):
    assert git_commit(tmp_path / "absent") is None
    git, inner = tmp_path / "repo" / ".git", tmp_path / "repo" / "a" / "b"
    inner.mkdir(parents=True)
    git.mkdir()
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert git_commit(inner) is None
    (git / "packed-refs").write_text(f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert git_commit(inner) == COMMIT
    (git / "refs" / "heads").mkdir(parents=True)
    (git / "refs" / "heads" / "main").write_text(COMMIT[::-1] + "\n")
    assert git_commit(inner) == COMMIT[::-1]
    tree = tmp_path / "tree"
    (git / "worktrees" / "tree").mkdir(parents=True)
    (git / "worktrees" / "tree" / "HEAD").write_text("ref: refs/heads/main\n")
    (git / "worktrees" / "tree" / "commondir").write_text("../..\n")
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {git}/worktrees/tree\n")
    assert git_commit(tree) == COMMIT[::-1]
    (git / "HEAD").write_text(COMMIT)
    assert git_commit(inner) == COMMIT


def test_the_end_is_noted_with_the_status(tmp_path):
    directory = RunDirectory(tmp_path)
    manifest = {"format": 1, "status": "running", "provenance": {"started": 1.0}}
    reserve(directory, manifest)
    assert (tmp_path / RESERVED).stat().st_size > 8192
    write_last(directory, {**manifest, "status": "complete"})
    found = directory.read_manifest()
    assert found["provenance"]["ended"] >= found["provenance"]["started"]
    assert not (tmp_path / RESERVED).exists()
