"""What a part has found so far, in a file that is whole at any time; and a part's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write(path: Path, record: Mapping[str, Any]) -> None:
    """Put a record in the place of an older one at once: who is cut off leaves one of the two."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(record, indent=1) + "\n")
    new.replace(path)


class Findings:
    """A part's; every change is written at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.record: dict[str, Any] = {"is_good": False, "summary": "not finished"}
        self.put()

    def put(self, **found: Any) -> None:
        """Add findings."""
        self.record.update(found)
        write(self._path, self.record)


def watched(
    command: Sequence[str], output: Path, seconds: float, cwd: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Run a part for so long at most; what it wrote to ``output``, also when it was cut off."""
    output.unlink(missing_ok=True)
    start = time.monotonic()
    # A session of its own, so that a part that is cut off leaves none of its stages behind.
    process = subprocess.Popen(command, cwd=cwd, env=environment, start_new_session=True)
    status: int | None = None
    try:
        status = process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        if status is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    record = json.loads(output.read_text()) if output.exists() else {}
    took = round(time.monotonic() - start, 1)
    record |= {"exit_status": status, "was_cut_off": status is None, "took_seconds": took}
    record["is_good"] = status == 0 and record.get("is_good", False)
    write(output, record)
    return record
