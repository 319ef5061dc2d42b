# SPDX-License-Identifier: Apache-2.0
"""Calls that break a rule: each says so in one sentence and computes nothing."""

import pytest
import torch
from support import DEVICE, bf16, ends, mxfp4, routing

import moxie.torch as ops
from moxie.nn import Experts

E, H, W, T = 4, 64, 32, 6


def product(**changed):
    """A call of grouped_mm that is right but for what is changed."""
    arguments = {"mat_a": bf16(T, H), "mat_b": bf16(E, 48, H).transpose(1, 2), "offs": ends(1, 3, 3, T), **changed}
    return ops.grouped_mm(arguments.pop("mat_a"), arguments.pop("mat_b"), **arguments)


def layer_arguments():
    ids, scores = routing(T, E, 2)
    return {"x": bf16(T, H), "topk_ids": ids, "topk_weights": scores, "w1": bf16(E, 2 * W, H), "w2": bf16(E, H, W)}


def layer(**changed):
    return ops.experts(**{**layer_arguments(), **changed})


def packed(**changed):
    codes, scales = mxfp4(E, 2 * W, H)
    arguments = {"codes": codes, "scales": scales, **changed}
    return ops.pack_weights(arguments.pop("codes"), arguments.pop("scales"), **arguments)


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype, device=DEVICE)


WRONG = [
    (lambda: product(mat_a=zeros(T, H, dtype=torch.float32)), "mat_a is torch.float32, but must be torch.bfloat16"),
    (lambda: product(mat_b=zeros(E, H, 48, dtype=torch.float16)), "mat_b is torch.float16, but must be torch.bfloat16"),
    (lambda: product(mat_a=zeros(H)), "mat_a has 1 dimensions, but must have 2 or 3"),
    (lambda: product(mat_b=zeros(E, 2, H, 48)), "mat_b has 4 dimensions, but must have 2 or 3"),
    (lambda: product(mat_b=zeros(E, 48, H)), r"mat_a is \[6, 64\] and mat_b \[4, 48, 64\], whose K differ"),
    (lambda: product(offs=None), "offs is missing, but mat_a has 2 dimensions"),
    (lambda: product(offs=ends(1, T)), "offs has 2 ends, but mat_b 4 groups"),
    (lambda: product(offs=ends(1, 2, 3, 4).long()), "offs is torch.int64, but must be torch.int32"),
    (lambda: product(offs=ends(1, 2, 3, 4)[None]), "offs has 2 dimensions, but must have 1"),
    (lambda: product(mat_a=zeros(E, T, H)), "offs is given, but both operands have 3 dimensions"),
    (lambda: product(mat_a=zeros(3, T, H), offs=None), "mat_a has 3 groups, but mat_b 4"),
    (lambda: product(mat_a=zeros(E, T, H), mat_b=zeros(H, 48)), "groups along N are not supported"),
    (lambda: product(bias=zeros(E, 40)), r"bias is \[4, 40\], but must be \[4, 48\]"),
    (lambda: product(bias=zeros(E, 48, dtype=torch.float32)), "bias is torch.float32, but must be torch.bfloat16"),
    (lambda: product(bias=zeros(48)), "bias has 1 dimensions, but must have 2"),
    (lambda: product(out_dtype=torch.float16), "out_dtype is torch.float16, but must be torch.bfloat16"),
    (lambda: product(gather=zeros(T, dtype=torch.int64)), "gather is torch.int64, but must be torch.int32"),
    (lambda: product(gather=zeros(T, dtype=torch.int32), divisor=0), "divisor is 0, but must be 1 or more"),
    (lambda: product(gather=zeros(T, dtype=torch.int32), divisor=-2), "divisor is -2"),
    (lambda: product(gather=zeros(T, dtype=torch.int32), divisor=2**31), "divisor is 2147483648, but must be"),
    (lambda: product(mat_a=zeros(E, T, H), offs=None, gather=zeros(T, dtype=torch.int32)), "gather is given"),
    (lambda: product(activation="tanh"), "activation is 'tanh', but must be one of none, relu"),
    (lambda: product(activation="swiglu", gate="middle"), "'middle'"),
    (lambda: product(activation="swiglu", activation_parameters={"limit": 1.0}), "swiglu has none"),
    (lambda: product(activation="swiglu_oai", activation_parameters={"limit": 1.0}), "swiglu_oai has alpha and limit"),
    (lambda: product(activation="swiglu_oai", activation_parameters={"alpha": 1.0, "limit": -1.0}), "limit"),
    (lambda: product(mat_b=zeros(E, 44, H).transpose(1, 2)), "n is 44, but must be a multiple of 8"),
    (lambda: product(mat_b=zeros(E, 40, H).transpose(1, 2), activation="swiglu"), "n is 40"),
    (lambda: product(mat_a=zeros(T, 60), mat_b=zeros(E, 48, 60).transpose(1, 2)), "k is 60, but must be"),
    (lambda: product(mat_b=zeros(H, 48), offs=ends(32, H)), "sm_100a"),
    (lambda: layer(x=zeros(T, H, dtype=torch.float32)), "x is torch.float32, but must be torch.bfloat16"),
    (lambda: layer(x=zeros(2, T, H)), "x has 3 dimensions, but must have 2"),
    (lambda: layer(x=zeros(T, 72)), r"w1 is \[4, 64, 64\], but must be \[4, 64, 72\]"),
    (lambda: layer(topk_ids=zeros(T, 2)), "topk_ids is torch.bfloat16, but must be torch.int32 or torch.int64"),
    (lambda: layer(topk_ids=zeros(T + 1, 2, dtype=torch.int32)), "topk_ids has 7 tokens, but x 6"),
    (lambda: layer(topk_weights=zeros(T, 3, dtype=torch.float32)), r"topk_weights is \[6, 3\], but must be \[6, 2\]"),
    (lambda: layer(topk_weights=zeros(T, 2, dtype=torch.float64)), "topk_weights is torch.float64"),
    (lambda: layer(topk_ids=zeros(T, 17, dtype=torch.int32), topk_weights=None), "top_k is 17, but must be 1 to 16"),
    (lambda: layer(w2=zeros(E, H, 40)), r"w2 is \[4, 64, 40\], but must be \[4, 64, 32\]"),
    (lambda: layer(w2=zeros(3, H, W)), r"w2 is \[3, 64, 32\], but must be \[4, 64, 32\]"),
    (lambda: layer(w2=zeros(E, 100, dtype=torch.uint8)), "w2 is torch.uint8, but must be torch.bfloat16"),
    (lambda: layer(w1=zeros(E, 100, dtype=torch.uint8)), "w2 is torch.bfloat16, but must be torch.uint8"),
    (lambda: layer(w1=zeros(E, 100, dtype=torch.uint8), w2=zeros(E, 9, dtype=torch.uint8)), "no packed weights"),
    (lambda: layer(w1=zeros(E, 68, H), w2=zeros(E, H, 34)), "width is 34, but must be a multiple of 8"),
    (lambda: layer(b1=zeros(E, W)), r"b1 is \[4, 32\], but must be \[4, 64\]"),
    (lambda: layer(b2=zeros(E, H, dtype=torch.float32)), "b2 is torch.float32, but must be torch.bfloat16"),
    (lambda: layer(residual=zeros(T, H, dtype=torch.float32)), "residual is torch.float32, but must be torch.bfloat16"),
    (lambda: layer(residual=zeros(T - 1, H)), r"residual is \[5, 64\], but must be \[6, 64\]"),
    (lambda: layer(first_expert=-1), "first_expert is -1, but must be 0 to"),
    (lambda: layer(first_expert=4, all_experts=7), "all_experts is 7, but the last one here is 7"),
    (lambda: layer(activation="glu"), "activation is 'glu', but must be one of"),
    (lambda: packed(scales=zeros(E, 2 * W, 3, dtype=torch.uint8)), r"scales is \[4, 64, 3\], but must be \[4, 64, 2\]"),
    (lambda: packed(codes=zeros(E, 60, 32, dtype=torch.uint8)), r"codes are \[4, 60, 32\]"),
    (lambda: packed(codes=zeros(E, 64, 32)), "codes is torch.bfloat16, but must be torch.uint8"),
    (lambda: packed(gate="both"), "'both'"),
    (lambda: ops.unpack_weights(packed(), 2 * W, 96), r"packed is"),
    (lambda: ops.quantize(zeros(4, 40), "mxfp4"), "values have 40 columns, but mxfp4 wants a multiple of 32"),
    (lambda: ops.quantize(zeros(4, 64), "int8"), "format is 'int8'"),
    (lambda: ops.quantize(zeros(4, 64), layout="columns"), "layout is 'columns'"),
    (lambda: ops.quantize(zeros(4, 64), tensor_scale=zeros(1, dtype=torch.float32)), "tensor_scale is given"),
    (lambda: ops.quantize(zeros(64)), "values has 1 dimensions"),
    (lambda: ops.dequantize(zeros(4, 32, dtype=torch.uint8), zeros(4, 3, dtype=torch.uint8)), r"scales is \[4, 3\]"),
    (lambda: Experts(E, H, W, layout="llama"), "layout is 'llama', but must be 'qwen3' or 'gpt_oss'"),
    (lambda: Experts(E, H, W, weights="int4"), "weights is 'int4', but must be 'bf16' or 'mxfp4'"),
]  # fmt: skip


NOT_TENSORS = [
    (lambda: product(mat_a=[[1.0]]), "mat_a is a torch.Tensor, and list is none"),
    (lambda: product(mat_a=None), "mat_a is a torch.Tensor, and NoneType is none"),
    (lambda: product(mat_b=None), "mat_b is a torch.Tensor, and NoneType is none"),
    (lambda: product(offs=[1, 3, 3, T]), "offs is a torch.Tensor, and list is none"),
    (lambda: product(bias=1.0), "bias is a torch.Tensor, and float is none"),
    (lambda: product(gather=range(T)), "gather is a torch.Tensor, and range is none"),
    (lambda: product(divisor="2"), "divisor is an integer, and '2' is none"),
    (lambda: product(divisor=None), "divisor is an integer, and None is none"),
    (lambda: product(activation=None), "activation is the name of a value, and None is no str"),
    (lambda: product(activation="swiglu", gate=None), "gate is the name of a value, and None is no str"),
    (lambda: layer(x=bf16(T, H).cpu().float().numpy()), "x is a torch.Tensor, and ndarray is none"),
    (lambda: layer(topk_ids=None), "topk_ids is a torch.Tensor, and NoneType is none"),
    (lambda: layer(topk_ids=[[0, 1]] * T), "topk_ids is a torch.Tensor, and list is none"),
    (lambda: layer(topk_weights=1.0), "topk_weights is a torch.Tensor, and float is none"),
    (lambda: layer(w1=None), "w1 is a torch.Tensor, and NoneType is none"),
    (lambda: layer(w2="w2"), "w2 is a torch.Tensor, and str is none"),
    (lambda: layer(residual=0), "residual is a torch.Tensor, and int is none"),
    (lambda: layer(first_expert=None), "first_expert is an integer, and None is none"),
    (lambda: layer(all_experts=8.0), "all_experts is an integer, and 8.0 is none"),
    (lambda: layer(activation="swiglu_oai", activation_parameters=[1.0, 2.0]), "activation_parameters is a mapping"),
    (lambda: packed(codes=[0]), "codes is a torch.Tensor, and list is none"),
    (lambda: packed(gate=3), "gate is the name of a value, and 3 is no str"),
    (lambda: ops.unpack_weights(packed(), "64", H), "n is an integer, and '64' is none"),
    (lambda: ops.quantize([1.0]), "values is a torch.Tensor, and list is none"),
    (lambda: ops.quantize(zeros(4, 64), 4), "format is the name of a value, and 4 is no str"),
    (lambda: ops.quantize(zeros(4, 64), "nvfp4", tensor_scale=1.0), "tensor_scale is a torch.Tensor, and float is"),
    (lambda: ops.dequantize(zeros(4, 32, dtype=torch.uint8), None), "scales is a torch.Tensor, and NoneType is none"),
    (lambda: ops.sort_by_expert([[0]], 4), "ids is a torch.Tensor, and list is none"),
    (lambda: ops.sort_by_expert(zeros(T, 2, dtype=torch.int32), "4"), "experts is an integer, and '4' is none"),
    (lambda: ops.combine(None, zeros(T, 2, dtype=torch.int32)), "rows is a torch.Tensor, and NoneType is none"),
]  # fmt: skip


def _numbered(error, calls):
    return [pytest.param(error, *each, id=f"{error.__name__}{index}") for index, each in enumerate(calls)]


@pytest.mark.parametrize(
    ("error", "call", "sentence"), _numbered(ValueError, WRONG) + _numbered(TypeError, NOT_TENSORS)
)
def test_wrong_call(error, call, sentence):
    with pytest.raises(error, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_tensors_of_other_layouts():
    with pytest.raises(ValueError, match="x is torch.sparse_coo, but must be dense"):
        layer(x=zeros(T, H).to_sparse())
    with pytest.raises(ValueError, match="mat_a is nested, but must be dense"):
        product(mat_a=torch.nested.nested_tensor([zeros(2, H), zeros(4, H)]))


def test_no_parameters_are_those_of_an_activation_without():
    assert torch.equal(layer(**(right := layer_arguments()), activation_parameters={}), layer(**right))


def test_right_calls_of_the_table():
    product(), layer(), packed()
