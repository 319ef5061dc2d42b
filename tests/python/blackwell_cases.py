# SPDX-License-Identifier: Apache-2.0
"""What Blackwell alone computes; test_process.py runs it with MOXIE_SIM_ARCH=sm_100a."""

import numpy as np
import pytest
from reference import activated, assert_close, assert_layer, bf16, f64, layer

import moxie

N, K, G = 128, 128, 3


def test_groups_along_k(device, random):
    product = moxie.GroupedGemm(device, moxie.KGroups(G, 24), n=N, k=K, out="f32")
    a, b, ends = bf16(random, 24, K), bf16(random, N, K), np.array([40, 40, K], np.int32)
    result = product(a, b, ends=ends)
    begin = 0
    for g, end in enumerate(ends):
        assert_close(result[g], f64(a)[:, begin:end] @ f64(b)[:, begin:end].T, 1e-6)
        begin = end
    assert np.all(result[1] == 0)


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_quantized_operands(device, random, format):
    product = moxie.GroupedGemm(device, moxie.Offsets(G), n=N, k=K, format=format, activation="swiglu", bias=True)
    ends, bias = np.array([7, 7, 40], np.int32), bf16(random, G, N)
    a = moxie.quantize(device, bf16(random, 40, K), format, offsets=ends)
    b = moxie.quantize(device, bf16(random, G, N, K), format)
    values_a = f64(moxie.dequantize(device, a, format, offsets=ends))
    values_b = f64(moxie.dequantize(device, b, format))
    if format == "nvfp4":  # of b one tensor scale for each group
        with pytest.raises(ValueError, match="b.tensor_scale has 1 elements, and must have 3"):
            product(a, b, ends=ends, bias=bias)
        b = b._replace(tensor_scale=np.repeat(b.tensor_scale, G))
    result = product(a, b, ends=ends, bias=bias)
    for g, (begin, end) in enumerate(((0, 7), (7, 7), (7, 40))):
        if end > begin:
            pre = values_a[begin:end] @ values_b[g].T + f64(bias[g])
            assert_close(result[begin:end], activated(pre, "swiglu"))
    with pytest.raises(TypeError, match="a is a moxie.Quantized, since its format is"):
        product(bf16(random, 40, K), b, ends=ends, bias=bias)
    with pytest.raises(ValueError, match="a.scales has 16 elements, and must have"):
        product(a._replace(scales=a.scales[:16]), b, ends=ends, bias=bias)


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4"])
def test_layers_that_quantize(device, random, format):
    experts, tokens, hidden, width = 4, 11, 64, 32
    sizes = {"experts": experts, "top_k": 2, "hidden": hidden, "width": width, "max_tokens": tokens}
    made = moxie.ExpertLayer(device, **sizes, weights=format, activations=format, gate="split", expected_tokens=tokens)
    x = bf16(random, tokens, hidden)
    ids = np.argsort(random.random((tokens, experts)), axis=1)[:, :2].astype(np.int32)
    weights = random.random((tokens, 2)).astype(np.float32)
    quantized, values, scales = [], [], {}
    for shape in ((experts, 2 * width, hidden), (experts, hidden, width)):
        matrix = moxie.quantize(device, (f64(bf16(random, *shape)) * shape[2] ** -0.5).astype(np.float32), format)
        values.append(moxie.dequantize(device, matrix, format))
        if format == "nvfp4":
            matrix = matrix._replace(tensor_scale=np.repeat(matrix.tensor_scale, experts))
        quantized.append(matrix)
    if format == "nvfp4":
        scales = {"x_tensor_scale": np.float32([0.004]), "inner_tensor_scale": np.float32([0.02])}

    def stored(scale):
        def become(rows):
            flat = np.atleast_2d(rows).astype(np.float32)
            there = moxie.quantize(device, flat, format, tensor_scale=scales.get(scale))
            return f64(moxie.dequantize(device, there, format)).reshape(rows.shape)

        return become

    operands = stored("x_tensor_scale"), stored("inner_tensor_scale")
    y = made(x, *quantized, ids, weights, **scales)
    assert_layer(y, layer(x, *values, ids, weights, "swiglu", "split", operands=operands))
    assert made.plan()[0].kernel.startswith(format)
    with pytest.raises(TypeError, match="up is a moxie.Quantized, since its format is"):
        made(x, x, quantized[1], ids, weights, **scales)
    with pytest.raises(ValueError, match="down.scales has 16 elements, and must have"):
        made(x, quantized[0], quantized[1]._replace(scales=quantized[1].scales[:16]), ids, weights, **scales)
    if format == "mxfp4":
        with pytest.raises(ValueError, match="inner_tensor_scale is not in the layer's description"):
            made(x, *quantized, ids, weights, inner_tensor_scale=np.float32([1]))
