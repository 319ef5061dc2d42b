# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products with a fused epilogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moxie import _library
from moxie._describe import Description, Groups, activation_members, groups_members
from moxie._device import Device
from moxie._library import check, enum_value, ffi, lib, owned, refuse_after_fork, word_of

_TENSORS = "moxie_gemm_tensors"
_SIZE = ffi.sizeof(_TENSORS)
_OPTIONS_SIZE = ffi.sizeof("moxie_launch_options")
_A, _B, _BIAS = word_of(_TENSORS, "a", "data"), word_of(_TENSORS, "b", "data"), word_of(_TENSORS, "bias")
_A_SCALES, _A_TENSOR_SCALE = word_of(_TENSORS, "a", "scales"), word_of(_TENSORS, "a", "tensor_scale")
_B_SCALES, _B_TENSOR_SCALE = word_of(_TENSORS, "b", "scales"), word_of(_TENSORS, "b", "tensor_scale")
_OUT, _PRE = word_of(_TENSORS, "out", "data"), word_of(_TENSORS, "pre", "data")
_OUT_SCALES, _OUT_TENSOR_SCALE = word_of(_TENSORS, "out", "scales"), word_of(_TENSORS, "out", "tensor_scale")
_PRE_SCALES, _PRE_TENSOR_SCALE = word_of(_TENSORS, "pre", "scales"), word_of(_TENSORS, "pre", "tensor_scale")
_ENDS, _GROUP_OF_ROW = word_of(_TENSORS, "rows", "ends"), word_of(_TENSORS, "rows", "group_of_row")
_COUNTS = word_of(_TENSORS, "rows", "counts")
_GATHER = word_of(_TENSORS, "gather", "rows")
_STREAM = word_of("moxie_launch_options", "stream")


def describe(
    groups: Groups,
    *,
    n: int,
    k: int,
    format: str = "bf16",
    b_format: str | None = None,
    gather: bool = False,
    bias: bool = False,
    activation: str = "none",
    activation_parameters: Mapping[str, float] | None = None,
    gate: str = "interleaved",
    pre: str | None = None,
    out: str | None = "bf16",
    expected_rows: int | None = None,
    known_rows: Sequence[int] | None = None,
    hopper: Mapping[str, Any] | None = None,
    blackwell: Mapping[str, Any] | None = None,
) -> Description:
    """A moxie_gemm_description of a product's words (GroupedGemm says what they mean)."""
    description = Description(
        "moxie_gemm_description",
        {
            "groups": groups_members(groups),
            "n": n,
            "k": k,
            "format": enum_value("operand_format", format),
            "bias": bias,
            "activation": activation_members(activation, activation_parameters),
            "gate": enum_value("gate_layout", gate),
            "has_pre": pre is not None,
            "pre": None if pre is None else enum_value("data_type", pre),
            "no_out": out is None,
            "out": None if out is None else enum_value("data_type", out),
            "has_expected_rows": expected_rows is not None,
            "expected_rows": expected_rows,
            "has_b_format": b_format is not None,
            "b_format": None if b_format is None else enum_value("operand_format", b_format),
            "gather": gather,
        },
    )
    filled = description.pointer
    if known_rows is not None:
        filled.known_rows = description.keep(ffi.new("int64_t[]", list(known_rows)))
        filled.known_row_count = len(known_rows)
    if hopper is not None:
        filled.hopper = description.fill("moxie_hopper_tuning", _tuning_members(hopper))
    if blackwell is not None:
        filled.blackwell = description.fill("moxie_blackwell_tuning", _tuning_members(blackwell))
    return description


_TUNING_ENUMS = {"schedule": "warp_schedule", "multicast": "multicast", "tile_source": "tile_source"}


def _tuning_members(tuning: Mapping[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in tuning.items():
        if value is None:
            continue
        if name in _TUNING_ENUMS:
            value = enum_value(_TUNING_ENUMS[name], value)
        members[name] = value
        if name in (*_TUNING_ENUMS, "swap_ab"):
            members[f"has_{name}"] = 1
    return members


class GroupedGemm:
    """A product that is planned and compiled:

        D[g] = a[g] (M_g x K) * b[g]^T (N x K)    accumulated in float32
        pre  = D + bias[g]
        out  = activation(pre)                    half as wide when gated

    groups: how the rows are divided, and the sizes that go with it (moxie.Offsets...). n: columns before a gate halves
    them, a multiple of 8, of 16 with a gate. k: length of the sums, a multiple of 8, of 32 with MXFP4 or NVFP4.
    format: of both operands, "bf16", "mxfp4" or "nvfp4"; b_format: of b where it is not a's: "mxfp4" beside a bf16 `a`
    for packed weights (moxie.pack_weights). gather: rows of `a` are found through a list. bias: whether one is added.
    activation: "none", "relu", "silu", "swiglu", "swiglu_oai"..., with activation_parameters where they are not the
    defaults. gate: where gate and up lie in the rows of b: "interleaved", "split" or "split_up_first". pre, out: what
    is stored, as "bf16", "f32", "mxfp4", "mxfp8" or "nvfp4"; None: not stored. expected_rows: of a typical group;
    known_rows: of each group; neither changes what is computed. hopper, blackwell: a plan's tuning, or parts of one.

    ValueError: a rule is broken, or the device has no kernel for it. RuntimeError: driver, compiler.
    Safe from several threads. The GIL is released while the library works.
    """

    def __init__(self, device: Device, groups: Groups, **description: Any) -> None:
        refuse_after_fork()
        handle = ffi.new("moxie_grouped_gemm**")
        check(lib.moxie_grouped_gemm_create(device.handle, describe(groups, **description).pointer, handle))
        self.device = device
        self.groups = groups
        self.handle = owned(handle[0], lib.moxie_grouped_gemm_release)
        self._run = lib.moxie_grouped_gemm_run

    def workspace_bytes(self, total: int | None = None) -> int:
        """Bytes of workspace for calls of `total` rows or fewer; None: the description's total."""
        nbytes = ffi.new("size_t*")
        total = lib.MOXIE_NO_TOTAL if total is None else total
        check(lib.moxie_grouped_gemm_workspace_bytes(self.handle, total, nbytes))
        return nbytes[0]

    @property
    def row_alignment(self) -> int:
        """RowGroups: the multiple at which every group must begin. 1 for others."""
        rows = ffi.new("int64_t*")
        check(lib.moxie_grouped_gemm_row_alignment(self.handle, rows))
        return rows[0]

    def run(
        self,
        *,
        a: int,
        b: int,
        out: int = 0,
        pre: int = 0,
        bias: int = 0,
        total: int | None = None,
        ends: int = 0,
        group_of_row: int = 0,
        counts: int = 0,
        gather_rows: int = 0,
        gather_count: int = 0,
        gather_divisor: int = 0,
        a_scales: int = 0,
        b_scales: int = 0,
        out_scales: int = 0,
        pre_scales: int = 0,
        a_tensor_scale: int = 0,
        b_tensor_scale: int = 0,
        out_tensor_scale: int = 0,
        pre_tensor_scale: int = 0,
        ld_a: int = 0,
        ld_b: int = 0,
        ld_out: int = 0,
        ld_pre: int = 0,
        workspace: int = 0,
        workspace_bytes: int = 0,
        stream: int = 0,
        weights_ready: bool = False,
        programmatic: bool = True,
    ) -> None:
        """Computes on the stream, asynchronously, from addresses in device memory; 0 stands for what is absent.

        total: rows of all groups together (Offsets, RowGroups), or K of all groups (KGroups). ends, group_of_row,
        counts: int32, as the grouping says. gather_rows: row r is computed from row gather_rows[r] // gather_divisor
        of `a`, which has gather_count rows. bias: bf16 [G, N]. ld_*: elements from row to row; 0 stands for the width.
        workspace: workspace_bytes(total), aligned to 128 bytes; calls that may run at the same time need one each.
        weights_ready: the caller's promise of LaunchOptions::weights_ready in moxie/gemm.h. Nothing is allocated, and
        CUDA graphs may capture it. ValueError, RuntimeError: nothing was launched.
        """
        if _library.forked:
            refuse_after_fork()
        tensors = ffi.new("moxie_gemm_tensors*")
        tensors.size = _SIZE
        words = ffi.cast("uintptr_t*", tensors)
        words[_A] = a
        words[_B] = b
        words[_OUT] = out
        words[_ENDS] = ends
        if total is not None:
            tensors.rows.total = total
            tensors.rows.has_total = 1
        if bias:
            words[_BIAS] = bias
        if pre:
            words[_PRE] = pre
        if group_of_row:
            words[_GROUP_OF_ROW] = group_of_row
        if counts:
            words[_COUNTS] = counts
        if gather_rows or gather_count:
            words[_GATHER] = gather_rows
            tensors.gather.count = gather_count
            tensors.gather.divisor = gather_divisor
        if a_scales:
            words[_A_SCALES] = a_scales
            words[_A_TENSOR_SCALE] = a_tensor_scale
        if b_scales:
            words[_B_SCALES] = b_scales
            words[_B_TENSOR_SCALE] = b_tensor_scale
        if out_scales:
            words[_OUT_SCALES] = out_scales
            words[_OUT_TENSOR_SCALE] = out_tensor_scale
        if pre_scales:
            words[_PRE_SCALES] = pre_scales
            words[_PRE_TENSOR_SCALE] = pre_tensor_scale
        if ld_a:
            tensors.a.ld = ld_a
        if ld_b:
            tensors.b.ld = ld_b
        if ld_out:
            tensors.out.ld = ld_out
        if ld_pre:
            tensors.pre.ld = ld_pre
        options = ffi.NULL
        if stream or weights_ready or not programmatic:
            options = ffi.new("moxie_launch_options*")
            options.size = _OPTIONS_SIZE
            ffi.cast("uintptr_t*", options)[_STREAM] = stream
            options.weights_ready = weights_ready
            options.no_programmatic = not programmatic
        status = self._run(self.handle, tensors, ffi.cast("void*", workspace), workspace_bytes, options)
        if status:
            check(status)
