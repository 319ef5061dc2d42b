# SPDX-License-Identifier: Apache-2.0
"""vLLM's configurations and kernels around Moxie's experts."""

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEParallelConfig,
    FusedMoEQuantConfig,
    RoutingMethodType,
    biased_moe_quant_config,
)
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend, make_unquantized_moe_kernel

from moxie.integrations.vllm_experts import MoxieExperts

PARALLEL = FusedMoEParallelConfig.make_no_parallel()


def moe_config(experts, top_k, hidden, width, *, local=None, activation=MoEActivation.SILU, **more):
    return FusedMoEConfig(
        **{
            "num_experts": experts,
            "experts_per_token": top_k,
            "hidden_dim": hidden,
            "intermediate_size": width,
            "num_local_experts": local or experts,
            "num_logical_experts": experts,
            "activation": activation,
            "device": "cpu",
            "routing_method": RoutingMethodType.Default,
            "moe_parallel_config": PARALLEL,
            "in_dtype": torch.bfloat16,
            **more,
        }
    )


def kernel_of(config, b1=None, b2=None, **quant):
    """vLLM's kernel: what prepares tokens, Moxie's experts, what finalizes."""
    if b1 is None and b2 is None:
        quant_config = FusedMoEQuantConfig.make(**quant)
    else:
        quant_config = biased_moe_quant_config(b1, b2, **quant)
    return make_unquantized_moe_kernel(quant_config, config, UnquantizedMoeBackend.TRITON, MoxieExperts)


def run(kernel, x, ids, weights, w1, w2, *, expert_map=None, on_input=False, everywhere=-1):
    with torch.inference_mode():
        return kernel.apply(
            x,
            w1,
            w2,
            weights,
            ids,
            activation=kernel.moe_config.activation,
            global_num_experts=everywhere,
            expert_map=expert_map,
            apply_router_weight_on_input=on_input,
        )
