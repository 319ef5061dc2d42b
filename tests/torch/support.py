# SPDX-License-Identifier: Apache-2.0
"""Operands, and references in double precision."""

import os

import torch
import torch.nn.functional as F

DEVICE = "cpu" if os.environ.get("MOXIE_DEVICE", "sim") == "sim" else "cuda"

GATED = {
    "swiglu": lambda g, u, p: F.silu(g) * u,
    "geglu": lambda g, u, p: F.gelu(g, approximate="tanh") * u,
    "reglu": lambda g, u, p: g.relu() * u,
    "swiglu_oai": lambda g, u, p: g.clamp(max=p["limit"])
    * torch.sigmoid(p["alpha"] * g.clamp(max=p["limit"]))
    * (u.clamp(-p["limit"], p["limit"]) + 1),
    "swiglu_clamped": lambda g, u, p: F.silu(g.clamp(max=p["gate_limit"])) * u.clamp(-p["up_limit"], p["up_limit"]),
    "situ": lambda g, u, p: p["beta"]
    * torch.tanh(g / p["beta"])
    * torch.sigmoid(g)
    * p["linear_beta"]
    * torch.tanh(u / p["linear_beta"]),
}
PLAIN = {
    "none": lambda x: x,
    "relu": torch.relu,
    "relu2": lambda x: x.relu() ** 2,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "silu": F.silu,
}
DEFAULTS = {
    "swiglu_oai": {"alpha": 1.702, "limit": 7.0},
    "swiglu_clamped": {"gate_limit": 10.0, "up_limit": 10.0},
    "situ": {"beta": 4.0, "linear_beta": 25.0},
}


def activate(pre, activation, parameters, gate):
    if activation in PLAIN:
        return PLAIN[activation](pre)
    half = pre.shape[-1] // 2
    if gate == "interleaved":
        g, u = pre[..., 0::2], pre[..., 1::2]
    else:
        g, u = pre[..., :half], pre[..., half:]
        if gate == "split_up_first":
            g, u = u, g
    return GATED[activation](g, u, parameters or DEFAULTS.get(activation))


def product(a, b, bias=None, activation="none", parameters=None, gate="split"):
    """activation(a b + bias) of [.., M, K] and [.., K, N]."""
    pre = a.double() @ b.double()
    if bias is not None:
        pre = pre + bias.double().unsqueeze(-2)
    return activate(pre, activation, parameters, gate)


def grouped(a, b, offs, bias=None, **rest):
    """Rows up to the last end."""
    rows, begin = [], 0
    for g, end in enumerate(offs.tolist()):
        rows.append(product(a[begin:end], b[g], None if bias is None else bias[g], **rest))
        begin = max(begin, end)
    return torch.cat(rows)


def layer(x, ids, weights, w1, w2, b1=None, b2=None, activation="swiglu", parameters=None, gate="split", first=0):
    """Rows are rounded to bf16 behind the activation and behind the second product, as the layer does."""
    out = torch.zeros(x.shape[0], w2.shape[1], dtype=torch.float64, device=x.device)
    for t in range(x.shape[0]):
        for j in range(ids.shape[1]):
            e = int(ids[t, j]) - first
            if not 0 <= e < w1.shape[0]:
                continue
            bias = None if b1 is None else b1[e]
            inner = product(x[t : t + 1], w1[e].T, bias, activation, parameters, gate)
            row = product(inner.bfloat16(), w2[e].T, None if b2 is None else b2[e])[0]
            out[t] += row.bfloat16().double() * (1 if weights is None else weights[t, j].double())
    return out


def assert_close(result, expected, rounded=True):
    """The project's bounds of a result in bf16 (or in float32, where it is not rounded)."""
    assert result.shape == expected.shape
    result, expected = result.double(), expected.double()
    assert torch.isfinite(result).all()
    difference = (result - expected).abs()
    norm = expected.norm()
    assert difference.norm() <= (4e-3 if rounded else 1e-5) * norm + 1e-30
    ulp = 2.0 ** (torch.floor(torch.log2(expected.abs().clamp(min=1e-38))) - 7)
    row = expected.norm(dim=-1, keepdim=True)
    bound = (2 * ulp if rounded else 0) + 1e-4 * row
    assert (difference <= bound).all()


def bf16(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).bfloat16().to(DEVICE)


def routing(tokens, experts, top_k, dtype=torch.int64):
    ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).to(dtype)
    return ids.to(DEVICE), torch.rand(tokens, top_k).to(DEVICE)


def ends(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def dequantized(codes, scales):
    """MXFP4 [.., K / 2] and [.., K / 32] to double."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64, device=codes.device)
    values = torch.cat([values, -values])
    both = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2).long()
    return values[both] * torch.exp2(scales.double() - 127).repeat_interleave(32, dim=-1)


def mxfp4(experts, n, k):
    codes = torch.randint(0, 256, (experts, n, k // 2), dtype=torch.uint8)
    scales = torch.randint(118, 126, (experts, n, k // 32), dtype=torch.uint8)
    return codes.to(DEVICE), scales.to(DEVICE)
