# SPDX-License-Identifier: Apache-2.0
"""Checkpoints through vLLM's engine configuration, loader and models. Attention has no kernel here, so that it is the
models' layers of experts that are called."""

import pytest
import torch
from checkpoints import KINDS, write
from support import DEFAULTS, assert_close, bf16, layer
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method
from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.quantization import mxfp4
from vllm.model_executor.model_loader import get_model

from moxie import torch as ops
from moxie.integrations.vllm_experts import MoxieExperts, MoxieMxfp4Experts


def operands(kind, tensors, index):
    """w1 [E, 2 I, H], w2 [E, H, I], biases, and the activation of a checkpoint's layer."""
    prefix = f"model.layers.{index}.mlp.experts."
    its = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    if kind == "qwen3_moe":
        one = [{n: its[f"{e}.{n}_proj.weight"] for n in ("gate", "up", "down")} for e in range(8)]
        w1 = torch.stack([torch.cat([each["gate"], each["up"]]) for each in one])
        return w1, torch.stack([each["down"] for each in one]), None, None, "swiglu", None, "split"
    if kind == "gpt_oss":
        w1, w2 = its["gate_up_proj"].transpose(1, 2), its["down_proj"].transpose(1, 2)
    else:
        w1, w2 = (
            ops.dequantize(its[f"{n}_blocks"].flatten(2), its[f"{n}_scales"], "mxfp4", dtype=torch.float32)
            for n in ("gate_up_proj", "down_proj")
        )
    biases = its["gate_up_proj_bias"], its["down_proj_bias"]
    return w1, w2, *biases, "swiglu_oai", DEFAULTS["swiglu_oai"], "interleaved"


@pytest.mark.parametrize("kind", KINDS)
def test_checkpoints(monkeypatch, tmp_path, kind):
    # vLLM's own choices on Hopper, which its oracles make before Moxie is asked; here they have none for all three.
    monkeypatch.setattr(
        mxfp4, "select_mxfp4_moe_backend", lambda *_: (mxfp4.Mxfp4MoeBackend.MARLIN, MarlinExperts)
    )
    monkeypatch.setattr(
        unquantized_fused_moe_method,
        "select_unquantized_moe_backend",
        lambda moe_config: (UnquantizedMoeBackend.TRITON, TritonExperts),
    )
    torch.set_default_dtype(torch.float32)
    tensors = write(kind, tmp_path)
    engine = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, enforce_eager=True, max_model_len=128)
    config = engine.create_engine_config()
    with set_current_vllm_config(config):
        model = get_model(vllm_config=config)
    for index in range(2):
        block = model.model.layers[index].mlp
        kernel = block.experts.routed_experts.quant_method.moe_kernel
        assert type(kernel.fused_experts) is (MoxieMxfp4Experts if kind == "gpt_oss_mxfp4" else MoxieExperts)
        x = bf16(9, 256)
        with torch.inference_mode(), set_forward_context(None, config):
            y = block(x)
            logits = block.gate(x)[0] if kind == "qwen3_moe" else block.router(x)
            weights, ids = block.experts.router.select_experts(hidden_states=x, router_logits=logits)
        assert_close(y, layer(x, ids, weights, *operands(kind, tensors, index)))
