"""The part of the check that is pytest."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter

from scripts.gpu.findings import Findings

_OUTCOME = re.compile(r"(tests/\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)\b")


def run_tests(arguments: argparse.Namespace, findings: Findings) -> None:
    """The tests marked ``gpu`` but those of whole runs, which other parts make; line by line."""
    command = [
        sys.executable, "-m", "pytest", "-m", "gpu", "tests/gpu", "-vv", "-W", "default", "-rs",
        "--tb=short", "--color=no", "--ignore=tests/gpu/test_bits.py",
    ]  # fmt: skip
    verdicts: dict[str, str] = {}
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
            if (found := _OUTCOME.search(line)) and found[1] not in verdicts:
                verdicts[found[1]] = found[2].lower()
                findings.put(tests=verdicts, summary=Counter(verdicts.values()))
    wanted = "skipped" if arguments.device == "cpu" else "passed"
    is_good = process.returncode == 0 and wanted in verdicts.values()
    findings.put(is_good=is_good)
    if not is_good:
        findings.put(tail="".join(lines)[-12000:])
