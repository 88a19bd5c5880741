#!/usr/bin/env bash
# Check naspipe on a GPU in less than 9 minutes; writes artifacts/gpu/. --help lists the options.
# Uses the python3 that is there (with its torch), and wheels from wheels/ for what it lacks.
cd "$(dirname "${BASH_SOURCE[0]}")/.." && exec "${PYTHON:-python3}" scripts/gpu_check.py "$@"
