# SPDX-License-Identifier: Apache-2.0
"""Products of every grouping, activation and output, beside double precision."""

import numpy as np
import pytest
from reference import GATED, PLAIN, activated, assert_close, bf16, f64

import moxie

N, K, G = 96, 64, 3


@pytest.mark.parametrize("activation", [*PLAIN, *GATED])
def test_activations(device, random, activation):
    product = moxie.GroupedGemm(device, moxie.Dense(24), n=N, k=K, bias=True, activation=activation)
    a, b, bias = bf16(random, 24, K), bf16(random, N, K), bf16(random, N)
    assert_close(product(a, b, bias=bias), activated(f64(a) @ f64(b).T + f64(bias), activation))


@pytest.mark.parametrize("gate", ["interleaved", "split", "split_up_first"])
@pytest.mark.parametrize("out", ["bf16", "f32"])
def test_gate_layouts_and_outputs(device, random, gate, out):
    product = moxie.GroupedGemm(
        device, moxie.Dense(24), n=N, k=K, activation="swiglu_oai", gate=gate, out=out, pre="f32"
    )
    a, b = bf16(random, 24, K), bf16(random, N, K)
    result, pre = product(a, b)
    assert pre.dtype == np.float32 and pre.shape == (24, N)
    assert_close(pre, f64(a) @ f64(b).T, 1e-6)
    assert_close(result, activated(f64(a) @ f64(b).T, "swiglu_oai", gate))


def test_activation_parameters(device, random):
    parameters = {"alpha": 1.0, "limit": 0.5}
    product = moxie.GroupedGemm(
        device, moxie.Dense(8), n=N, k=K, activation="swiglu_oai", activation_parameters=parameters, out="f32"
    )
    a, b = bf16(random, 8, K), bf16(random, N, K)
    pre = f64(a) @ f64(b).T
    g, u = np.minimum(pre[:, 0::2], 0.5), np.clip(pre[:, 1::2], -0.5, 0.5)
    assert_close(product(a, b), g / (1 + np.exp(-g)) * (u + 1), 1e-4)


def test_only_pre(device, random):
    product = moxie.GroupedGemm(device, moxie.Dense(8), n=N, k=K, out=None, pre="bf16")
    a, b = bf16(random, 8, K), bf16(random, N, K)
    assert_close(product(a, b), f64(a) @ f64(b).T)


def test_batched(device, random):
    product = moxie.GroupedGemm(device, moxie.Batched(G, 20), n=N, k=K, bias=True)
    a, b, bias = bf16(random, G, 20, K), bf16(random, G, N, K), bf16(random, G, N)
    assert_close(product(a, b, bias=bias), np.einsum("gmk,gnk->gmn", f64(a), f64(b)) + f64(bias)[:, None])


@pytest.mark.parametrize("total", [None, 40])
@pytest.mark.parametrize("ends", [[40, 40, 40], [0, 0, 33], [7, 8, 40], [0, 0, 0]])
def test_offsets(device, random, total, ends):
    product = moxie.GroupedGemm(device, moxie.Offsets(G, total), n=N, k=K)
    a, b, ends = bf16(random, 40, K), bf16(random, G, N, K), np.array(ends, np.int32)
    out = np.full((40, N), 7, a.dtype)
    assert product(a, b, ends=ends, out=out) is out
    begin = 0
    for g, end in enumerate(ends):
        if end > begin:
            assert_close(out[begin:end], f64(a)[begin:end] @ f64(b)[g].T)
        begin = end
    assert np.all(out[begin:] == 7)
    assert np.all(product(a, b, ends=ends)[begin:] == 0)


def test_gathered_rows(device, random):
    product = moxie.GroupedGemm(device, moxie.Offsets(G), n=N, k=K, gather=True)
    a, b = bf16(random, 5, K), bf16(random, G, N, K)
    order = np.array([9, 0, 3, 4, 8, 1, 2], np.int32)  # pairs of token and one of two choices
    result = product(a, b, ends=np.array([2, 2, 7], np.int32), gather_rows=order, gather_divisor=2)
    for row, pair in enumerate(order):
        assert_close(result[row], f64(b)[0 if row < 2 else 2] @ f64(a)[pair // 2])


def test_row_groups(device, random):
    product = moxie.GroupedGemm(device, moxie.RowGroups(G), n=N, k=K)
    step = product.row_alignment
    assert step > 1
    groups = np.full(2 * step + 5, -1, np.int32)
    groups[:7], groups[step : 2 * step], groups[2 * step :] = 2, 0, 1
    a, b = bf16(random, len(groups), K), bf16(random, G, N, K)
    result = product(a, b, group_of_row=groups)
    for row, group in enumerate(groups):
        if group >= 0:
            assert_close(result[row], f64(b)[group] @ f64(a)[row])


def test_masked(device, random):
    product = moxie.GroupedGemm(device, moxie.Masked(G, 20), n=N, k=K, activation="swiglu", gate="split")
    a, b, counts = bf16(random, G, 20, K), bf16(random, G, N, K), np.array([3, 0, 20], np.int32)
    out = np.full((G, 20, N // 2), 7, a.dtype)
    product(a, b, counts=counts, out=out)
    for g, count in enumerate(counts):
        if count:
            assert_close(out[g, :count], activated(f64(a)[g, :count] @ f64(b)[g].T, "swiglu", "split"))
        assert np.all(out[g, count:] == 7)


def test_pointers(device, random):
    product = moxie.GroupedGemm(device, moxie.Pointers(G, 20), n=N, k=K, activation="swiglu", bias=True, pre="f32")
    a = [bf16(random, 7, K), bf16(random, 20, 32), bf16(random, 1, K)]
    b = [bf16(random, N, K), bf16(random, 64, 32), bf16(random, 32, K)]
    bias = [bf16(random, len(each)) for each in b]
    out, pre = product(a, b, bias=bias)
    for g in range(G):
        expected = f64(a[g]) @ f64(b[g]).T + f64(bias[g])
        assert_close(pre[g], expected, 1e-6)
        assert_close(out[g], activated(expected, "swiglu"))


def test_pointers_to_what_kernels_leave_out(device, random):
    """Kernels take such a group for an empty one, and so its rows would be zeros."""
    plain = moxie.GroupedGemm(device, moxie.Pointers(2, 20), n=N, k=K, bias=True)
    gated = moxie.GroupedGemm(device, moxie.Pointers(2, 20), n=N, k=K, activation="swiglu")

    def call(product, m, n, k, *, bias=True, **more):
        a, b = [bf16(random, 4, K), bf16(random, m, k)], [bf16(random, N, K), bf16(random, n, k)]
        return product(a, b, bias=[bf16(random, len(each)) for each in b] if bias else None, **more)

    with pytest.raises(ValueError, match=r"b\[1\] has 20 rows, and must have a multiple of 8$"):
        call(plain, 3, 20, K)
    with pytest.raises(ValueError, match=r"b\[1\] has 24 rows, and must have a multiple of 16$"):
        call(gated, 3, 24, K, bias=False)
    with pytest.raises(ValueError, match=r"a\[1\] has rows 20 elements apart, and must have a multiple of 8$"):
        call(plain, 3, 8, 20)
    assert call(plain, 0, 20, 20)[1].shape == (0, 20)


@pytest.mark.parametrize("rows", [1, 40])
def test_packed_weights(device, random, rows):
    quantized = moxie.quantize(device, bf16(random, G, N, K), "mxfp4", layout="row_major")
    packed = moxie.pack_weights(device, quantized.elements, quantized.scales, gate="split")
    assert packed.shape == (moxie.packed_weight_bytes(G, N, K),)
    product = moxie.GroupedGemm(
        device, moxie.Offsets(G), n=N, k=K, b_format="mxfp4", activation="swiglu", gate="split"
    )
    a = bf16(random, rows, K)
    result = product(a, packed, ends=np.array([0, rows, rows], np.int32))
    weights = moxie.dequantize(device, quantized, "mxfp4", layout="row_major")
    assert_close(result, activated(f64(a) @ f64(weights)[1].T, "swiglu", "split"))
    codes, scales = moxie.unpack_weights(device, packed, G, N, K, gate="split")
    assert np.array_equal(codes, quantized.elements) and np.array_equal(scales, quantized.scales)


@pytest.mark.parametrize("out", ["mxfp4", "mxfp8", "nvfp4"])
def test_quantized_outputs(device, random, out):
    product = moxie.GroupedGemm(device, moxie.Offsets(G), n=N, k=K, out=out, pre="f32")
    a, b, ends = bf16(random, 40, K), bf16(random, G, N, K), np.array([7, 7, 40], np.int32)
    scale = {"out_tensor_scale": np.array([0.01], np.float32)} if out == "nvfp4" else {}
    quantized, pre = product(a, b, ends=ends, **scale)
    values = moxie.dequantize(device, quantized, out, offsets=ends)
    again = moxie.quantize(device, pre, out, offsets=ends, tensor_scale=scale.get("out_tensor_scale"))
    assert np.array_equal(values, moxie.dequantize(device, again, out, offsets=ends))
    assert_close(values, f64(pre), 0.05 if out == "mxfp8" else 0.2)


def test_nothing_to_do(device, random):
    b = bf16(random, G, N, K)
    ends = np.zeros(G, np.int32)
    assert moxie.GroupedGemm(device, moxie.Offsets(G), n=N, k=K)(bf16(random, 0, K), b, ends=ends).shape == (0, N)
    assert moxie.GroupedGemm(device, moxie.Dense(0), n=N, k=K)(bf16(random, 0, K), b[0]).shape == (0, N)
    zeros = moxie.GroupedGemm(device, moxie.Dense(4), n=N, k=0)(bf16(random, 4, 0), bf16(random, N, 0))
    assert np.all(zeros == 0)


def test_costs_of_ranks():
    layer = {"experts": 256, "top_k": 8, "n": 4096, "k": 7168, "activation": "swiglu", "gate": "split"}
    few, many = (moxie.rank_costs(tokens=tokens, ranks=8, **layer) for tokens in (64, 16384))
    assert many.halves_pay and not few.halves_pay
    assert np.isclose(many.sum, many.dispatch + many.combine + many.up + many.down + many.around)
    assert many.combine_bytes == 16384 * 7 * 2 * 7168
    near = moxie.rank_costs(tokens=16384, ranks=8, windows=True, row_format="mxfp8", **layer)
    assert near.dispatch < many.dispatch / 2 and near.up == many.up
    far = moxie.rank_costs(tokens=16384, ranks=8, domain=4, network=25e9, **layer)
    assert far.dispatch > many.dispatch and far.up == many.up
    assert moxie.rank_costs(tokens=16384, ranks=8, arch=100, **layer).up < many.up
    assert not moxie.rank_costs(tokens=1, ranks=8, **layer).halves_pay
    with pytest.raises(ValueError, match="ranks is 0, but must be 1 to 1024"):
        moxie.rank_costs(tokens=1, ranks=0, **layer)


def test_plans(device):
    product = moxie.GroupedGemm(device, moxie.Offsets(8, 512), n=512, k=256)
    plan = product.plan()
    same = moxie.plan(moxie.Offsets(8, 512), n=512, k=256, sm_count=device.info.sm_count)
    assert plan == same
    assert plan.candidates[0].kernel == plan.kernel and plan.arch == 90 and plan.flops == 2 * 512 * 512 * 256
    other = next(each for each in plan.candidates[1:] if each.possible)
    again = moxie.plan(moxie.Offsets(8, 512), n=512, k=256, hopper=other.tuning)
    assert again.kernel == other.kernel and again.source == "caller's choice"
    assert moxie.plan(moxie.Dense(64), n=512, k=256, arch=100, format="mxfp4").arch == 100
    assert moxie.plan(moxie.Dense(64), n=512, k=256, known_rows=[64]).rows_source == "given"
