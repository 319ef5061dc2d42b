# SPDX-License-Identifier: Apache-2.0
"""Unquantized experts under vLLM's kernel, beside double precision."""

import copy
from types import SimpleNamespace

import pytest
import torch
from layers import kernel_of, moe_config, run
from support import activate, assert_close, bf16, layer, routing
from torch import nn
from vllm.model_executor.layers import activation as vllm_activations
from vllm.model_executor.layers.fused_moe import modular_kernel
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map
from vllm.v1.worker import workspace

from moxie import torch as ops


def weights_of(experts, hidden, width, gated=True):
    return bf16(experts, 2 * width if gated else width, hidden, scale=0.3), bf16(experts, hidden, width, scale=0.3)


@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "hidden", "width"),
    [(1, 4, 1, 64, 32), (5, 8, 2, 64, 32), (17, 8, 8, 136, 72), (40, 3, 2, 96, 200), (2, 64, 6, 256, 64)],
)
def test_shapes(tokens, experts, top_k, hidden, width, id_type):
    x, (w1, w2) = bf16(tokens, hidden), weights_of(experts, hidden, width)
    ids, weights = routing(tokens, experts, top_k, id_type)
    y = run(kernel_of(moe_config(experts, top_k, hidden, width)), x, ids, weights, w1, w2)
    assert_close(y, layer(x, ids, weights, w1, w2))


def test_weights_in_bf16():
    x, (w1, w2) = bf16(5, 64), weights_of(4, 64, 32)
    ids, weights = routing(5, 4, 2)
    y = run(kernel_of(moe_config(4, 2, 64, 32)), x, ids, weights.bfloat16(), w1, w2)
    assert_close(y, layer(x, ids, weights.bfloat16(), w1, w2))


# ---- Activations, whose formulas are those of vLLM's own modules ----

CLAMP = {"gemm1_clamp_limit": 1.5}
OAI = {"gemm1_clamp_limit": 2.0, "gemm1_alpha": 1.3, "gemm1_beta": 1.0}
SITU = {"activation_situ_beta": 1.5, "activation_situ_linear_beta": 2.5}
MODULES = [
    (MoEActivation.SILU, {}, {}, lambda: vllm_activations.SiluAndMul()),
    (MoEActivation.SILU, {}, CLAMP, lambda: vllm_activations.SiluAndMulWithClamp(1.5)),
    (MoEActivation.SILU, {"swiglu_limit": 1.5}, {}, lambda: vllm_activations.SiluAndMulWithClamp(1.5)),
    (MoEActivation.GELU_TANH, {}, {}, lambda: vllm_activations.GeluAndMul("tanh")),
    (MoEActivation.SWIGLUOAI, {}, {}, lambda: vllm_activations.SwigluOAIAndMul()),
    (MoEActivation.SWIGLUOAI_UNINTERLEAVE, {}, OAI, lambda: vllm_activations.SiluAndMulWithClamp(2.0, 1.3, 1.0)),
    (MoEActivation.SWIGLUOAI_UNINTERLEAVE, {}, CLAMP, lambda: vllm_activations.SiluAndMulWithClamp(1.5)),
    (MoEActivation.SITU, SITU, {}, lambda: vllm_activations.SituAndMul(1.5, 2.5)),
]


def reference(x, ids, weights, w1, w2, b1, b2, activation):
    y = torch.zeros(x.shape, dtype=torch.float64)
    for t in range(x.shape[0]):
        for j, e in enumerate(ids[t].tolist()):
            pre = x[t : t + 1].double() @ w1[e].double().T
            inner = activation(pre if b1 is None else pre + b1[e].double()).bfloat16().double()
            row = inner @ w2[e].double().T
            row = row if b2 is None else row + b2[e].double()
            y[t] += row[0].bfloat16().double() * weights[t, j].double()
    return y


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("activation", "of_moe", "of_quant", "module"), MODULES)
def test_gated_activations(activation, of_moe, of_quant, module, bias):
    x, (w1, w2) = bf16(9, 64), weights_of(4, 64, 48)
    ids, weights = routing(9, 4, 2, torch.int32)
    b1, b2 = (bf16(4, 96), bf16(4, 64)) if bias else (None, None)
    kernel = kernel_of(moe_config(4, 2, 64, 48, activation=activation, has_bias=bias, **of_moe), b1, b2, **of_quant)
    y = run(kernel, x, ids, weights, w1, w2)
    assert_close(y, reference(x, ids, weights, w1, w2, b1, b2, module().forward_native))


@pytest.mark.parametrize(
    ("activation", "name"),
    [
        (MoEActivation.SILU_NO_MUL, "silu"),
        (MoEActivation.GELU_NO_MUL, "gelu_erf"),
        (MoEActivation.GELU_TANH_NO_MUL, "gelu"),
        (MoEActivation.RELU2_NO_MUL, "relu2"),
    ],
)
def test_activations_without_a_gate(monkeypatch, activation, name):
    # vLLM's CPU platform has none, and its configuration refuses them there.
    monkeypatch.setattr(type(modular_kernel.current_platform), "is_cuda_alike", lambda self: True)
    x, (w1, w2) = bf16(9, 64), weights_of(4, 64, 48, gated=False)
    ids, weights = routing(9, 4, 2, torch.int32)
    config = moe_config(4, 2, 64, 48, activation=activation)
    monkeypatch.undo()
    y = run(kernel_of(config), x, ids, weights, w1, w2)
    assert_close(y, reference(x, ids, weights, w1, w2, None, None, lambda pre: activate(pre, name, None, "split")))


@pytest.mark.parametrize(
    ("activation", "more", "sentence"),
    [
        (MoEActivation.GELU, {}, "gelu activation"),
        (MoEActivation.SWIGLUSTEP, {}, "swiglustep activation"),
        (MoEActivation.SWIGLUOAI, {"swiglu_limit": 5.0}, "swigluoai with alpha 1.0, beta 0.0 and limit 5.0"),
        (MoEActivation.SWIGLUOAI_UNINTERLEAVE, {}, "without a limit"),
        (MoEActivation.SWIGLUOAI_UNINTERLEAVE, {"swiglu_limit": 7.0, "swiglu_alpha": 1.7}, "alpha 1.7 and beta 0.0"),
        (MoEActivation.SITU, {"activation_situ_beta": 4.0}, "situ without both of its parameters"),
    ],
)
def test_other_activations_are_refused(activation, more, sentence):
    with pytest.raises(ValueError, match=sentence):
        kernel_of(moe_config(4, 2, 64, 48, activation=activation, **more))


# ---- Expert parallelism ----


class Rank(nn.Module):
    """What a layer of vLLM shows of its experts' map."""

    def __init__(self, expert_map):
        super().__init__()
        self.expert_map = expert_map


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("placement", ["linear", "round_robin"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_add_up(ranks, placement, loaded):
    """8 experts on several ranks, by vLLM's own maps."""
    x, (w1, w2) = bf16(12, 64), weights_of(8, 64, 32)
    ids, weights = routing(12, 8, 3, torch.int32)
    whole = torch.zeros(12, 64, dtype=torch.float64)
    for rank in range(ranks):
        local, expert_map, _ = determine_expert_map(ranks, rank, 8, placement)
        here = torch.tensor([i for i, to in enumerate(expert_map.tolist()) if to >= 0])
        kernel = kernel_of(moe_config(8, 3, 64, 32, local=local))
        if loaded:
            kernel.fused_experts.process_weights_after_loading(Rank(expert_map))
            assert (kernel.fused_experts._offset_map is not None) == (placement == "linear")
        y = run(kernel, x, ids, weights, w1[here], w2[here], expert_map=expert_map, everywhere=8)
        theirs = torch.where(torch.isin(ids, here), ids, -1)
        assert_close(y, layer(x, theirs, weights, w1, w2))
        whole += y.double()
    # The ranks' sums are rounded one by one.
    expected = layer(x, ids, weights, w1, w2)
    assert (whole - expected).norm() <= 6e-3 * expected.norm()


@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["none", "offset", "offset of the layer", "scattered"])
def test_other_ids_are_skipped(kind, id_type):
    """Whatever they are: none becomes an expert of this rank."""
    x, (w1, w2) = bf16(6, 64), weights_of(4, 64, 32)
    ids = torch.tensor(
        [[0, 4, 8], [-1, 5, 12], [6, 2**31 - 1, -(2**31)], [99, -7, 13], [7, 3, -2], [11, 10, 9]], dtype=id_type
    )
    weights = torch.rand(6, 3)
    maps = {
        "none": None,
        "offset": [-1] * 4 + [0, 1, 2, 3] + [-1] * 5,
        "scattered": [2, -1, -1, -1, 0, -1, -1, 3, -1, -1, -1, -1, 1],
    }
    ours = maps[kind.removesuffix(" of the layer")]
    expert_map = None if ours is None else torch.tensor(ours, dtype=torch.int32)
    kernel = kernel_of(moe_config(4 if ours is None else 13, 3, 64, 32, local=4))
    if kind == "offset of the layer":
        kernel.fused_experts.process_weights_after_loading(Rank(expert_map))
    everywhere = list(range(4)) if ours is None else ours
    local = [[everywhere[i] if 0 <= i < len(everywhere) else -1 for i in row] for row in ids.tolist()]
    y = run(kernel, x, ids, weights, w1, w2, expert_map=expert_map, everywhere=len(everywhere))
    assert_close(y, layer(x, torch.tensor(local), weights, w1, w2))


def test_another_map_than_the_layer_had():
    x, (w1, w2) = bf16(6, 64), weights_of(4, 64, 32)
    ids, weights = routing(6, 8, 3)
    kernel = kernel_of(moe_config(8, 3, 64, 32, local=4))
    kernel.fused_experts.process_weights_after_loading(Rank(torch.tensor([-1] * 4 + [0, 1, 2, 3], dtype=torch.int32)))
    new = torch.tensor([0, 1, 2, 3] + [-1] * 4, dtype=torch.int32)
    y = run(kernel, x, ids, weights, w1, w2, expert_map=new, everywhere=8)
    assert_close(y, layer(x, ids, weights, w1, w2))


def test_no_expert_is_here():
    x, (w1, w2) = bf16(3, 64), weights_of(2, 64, 32)
    ids, weights = torch.full((3, 2), -1, dtype=torch.int32), torch.rand(3, 2)
    y = run(kernel_of(moe_config(2, 2, 64, 32)), x, ids, weights, w1, w2)
    assert (y == 0).all()


# ---- Weights on the input, empty calls ----


def test_weights_on_the_input():
    x, (w1, w2) = bf16(7, 64), weights_of(4, 64, 32)
    ids, weights = routing(7, 4, 1)
    y = run(kernel_of(moe_config(4, 1, 64, 32)), x, ids, weights, w1, w2, on_input=True)
    assert_close(y, layer(x * weights.bfloat16(), ids, None, w1, w2))


def test_no_tokens():
    kernel = kernel_of(moe_config(4, 2, 64, 32))
    w1, w2 = weights_of(4, 64, 32)
    y = run(kernel, bf16(0, 64), torch.zeros(0, 2, dtype=torch.int32), torch.zeros(0, 2), w1, w2)
    assert y.shape == (0, 64)
    apply(kernel.fused_experts, y, bf16(0, 64), torch.zeros(0, 2, dtype=torch.int32), torch.zeros(0, 2), w1, w2)


def test_equal_bits():
    x, (w1, w2) = bf16(9, 64), weights_of(4, 64, 32)
    ids, weights = routing(9, 4, 2)
    kernel = kernel_of(moe_config(4, 2, 64, 32))
    assert torch.equal(run(kernel, x, ids, weights, w1, w2), run(kernel, x, ids, weights, w1, w2))


# ---- Memory that vLLM brings ----


@pytest.fixture
def managed(monkeypatch):
    """vLLM's workspaces, which its CPU platform goes without."""
    platform = SimpleNamespace(is_cpu=lambda: False, is_rocm=lambda: False, is_cuda=lambda: False)
    monkeypatch.setattr(modular_kernel, "current_platform", platform)
    workspace.init_workspace_manager(torch.device("cpu"))
    yield workspace.current_workspace_manager()
    workspace.reset_workspace_manager()


def test_smaller_calls_need_no_more(managed):
    """vLLM locks its workspace once the largest call has been made."""
    w1, w2 = weights_of(16, 64, 32)
    kernel = kernel_of(moe_config(16, 2, 64, 32))
    for tokens in (70, 33, 32, 9, 8, 3, 2, 1):
        x = bf16(tokens, 64)
        ids, weights = routing(tokens, 16, 2, torch.int32)
        y = run(kernel, x, ids, weights, w1, w2)
        assert_close(y, layer(x, ids, weights, w1, w2))
        workspace.lock_workspace()


def test_the_largest_call_prepares_all_others():
    kernel = kernel_of(moe_config(6, 2, 72, 40))
    w1, w2 = weights_of(6, 72, 40)
    made = set()
    for tokens in (40, 32, 9, 8, 3, 2, 1):
        ids, weights = routing(tokens, 6, 2, torch.int32)
        run(kernel, bf16(tokens, 72), ids, weights, w1, w2)
        made = made or set(ops._made)
        assert set(ops._made) == made


@pytest.mark.parametrize("tokens", [1, 2, 3, 8, 9, 31, 33, 100])
def test_workspace_is_enough(tokens):
    experts = kernel_of(moe_config(8, 2, 64, 32)).fused_experts
    first, second, out = experts.workspace_shapes(tokens, 64, 64, 2, 8, 8, None, MoEActivation.SILU)
    assert first == (0,) and out == (tokens, 64)  # where the output may lie
    for id_type in (torch.int32, torch.int64):
        needed = ops.experts_workspace_bytes(
            ops._Simulator(), tokens, 8, 2, 64, 32, False, False, False, False, torch.bfloat16, id_type, "swiglu", None,
            "split", 0, None,
        )  # fmt: skip
        assert 2 * second[0] >= needed


# ---- Calls of apply() itself ----


def apply(experts, output, x, ids, weights, w1, w2, activation=MoEActivation.SILU):
    experts.apply(
        output=output,
        hidden_states=x,
        w1=w1,
        w2=w2,
        topk_weights=weights,
        topk_ids=ids,
        activation=activation,
        global_num_experts=w1.shape[0],
        expert_map=None,
        a1q_scale=None,
        a2_scale=None,
        workspace13=torch.empty(0, dtype=torch.bfloat16),
        workspace2=torch.empty(0, dtype=torch.bfloat16),
        expert_tokens_meta=None,
        apply_router_weight_on_input=False,
    )


def test_only_the_output_is_written():
    x, (w1, w2) = bf16(5, 64), weights_of(4, 64, 32)
    ids, weights = routing(5, 4, 2)
    given = [each.clone() for each in (x, ids, weights, w1, w2)]
    memory = torch.full((7, 64), float("nan"), dtype=torch.bfloat16)
    apply(kernel_of(moe_config(4, 2, 64, 32)).fused_experts, memory[1:6], x, ids, weights, w1, w2)
    assert_close(memory[1:6], layer(x, ids, weights, w1, w2))
    assert memory[[0, 6]].isnan().all()
    assert all(torch.equal(a, b) for a, b in zip(given, (x, ids, weights, w1, w2), strict=True))


WRONG = {
    "x in fp16": ({"x": torch.zeros(5, 64, dtype=torch.float16)}, "x is torch.float16, but must be torch.bfloat16"),
    "ids in int8": ({"ids": torch.zeros(5, 2, dtype=torch.int8)}, "topk_ids is torch.int8"),
    "ids of fewer tokens": ({"ids": torch.zeros(4, 2, dtype=torch.int32)}, "topk_ids has 4 tokens, but x 5"),
    "weights of fewer experts": ({"weights": torch.zeros(5, 1)}, r"topk_weights is \[5, 1\], but must be \[5, 2\]"),
    "w1 of another hidden size": ({"w1": torch.zeros(4, 64, 72, dtype=torch.bfloat16)}, r"w1 is \[4, 64, 72\]"),
    "w2 of another width": ({"w2": torch.zeros(4, 64, 40, dtype=torch.bfloat16)}, r"w2 is \[4, 64, 40\]"),
    "w1 in float32": ({"w1": torch.zeros(4, 64, 64, dtype=torch.float32)}, "w1 is torch.float32"),
    "an output of other tokens": (
        {"output": torch.ones(4, 64, dtype=torch.bfloat16)},
        r"out is \[4, 64\], but must be \[5, 64\]",
    ),
    "an output in float32": ({"output": torch.ones(5, 64, dtype=torch.float32)}, "out is torch.float32"),
    "an output with gaps": ({"output": torch.ones(5, 128, dtype=torch.bfloat16)[:, :64]}, "out is not contiguous"),
    "another activation": ({"activation": MoEActivation.GELU_TANH}, "activation is MoEActivation.GELU_TANH"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(name):
    change, sentence = WRONG[name]
    ids, weights = routing(5, 4, 2)
    w1, w2 = weights_of(4, 64, 32)
    arguments = {"output": torch.ones(5, 64, dtype=torch.bfloat16), "x": bf16(5, 64), "ids": ids, "weights": weights}
    arguments |= {"w1": w1, "w2": w2, **change}
    with pytest.raises(ValueError, match=sentence):
        apply(kernel_of(moe_config(4, 2, 64, 32)).fused_experts, **arguments)
    assert (arguments["output"] == 1).all()


def test_a_hook_behind_the_products_is_refused():
    experts = copy.copy(kernel_of(moe_config(4, 2, 64, 32)).fused_experts)
    experts.post_gemm2_hook = lambda rows, out: None
    w1, w2 = weights_of(4, 64, 32)
    ids, weights = routing(5, 4, 2)
    with pytest.raises(NotImplementedError, match="post_gemm2_hook is set"):
        apply(experts, torch.empty(5, 64, dtype=torch.bfloat16), bf16(5, 64), ids, weights, w1, w2)
