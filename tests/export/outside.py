"""Loads exports in a process that has no naspipe, and hands back what they computed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parent.parent.parent

_CODE = """\
import importlib, sys
allowed, root, *directories = sys.argv[1:]
for name in {"naspipe", "search_spaces", "nni"} - {allowed}: sys.modules[name] = None
if allowed: sys.path.insert(0, root)
import torch
from safetensors.torch import load_file, save_file
torch.set_num_threads(1)
for directory in directories:
    sys.path.insert(0, directory)
    sys.modules.pop("model", None)
    import model
    subnet = model.load()
    assert not any(m.training for m in subnet.modules())
    loaded = load_file(directory + "/../batch.safetensors")
    batch = {name: tensor.clone() for name, tensor in loaded.items()}
    with torch.no_grad():
        out = subnet(*(batch[name] for name in subnet.input_names))
    out = out if isinstance(out, tuple) else (out,)
    tensors = {str(i): o.contiguous() for i, o in enumerate(out)}
    save_file(tensors, directory + "/../out.safetensors")
"""


def outputs_outside(batches, allowed=""):
    """The outputs of each directory's export for its batch, by directory.

    ``allowed`` names the one package that may be imported after all.
    """
    for directory, batch in batches.items():
        whole = {name: tensor.contiguous() for name, tensor in batch.items()}
        save_file(whole, directory.parent / "batch.safetensors")
    words = [allowed, str(ROOT), *map(str, batches)]
    subprocess.run([sys.executable, "-c", _CODE, *words], check=True, cwd=ROOT.parent)
    found = {}
    for directory in batches:
        tensors = load_file(directory.parent / "out.safetensors")
        found[directory] = [tensors[str(number)] for number in range(len(tensors))]
    return found
