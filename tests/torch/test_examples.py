# SPDX-License-Identifier: Apache-2.0
"""The examples run, and check what they compute themselves."""

import itertools
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
    expected = {"exchange": 3, "dispatch": 50, "meet tokens": 5, "send few": 9, "gather": 20, "up": 100, "down": 60,
                "meet results": 4, "combine": 70, "combine sums": 90}  # fmt: skip
    few, many = ("exchange", "dispatch", "meet tokens"), ("send few",)
    rows, few_rows, sums = ("combine sums",), ("combine sums", "meet results"), ("combine", "meet results")
    ends = (rows, few_rows, sums)
    for sends, returns in itertools.product((few, (*few, "gather"), many, (*many, "gather")), ends):
        missing = (*sends, *returns)
        steps = {name: duration for name, duration in expected.items() if name not in missing}
        calls = f"ranks.steps_of({_calls_over_windows(steps)!r}, 2, {returns is sums})"
        script = f"import ranks; print({calls} == [{steps!r}] * 2)"
        run = subprocess.run([sys.executable, "-c", script], cwd=bench, capture_output=True, text=True)
        assert run.stdout == "True\n", run.stderr


def _calls_over_windows(steps):
    """Kernels of two calls of so many microseconds, with a sort in front where tokens are many."""
    threads = {"sort": 1024, "exchange": 256, "meet tokens": 32, "send few": 1024, "meet results": 32, "up": 384,
               "down": 384}  # fmt: skip
    kernels, now = [], 0
    for name, duration in 2 * [*([] if "send few" in steps else [("sort", 2)]), *steps.items()]:
        block = threads.get(name, 128)
        kernels.append((max(now - 1, 0), now + duration, [64 if block in (128, 384) else 1, 1, 1], [block, 1, 1]))
        now += duration
    return kernels[::-1]
