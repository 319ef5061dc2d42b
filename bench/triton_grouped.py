# SPDX-License-Identifier: Apache-2.0
"""A grouped product in Triton with the bias and the activation in its epilogue: persistent, operands by TMA, weights'
tiles reused by neighboring blocks. The list of row blocks is made beforehand and not timed."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

# BLOCK_M, BLOCK_N, BLOCK_K, stages, warps, programs of a multiprocessor: for groups of many rows and of few; of few
# also launched programmatically (PDL), which saves time where a kernel is short.
LARGE = ((128, 256, 64, 3, 8, 1), (128, 256, 64, 4, 8, 1), (256, 128, 64, 3, 8, 1), (128, 128, 64, 3, 4, 2))
MEDIUM = ((64, 256, 64, 4, 8, 1), (64, 128, 64, 4, 4, 2), (64, 64, 128, 4, 4, 1), (128, 128, 64, 3, 4, 2))
SMALL = ((16, 128, 128, 3, 4, 2), (16, 64, 256, 4, 4, 1), (16, 128, 64, 5, 4, 2), (32, 128, 128, 3, 4, 2))


def configurations(rows: float) -> list[tuple]:
    """Those worth trying for groups of so many rows, each with whether it is launched programmatically."""
    if rows > 96:
        return [(config, False) for config in LARGE + MEDIUM[:1]]
    small = SMALL if rows <= 24 else SMALL[-1:]
    more = () if rows <= 24 else MEDIUM
    return [(config, pdl) for config in small for pdl in (False, True)] + [(config, False) for config in more]


@triton.jit
def grouped_kernel(
    a_map,
    b_map,
    bias,
    pre,
    out,
    block_group,
    block_row,
    block_end,
    blocks,
    N,
    K,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    ACTIVATION: tl.constexpr,  # 0 none, 6 swiglu, 7 swiglu-oai
    HAS_BIAS: tl.constexpr,
    STORE_PRE: tl.constexpr,
    STORE_OUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PANEL: tl.constexpr,
    PROGRAMS: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    columns = tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), blocks * columns, PROGRAMS, flatten=True):
        panel = tile // (PANEL * columns)
        height = tl.minimum(blocks - panel * PANEL, PANEL)
        within = tile % (PANEL * columns)
        block = panel * PANEL + within % height
        column = within // height * BLOCK_N
        group = tl.load(block_group + block)
        row = tl.load(block_row + block)
        end = tl.load(block_end + block)

        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_map.load([row, k])
            b = b_map.load([group * N + column, k])
            acc = tl.dot(a, b.T, acc)

        rows = row + tl.arange(0, BLOCK_M)
        wide = column + tl.arange(0, BLOCK_N)
        if HAS_BIAS:
            acc += tl.load(bias + group * N + wide, mask=wide < N, other=0.0).to(tl.float32)[None, :]
        if STORE_PRE:
            address = pre + rows.to(tl.int64)[:, None] * N + wide[None, :]
            tl.store(address, acc.to(tl.bfloat16), mask=(rows < end)[:, None] & (wide < N)[None, :])
        if STORE_OUT:
            if ACTIVATION == 0:
                address = out + rows.to(tl.int64)[:, None] * N + wide[None, :]
                tl.store(address, acc.to(tl.bfloat16), mask=(rows < end)[:, None] & (wide < N)[None, :])
            else:
                gate, up = tl.split(tl.reshape(acc, (BLOCK_M, BLOCK_N // 2, 2)))
                if ACTIVATION == 7:
                    gate = tl.minimum(gate, LIMIT)
                    up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT) + 1.0
                    result = gate * tl.sigmoid(ALPHA * gate) * up
                else:
                    result = gate * tl.sigmoid(gate) * up
                half = column // 2 + tl.arange(0, BLOCK_N // 2)
                address = out + rows.to(tl.int64)[:, None] * (N // 2) + half[None, :]
                tl.store(address, result.to(tl.bfloat16), mask=(rows < end)[:, None] & (half < N // 2)[None, :])


def row_blocks(rows: np.ndarray, block_m: int) -> np.ndarray:
    """group, first row and end of the group for every block of rows."""
    ends = rows.cumsum()
    blocks = [
        (g, first, ends[g]) for g in range(len(rows)) for first in range(int(ends[g] - rows[g]), int(ends[g]), block_m)
    ]
    return np.array(blocks, dtype=np.int32).T.copy()


class Launch:
    """One configuration, ready for every turn of the tensors (contenders.Tensors)."""

    def __init__(self, tensors, config, pdl: bool, activation: int, alpha: float, limit: float, sms: int) -> None:
        block_m, block_n, block_k, stages, warps, per_sm = config
        programs = sms * per_sm
        shape, self.tensors = tensors.shape, tensors
        self.turns = []
        for t in range(tensors.turns):
            blocks = torch.from_numpy(row_blocks(tensors.rows[t], block_m)).cuda()
            a_map = TensorDescriptor.from_tensor(tensors.a[t], [block_m, block_k])
            b_map = TensorDescriptor.from_tensor(
                tensors.b[t].view(shape.groups * shape.n, shape.k), [block_n, block_k]
            )
            self.turns.append((a_map, b_map, blocks))
        self.constants = dict(
            ALPHA=alpha,
            LIMIT=limit,
            ACTIVATION=activation,
            HAS_BIAS=shape.bias,
            STORE_PRE=shape.pre,
            STORE_OUT=shape.out,
            BLOCK_M=block_m,
            BLOCK_N=block_n,
            BLOCK_K=block_k,
            PANEL=8,
            PROGRAMS=programs,
            PDL=pdl,
        )
        self.options = dict(num_stages=stages, num_warps=warps) | (dict(launch_pdl=True) if pdl else {})
        self.grid = (min(programs, self.turns[0][2].shape[1] * -(-shape.n // block_n)),)

    def run(self, turn: int) -> None:
        t = turn % len(self.turns)
        a_map, b_map, blocks = self.turns[t]
        tensors, shape = self.tensors, self.tensors.shape
        unused = tensors.ends[t]
        grouped_kernel[self.grid](
            a_map,
            b_map,
            tensors.bias if tensors.bias is not None else unused,
            tensors.pre[t] if tensors.pre else unused,
            tensors.out[t] if tensors.out else unused,
            blocks[0],
            blocks[1],
            blocks[2],
            blocks.shape[1],
            shape.n,
            shape.k,
            **self.options,
            **self.constants,
        )
