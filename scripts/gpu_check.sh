#!/usr/bin/env bash
# Check naspipe on a GPU; writes artifacts/gpu/. --help lists the parts, the options and how to run it in pieces.
# Uses the python3 that is there (with its torch), and wheels from wheels/ for what it lacks.
cd "$(dirname "${BASH_SOURCE[0]}")/.." && exec "${PYTHON:-python3}" scripts/gpu_check.py "$@"
