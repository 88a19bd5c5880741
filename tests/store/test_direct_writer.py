"""Files that are written past the page cache where that can be, and as any other where not."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from naspipe.store import files as direct_writer
from naspipe.store.files import PAGE_BYTES, DirectWriter


def page(byte: int) -> memoryview:
    """A page of aligned memory."""
    memory = mmap.mmap(-1, PAGE_BYTES)
    memory[:] = bytes([byte]) * PAGE_BYTES
    return memoryview(memory)


def write(path: Path) -> list[bool]:
    """Pages, something else and a page again; returns which were written directly."""
    direct = []
    with path.open("w+b") as file:
        writer = DirectWriter(file.fileno())
        writer.write_pages(page(2), PAGE_BYTES)
        direct.append(bool(fcntl.fcntl(file, fcntl.F_GETFL) & direct_writer.O_DIRECT))
        writer.write(b"\x01" * 9, PAGE_BYTES - 9)
        direct.append(bool(fcntl.fcntl(file, fcntl.F_GETFL) & direct_writer.O_DIRECT))
        writer.write_pages(page(3), 2 * PAGE_BYTES)
        writer.move(2 * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES + 5)
    return direct


def check(path: Path) -> None:
    found = path.read_bytes()
    assert found[PAGE_BYTES - 9 : PAGE_BYTES] == b"\x01" * 9
    assert found[PAGE_BYTES + 5 :] == b"\x02" * PAGE_BYTES + b"\x03" * PAGE_BYTES


def test_pages_and_everything_else_are_where_they_belong(tmp_path):
    write(tmp_path / "file")
    check(tmp_path / "file")


@pytest.mark.parametrize("refuses", ["a flag", "a write"])
def test_file_systems_that_cannot(tmp_path, monkeypatch, refuses):
    """Some refuse to open a file so, some the first write."""
    pwrite, set_flags = os.pwrite, fcntl.fcntl

    def refused_write(descriptor, data, offset):
        if set_flags(descriptor, fcntl.F_GETFL) & direct_writer.O_DIRECT:
            raise OSError(errno.EINVAL, "not directly")
        return pwrite(descriptor, data, offset)

    def refused_flag(file, command, *flags):
        if command == fcntl.F_SETFL and flags[0] & direct_writer.O_DIRECT:
            raise OSError(errno.EINVAL, "not directly")
        return set_flags(file, command, *flags)

    if refuses == "a write":
        monkeypatch.setattr(os, "pwrite", refused_write)
    else:
        monkeypatch.setattr(fcntl, "fcntl", refused_flag)
    assert write(tmp_path / "file") == [False, False]
    check(tmp_path / "file")


def test_a_write_that_is_wrong_by_itself_is_an_error(tmp_path, monkeypatch):
    """It is tried once more, not for ever."""

    def refused(*arguments):
        raise OSError(errno.EINVAL, "never")

    monkeypatch.setattr(os, "pwrite", refused)
    with pytest.raises(OSError, match="never"):
        write(tmp_path / "file")
