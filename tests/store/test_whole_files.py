"""Files that appear whole or not at all: what is on disk when, and in which order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from naspipe.store.files import atomic_file, write_json


def test_bytes_the_name_and_the_directory_go_to_disk_in_this_order(tmp_path, monkeypatch):
    """After a power cut the name must not stand for bytes that never reached the disk."""
    done = []
    sync, replace = os.fsync, Path.replace

    def noted_sync(descriptor):
        done.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        sync(descriptor)

    def noted_replace(self, target):
        done.append(f"rename to {Path(target).name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    path = tmp_path / "manifest.json"
    write_json(path, {"status": "complete"})
    temporary = f".manifest.json.{os.getpid()}.tmp"
    assert done == [f"sync {temporary}", "rename to manifest.json", f"sync {tmp_path.name}"]
    assert path.read_text() == '{\n "status": "complete"\n}\n'


def test_nothing_is_left_of_a_file_whose_writing_failed(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text("before")
    with pytest.raises(RuntimeError, match="half"), atomic_file(path) as file:
        file.write(b"after")
        raise RuntimeError("half-way")
    assert [each.name for each in tmp_path.iterdir()] == ["manifest.json"]
    assert path.read_text() == "before"
