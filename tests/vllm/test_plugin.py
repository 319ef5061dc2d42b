# SPDX-License-Identifier: Apache-2.0
"""How vLLM comes to Moxie's experts, and when it keeps its own."""

import dataclasses
import importlib.metadata
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from layers import PARALLEL, moe_config
from vllm.model_executor import custom_op
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEActivationFormat, FusedMoEExpertsModular
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.quantization import get_quantization_config, mxfp4
from vllm.model_executor.layers.quantization.utils.quant_utils import kFp8Dynamic128Sym, kMxfp4Static

from moxie.integrations import vllm as plugin
from moxie.integrations import vllm_experts as ours

METHOD = unquantized_fused_moe_method.UnquantizedFusedMoEMethod


def test_the_entry_point_was_loaded():
    [point] = importlib.metadata.entry_points(group="vllm.general_plugins", name="moxie")
    assert point.load() is plugin.register
    plugin.register()  # vLLM may load plugins several times
    assert custom_op.op_registry_oot[METHOD.__name__] is ours.MoxieUnquantizedMethod
    assert get_quantization_config("gpt_oss_mxfp4") is ours.MoxieGptOssMxfp4Config
    assert get_quantization_config("mxfp4") is ours.MoxieMxfp4Config


def test_a_checkpoint_of_gpt_oss_is_recognized():
    config = get_quantization_config("gpt_oss_mxfp4")
    theirs = {"quant_method": "mxfp4"}
    assert config.override_quantization_method(theirs, None, SimpleNamespace(model_type="gpt_oss")) == "gpt_oss_mxfp4"
    assert config.override_quantization_method(theirs, None, SimpleNamespace(model_type="other")) is None


def test_vllms_own_method_has_moxies_experts():
    assert METHOD(moe_config(8, 2, 64, 32)).experts_cls is ours.MoxieExperts


@pytest.fixture
def hopper(monkeypatch):
    """What vLLM's oracles say on Hopper."""
    unquantized = UnquantizedMoeBackend.TRITON, TritonExperts
    monkeypatch.setattr(unquantized_fused_moe_method, "select_unquantized_moe_backend", lambda moe_config: unquantized)
    for name in ("select_mxfp4_moe_backend", "select_deepseek_v4_mxfp4_moe_backend"):
        monkeypatch.setattr(mxfp4, name, lambda *_: (mxfp4.Mxfp4MoeBackend.MARLIN, MarlinExperts))


EXPERT_PARALLEL = dataclasses.replace(PARALLEL, use_ep=True, ep_size=2)
KEPT = {
    "a backend of the user": ({"moe_backend": "triton"}, None),
    "fp16": ({"in_dtype": torch.float16}, "torch.float16, but bfloat16 alone"),
    "17 experts of a token": ({"experts_per_token": 17}, "17 experts of a token, but up to 16"),
    "1,025 experts": ({"num_local_experts": 1025}, "1025 experts of a GPU, but up to 1024"),
    "a width": ({"intermediate_size": 36}, "a width of 36, but multiples of 8"),
    "a hidden size": ({"hidden_dim": 68}, "68 hidden dim is not supported"),
    "an activation": ({"activation": MoEActivation.GELU}, "activation"),
    "LoRA": ({"is_lora_enabled": True}, "LoRA"),
    "moved experts": ({"moe_parallel_config": dataclasses.replace(PARALLEL, enable_eplb=True)}, "parallel config"),
    "exchanged tokens": (
        {"moe_parallel_config": dataclasses.replace(EXPERT_PARALLEL, dp_size=2, all2all_backend="deepep_v2")},
        "parallel config",
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_vllm_keeps_its_own(hopper, name):
    change, sentence = KEPT[name]
    config = moe_config(8, 2, 64, 32)
    config = dataclasses.replace(config, **change)
    assert METHOD(config).experts_cls is TritonExperts
    if sentence is not None:
        supported, reason = ours.MoxieExperts.is_supported_config(
            ours.MoxieExperts, config, None, None, FusedMoEActivationFormat.Standard
        )
        assert not supported and sentence in reason


def test_experts_on_several_ranks_are_moxies(hopper):
    assert METHOD(moe_config(8, 2, 64, 32, local=4, moe_parallel_config=EXPERT_PARALLEL)).experts_cls is (
        ours.MoxieExperts
    )


@pytest.mark.parametrize("method", [ours.MoxieGptOssMxfp4Method, ours.MoxieMxfp4Method])
def test_mxfp4_keeps_vllms_own(hopper, method):
    kept = method(moe_config(8, 2, 64, 32, moe_backend="marlin"))
    assert kept.experts_cls is MarlinExperts and kept.mxfp4_backend == mxfp4.Mxfp4MoeBackend.MARLIN
    assert kept.maybe_roundup_sizes(64, 36, torch.bfloat16, PARALLEL) == (256, 128)
    chosen = method(moe_config(8, 2, 64, 32))
    assert chosen.experts_cls is ours.MoxieMxfp4Experts
    assert chosen.maybe_roundup_sizes(64, 36, torch.bfloat16, PARALLEL) == (64, 64)


def test_quantized_tokens_stay_vllms(hopper):
    assert ours.MoxieMxfp4Method(moe_config(8, 2, 64, 32), kFp8Dynamic128Sym).experts_cls is MarlinExperts


def test_formats_and_layouts():
    moe = moe_config(8, 2, 64, 32)
    standard, batched = FusedMoEActivationFormat.Standard, FusedMoEActivationFormat.BatchedExperts
    for class_, weight, activation, format, supported in (
        (ours.MoxieExperts, None, None, standard, True),
        (ours.MoxieExperts, kMxfp4Static, None, standard, False),
        (ours.MoxieExperts, None, None, batched, False),
        (ours.MoxieMxfp4Experts, kMxfp4Static, None, standard, True),
        (ours.MoxieMxfp4Experts, kMxfp4Static, kFp8Dynamic128Sym, standard, False),
        (ours.MoxieMxfp4Experts, None, None, standard, False),
    ):
        assert class_.is_supported_config(class_, moe, weight, activation, format)[0] == supported


@pytest.mark.parametrize(("capability", "supported"), [(90, True), (80, False), (89, False), (100, False)])
def test_gpus(monkeypatch, capability, supported):
    platform = SimpleNamespace(is_cuda=lambda: True, is_device_capability=lambda wanted: wanted == capability)
    monkeypatch.setattr(ours, "current_platform", platform)
    assert ours.MoxieExperts._supports_current_device() == supported


def test_without_the_simulator(monkeypatch):
    monkeypatch.delenv("MOXIE_DEVICE")
    assert not ours.MoxieExperts._supports_current_device()


# ---- Interfaces that differ ----


def test_other_parameters(monkeypatch):
    class Other(FusedMoEExpertsModular):
        def apply(self, output, hidden_states):
            pass

    monkeypatch.setattr(ours, "BASE", Other)
    with pytest.raises(RuntimeError, match="needs vllm 0.33 .* parameters of Other.apply are self, output, hidden_st"):
        plugin.register()


def test_a_new_abstract_method(monkeypatch):
    monkeypatch.setattr(ours.MoxieMxfp4Experts, "__abstractmethods__", frozenset(["new_method"]))
    with pytest.raises(RuntimeError, match="wants new_method of experts as well"):
        plugin.register()


def test_a_class_that_is_gone(monkeypatch):
    monkeypatch.delattr(mxfp4, "GptOssMxfp4MoEMethod")
    monkeypatch.delitem(sys.modules, "moxie.integrations.vllm_experts")
    monkeypatch.delattr(sys.modules["moxie.integrations"], "vllm_experts")
    with pytest.raises(RuntimeError, match="needs vllm 0.33 or newer .* cannot import name 'GptOssMxfp4MoEMethod'"):
        plugin.register()


def test_another_plugin_was_first(monkeypatch):
    monkeypatch.setitem(custom_op.op_registry_oot, METHOD.__name__, METHOD)
    with pytest.raises(RuntimeError, match="another plugin has replaced vLLM's UnquantizedFusedMoEMethod"):
        plugin.register()


def test_nothing_happens_unless_asked_for():
    code = (
        "import sys; from vllm.plugins import load_general_plugins; load_general_plugins()\n"
        "from vllm.model_executor.custom_op import op_registry_oot; assert not op_registry_oot\n"
        "assert 'moxie.integrations.vllm' in sys.modules and 'moxie.integrations.vllm_experts' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"MOXIE_VLLM": "0"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
