# SPDX-License-Identifier: Apache-2.0
"""Whole layers and what stands around their products, beside double precision."""

import numpy as np
import pytest
from reference import assert_close, assert_layer, bf16, f64, layer

import moxie

T, E, TOP_K, H, WIDTH = 11, 4, 2, 64, 32


def choice(random, dtype=np.int32):
    ids = np.argsort(random.random((T, E)), axis=1)[:, :TOP_K].astype(dtype)
    return ids, random.random((T, TOP_K)).astype(np.float32)


def weights_of(random, gated=True):
    up = (bf16(random, E, 2 * WIDTH if gated else WIDTH, H) * np.float32(H**-0.5)).astype(bf16(random, 0).dtype)
    down = (bf16(random, E, H, WIDTH) * np.float32(WIDTH**-0.5)).astype(up.dtype)
    return up, down


SIZES = {"experts": E, "top_k": TOP_K, "hidden": H, "width": WIDTH, "max_tokens": T, "expected_tokens": T}


@pytest.mark.parametrize("gate", ["interleaved", "split", "split_up_first"])
@pytest.mark.parametrize("id_type", ["int32", "int64"])
def test_biases_and_residual(device, random, gate, id_type):
    terms = {"up_bias": True, "down_bias": True, "residual": True}
    made = moxie.ExpertLayer(device, **SIZES, activation="swiglu_oai", gate=gate, id_type=id_type, **terms)
    x, (up, down), (ids, weights) = bf16(random, T, H), weights_of(random), choice(random, id_type)
    ids[0, 0], ids[3] = -1, E + 5  # experts of other GPUs
    biases = {"up_bias": bf16(random, E, 2 * WIDTH), "down_bias": bf16(random, E, H), "residual": bf16(random, T, H)}
    y = made(x, up, down, ids, weights, **biases)
    assert_layer(y, layer(x, up, down, ids, weights, "swiglu_oai", gate, **biases))


def test_without_a_gate_or_weights(device, random):
    made = moxie.ExpertLayer(device, **SIZES, activation="relu2", out="f32")
    x, (up, down), (ids, _) = bf16(random, T, H), weights_of(random, gated=False), choice(random)
    y = made(x, up, down, ids)
    assert y.dtype == np.float32
    assert_layer(y, layer(x, up, down, ids, np.ones((T, TOP_K)), "relu2", None))


def test_experts_of_one_rank(device, random):
    made = moxie.ExpertLayer(device, **SIZES, first_expert=8, all_experts=16, gate="split")
    x, (up, down), (_, weights) = bf16(random, T, H), weights_of(random), choice(random)
    ids = np.argsort(random.random((T, 16)), axis=1)[:, :TOP_K].astype(np.int32)
    y = made(x, up, down, ids, weights)
    assert_layer(y, layer(x, up, down, ids, weights, "swiglu", "split", first=8))


def test_packed_weights(device, random):
    made = moxie.ExpertLayer(device, **SIZES, weights="mxfp4", gate="split")
    x, (up, down), (ids, weights) = bf16(random, T, H), weights_of(random), choice(random)
    packed, values = [], []
    for matrix, gate in ((up, "split"), (down, None)):
        quantized = moxie.quantize(device, matrix, "mxfp4", layout="row_major")
        blocks = quantized.elements.reshape(*matrix.shape[:2], -1, 16)  # as checkpoints hold them
        packed.append(moxie.pack_weights(device, blocks, quantized.scales, gate=gate))
        values.append(moxie.dequantize(device, quantized, "mxfp4", "bf16", layout="row_major"))
    assert_layer(made(x, *packed, ids, weights), layer(x, *values, ids, weights, "swiglu", "split"))


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_router(device, random, score):
    router = moxie.Router(score=score, correction_bias=score == "sigmoid", scaling_factor=1.5)
    made = moxie.ExpertLayer(device, **SIZES, gate="split", router=router)
    x, (up, down) = bf16(random, T, H), weights_of(random)
    logits = random.standard_normal((T, E)).astype(np.float32)
    bias = {"correction_bias": random.standard_normal(E).astype(np.float32)} if score == "sigmoid" else {}
    ids, weights = np.empty((T, TOP_K), np.int32), np.empty((T, TOP_K), np.float32)
    y = made(x, up, down, logits=logits, chosen_ids=ids, chosen_weights=weights, **bias)
    scores = np.exp(logits) if score == "softmax" else 1 / (1 + np.exp(-f64(logits)))
    chosen = np.argsort(-(scores + bias.get("correction_bias", 0)), axis=1)[:, :TOP_K]
    assert np.array_equal(ids, chosen)
    picked = np.take_along_axis(f64(scores), chosen, 1)
    np.testing.assert_allclose(weights, 1.5 * picked / picked.sum(1, keepdims=True), rtol=1e-5)
    assert_layer(y, layer(x, up, down, ids, weights, "swiglu", "split"))
    alone = moxie.route(device, logits, TOP_K, router=router, **bias)
    assert np.array_equal(alone[0], ids) and np.array_equal(alone[1], weights)


def test_token_count(device, random):
    made = moxie.ExpertLayer(device, **SIZES, gate="split")
    x, (up, down), (ids, weights) = bf16(random, T, H), weights_of(random), choice(random)
    out = np.full((T, H), 7, x.dtype)
    made(x, up, down, ids, weights, token_count=np.array([4], np.int32), out=out)
    assert_layer(out[:4], layer(x, up, down, ids, weights, "swiglu", "split")[:4])
    assert np.all(out[4:] == 7)


def test_sort_and_combine(device, random):
    ids, weights = choice(random)
    ids[2, 1] = -1
    ends, order, inverse = moxie.sort_by_expert(device, ids, E)
    flat = ids.reshape(-1)
    ours = np.flatnonzero((flat >= 0) & (flat < E))
    expected = ours[np.argsort(flat[ours], kind="stable")]
    assert np.array_equal(order[: ends[-1]], expected)
    assert np.array_equal(ends, np.cumsum(np.bincount(flat[ours], minlength=E)))
    places = np.full(len(flat), -1)
    places[expected] = np.arange(len(expected))
    assert np.array_equal(inverse.reshape(-1), places)
    x = bf16(random, T, H)
    permuted = moxie.permute(device, x, inverse)
    assert permuted.shape == (T * TOP_K, H)
    assert np.array_equal(permuted[: ends[-1]], x[expected // TOP_K])
    out = np.full((4, H), 7, x.dtype)
    assert moxie.permute(device, x, inverse, row_count=4, out=out) is out
    assert np.array_equal(out, x[expected[:4] // TOP_K])
    rows, residual = bf16(random, ends[-1], H), random.standard_normal((T, H)).astype(np.float32)
    y = moxie.combine(device, rows, inverse, weights, residual=residual, out_dtype="f32")
    summed = f64(residual).copy()
    for t in range(T):
        for j in range(TOP_K):
            if inverse[t, j] >= 0:
                summed[t] += float(weights[t, j]) * f64(rows[inverse[t, j]])
    assert_close(y, summed, 1e-6)


def test_permuting_changes_nothing(device, random):
    x, (up, down), (ids, weights) = bf16(random, T, H), weights_of(random), choice(random)
    for permute in (None, False, True):
        made = moxie.ExpertLayer(device, **SIZES, gate="split", permute=permute)
        assert_layer(made(x, up, down, ids, weights), layer(x, up, down, ids, weights, "swiglu", "split"))
        assert ("gathered" in made.plan()[0].kernel) == (not permute)


def test_plans_of_a_layer(device):
    made = moxie.ExpertLayer(device, **SIZES)
    up, down = made.plan()
    assert up.kernel and down.kernel and made.plan(1) == (up, down)
    assert made.workspace_bytes(1) <= made.workspace_bytes()
