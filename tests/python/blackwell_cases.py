# SPDX-License-Identifier: Apache-2.0
"""What Blackwell alone computes; test_process.py runs it with MOXIE_SIM_ARCH=sm_100a."""

import numpy as np
import pytest
from reference import activated, assert_close, bf16, f64

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
