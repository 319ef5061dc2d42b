# SPDX-License-Identifier: Apache-2.0
"""Whole layers of vLLM, from its factory to its runner: bf16, and MXFP4 checkpoints by vLLM's own configurations."""

import itertools

import pytest
import torch
from support import DEFAULTS, assert_close, bf16, layer
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method
from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
from vllm.model_executor.layers.fused_moe.layer import FusedMoEFactory
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.quantization import get_quantization_config, mxfp4

from moxie import torch as ops
from moxie.integrations.vllm_experts import MoxieExperts, MoxieMxfp4Experts

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _vllm_has_a_backend(monkeypatch):
    """vLLM asks its own oracle first, which has a backend for all of these on a GPU, but not here."""
    for name in ("select_mxfp4_moe_backend", "select_deepseek_v4_mxfp4_moe_backend"):
        monkeypatch.setattr(mxfp4, name, lambda *_: (mxfp4.Mxfp4MoeBackend.MARLIN, MarlinExperts))
    monkeypatch.setattr(
        unquantized_fused_moe_method,
        "select_unquantized_moe_backend",
        lambda moe_config: (UnquantizedMoeBackend.TRITON, TritonExperts),
    )


def made(experts, top_k, hidden, width, quantization=None, **more):
    config = None if quantization is None else get_quantization_config(quantization)()
    return FusedMoEFactory(
        num_experts=experts,
        top_k=top_k,
        hidden_size=hidden,
        intermediate_size=width,
        prefix=f"model.layers.{next(_numbers)}.mlp.experts",
        quant_config=config,
        **more,
    )


def forward(moe, config, x, logits):
    with torch.inference_mode(), set_forward_context(None, config):
        return moe(x, logits)


def routed(moe, x, logits):
    """What vLLM's own router says, whose weights are bf16 here."""
    weights, ids = moe.router.select_experts(hidden_states=x, router_logits=logits)
    return ids, weights


def dequantized(codes, scales):
    return ops.dequantize(codes, scales, "mxfp4", dtype=torch.float32)


def fill(experts):
    """Random weights and biases in a layer's parameters, as a checkpoint would: what it was filled with."""
    given = {}
    for name, parameter in experts.named_parameters():
        if name.endswith("_scale"):
            value = torch.randint(119, 125, parameter.shape, dtype=torch.uint8)
        elif parameter.dtype == torch.uint8:
            value = torch.randint(0, 256, parameter.shape, dtype=torch.uint8)
        else:
            value = bf16(*parameter.shape, scale=0.3)
        parameter.data.copy_(value)
        given[name] = value
    experts.quant_method.process_weights_after_loading(experts)
    return given


@pytest.mark.parametrize("tokens", [1, 13])
def test_bf16(config, tokens):
    moe = made(8, 2, 64, 48)
    experts = moe.routed_experts
    assert experts.quant_method.experts_cls is MoxieExperts
    given = fill(experts)
    assert isinstance(experts.quant_method.moe_kernel.fused_experts, MoxieExperts)
    x, logits = bf16(tokens, 64), bf16(tokens, 8)
    y = forward(moe, config, x, logits)
    assert_close(y, layer(x, *routed(moe, x, logits), given["w13_weight"], given["w2_weight"]))


def test_gpt_oss_in_bf16(config):
    moe = made(8, 4, 64, 48, activation="swigluoai", has_bias=True)
    given = fill(moe.routed_experts)
    x, logits = bf16(9, 64), bf16(9, 8)
    y = forward(moe, config, x, logits)
    expected = layer(
        x, *routed(moe, x, logits), given["w13_weight"], given["w2_weight"], given["w13_bias"], given["w2_bias"],
        "swiglu_oai", DEFAULTS["swiglu_oai"], "interleaved",
    )  # fmt: skip
    assert_close(y, expected)


@pytest.mark.parametrize("tokens", [1, 13])
@pytest.mark.parametrize(("hidden", "width"), [(64, 32), (256, 96)])
def test_gpt_oss(config, hidden, width, tokens):
    moe = made(8, 4, hidden, width, "gpt_oss_mxfp4", activation="swigluoai", has_bias=True)
    experts = moe.routed_experts
    assert experts.quant_method.experts_cls is MoxieMxfp4Experts
    given = fill(experts)
    x, logits = bf16(tokens, hidden), bf16(tokens, 8)
    y = forward(moe, config, x, logits)
    w1 = dequantized(given["w13_weight"], given["w13_weight_scale"])
    w2 = dequantized(given["w2_weight"], given["w2_weight_scale"])
    expected = layer(
        x, *routed(moe, x, logits), w1, w2, given["w13_bias"], given["w2_bias"], "swiglu_oai", DEFAULTS["swiglu_oai"],
        "interleaved",
    )  # fmt: skip
    assert_close(y, expected)


@pytest.mark.parametrize("limit", [None, 1.5])
def test_other_checkpoints_in_mxfp4(config, limit):
    """Gate before up, as DeepSeek-V4's and others have them."""
    moe = made(8, 2, 64, 96, "mxfp4", swiglu_limit=limit)
    experts = moe.routed_experts
    assert experts.quant_method.experts_cls is MoxieMxfp4Experts
    given = fill(experts)
    x, logits = bf16(9, 64), bf16(9, 8)
    y = forward(moe, config, x, logits)
    w1 = dequantized(given["w13_weight"], given["w13_weight_scale"])
    w2 = dequantized(given["w2_weight"], given["w2_weight_scale"])
    name, parameters = ("swiglu", None) if limit is None else ("swiglu_clamped", {"gate_limit": 1.5, "up_limit": 1.5})
    assert_close(y, layer(x, *routed(moe, x, logits), w1, w2, None, None, name, parameters))


def test_packed_bytes():
    """At most 1% more than the checkpoint's, of which nothing is left; and they hold the same values."""
    experts = made(4, 2, 256, 256, "gpt_oss_mxfp4", activation="swigluoai", has_bias=True).routed_experts
    given = fill(experts)
    held = {name: parameter for name, parameter in experts.named_parameters() if "weight" in name}
    before = sum(value.nbytes for name, value in given.items() if "weight" in name)
    after = sum(parameter.untyped_storage().nbytes() for parameter in held.values())
    assert before < after <= 1.01 * before
    for name, n, k, gate in (("w13", 512, 256, "interleaved"), ("w2", 256, 256, None)):
        codes, scales = ops.unpack_weights(held[f"{name}_weight"].data, n, k, gate=gate)
        assert torch.equal(codes, given[f"{name}_weight"])
        assert torch.equal(scales, given[f"{name}_weight_scale"])
    quant_config = experts.quant_method.moe_quant_config
    assert quant_config.w1_scale is None and quant_config.w2_scale is None


def test_widths_are_rounded_to_a_scale():
    """Of GPT-OSS on 8 ranks: 2,880 / 8 is 360."""
    experts = made(4, 2, 64, 360, "gpt_oss_mxfp4", activation="swigluoai", has_bias=True).routed_experts
    assert experts.w2_weight.shape == (4, 64, 384 // 2)


def test_scales_too_far_apart_are_refused():
    experts = made(4, 2, 64, 32, "gpt_oss_mxfp4", activation="swigluoai", has_bias=True).routed_experts
    experts.w2_weight_scale.data.fill_(120)
    experts.w13_weight_scale.data.fill_(120)
    experts.w13_weight_scale.data[1, 3, 0], experts.w13_weight_scale.data[1, 3, 1] = 1, 200
    with pytest.raises(ValueError, match="scales of row 3 of expert 1 lie too far apart"):
        experts.quant_method.process_weights_after_loading(experts)
