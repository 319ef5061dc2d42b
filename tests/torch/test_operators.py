# SPDX-License-Identifier: Apache-2.0
"""torch.library.opcheck on every operator, and what asking for a gradient says."""

import functools

import pytest
import torch
from support import DEVICE, bf16, ends, mxfp4, routing
from torch.autograd import forward_ad
from torch.library import opcheck

import moxie
import moxie.torch
from moxie.nn import Experts

E, H, W = 4, 64, 32


def _calls():
    ids, scores = routing(6, E, 2)
    codes, scales = mxfp4(E, 2 * W, H)
    more_codes, more_scales = mxfp4(E, H, W)
    packed, more_packed = moxie.torch.pack_weights(codes, scales, gate="split"), moxie.torch.pack_weights(
        more_codes, more_scales
    )
    values = bf16(2, 8, 64)
    elements, its_scales = moxie.torch.quantize(values, "mxfp4", layout="blocked")
    x, w1, w2 = bf16(6, H), bf16(E, 2 * W, H), bf16(E, H, W)
    alone = moxie.Ranks(1, 0, None, 30.0, "bf16")
    over_ranks = moxie.torch._layer_over_ranks(
        moxie.Device(), experts=E, all_experts=E, ranks=alone, top_k=2, hidden=H, width=W, max_tokens=8, packed=False,
        activation="swiglu", parameters=None, gate="split",
    )  # fmt: skip
    window = torch.zeros(over_ranks.window_bytes(), dtype=torch.uint8, device=DEVICE)
    more_window = torch.zeros(4 * window.numel(), dtype=torch.uint8, device=DEVICE)
    places = torch.tensor([2, 0, 3, 1], dtype=torch.int32, device=DEVICE)
    return {
        "grouped_mm": [
            (x, w1.transpose(1, 2), ends(1, 3, 3, 6), None, None, 1, "none", None, "split", None),
            (x, w1.transpose(1, 2), ends(1, 3, 3, 9), bf16(E, 2 * W), torch.zeros(9, dtype=torch.int32, device=DEVICE),
             2, "swiglu_oai", [1.702, 7.0], "interleaved", torch.float32),
            (bf16(E, 3, H), w1.transpose(1, 2), None, None, None, 1, "silu", None, "split", None),
        ],
        "experts": [
            (x, ids, scores, w1, w2, None, None, None, "swiglu", None, "split", 0, None, None),
            (x, ids.int(), None, packed, more_packed, bf16(E, 2 * W), bf16(E, H), torch.randn(6, H, device=DEVICE),
             "swiglu_clamped", [5.0, 4.0], "split", 1, 8, torch.float32),
        ],
        "experts_over_ranks": [
            (x, ids, scores, w1, w2, None, None, None, window, places, [window.data_ptr()], 0, E, 8, None, 30.0, "bf16",
             None, "swiglu", None, "split"),
            (x, ids.int(), None, packed, more_packed, bf16(E, 2 * W), bf16(E, H), x, more_window, None,
             [more_window.data_ptr()], 0, E, 8, None, 30.0, "fp8", "bf16_sums", "swiglu_clamped", [5.0, 4.0], "split"),
        ],
        "sort_by_expert": [(ids, E, 0), (ids.int() + 3, E, 3)],
        "combine": [
            (bf16(12, H), torch.randint(-1, 12, (6, 2), dtype=torch.int32, device=DEVICE), scores, bf16(6, H), None),
            (torch.randn(12, H, device=DEVICE), torch.zeros(6, 2, dtype=torch.int32, device=DEVICE), None, None,
             torch.float32),
        ],
        "find_tensor_scale": [(values,)],
        "quantize": [
            (values, "mxfp4", "row_major", None),
            (values[0], "nvfp4", "blocked", torch.ones(1, device=DEVICE)),
        ],
        "dequantize": [(elements, its_scales, "mxfp4", "blocked", None, torch.float32)],
        "pack_weights": [(codes, scales, "split"), (more_codes, more_scales, "none")],
        "unpack_weights": [(packed, 2 * W, H, "split")],
    }  # fmt: skip


NAMES = [
    "grouped_mm", "experts", "experts_over_ranks", "sort_by_expert", "combine", "find_tensor_scale", "quantize",
    "dequantize", "pack_weights", "unpack_weights",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name):
    for arguments in _calls()[name]:
        opcheck(getattr(torch.ops.moxie, name).default, arguments)


def test_every_operator_is_checked():
    registered = {each.split("::")[1].split(".")[0] for each in moxie.torch._library._op_defs}
    assert registered == set(NAMES)


def _on_meta(*arguments):
    return [each.to("meta") if isinstance(each, torch.Tensor) else each for each in arguments]


def test_meta_tensors_give_meta_tensors():
    x, w1, w2 = bf16(6, H), bf16(E, 2 * W, H), bf16(E, H, W)
    ids, scores = routing(6, E, 2)
    offs = ends(1, 3, 3, 6)
    product = functools.partial(moxie.grouped_mm, activation="swiglu", out_dtype=torch.float32)
    calls = [
        (moxie.experts, (x, ids, scores, w1, w2)),
        (lambda a, b, offs: product(a, b.transpose(1, 2), offs=offs), (x, w1, offs)),
        (lambda codes, scales: moxie.torch.pack_weights(codes, scales, gate="split"), mxfp4(E, 2 * W, H)),
    ]
    for call, arguments in calls:
        result, expected = call(*_on_meta(*arguments)), call(*arguments)
        assert result.is_meta and (result.shape, result.dtype) == (expected.shape, expected.dtype)
    for weights in ("bf16", "mxfp4"):
        for experts in (Experts(E, H, W, weights=weights).to("meta"), Experts(E, H, W, weights=weights, device="meta")):
            result = experts(*_on_meta(x, ids, scores))
            assert result.is_meta and (result.shape, result.dtype) == (x.shape, x.dtype)


@pytest.mark.skipif(DEVICE != "cpu", reason="on a GPU their devices tell them apart")
def test_a_known_call_does_not_hide_that_a_tensor_is_elsewhere():
    x, w1, w2 = bf16(6, H), bf16(E, 2 * W, H), bf16(E, H, W)
    ids, scores = routing(6, E, 2)
    for _ in range(2):
        moxie.experts(x, ids, scores, w1, w2)
        with pytest.raises(ValueError, match="w2 is on meta, but the first argument on cpu"):
            moxie.experts(x, ids, scores, w1, w2.to("meta"))


def test_a_gradient_is_refused_in_one_sentence():
    x, w1, w2 = bf16(6, H), bf16(E, 2 * W, H), bf16(E, H, W)
    ids, scores = routing(6, E, 2)
    offs = ends(1, 3, 3, 6)
    calls = [
        lambda: moxie.experts(x.requires_grad_(), ids, scores, w1, w2),
        lambda: moxie.experts(x.detach(), ids, scores.requires_grad_(), w1, w2),
        lambda: moxie.grouped_mm(x.detach(), w1.requires_grad_().transpose(1, 2), offs=offs),
    ]
    sentence = r"^moxie.\w+ has no backward yet: call it under torch.no_grad\(\), or on tensors"
    for call in calls:
        with pytest.raises(RuntimeError, match=sentence):
            call()
        with torch.no_grad():
            call()
    with torch.inference_mode():
        moxie.experts(x, ids, scores, w1, w2)


def test_a_forward_mode_derivative_is_refused_in_one_sentence():
    """An operator without a rule for tangents would drop them, under torch.no_grad() as well."""
    x, w1, w2 = bf16(6, H), bf16(E, 2 * W, H), bf16(E, H, W)
    ids, scores = routing(6, E, 2)
    calls = [
        lambda x: moxie.experts(x, ids, scores, w1, w2),
        lambda x: moxie.grouped_mm(x, w1.transpose(1, 2), offs=ends(1, 3, 3, 6)),
        lambda x: moxie.torch.combine(x, torch.arange(6, dtype=torch.int32, device=x.device)[:, None]),
    ]
    for call in calls:
        sentence = r"^moxie.[\w.]+ has no forward-mode derivative yet: call it on tensors without tangents$"
        with pytest.raises(RuntimeError, match=sentence):
            torch.func.jvp(call, (x,), (x,))
        with torch.no_grad(), forward_ad.dual_level():
            expected = call(x)
            with pytest.raises(RuntimeError, match=sentence):
                call(forward_ad.make_dual(x, x))
        assert torch.equal(call(x), expected)
