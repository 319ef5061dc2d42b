# SPDX-License-Identifier: Apache-2.0
"""What all tests of the operators share. MOXIE_DEVICE chooses where they run: the simulator, or with cuda the GPU."""

import os

os.environ.setdefault("MOXIE_DEVICE", "sim")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(7)
    torch._dynamo.reset()
    yield
