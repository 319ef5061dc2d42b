# SPDX-License-Identifier: Apache-2.0
"""Runs a kernel of Triton's tutorials (https://github.com/triton-lang/triton, python/tutorials) and verifies it.

usage: triton_kernels.py NAME --checkout FOLDER, in an environment that has triton, numpy and ml_dtypes

The kernels and the functions that launch them are the tutorials', executed from the checkout. The data is ours, small
integers whose sums are exact where the format allows, and so is the comparison. A tutorial's list of configurations to
try is cut down to the one named here.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy
from triton_simulated import TYPES, Tensor, empty, on_device, tl, triton, tutorial

RANDOM = numpy.random.default_rng(1)
PROGRAMS = {}


class Count:
    wrong = total = 0


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def compare(got: Tensor | numpy.ndarray, expected: numpy.ndarray, tolerance=0.0) -> None:
    """Counts the elements that differ by more than the tolerance, a number or one an element."""
    got = got.numpy() if isinstance(got, Tensor) else got
    assert got.shape == expected.shape, (got.shape, expected.shape)
    difference = numpy.abs(got.astype(numpy.float64) - expected.astype(numpy.float64))
    Count.wrong += int(numpy.sum(~(difference <= tolerance)))
    Count.total += got.size


def integers(*shape: int, most: int = 2, dtype=numpy.float16) -> numpy.ndarray:
    return RANDOM.integers(-most, most + 1, shape).astype(dtype)


def only(kernel, **wanted) -> None:
    """Leaves the first of the tutorial's configurations that has these values."""
    kernel.configs = [
        each for each in kernel.configs if all(each.all_kwargs().get(key) == value for key, value in wanted.items())
    ][:1]
    assert kernel.configs, wanted


def product(a: numpy.ndarray, b: numpy.ndarray) -> numpy.ndarray:
    return a.astype(numpy.float64) @ b.astype(numpy.float64)


@program
def vector_add(checkout: Path) -> None:
    x, y = (RANDOM.standard_normal(5000).astype(numpy.float32) for _ in range(2))
    compare(tutorial(checkout, "01-vector-add").add(on_device(x), on_device(y)), x + y)


@program
def softmax(checkout: Path) -> None:
    x = RANDOM.standard_normal((37, 781)).astype(numpy.float32)
    powers = numpy.exp(x.astype(numpy.float64))
    expected = powers / powers.sum(1, keepdims=True)
    compare(tutorial(checkout, "02-fused-softmax").softmax(on_device(x)), expected, 1e-5 * expected)


@program
def matmul(checkout: Path) -> None:
    module = tutorial(checkout, "03-matrix-multiplication")
    only(module.matmul_kernel, BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, BLOCK_SIZE_K=32)
    a, b = integers(200, 208), integers(208, 272)
    sums = product(a, b).astype(numpy.float32)
    expected = numpy.where(sums >= 0, sums, numpy.float32(0.01) * sums).astype(numpy.float16)
    compare(module.matmul(on_device(a), on_device(b), "leaky_relu"), expected)


@program
def matmul_fp8(checkout: Path) -> None:
    module = tutorial(checkout, "03-matrix-multiplication")
    only(module.matmul_kernel, BLOCK_SIZE_M=128, BLOCK_SIZE_N=128, BLOCK_SIZE_K=128)
    e5m2 = TYPES["float8_e5m2"].array
    a, b = integers(200, 688, dtype=e5m2), integers(272, 688, dtype=e5m2)
    compare(module.matmul(on_device(a), on_device(b).T), product(a, b.T).astype(numpy.float16))


@program
def dropout(checkout: Path) -> None:
    """Twice the same numbers from one seed; of those that are kept about half, each doubled."""
    module = tutorial(checkout, "04-low-memory-dropout")
    x = 1 + RANDOM.random(5000).astype(numpy.float32)
    first, again = (module.seeded_dropout(on_device(x), p=0.5, seed=123).numpy() for _ in range(2))
    compare(first, numpy.where(first == 0, 0, 2 * x))
    compare(again, first)
    compare(numpy.array([numpy.mean(first == 0)]), numpy.array([0.5]), 0.05)


class Saved:
    """What PyTorch hands from a function's forward() to its backward()."""

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors


@program
def layer_norm(checkout: Path) -> None:
    """Forward and backward; 44 of the 300 rows add to what another has added under a lock."""
    function = tutorial(checkout, "05-layer-norm").LayerNorm
    x, dy = (RANDOM.standard_normal((300, 1000)).astype(numpy.float16) for _ in range(2))
    weight, bias = (RANDOM.standard_normal(1000).astype(numpy.float16) for _ in range(2))
    saved = Saved()
    y = function.forward(saved, on_device(x), (1000,), on_device(weight), on_device(bias), 1e-5)
    dx, _, dw, db, _ = function.backward(saved, on_device(dy))
    x, dy, weight, bias = (each.astype(numpy.float64) for each in (x, dy, weight, bias))
    scale = 1 / numpy.sqrt(x.var(1, keepdims=True) + 1e-5)
    normal = (x - x.mean(1, keepdims=True)) * scale
    wdy = weight * dy
    exact = (wdy - normal * (normal * wdy).mean(1, keepdims=True) - wdy.mean(1, keepdims=True)) * scale
    compare(y, normal * weight + bias, 2e-3 + 1e-3 * abs(normal * weight))
    compare(dx, exact, 2e-3 + 1e-3 * abs(exact))
    # Partial sums of one or two rows are kept in half precision, and rounded once.
    compare(dw, (dy * normal).sum(0), 1e-3 * abs(dy * normal).sum(0))
    compare(db, dy.sum(0), 1e-3 * abs(dy).sum(0))


def attend(q: numpy.ndarray, k: numpy.ndarray, v: numpy.ndarray, scale: float, causal: bool) -> tuple:
    """The output and the weights."""
    logits = numpy.einsum("zhmd,zhnd->zhmn", q.astype(numpy.float64), k.astype(numpy.float64)) * scale
    if causal:
        logits = numpy.where(numpy.tri(*logits.shape[2:], dtype=bool), logits, -numpy.inf)
    powers = numpy.exp(logits - logits.max(3, keepdims=True))
    weights = powers / powers.sum(3, keepdims=True)
    return weights @ v.astype(numpy.float64), weights


def attention_of(checkout: Path, causal: bool, specialize: bool, backward: bool = False, stages: int = 2) -> None:
    module = tutorial(checkout, "06-fused-attention")
    only(module._attn_fwd, BLOCK_M=128, BLOCK_N=64, num_stages=stages, num_warps=4)
    q, k, v, do = (RANDOM.standard_normal((1, 2, 384, 64)).astype(numpy.float16) for _ in range(4))
    saved, scale = Saved(), 0.125
    o = module._attention.forward(saved, *(on_device(each) for each in (q, k, v)), causal, scale, specialize)
    expected, weights = attend(q, k, v, scale, causal)
    # The weights are rounded to half precision before they meet v, and so is the output.
    compare(o, expected, 1e-3 * (weights @ abs(v.astype(numpy.float64)) + 1))
    if not backward:
        return
    q, k, v, do = (each.astype(numpy.float64) for each in (q, k, v, do))
    dq, dk, dv = module._attention.backward(saved, on_device(do.astype(numpy.float16)))[:3]
    dp = do @ v.transpose(0, 1, 3, 2)
    ds = weights * (dp - (do * expected).sum(3, keepdims=True))
    flipped = (0, 1, 3, 2)
    for got, left, right, factor in (
        (dq, ds, k, scale),
        (dk, ds.transpose(flipped), q, scale),
        (dv, weights.transpose(flipped), do, 1),
    ):
        # Half precision: k times its scale, the weights, their gradients, and the result.
        compare(got, left @ right * factor, 4e-3 * (abs(left) @ abs(right) * factor + 1))


@program
def attention(checkout: Path) -> None:
    attention_of(checkout, causal=False, specialize=False, stages=3)


@program
def attention_causal(checkout: Path) -> None:
    attention_of(checkout, causal=True, specialize=False, backward=True)


@program
def attention_specialized(checkout: Path) -> None:
    attention_of(checkout, causal=True, specialize=True)


def groups() -> tuple[list[numpy.ndarray], list[numpy.ndarray]]:
    sizes = ((512, 256, 256), (256, 256, 128), (128, 128, 320))
    return [integers(m, k) for m, n, k in sizes], [integers(k, n) for m, n, k in sizes]


@program
def grouped_gemm(checkout: Path) -> None:
    module = tutorial(checkout, "08-grouped-gemm")
    only(module.grouped_matmul_kernel, BLOCK_SIZE_M=128, BLOCK_SIZE_K=64)
    a, b = groups()
    for got, left, right in zip(module.group_gemm_fn([*map(on_device, a)], [*map(on_device, b)]), a, b, strict=True):
        compare(got, product(left, right).astype(numpy.float16))


@program
def grouped_gemm_tma(checkout: Path) -> None:
    """Tensor maps that the kernel makes and rewrites for every group."""
    module = tutorial(checkout, "08-grouped-gemm")
    only(module.grouped_matmul_tma_kernel, BLOCK_SIZE_N=128, BLOCK_SIZE_K=64, num_warps=4)
    a, b = groups()
    flipped = [on_device(each.T) for each in b]
    for got, left, right in zip(module.group_gemm_tma_fn([*map(on_device, a)], flipped), a, b, strict=True):
        compare(got, product(left, right).astype(numpy.float16))


def large_matmul(checkout: Path, function: str, kernel: str, *arguments, dtype=numpy.float16, **wanted) -> None:
    """A function of the tutorial of persistent products, with 16 tiles, ragged edges and 5.25 steps of k."""
    module = tutorial(checkout, "09-persistent-matmul")
    only(getattr(module, kernel), **{"BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 64, "num_stages": 3, "num_warps": 4} | wanted)
    a, b = integers(392, 336, dtype=dtype), integers(400, 336, dtype=dtype)
    transposed = "tma" in function or "descriptor" in function
    got = getattr(module, function)(on_device(a), on_device(b) if transposed else on_device(b).T, *arguments)
    compare(got, product(a, b.T).astype(numpy.float32).astype(dtype))


E4M3 = TYPES["float8_e4m3fn"].array


@program
def matmul_naive(checkout: Path) -> None:
    large_matmul(checkout, "matmul", "matmul_kernel")


@program
def matmul_tma(checkout: Path) -> None:
    large_matmul(checkout, "matmul_tma", "matmul_kernel_tma", False)


@program
def matmul_tma_fp8(checkout: Path) -> None:
    large_matmul(checkout, "matmul_tma", "matmul_kernel_tma", False, dtype=E4M3, num_warps=8, num_stages=4)


@program
def matmul_tma_specialized(checkout: Path) -> None:
    large_matmul(checkout, "matmul_tma", "matmul_kernel_tma", True)


@program
def matmul_persistent(checkout: Path) -> None:
    large_matmul(checkout, "matmul_persistent", "matmul_kernel_persistent")


@program
def matmul_tma_persistent(checkout: Path) -> None:
    large_matmul(checkout, "matmul_tma_persistent", "matmul_kernel_tma_persistent", False, EPILOGUE_SUBTILE=True)


@program
def matmul_tma_persistent_specialized(checkout: Path) -> None:
    large_matmul(checkout, "matmul_tma_persistent", "matmul_kernel_tma_persistent", True, EPILOGUE_SUBTILE=True)


@program
def matmul_descriptor_persistent(checkout: Path) -> None:
    """Tensor maps that the kernel makes."""
    large_matmul(
        checkout, "matmul_descriptor_persistent", "matmul_kernel_descriptor_persistent", False, EPILOGUE_SUBTILE=False
    )


@program
def matmul_descriptor_persistent_specialized(checkout: Path) -> None:
    large_matmul(
        checkout, "matmul_descriptor_persistent", "matmul_kernel_descriptor_persistent", True, EPILOGUE_SUBTILE=False
    )


@program
def matmul_descriptor_persistent_fp8(checkout: Path) -> None:
    large_matmul(
        checkout, "matmul_descriptor_persistent", "matmul_kernel_descriptor_persistent", False, dtype=E4M3,
        EPILOGUE_SUBTILE=True, BLOCK_SIZE_K=128, num_warps=8,
    )  # fmt: skip


E2M1 = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


class Scaled:
    """A matrix in blocks of 16 or 32 elements a scale."""

    def __init__(self, rows: int, k: int, fp4: bool, vector: int):
        codes = RANDOM.integers(0, 16, (rows, k), numpy.uint8)
        # Two elements a byte, the first in the low half.
        self.data = on_device(codes[:, 0::2] | codes[:, 1::2] << 4 if fp4 else E2M1[codes].astype(E4M3))
        exponents = RANDOM.integers(-1, 2, (rows, k // vector))
        scales = (2.0**exponents).astype(E4M3) if vector == 16 else (127 + exponents).astype(numpy.uint8)
        self.plain_scales = on_device(scales)
        # Tiles of 128 rows by 4 scales: (r, s) at r % 32 * 16 + r / 32 * 4 + s.
        tiles = scales.reshape(rows // 128, 4, 32, k // vector // 4, 4).transpose(0, 3, 2, 1, 4)
        self.scales = on_device(tiles.reshape(1, rows // 128, k // vector // 4, 2, 256))
        self.exact = E2M1[codes] * 2.0 ** exponents.repeat(vector, 1)


def block_scaled_of(checkout: Path, fp4_a: bool, fp4_b: bool, vector: int) -> None:
    module = tutorial(checkout, "10-block-scaled-matmul")
    m, n, k = 256, 512, 1536
    a, b = Scaled(m, k, fp4_a, vector), Scaled(n, k, fp4_b, vector)
    # The tutorial's own numbers.
    block_m, block_n, block_k = 128, 256, 256 if fp4_a else 128
    reps = block_m // 128, block_n // 128, block_k // vector // 4
    configs = {
        "BLOCK_SIZE_M": block_m, "BLOCK_SIZE_N": block_n, "BLOCK_SIZE_K": block_k, "num_stages": 4,
        "ELEM_PER_BYTE_A": 1 + fp4_a, "ELEM_PER_BYTE_B": 1 + fp4_b, "VEC_SIZE": vector,
    }  # fmt: skip
    descriptor = module.TensorDescriptor.from_tensor
    got = module.block_scaled_matmul(
        descriptor(a.data, [block_m, block_k >> fp4_a]), descriptor(a.scales, [1, reps[0], reps[2], 2, 256]),
        descriptor(b.data, [block_n, block_k >> fp4_b]), descriptor(b.scales, [1, reps[1], reps[2], 2, 256]),
        TYPES["float16"], m, n, k, *reps, configs,
    )  # fmt: skip
    compare(got, product(a.exact, b.exact.T).astype(numpy.float16))


@program
def block_scaled_mxfp4(checkout: Path) -> None:
    block_scaled_of(checkout, True, True, 32)


@program
def block_scaled_nvfp4(checkout: Path) -> None:
    block_scaled_of(checkout, True, True, 16)


@program
def block_scaled_mxfp8(checkout: Path) -> None:
    block_scaled_of(checkout, False, False, 32)


@program
def block_scaled_mixed(checkout: Path) -> None:
    block_scaled_of(checkout, False, True, 32)


@program
def dependent_launch(checkout: Path) -> None:
    """The second sum reads what the first writes, and was launched before its end."""
    module = tutorial(checkout, "11-programmatic-dependent-launch")
    x, y = (RANDOM.standard_normal(5000).astype(numpy.float32) for _ in range(2))
    z = module.add(on_device(x), on_device(y))
    compare(module.add(z, on_device(y)), (x + y) + y)


def blocks(checkout: Path, name: str, *runs: tuple, shape=(208, 416, 304)) -> None:
    """Calls functions of a Gluon tutorial with A, B, C and more: (function, whether B is transposed, more)."""
    module = tutorial(checkout, name)
    m, n, k = shape
    for function, transposed, *more in runs:
        a, b = integers(m, k), integers(k, n)
        c = empty(m, n, dtype=TYPES["float16"])
        more = [each(module) if callable(each) else each for each in more]
        getattr(module, function)(on_device(a), on_device(b.T if transposed else b), c, *more)
        compare(c, product(a, b).astype(numpy.float16))


def sums(checkout: Path, name: str, function: str, *more) -> None:
    """A function of a Gluon tutorial that adds two matrices."""
    x, y = (RANDOM.standard_normal((100, 200)).astype(numpy.float32) for _ in range(2))
    z = empty(100, 200)
    getattr(tutorial(checkout, name), function)(on_device(x), on_device(y), z, *more)
    compare(z, x + y)


@program
def gluon_async_copy(checkout: Path) -> None:
    sums(checkout, "gluon/03-async-copy", "elementwise_add_pipelined", 32, 64, 3)


@program
def gluon_tma(checkout: Path) -> None:
    x = RANDOM.standard_normal(500).astype(numpy.float32)
    copy = empty(500)
    tutorial(checkout, "gluon/04-tma").memcpy_1d_tma(on_device(x), copy, 64)
    compare(copy, x)
    sums(checkout, "gluon/04-tma", "elementwise_add_tma", 32, 64, 3)


def small(module, *more) -> None:
    """One product of one tile, added to C."""
    a, b, c = integers(64, 128), integers(128, 256), integers(64, 256, dtype=numpy.float32)
    d = empty(64, 256)
    module.small_mma(on_device(a), on_device(b), on_device(c), d, *more)
    compare(d, product(a, b) + c)


@program
def gluon_wgmma(checkout: Path) -> None:
    for from_registers in (False, True):
        small(tutorial(checkout, "gluon/05-wgmma"), 64, from_registers, 4)
    blocks(
        checkout, "gluon/05-wgmma", ("blocked_matmul", False, 64, 64, 64, False, 4),
        ("blocked_matmul", True, 128, 128, 128, True, 8), ("blocked_matmul_pipelined", False, 128, 128, 128, 8),
    )  # fmt: skip


@program
def gluon_tcgen05(checkout: Path) -> None:
    module = tutorial(checkout, "gluon/06-tcgen05")
    x, copy = RANDOM.standard_normal((256, 128)).astype(numpy.float32), empty(256, 128)
    module.tmem_example_kernel[(1,)](on_device(x), copy, 256, 128, num_warps=4)
    compare(copy, x)
    for from_tensor_memory in (False, True):
        small(module, tl.constexpr((64, 256)), from_tensor_memory, from_tensor_memory, 4)
    blocks(
        checkout, "gluon/06-tcgen05", ("blocked_matmul", False, 64, 64, 64, False, 4),
        ("blocked_matmul", True, 128, 128, 128, True, 4), ("blocked_matmul_pipelined", False, 64, 64, 64, 4),
    )  # fmt: skip


def grouped(module):
    return module.GroupedPersistentTileScheduler(8)


@program
def gluon_persistent(checkout: Path) -> None:
    blocks(
        checkout, "gluon/07-persistence", ("matmul_pipelined", False, 128, 128, 64, 3, 4),
        ("persistent_matmul", False, 64, 64, 64, 3, 4, lambda module: module.PersistentTileScheduler),
    )  # fmt: skip


@program
def gluon_persistent_pipelined(checkout: Path) -> None:
    blocks(
        checkout, "gluon/07-persistence", ("persistent_matmul_pipelined", False, 128, 128, 64, 3, 8, grouped),
        ("persistent_matmul_pipelined", False, 64, 64, 64, 4, 4, grouped),
    )  # fmt: skip


@program
def gluon_specialized_sum(checkout: Path) -> None:
    sums(checkout, "gluon/08-warp-specialization", "elementwise_add_warp_specialized", 32, 64, 2, 2, 4)


@program
def gluon_specialized(checkout: Path) -> None:
    blocks(
        checkout, "gluon/08-warp-specialization",
        ("matmul_warp_specialized", False, 128, 256, 64, 3, 4, 4, lambda module: grouped(module.t7)),
        shape=(464, 608, 304),
    )  # fmt: skip


@program
def gluon_gather(checkout: Path) -> None:
    module = tutorial(checkout, "gluon/09-tma-gather-scatter")
    bfloat16 = TYPES["bfloat16"].array
    x, rows = integers(300, 256, dtype=bfloat16), RANDOM.permutation(300).astype(numpy.int32)
    compare(module.async_gather(on_device(x), on_device(rows[:128]), 48, 128, 128), x[rows[:128], 48 : 48 + 128])
    changed, source = on_device(x), integers(128, 128, dtype=bfloat16)
    module.async_scatter(changed, on_device(rows[:128]), 48, on_device(source), 128, 128)
    expected = x.copy()
    expected[rows[:128], 48 : 48 + 128] = source
    compare(changed, expected)


@program
def gluon_gather_matmul(checkout: Path) -> None:
    module = tutorial(checkout, "gluon/09-tma-gather-scatter")
    bfloat16 = TYPES["bfloat16"].array
    # Whole tiles: an index behind the last row would have to be a row that is not there.
    x, w = integers(512, 336, dtype=bfloat16), integers(336, 400, dtype=bfloat16)
    rows, places = (RANDOM.permutation(512).astype(numpy.int32) for _ in range(2))
    got = module.matmul_fused_gather_scatter(on_device(x), on_device(rows), on_device(w), on_device(places))
    expected = numpy.zeros((512, 400))
    expected[places] = product(x[rows], w)
    compare(got, expected.astype(bfloat16))


@program
def gluon_accumulate(checkout: Path) -> None:
    """C comes to tensor memory by tcgen05.cp."""
    module = tutorial(checkout, "gluon/10-tcgen05-copy")
    a, b, c = integers(384, 336), integers(336, 512), integers(384, 512, dtype=numpy.float32)
    compare(module.matmul_accumulate(on_device(a), on_device(b), on_device(c)), product(a, b) + c)


def gluon_scaled_of(checkout: Path, kernel: str, fp4_a: bool, fp4_b: bool, vector: int) -> None:
    module = tutorial(checkout, "gluon/11-tcgen05-mma-scaled")
    m, n, k = 384, 512, 896
    a, b = Scaled(m, k, fp4_a, vector), Scaled(n, k, fp4_b, vector)
    if kernel == "simple":
        got = module.simple_mma_scaled(a.data, b.data, a.plain_scales, b.plain_scales, vector)
    else:
        packed = [each.scales.reshape(*each.scales.shape[1:3], 512) for each in (a, b)]
        got = module.mma_scaled(a.data, b.data, *packed, vector, getattr(module, f"mma_scaled_{kernel}_kernel"))
    compare(got, product(a.exact, b.exact.T).astype(numpy.float16))


@program
def gluon_scaled_mxfp4(checkout: Path) -> None:
    gluon_scaled_of(checkout, "simple", True, True, 32)


@program
def gluon_scaled_nvfp4(checkout: Path) -> None:
    gluon_scaled_of(checkout, "simple", True, True, 16)


@program
def gluon_scaled_mixed(checkout: Path) -> None:
    gluon_scaled_of(checkout, "simple", False, True, 32)


@program
def gluon_scaled_pipelined(checkout: Path) -> None:
    gluon_scaled_of(checkout, "pipelined", False, False, 32)


@program
def gluon_scaled_specialized_mxfp4(checkout: Path) -> None:
    gluon_scaled_of(checkout, "warp_specialized", True, True, 32)


@program
def gluon_scaled_specialized_nvfp4(checkout: Path) -> None:
    gluon_scaled_of(checkout, "warp_specialized", True, True, 16)


@program
def gluon_scaled_specialized_mixed(checkout: Path) -> None:
    gluon_scaled_of(checkout, "warp_specialized", False, True, 32)


@program
def gluon_launch_control(checkout: Path) -> None:
    # C is square because the kernel takes its height for its width.
    blocks(checkout, "gluon/12-cluster-launch-control", ("run_matmul_kernel", False), shape=(592, 592, 304))


@program
def gluon_convolution(checkout: Path) -> None:
    """Tensor maps of mode im2col; a stride of two and padding."""
    module = tutorial(checkout, "gluon/13-conv-im2col")
    x, w = integers(2, 16, 16, 96), integers(96, 3, 3, 96, most=1)
    padded = numpy.pad(x.astype(numpy.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    expected = sum(
        numpy.einsum("nhwc,oc->nhwo", padded[:, r : r + 15 : 2, s : s + 15 : 2], w[:, r, s].astype(numpy.float64))
        for r in range(3)
        for s in range(3)
    )
    got = module.conv2d_tma_im2col(on_device(x), on_device(w), stride=2, padding=1)
    compare(got, expected.astype(numpy.float16))


@program
def gluon_cluster(checkout: Path) -> None:
    """Clusters: a softmax over the shared memory of four blocks, and a copy that goes to two."""
    module = tutorial(checkout, "gluon/14-multicta")
    x = RANDOM.standard_normal((3, 2**16)).astype(numpy.float32)
    powers = numpy.exp(x.astype(numpy.float64))
    expected = powers / powers.sum(1, keepdims=True)
    compare(module.multicta_softmax_f32(on_device(x)), expected, 1e-5 * expected)
    x, copy = RANDOM.standard_normal((128, 128)).astype(numpy.float16), empty(128, 128, dtype=TYPES["float16"])
    module.run_tma_multicast_copy(on_device(x), copy)
    compare(copy, x)


@program
def gluon_pair(checkout: Path) -> None:
    """Products of pairs of blocks, in clusters of two and of four."""
    module = tutorial(checkout, "gluon/14-multicta")
    a, b = integers(256, 64), integers(64, 128)
    c = empty(256, 128, dtype=TYPES["float16"])
    module.run_two_cta_tcgen05(on_device(a), on_device(b), c)
    compare(c, product(a, b).astype(numpy.float16))
    a, b = integers(512, 128), integers(128, 128)
    compare(module.tma_tcgen05_example(on_device(a), on_device(b)), product(a, b).astype(numpy.float16))


@program
def gluon_pair_specialized(checkout: Path) -> None:
    """Pairs, partitions of warps, and tiles from cluster launch control."""
    a, b = integers(712, 528), integers(528, 608)
    got = tutorial(checkout, "gluon/14-multicta").matmul_multicta(on_device(a), on_device(b))
    compare(got, product(a, b).astype(numpy.float16))


@program
def matmul_cluster(checkout: Path) -> None:
    """The tutorial's kernel, compiled for clusters of two blocks that share a tile."""
    module = tutorial(checkout, "03-matrix-multiplication")
    only(module.matmul_kernel, BLOCK_SIZE_M=128, BLOCK_SIZE_N=256, BLOCK_SIZE_K=64)
    module.matmul_kernel.configs[0].num_ctas = 2
    a, b = integers(200, 336), integers(336, 528)
    compare(module.matmul(on_device(a), on_device(b)), product(a, b).astype(numpy.float16))


@triton.jit
def collective_kernel(x_ptr, sorted_ptr, sums_ptr, counts_ptr, largest_ptr, BLOCK: tl.constexpr, BINS: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(sorted_ptr + offsets, tl.sort(x))
    tl.store(sums_ptr + offsets, tl.cumsum(x, 0))
    tl.atomic_add(counts_ptr + tl.arange(0, BINS), tl.histogram(x, BINS))
    tl.atomic_max(largest_ptr, tl.max(x * BLOCK + tl.arange(0, BLOCK), 0))


@program
def collectives(checkout: Path) -> None:
    """A kernel of ours: sort, scan, histogram and atomic operations."""
    x = RANDOM.integers(0, 64, (5, 1024)).astype(numpy.int32)
    ordered, sums = (empty(5, 1024, dtype=TYPES["int32"]) for _ in range(2))
    counts, largest = (empty(n, dtype=TYPES["int32"]).zero_() for n in (64, 1))
    collective_kernel[(5,)](on_device(x), ordered, sums, counts, largest, BLOCK=1024, BINS=64)
    compare(ordered, numpy.sort(x, 1))
    compare(sums, numpy.cumsum(x, 1))
    compare(counts, numpy.bincount(x.ravel(), minlength=64))
    compare(largest, numpy.array([(x * 1024 + numpy.arange(1024)).max()]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=sorted(PROGRAMS), metavar="NAME")
    parser.add_argument("--checkout", type=Path, required=True, metavar="FOLDER")
    options = parser.parse_args()
    PROGRAMS[options.name](options.checkout.resolve())
    print(f"{Count.wrong} of {Count.total} elements are wrong: {'Failed' if Count.wrong else 'Passed'}")
    return 1 if Count.wrong or not Count.total else 0


if __name__ == "__main__":
    sys.exit(main())
