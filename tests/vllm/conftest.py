# SPDX-License-Identifier: Apache-2.0
"""vLLM on a machine without a GPU, with Moxie's plugin and its simulator.

The wheel of vLLM is that of CUDA. VLLM_TARGET_DEVICE makes it take the machine for one of its CPU platform, so that
everything around the experts is vLLM's own and runs.
"""

import os
import pathlib
import sys
from types import SimpleNamespace

os.environ["MOXIE_DEVICE"] = "sim"
os.environ["MOXIE_VLLM"] = "1"
os.environ["VLLM_TARGET_DEVICE"] = "cpu"
os.environ["VLLM_PLUGINS"] = "moxie"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "torch"))

import pytest
import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import init_distributed_environment, initialize_model_parallel
from vllm.plugins import load_general_plugins


@pytest.fixture(scope="session", autouse=True)
def _plugin():
    """By the entry point of the installed wheel."""
    load_general_plugins()


@pytest.fixture(scope="session")
def _ranks(_plugin, tmp_path_factory):
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{tmp_path_factory.mktemp('ranks')}/store", 0, "gloo")
        initialize_model_parallel()


@pytest.fixture(autouse=True)
def config(_ranks):
    """vLLM's configuration of a test. Of the model there is what layers of experts ask for."""
    torch.manual_seed(7)
    made = VllmConfig()
    made.model_config = SimpleNamespace(
        dtype=torch.bfloat16,
        quantization_config=None,
        hf_config=None,
        hf_text_config=None,
        enable_return_routed_experts=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with set_current_vllm_config(made):
        yield made
    torch.set_default_dtype(torch.float32)
