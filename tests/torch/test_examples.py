# SPDX-License-Identifier: Apache-2.0
"""The examples run, and check what they compute themselves."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "python"


@pytest.mark.parametrize("name", ["torch_module", "tiny_gpt_oss"])
def test_example(name):
    if name == "tiny_gpt_oss":
        pytest.importorskip("transformers", "5.23")
    run = subprocess.run([sys.executable, EXAMPLES / f"{name}.py"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "differ" in run.stdout


def test_two_ranks():
    if os.environ.get("MOXIE_DEVICE", "sim") != "sim" and torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", EXAMPLES / "two_ranks.py"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("from one rank") == 2


@pytest.mark.skipif(os.environ.get("MOXIE_DEVICE", "sim") != "sim", reason="bench/ranks.py itself times GPUs")
def test_the_measurement_of_ranks(tmp_path):
    bench = EXAMPLES.parents[1] / "bench"
    run = subprocess.run(
        [sys.executable, bench / "ranks.py", "--small", "--ranks", "2", "--out", tmp_path / "ranks.json"],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    layers = json.loads((tmp_path / "ranks.json").read_text())["layers"]
    assert [each["tokens"] for each in layers] == [1, 1, 5, 5]
    # It has compared all results. What a rank sends is at most a token to the other and a row for each pair.
    for each in layers:
        assert 0 <= each["dispatch_bytes"] <= 128 * each["tokens"] and each["combine_bytes"] <= 384 * each["tokens"]
    script = "import ranks; print(ranks.phases_of(" + repr(_calls_over_windows()) + "))"
    run = subprocess.run([sys.executable, "-c", script], cwd=bench, capture_output=True, text=True)
    assert run.stdout == "[(58, 74), (58, 74)]\n", run.stderr


def _calls_over_windows():
    """Kernels of two calls: sort, exchange, dispatch, meeting, copy, two products, meeting, combine."""
    one = ((1024, 1, 2), (256, 1, 3), (128, 64, 50), (32, 1, 5), (128, 64, 20), (384, 132, 100), (384, 132, 60),
           (32, 1, 4), (128, 64, 70))  # fmt: skip
    kernels, now = [], 0
    for threads, blocks, duration in 2 * one:
        kernels.append((now - 1, now + duration, [blocks, 1, 1], [threads, 1, 1]))
        now += duration
    return kernels[::-1]
