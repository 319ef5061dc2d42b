# SPDX-License-Identifier: Apache-2.0
"""A layer on the simulator, checked. The package holds the layer's kernels, so that no compiler is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np

from moxie._arrays import from_bf16, to_bf16
from moxie._device import Device
from moxie._layer import ExpertLayer
from moxie._library import FOLDER

PACK = FOLDER / "pack"


def compute() -> str:
    """Computes the layer and compares it with double precision. RuntimeError: it is wrong."""
    tokens, experts, top_k, hidden, width = 6, 4, 2, 64, 32
    random = np.random.default_rng(1)
    x = to_bf16(random.standard_normal((tokens, hidden)))
    up = to_bf16(random.standard_normal((experts, 2 * width, hidden)) / hidden**0.5)
    down = to_bf16(random.standard_normal((experts, hidden, width)) / width**0.5)
    ids = np.argsort(random.random((tokens, experts)), axis=1)[:, :top_k].astype(np.int32)
    weights = random.random((tokens, top_k)).astype(np.float32)

    device = Device("sim")
    sizes: Any = {"experts": experts, "top_k": top_k, "hidden": hidden, "width": width}
    layer = ExpertLayer(device, **sizes, max_tokens=tokens, expected_tokens=tokens, gate="split")
    y = from_bf16(layer(x, up, down, ids, weights)).astype(np.float64)

    expected = np.zeros((tokens, hidden))
    x64, up64, down64 = (from_bf16(array).astype(np.float64) for array in (x, up, down))
    for t in range(tokens):
        for j, e in enumerate(ids[t]):
            gate, linear = np.split(up64[e] @ x64[t], 2)
            expected[t] += weights[t, j] * (down64[e] @ (gate / (1 + np.exp(-gate)) * linear))
    error = float(np.linalg.norm(y - expected) / np.linalg.norm(expected))
    if not error < 4e-3:
        raise RuntimeError(f"moxie: a layer on {device.info.name} is off by {error:.1e} of its norm")
    return f"moxie: a layer of {experts} experts on {device.info.name} is within {error:.1e} of double precision"


def selftest() -> None:
    """Computes a small layer on the simulator, compares it with double precision and prints one line.

    It needs neither a GPU nor NVRTC: a process of its own takes the layer's kernels from the package. RuntimeError: it
    does not work, with what that process said.
    """
    path = os.pathsep.join(filter(None, (str(FOLDER.parent), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path}
    if (PACK / "VERSION").exists():
        environment["MOXIE_CACHE_DIR"] = str(PACK)
    code = "from moxie._selftest import compute; print(compute())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"moxie's self-test failed:\n{done.stderr}")
    print(done.stdout, end="")
