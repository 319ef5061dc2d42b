# SPDX-License-Identifier: Apache-2.0
"""Products and activations in double precision, and what a result may be off by."""

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16


def bf16(random, *shape):
    return random.standard_normal(shape).astype(BF16)


def f64(array):
    return np.asarray(array).astype(np.float64)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def erf(x):
    from math import erf as one

    return np.vectorize(one)(x)


PLAIN = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "gelu": gelu_tanh,
    "gelu_erf": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2))),
    "silu": lambda x: x * sigmoid(x),
}
GATED = {
    "swiglu": lambda g, u: g * sigmoid(g) * u,
    "swiglu_oai": lambda g, u: np.minimum(g, 7) * sigmoid(1.702 * np.minimum(g, 7)) * (np.clip(u, -7, 7) + 1),
    "geglu": lambda g, u: gelu_tanh(g) * u,
    "reglu": lambda g, u: np.maximum(g, 0) * u,
    "swiglu_clamped": lambda g, u: np.minimum(g, 10) * sigmoid(np.minimum(g, 10)) * np.clip(u, -10, 10),
    "situ": lambda g, u: 4 * np.tanh(g / 4) * sigmoid(g) * 25 * np.tanh(u / 25),
}


def gate_and_up(pre, gate):
    if gate == "interleaved":
        return pre[..., 0::2], pre[..., 1::2]
    first, second = np.split(pre, 2, axis=-1)
    return (first, second) if gate == "split" else (second, first)


def activated(pre, activation, gate="interleaved"):
    if activation in PLAIN:
        return PLAIN[activation](pre)
    return GATED[activation](*gate_and_up(pre, gate))


def assert_close(result, expected, tolerance=4e-3, of_row=1e-4):
    """Relative Frobenius error, and no element further than 2 bf16 ulps plus of_row times its row's norm."""
    result = f64(result)
    assert result.shape == expected.shape
    assert np.all(np.isfinite(result))
    error = np.linalg.norm(result - expected) / max(np.linalg.norm(expected), 1e-30)
    assert error <= tolerance, error
    if tolerance <= 4e-3:
        rows = np.linalg.norm(expected, axis=-1, keepdims=True)
        allowed = np.abs(expected) * 2.0**-7 + of_row * rows + 1e-30
        assert np.all(np.abs(result - expected) <= allowed)


def assert_layer(result, expected):
    """A row between the products may be rounded to its other neighbor where float32 sums differ from double ones."""
    assert_close(result, expected, of_row=2e-3)


def rounded(rows):
    return f64(rows.astype(BF16))


def layer(
    x, up, down, ids, weights, activation, gate, up_bias=None, down_bias=None, residual=None, first=0, operands=None
):
    """The layer with its two roundings to bf16. operands: what tokens, and what inner rows become to be multiplied."""
    of_tokens, of_inner = operands or (rounded, rounded)
    x, up, down = of_tokens(f64(x)), f64(up), f64(down)
    y = np.zeros(x.shape) if residual is None else f64(residual).copy()
    for t in range(len(x)):
        for j, e in enumerate(np.asarray(ids[t]) - first):
            if not 0 <= e < len(up):
                continue
            pre = up[e] @ x[t] + (0 if up_bias is None else f64(up_bias[e]))
            inner = of_inner(activated(pre, activation, gate))
            row = down[e] @ inner + (0 if down_bias is None else f64(down_bias[e]))
            y[t] += float(weights[t, j]) * rounded(row)
    return y
