# SPDX-License-Identifier: Apache-2.0
"""moxie.nn.Experts: state dicts as checkpoints name them."""

import copy
import io

import pytest
import torch
from support import DEVICE, assert_close, bf16, dequantized, layer, mxfp4, routing

import moxie.torch
from moxie.nn import Experts

E, H, W = 4, 64, 32


def test_gpt_oss_in_bf16():
    state = {
        "gate_up_proj": bf16(E, H, 2 * W, scale=0.2),
        "gate_up_proj_bias": bf16(E, 2 * W),
        "down_proj": bf16(E, W, H, scale=0.2),
        "down_proj_bias": bf16(E, H),
    }
    module = Experts(E, H, W, layout="gpt_oss", device=DEVICE)
    module.load_state_dict(state)
    assert {name: tuple(value.shape) for name, value in module.state_dict().items()} == {
        name: tuple(value.shape) for name, value in state.items()
    }
    x, (ids, scores) = bf16(9, H), routing(9, E, 2)
    expected = layer(
        x, ids, scores, state["gate_up_proj"].mT, state["down_proj"].mT, state["gate_up_proj_bias"],
        state["down_proj_bias"], "swiglu_oai", gate="interleaved",
    )  # fmt: skip
    for each in (module, copy.deepcopy(module)):
        assert_close(each(x, ids, scores), expected)
        # The kernels read the parameters where they are.
        assert all(moxie.torch._matrices(w)[0] is w for w in each._operands())
    assert all(torch.equal(module.state_dict()[name], value) for name, value in state.items())


def test_qwen3_in_bf16():
    fused = {"gate_up_proj": bf16(E, 2 * W, H, scale=0.2), "down_proj": bf16(E, H, W, scale=0.2)}
    x, (ids, scores) = bf16(9, H), routing(9, E, 2)
    expected = layer(x, ids, scores, fused["gate_up_proj"], fused["down_proj"])
    for names in (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")):
        single = {}
        for e in range(E):
            single[f"{e}.{names[0]}.weight"], single[f"{e}.{names[1]}.weight"] = fused["gate_up_proj"][e].chunk(2)
            single[f"{e}.{names[2]}.weight"] = fused["down_proj"][e]
        for state in (fused, single):
            model = torch.nn.Sequential(Experts(E, H, W, device=DEVICE))
            model.load_state_dict({f"0.{name}": value for name, value in state.items()})
            assert_close(model[0](x, ids, scores), expected)
    assert torch.equal(model[0](x, ids, scores, residual=x) - x, (model[0](x, ids, scores, residual=x) - x))


@pytest.mark.parametrize("layout", ["gpt_oss", "qwen3"])
def test_mxfp4(layout):
    module = Experts(E, H, W, layout=layout, weights="mxfp4", device=DEVICE)
    state = {name: bf16(*value.shape) for name, value in module.state_dict().items() if name.endswith("bias")}
    for name, n, k in (("gate_up_proj", 2 * W, H), ("down_proj", H, W)):
        codes, scales = mxfp4(E, n, k)
        state[f"{name}_blocks"], state[f"{name}_scales"] = codes.view(E, n, k // 32, 16), scales
    x, (ids, scores) = bf16(9, H), routing(9, E, 2)

    def expected():
        w1, w2 = (
            dequantized(state[f"{name}_blocks"].flatten(2), state[f"{name}_scales"])
            for name in ("gate_up_proj", "down_proj")
        )
        return layer(
            x, ids, scores, w1, w2, state.get("gate_up_proj_bias"), state.get("down_proj_bias"), module.activation,
            gate=module.gate,
        )  # fmt: skip

    module.load_state_dict(state)
    before = sum(each.nbytes for each in module.parameters())
    assert not module.packed
    assert_close(module(x, ids, scores), expected())
    assert module.packed
    after = sum(each.nbytes for each in (*module.parameters(), *module.buffers()))
    assert after <= before + E * (2 * W + H)  # one more byte a row, and no second copy
    # A state dict has the checkpoint's tensors again, and a packed module takes others.
    back = module.state_dict()
    assert back.keys() == state.keys() and all(torch.equal(back[name], value) for name, value in state.items())
    file = io.BytesIO()
    torch.save(back, file)
    file.seek(0)
    state["down_proj_scales"] = state["down_proj_scales"] - 1
    module.load_state_dict(state)
    assert_close(module(x, ids, scores), expected())
    module.load_state_dict(torch.load(file))
    assert all(torch.equal(module.state_dict()[name], value) for name, value in back.items())


def test_compiles_without_a_graph_break():
    module = Experts(E, H, W, layout="gpt_oss", device=DEVICE)
    for parameter in module.parameters():
        parameter.normal_(std=0.2)
    x, (ids, scores) = bf16(9, H), routing(9, E, 2)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, ids, scores), module(x, ids, scores))


def test_warm_up_makes_what_calls_need():
    module = Experts(E, H, 2 * W, device=DEVICE)
    module.warm_up(1, 40, top_k=3)
    made = len(moxie.torch._made)
    for tokens in (1, 2, 40, 100):
        module(bf16(tokens, H), *routing(tokens, E, 3))
    assert len(moxie.torch._made) == made
