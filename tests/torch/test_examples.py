# SPDX-License-Identifier: Apache-2.0
"""The examples run, and check what they compute themselves."""

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
