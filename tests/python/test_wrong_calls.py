# SPDX-License-Identifier: Apache-2.0
"""Calls that are wrong: each raises its sentence, and nothing that it was given is touched."""

import copy

import numpy as np
import pytest
from reference import BF16, bf16

import moxie

N, K, M, G, T = 64, 32, 8, 2, 8
SOURCE = np.random.default_rng(3)


def ends(*values):
    return np.array(values, np.int32)


ARRAYS = {
    "a": bf16(SOURCE, T, K),
    "b": bf16(SOURCE, G, N, K),
    "ends": ends(3, T),
    "out": np.full((T, N), 7, BF16),
}
LAYER = {
    "x": bf16(SOURCE, T, K),
    "up": bf16(SOURCE, G, 2 * K, K),
    "down": bf16(SOURCE, G, K, K),
    "topk_ids": np.zeros((T, 1), np.int32),
    "topk_weights": np.ones((T, 1), np.float32),
    "out": np.full((T, K), 7, BF16),
}

# What a description says beside {groups: Offsets(G), n: N, k: K}, and what is said of it.
DESCRIPTIONS = [
    ({"n": 60}, ValueError, "n is 60"),
    ({"n": -8}, ValueError, "n is -8"),
    ({"k": 12}, ValueError, "k is 12"),
    ({"activation": "swish"}, ValueError, "activation is 'swish', but must be one of"),
    ({"activation": 3}, TypeError, "activation is the name of a value, and 3 is no str"),
    ({"activation": "swiglu", "n": 72}, ValueError, "n is 72"),
    ({"gate": "halves"}, ValueError, "gate_layout is 'halves', but must be one of"),
    ({"out": "fp16"}, ValueError, "data_type is 'fp16', but must be one of"),
    ({"out": None}, ValueError, "at least one output must be asked for"),
    ({"format": "fp8"}, ValueError, "operand_format is 'fp8', but must be one of"),
    ({"format": "mxfp4"}, ValueError, "sm_100a"),
    ({"groups": moxie.Offsets(0)}, ValueError, "groups.count is 0"),
    ({"groups": moxie.Offsets(70000)}, ValueError, "70000"),
    ({"groups": moxie.Offsets(G, -1)}, ValueError, "-1"),
    ({"groups": moxie.KGroups(G, M)}, ValueError, "sm_100a"),
    ({"groups": "offsets"}, TypeError, "groups is one of Dense, Batched"),
    ({"activation": "silu", "activation_parameters": {"alpha": 1}}, ValueError, "silu has none"),
    ({"activation": "swiglu_oai", "activation_parameters": {"alpha": 1}}, ValueError, "has alpha and limit"),
    (
        {"activation": "swiglu_oai", "activation_parameters": {"alpha": 1, "limit": -1}},
        ValueError,
        "limit is -1",
    ),
    ({"groups": moxie.Dense(M), "gather": True}, ValueError, "gather"),
    ({"known_rows": [1, 2, 3]}, ValueError, "known_row_count is 3, but there are 2 groups"),
    ({"hopper": {"tile_m": 100}}, ValueError, "tile_m is 100"),
    ({"hopper": {"schedule": "fast"}}, ValueError, "warp_schedule is 'fast'"),
    ({"expected_rows": -5}, ValueError, "expected_rows is -5"),
    ({"n": "64"}, TypeError, "n is an integer, and '64' is none"),
    ({"n": None}, TypeError, "n is an integer, and None is none"),
    ({"k": 32.0}, TypeError, "k is an integer, and 32.0 is none"),
    ({"groups": moxie.Offsets("2")}, TypeError, "groups is .*'count': '2'.*integer"),
    ({"bias": np.ones((G, N))}, TypeError, "bias is array"),
    ({"activation": "silu\0"}, ValueError, "activation is 'silu.x00', and no name has a null character"),
    ({"activation": "swiglu_oai", "activation_parameters": {"alpha": "1", "limit": 1}}, TypeError, "activation is"),
    ({"known_rows": 3}, TypeError, "known_rows is a sequence of integers, and 3 is none"),
    ({"hopper": "tile"}, TypeError, "hopper is a mapping of names, and 'tile' is none"),
    ({"hopper": {"tile": 128}}, ValueError, "hopper has no 'tile', but schedule, tile_m, "),
    ({"blackwell": {"size": 8}}, ValueError, "blackwell has no 'size', but "),
    ({"n": 2**70}, OverflowError, "too large|too big|overflow|out of range"),
]

# What a call says beside ARRAYS, and what is said of it.
CALLS = [
    ({"a": bf16(SOURCE, T, K + 8)}, ValueError, r"a has shape \[8, 40\], and must have \[8, 32\]"),
    ({"a": bf16(SOURCE, K)}, ValueError, r"a has shape \[32\], and must have \[32, 32\]"),
    ({"a": ARRAYS["a"].astype(np.float32)}, TypeError, "a has elements of type f32, and must have bf16"),
    ({"a": ARRAYS["a"].astype(np.float64)}, TypeError, "a: no argument has elements of type float64"),
    ({"a": ARRAYS["a"].astype(np.float16)}, TypeError, "a: no argument has elements of type float16"),
    ({"a": np.ma.array(ARRAYS["a"])}, TypeError, r"a is a masked array.*give what its .filled\(\) returns"),
    ({"out": np.ma.array(ARRAYS["out"])}, TypeError, "out is a masked array"),
    ({"a": [[1.0] * K] * T}, TypeError, "a is an array of numpy, of DLPack or a moxie.DeviceArray, and list is none"),
    ({"a": None}, TypeError, "a is an array of numpy, of DLPack or a moxie.DeviceArray, and NoneType is none"),
    ({"b": ARRAYS["b"][0]}, ValueError, r"b has shape \[64, 32\], and must have \[2, 64, 32\]"),
    ({"b": np.zeros((G, N, K), np.int32)}, TypeError, "b has elements of type int32, and must have bf16"),
    ({"ends": None}, ValueError, "ends is required with Offsets"),
    ({"ends": np.array([3, T])}, TypeError, "ends has elements of type int64, and must have int32"),
    ({"ends": ends(1, 2, 3)}, ValueError, r"ends has shape \[3\], and must have \[2\]"),
    ({"ends": ends(3, T).astype(">i4")}, TypeError, "ends: no argument has elements of type >i4"),
    ({"counts": ends(1, 2)}, ValueError, "counts is not for Offsets"),
    ({"group_of_row": ends(*[0] * T)}, ValueError, "group_of_row is not for Offsets"),
    ({"bias": bf16(SOURCE, G, N)}, ValueError, "bias is not in the description"),
    ({"pre": np.zeros((T, N), BF16)}, ValueError, "pre is not stored by the description"),
    ({"gather_rows": ends(*range(T))}, ValueError, "the description does not gather rows of a"),
    ({"out": np.zeros((T, N + 8), BF16)}, ValueError, r"out has shape \[8, 72\], and must have \[8, 64\]"),
    ({"out": np.zeros((T, N), np.float32)}, TypeError, "out has elements of type f32, and must have bf16"),
    ({"out": np.broadcast_to(np.zeros(N, BF16), (T, N))}, ValueError, "out is read-only"),
    ({"out_tensor_scale": np.ones(1, np.float32)}, ValueError, "out_tensor_scale is for nvfp4, and out is bf16"),
    ({"workspace": np.zeros(1024, np.uint8)}, TypeError, "workspace is in host memory, and must be in device memory"),
    ({"stream": "default"}, TypeError, "stream is an integer, 0 or the address of a cudaStream_t, and 'default' is"),
    ({"stream": None}, TypeError, "stream is an integer"),
    ({"nonsense": 1}, TypeError, "nonsense"),
]

# What a layer's description says beside LAYER_SIZES.
LAYER_SIZES = {"experts": G, "top_k": 1, "hidden": K, "width": K, "max_tokens": T}
LAYER_DESCRIPTIONS = [
    ({"experts": 0}, ValueError, "experts is 0"),
    ({"max_tokens": None}, TypeError, "max_tokens is an integer, and None is none"),
    ({"hidden": 32.0}, TypeError, "hidden is an integer, and 32.0 is none"),
    ({"permute": "always"}, TypeError, "permute is 'always'"),
    ({"router": "softmax"}, TypeError, "router is a moxie.Router, and 'softmax' is none"),
    ({"ranks": 2}, TypeError, "ranks is a moxie.Ranks, and 2 is none"),
    ({"experts": 2000}, ValueError, "experts is 2000"),
    ({"top_k": 17}, ValueError, "top_k is 17"),
    ({"hidden": 20}, ValueError, "hidden is 20"),
    ({"width": 0}, ValueError, "width is 0"),
    ({"max_tokens": 2**21}, ValueError, "max_tokens is 2097152"),
    ({"weights": "nvfp4"}, ValueError, "nvfp4|weights"),
    ({"id_type": "int8"}, ValueError, "id_type is 'int8', but must be one of: int32, int64"),
    ({"first_expert": -1}, ValueError, "first_expert is -1"),
    ({"all_experts": 1}, ValueError, "all_experts is 1"),
    ({"out": "mxfp8"}, ValueError, "out"),
    ({"router": moxie.Router(score="argmax")}, ValueError, "router_score is 'argmax'"),
    ({"router": moxie.Router(logits_type="mxfp4")}, ValueError, "logits_type"),
    ({"router": moxie.Router(score="sigmoid", expert_groups=40)}, ValueError, "expert_groups"),
]
LAYER_CALLS = [
    ({"x": bf16(SOURCE, T + 1, K), "out": None}, ValueError, r"\[9, 1\]|tokens is 9"),
    ({"up": bf16(SOURCE, G, K, K)}, ValueError, r"up has shape \[2, 32, 32\], and must have \[2, 64, 32\]"),
    ({"down": np.zeros((G, K, K), np.uint8)}, TypeError, "down has elements of type uint8, and must have bf16"),
    ({"topk_ids": None}, ValueError, "topk_ids is required by the layer's description"),
    ({"topk_ids": np.zeros((T, 1), np.int64)}, TypeError, "topk_ids has elements of type int64, and must have int32"),
    ({"topk_ids": np.zeros((T, 2), np.int32)}, ValueError, r"topk_ids has shape \[8, 2\], and must have \[8, 1\]"),
    ({"topk_weights": np.ones((T, 1))}, TypeError, "topk_weights: no argument has elements of type float64"),
    ({"logits": np.zeros((T, G), np.float32)}, ValueError, "logits is not in the layer's description"),
    ({"chosen_ids": np.zeros((T, 1), np.int32)}, ValueError, "chosen_ids is not in the layer's description"),
    ({"up_bias": bf16(SOURCE, G, 2 * K)}, ValueError, "up_bias is not in the layer's description"),
    ({"residual": bf16(SOURCE, T, K)}, ValueError, "residual is not in the layer's description"),
    ({"token_count": np.zeros(2, np.int32)}, ValueError, r"token_count has shape \[2\], and must have \[1\]"),
    ({"out": np.zeros((T, K), np.float32)}, TypeError, "out has elements of type f32, and must have bf16"),
]

CODES, SCALES = np.zeros((G, 16, K // 2), np.uint8), np.full((G, 16, K // 32), 127, np.uint8)
FAR_APART = np.array([[[250, 1]]] * 16, np.uint8).reshape(1, 16, 2)
OTHERS = [
    (lambda d: moxie.quantize(d, np.zeros((4, 32), np.float32), "mxfp6"), ValueError, "data_type is 'mxfp6'"),
    (lambda d: moxie.quantize(d, np.zeros((4, 32), np.float32), "bf16"), ValueError, "format is one of mxfp4"),
    (lambda d: moxie.quantize(d, np.zeros((4, 40), np.float32), "mxfp4"), ValueError, "k is 40"),
    (lambda d: moxie.quantize(d, np.zeros(32, np.float32), "mxfp4"), ValueError, "must have 2 or 3 dimensions"),
    (lambda d: moxie.quantize(d, np.zeros((4, 32), np.int32), "mxfp4"), ValueError, "data_type is 'int32'"),
    (
        lambda d: moxie.dequantize(d, moxie.Quantized(CODES[0], SCALES[0][:1]), "mxfp4", layout="row_major"),
        ValueError,
        "scales has 1 elements, and must have 16",
    ),
    (lambda d: moxie.pack_weights(d, CODES[0], SCALES), ValueError, r"must have \[G, n, k / 2\]"),
    (lambda d: moxie.pack_weights(d, CODES, SCALES[0]), ValueError, "scales has shape"),
    (lambda d: moxie.pack_weights(d, CODES[:, :12], SCALES[:, :12]), ValueError, "n is 12"),
    (
        lambda d: moxie.pack_weights(d, np.zeros((1, 16, 32), np.uint8), FAR_APART),
        ValueError,
        "row 0 of group 0 lie too far apart",
    ),
    (lambda d: moxie.unpack_weights(d, np.zeros(5, np.uint8), 1, 16, 32), ValueError, "packed has shape"),
    (
        lambda d: moxie.quantize(d, np.zeros((4, 32), np.float32), "mxfp4", out=CODES),
        TypeError,
        "out is a moxie.Quantized, and ndarray is none",
    ),
    (lambda d: moxie.dequantize(d, (CODES, SCALES), "mxfp4"), TypeError, "quantized is a moxie.Quantized, and tuple"),
    (lambda d: moxie.route(d, np.zeros((4, 8), np.float32), 9), ValueError, "top_k is 9"),
    (lambda d: moxie.route(d, np.zeros((4, 8), np.float32), -1), ValueError, "top_k is -1"),
    (lambda d: moxie.route(d, np.zeros((4, 8), np.float32), None), TypeError, "top_k is an integer, and None is none"),
    (
        lambda d: moxie.route(d, np.zeros((4, 8), np.float32), 1, router="softmax"),
        TypeError,
        "router is a moxie.Router, and 'softmax' is none",
    ),
    (lambda d: moxie.route(d, np.zeros(8, np.float32), 1), ValueError, "must have 2 dimensions"),
    (
        lambda d: moxie.route(
            d, np.zeros((4, 8), np.float32), 1, router=moxie.Router(score="sigmoid", correction_bias=True)
        ),
        ValueError,
        "correction_bias is required by the router",
    ),
    (lambda d: moxie.sort_by_expert(d, np.zeros((4, 2), np.uint8), 4), ValueError, "id_type is 'uint8'"),
    (lambda d: moxie.sort_by_expert(d, ends(1, 2).reshape(1, 2), 2000), ValueError, "experts is 2000"),
    (lambda d: moxie.combine(d, bf16(SOURCE, 4, 12), ends(0, 1).reshape(1, 2)), ValueError, "width is 12"),
    (lambda d: moxie.permute(d, bf16(SOURCE, 4, 12), ends(*range(4)).reshape(4, 1)), ValueError, "width is 12"),
    (lambda d: moxie.permute(d, bf16(SOURCE, 4, 16), ends(0, 1).reshape(2, 1)), ValueError, "inverse has shape"),
    (lambda d: moxie.Device("gpu"), ValueError, "device_kind is 'gpu', but must be one of: auto, cuda, sim"),
    (lambda d: moxie.Device("sim", 7), RuntimeError, "there is no device 7"),
    (lambda d: moxie.DeviceArray(d, (4,), "float64"), ValueError, "dtype is one of bf16"),
    (lambda d: moxie.DeviceArray(d, (-2, -4), "bf16"), ValueError, r"shape is \[-2, -4\], and no size may be negative"),
    (lambda d: moxie.DeviceArray(d, 4, "bf16"), TypeError, "shape is a sequence of integers, and 4 is none"),
    (lambda d: moxie.DeviceArray("sim", (4,), "bf16"), TypeError, "device is a moxie.Device, and 'sim' is none"),
    (lambda d: moxie.GroupedGemm("cuda", moxie.Dense(8), n=8, k=8), TypeError, "device is a moxie.Device, and 'cuda'"),
    (lambda d: moxie.ExpertLayer(None, **LAYER_SIZES), TypeError, "device is a moxie.Device, and None is none"),
    (lambda d: moxie.sort_by_expert(0, ends(1, 2).reshape(1, 2), 4), TypeError, "device is a moxie.Device, and 0 is"),
    (
        lambda d: moxie.permute(d, bf16(SOURCE, 4, 16), ends(*range(4)).reshape(4, 1), row_count=-1),
        ValueError,
        "row_count is -1",
    ),
    (lambda d: moxie.plan(moxie.Dense(8), n=8, k=8, arch=80), ValueError, "arch"),
    (lambda d: moxie.from_bf16([0x3F80]), TypeError, "values are bf16, or its bits in uint16, and int64 is neither"),
    (lambda d: moxie.from_bf16(np.ones(3, np.float32)), TypeError, "and float32 is neither"),
    (lambda d: moxie.from_bf16(np.ones(3, np.float16)), TypeError, "and float16 is neither"),
    (lambda d: d.allocate(-1), OverflowError, "negative|unsigned|convert"),
    (lambda d: d.allocate(2**50), MemoryError, "memory|MEMORY"),
]


def unchanged(before, after):
    return all(
        np.array_equal(np.asarray(before[name]).view(np.uint8), np.asarray(after[name]).view(np.uint8))
        for name in before
        if isinstance(before[name], np.ndarray) and before[name].flags.c_contiguous
    )


def refused(call, arguments, error, sentence):
    before = copy.deepcopy(arguments)
    with pytest.raises(error, match=sentence):
        call(**arguments)
    assert unchanged(before, arguments)


@pytest.fixture(scope="module")
def product(device):
    return moxie.GroupedGemm(device, moxie.Offsets(G), n=N, k=K)


@pytest.fixture(scope="module")
def made_layer(device):
    return moxie.ExpertLayer(device, **LAYER_SIZES)


@pytest.mark.parametrize("said, error, sentence", DESCRIPTIONS)
def test_descriptions(device, said, error, sentence):
    words = {"groups": moxie.Offsets(G), "n": N, "k": K} | said
    refused(lambda **given: moxie.GroupedGemm(device, **given), words, error, sentence)


@pytest.mark.parametrize("said, error, sentence", CALLS)
def test_calls(product, said, error, sentence):
    refused(product, ARRAYS | said, error, sentence)


@pytest.mark.parametrize("said, error, sentence", LAYER_DESCRIPTIONS)
def test_layer_descriptions(device, said, error, sentence):
    refused(lambda **words: moxie.ExpertLayer(device, **words), LAYER_SIZES | said, error, sentence)


@pytest.mark.parametrize("said, error, sentence", LAYER_CALLS)
def test_layer_calls(made_layer, said, error, sentence):
    refused(made_layer, LAYER | said, error, sentence)


@pytest.mark.parametrize("call, error, sentence", OTHERS)
def test_others(device, call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(device)


def test_the_right_calls_are_right(product, made_layer):
    """What the tables begin from is not itself wrong."""
    assert not np.any(product(**ARRAYS | {"out": None}) == 7)
    made_layer(**LAYER | {"out": None})


def test_wrong_addresses(device, product):
    """The library's own checks, where Python has none."""
    there = {name: moxie.DeviceArray.of(device, array) for name, array in ARRAYS.items()}
    right = {name: array.ptr for name, array in there.items()}
    for said, sentence in (
        ({"a": right["a"] + 2}, "aligned"),
        ({"a": 0}, "a.data is null|a is null|a "),
        ({"ends": 0}, "ends"),
        ({"out": right["a"]}, "overlap"),
        ({"ld_a": 7}, "ld"),
        ({"total": -3}, "total"),
        ({"total": None}, "total"),
        ({"bias": right["b"]}, "bias"),
    ):
        with pytest.raises(ValueError, match=sentence):
            product.run(**{"total": T, **right, **said})
    assert np.all(there["out"].numpy() == 7)
    product.run(total=T, **right)
    assert not np.any(there["out"].numpy() == 7)
