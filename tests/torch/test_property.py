# SPDX-License-Identifier: Apache-2.0
"""Products of any shapes, strides, offsets and types beside double precision."""

import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support import DEVICE, GATED, PLAIN, assert_close, bf16, ends, grouped, product

from moxie.torch import grouped_mm


@st.composite
def problems(draw):
    groups = draw(st.integers(1, 6))
    sizes = draw(st.lists(st.integers(0, 40), min_size=groups, max_size=groups))
    activation = draw(st.sampled_from([*PLAIN, *GATED]))
    return {
        "sizes": sizes,
        "past": draw(st.sampled_from([0, 0, 5])),
        "n": draw(st.integers(1, 12)) * (16 if activation in GATED else 8),
        "k": draw(st.integers(1, 24)) * 8,
        "activation": activation,
        "gate": draw(st.sampled_from(["split", "interleaved", "split_up_first"])),
        "bias": draw(st.booleans()),
        "out_dtype": draw(st.sampled_from([None, torch.bfloat16, torch.float32])),
        "batched": draw(st.booleans()),
        "a": draw(st.sampled_from(["dense", "apart", "shifted", "transposed"])),
        "b": draw(st.sampled_from(["dense", "apart", "stored_kn", "every_second", "shifted"])),
        "gather": draw(st.sampled_from([0, 0, 1, 3])),
        "seed": draw(st.integers(0, 1 << 30)),
    }


def laid_out(how, *shape):
    """A tensor of this shape that lies in memory in one way or another."""
    *outer, rows, columns = shape
    if how == "apart":
        return bf16(*outer, rows, columns + 16)[..., 8 : columns + 8]
    if how == "shifted":
        return bf16(*outer, rows, columns + 3)[..., 3:]
    if how in ("transposed", "stored_kn"):
        return bf16(*outer, columns, rows).transpose(-2, -1)
    if how == "every_second":
        return bf16(2 * outer[0], rows, columns)[::2]
    return bf16(*shape)


@settings(max_examples=120, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(problems())
@example({"sizes": [0, 0], "past": 0, "n": 16, "k": 8, "activation": "swiglu", "gate": "split", "bias": True,
          "out_dtype": None, "batched": False, "a": "dense", "b": "dense", "gather": 0, "seed": 0})  # fmt: skip
@torch.no_grad()
def test_products(problem):
    torch.manual_seed(problem["seed"])
    groups, n, k = len(problem["sizes"]), problem["n"], problem["k"]
    b = laid_out(problem["b"], groups, n, k).transpose(1, 2)
    bias = bf16(groups, n) if problem["bias"] else None
    rest = {"activation": problem["activation"], "gate": problem["gate"]}
    if problem["batched"]:
        a = laid_out(problem["a"], groups, problem["sizes"][0], k)
        result = grouped_mm(a, b, bias=bias, out_dtype=problem["out_dtype"], **rest)
        expected = product(a, b, bias, **rest)
    else:
        offs = ends(*torch.tensor(problem["sizes"]).cumsum(0).tolist())
        rows = int(offs[-1])
        if problem["gather"]:
            divisor = problem["gather"]
            a = laid_out(problem["a"], 11, k)
            order = torch.randint(0, 11 * divisor, (rows + problem["past"],), dtype=torch.int32).to(DEVICE)
            gathered = a[(order // divisor).long()]
            result = grouped_mm(
                a, b, offs=offs, bias=bias, out_dtype=problem["out_dtype"], gather=order, divisor=divisor, **rest
            )[:rows]
            a = gathered
        else:
            a = laid_out(problem["a"], rows + problem["past"], k)
            result = grouped_mm(a, b, offs=offs, bias=bias, out_dtype=problem["out_dtype"], **rest)[:rows]
        expected = grouped(a, b, offs, bias, **rest)
    assert result.dtype == problem["out_dtype"] or problem["out_dtype"] is None and result.dtype == torch.bfloat16
    if expected.numel():
        # In float32 what an activation's own rounding adds is bounded as kernels/moxie/epilogue/activation.cuh says.
        plain = problem["out_dtype"] == torch.float32 and problem["activation"] in ("none", "relu")
        assert_close(result, expected, rounded=not plain)
