# SPDX-License-Identifier: Apache-2.0
"""cuBLASLt by ctypes: D = A B^T of bf16 matrices, both K-major, with the algorithm chosen among its heuristics."""

from __future__ import annotations

import ctypes

import torch

# Values of cublasLt.h and library_types.h.
_COMPUTE_32F, _R_32F, _R_16BF = 68, 0, 14
_DESC_TRANSA, _DESC_EPILOGUE, _DESC_BIAS_POINTER, _EPILOGUE_BIAS, _OP_T = 3, 7, 8, 4, 1
_PREFERENCE_WORKSPACE, _PREFERENCE_ALIGNMENTS = 1, (5, 6, 7, 8)
WORKSPACE_BYTES = 64 << 20


class Algorithm(ctypes.Structure):  # cublasLtMatmulHeuristicResult_t
    _fields_ = [
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


def _check(status: int, what: str) -> None:
    if status != 0:
        raise RuntimeError(f"{what}: cuBLAS status {status}")


class CublasLt:
    def __init__(self) -> None:
        torch.mm(*(torch.ones(16, 16, device="cuda", dtype=torch.bfloat16) for _ in range(2)))  # loads the library
        self.lib = ctypes.CDLL("libcublasLt.so.13")
        self.handle = ctypes.c_void_p()
        _check(self.lib.cublasLtCreate(ctypes.byref(self.handle)), "cublasLtCreate")
        self.workspaces: dict[int, torch.Tensor] = {}  # one a stream

    def version(self) -> int:
        self.lib.cublasLtGetVersion.restype = ctypes.c_size_t
        return int(self.lib.cublasLtGetVersion())

    def workspace(self, stream: int) -> int:
        if stream not in self.workspaces:
            self.workspaces[stream] = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        return self.workspaces[stream].data_ptr()

    def product(self, m: int, n: int, k: int, bias: bool = False, alignment: int = 256) -> Product:
        return Product(self, m, n, k, bias, alignment)


class Product:
    """D [m, n] = A [m, k] B [n, k]^T (+ bias [n]): to cuBLAS the transposed matrices, column by column."""

    def __init__(self, lt: CublasLt, m: int, n: int, k: int, bias: bool, alignment: int) -> None:
        self.lt, lib = lt, lt.lib
        self.alignment = alignment  # bytes, of every matrix
        self.desc = ctypes.c_void_p()
        _check(lib.cublasLtMatmulDescCreate(ctypes.byref(self.desc), _COMPUTE_32F, _R_32F), "cublasLtMatmulDescCreate")
        self._set(_DESC_TRANSA, ctypes.c_int32(_OP_T))
        self.bias = bias
        if bias:
            self._set(_DESC_EPILOGUE, ctypes.c_int32(_EPILOGUE_BIAS))
        self.layouts = []
        for rows, columns, ld in ((k, n, k), (k, m, k), (n, m, n)):
            layout = ctypes.c_void_p()
            _check(
                lib.cublasLtMatrixLayoutCreate(
                    ctypes.byref(layout), _R_16BF, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(ld)
                ),
                "cublasLtMatrixLayoutCreate",
            )
            self.layouts.append(layout)
        self.alpha, self.beta = ctypes.c_float(1), ctypes.c_float(0)
        self.chosen: Algorithm | None = None

    def _set(self, attribute: int, value) -> None:
        _check(
            self.lt.lib.cublasLtMatmulDescSetAttribute(
                self.desc, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
            ),
            "cublasLtMatmulDescSetAttribute",
        )

    def algorithms(self, most: int) -> list[Algorithm]:
        lib, preference = self.lt.lib, ctypes.c_void_p()
        _check(lib.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "cublasLtMatmulPreferenceCreate")
        values = {_PREFERENCE_WORKSPACE: ctypes.c_size_t(WORKSPACE_BYTES)}
        values |= {attribute: ctypes.c_uint32(self.alignment) for attribute in _PREFERENCE_ALIGNMENTS}
        for attribute, value in values.items():
            _check(
                lib.cublasLtMatmulPreferenceSetAttribute(
                    preference, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
                ),
                "cublasLtMatmulPreferenceSetAttribute",
            )
        found, count = (Algorithm * most)(), ctypes.c_int()
        b, a, d = self.layouts
        status = lib.cublasLtMatmulAlgoGetHeuristic(
            self.lt.handle, self.desc, b, a, d, d, preference, most, found, ctypes.byref(count)
        )
        lib.cublasLtMatmulPreferenceDestroy(preference)
        _check(status, "cublasLtMatmulAlgoGetHeuristic")
        good = [found[i] for i in range(count.value) if found[i].state == 0]
        if not good:
            raise RuntimeError("cuBLASLt has no algorithm for this product")
        return good

    def run(self, a: int, b: int, d: int, bias: int = 0, algorithm: Algorithm | None = None) -> None:
        """Pointers to device memory; on the current stream."""
        if algorithm is None:
            if self.chosen is None:
                self.chosen = self.algorithms(1)[0]
            algorithm = self.chosen
        if self.bias:
            self._set(_DESC_BIAS_POINTER, ctypes.c_uint64(bias))
        stream = torch.cuda.current_stream().cuda_stream
        b_layout, a_layout, d_layout = self.layouts
        status = self.lt.lib.cublasLtMatmul(
            self.lt.handle,
            self.desc,
            ctypes.byref(self.alpha),
            ctypes.c_void_p(b),
            b_layout,
            ctypes.c_void_p(a),
            a_layout,
            ctypes.byref(self.beta),
            ctypes.c_void_p(d),
            d_layout,
            ctypes.c_void_p(d),
            d_layout,
            algorithm.algorithm,
            ctypes.c_void_p(self.lt.workspace(stream)),
            ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(stream),
        )
        _check(status, "cublasLtMatmul")
