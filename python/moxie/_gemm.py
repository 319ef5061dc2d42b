# SPDX-License-Identifier: Apache-2.0
"""Grouped matrix products with a fused epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from moxie import _library
from moxie._arrays import NUMPY, Allocator, Call, Quantized, Workspaces, view
from moxie._describe import Batched, Dense, Groups, KGroups, Masked, Pointers, arguments, describe
from moxie._device import Device, require_device
from moxie._library import check, enum_name, ffi, lib, owned, refuse_after_fork, word_of
from moxie._plan import Plan, plan_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from moxie._describe import Words

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

    def __init__(self, device: Device, groups: Groups, **description: Unpack[Words]) -> None:
        refuse_after_fork()
        require_device(device)
        handle = ffi.new("moxie_grouped_gemm**")
        self._described = describe(groups, **description)
        check(lib.moxie_grouped_gemm_create(device.handle, self._described.pointer, handle))
        self.device = device
        self.groups = groups
        self._workspaces = Workspaces()
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

    def plan(self, total: int | None = None) -> Plan:
        """The plan that a call of `total` rows follows."""
        handle = ffi.new("moxie_plan**")
        check(lib.moxie_grouped_gemm_plan(self.handle, lib.MOXIE_NO_TOTAL if total is None else total, handle))
        return plan_of(handle[0])

    def __call__(
        self,
        a: Any,
        b: Any,
        *,
        bias: Any = None,
        ends: Any = None,
        group_of_row: Any = None,
        counts: Any = None,
        gather_rows: Any = None,
        gather_divisor: int = 1,
        out: Any = None,
        pre: Any = None,
        out_tensor_scale: Any = None,
        pre_tensor_scale: Any = None,
        workspace: Any = None,
        allocator: Allocator | None = None,
        stream: int = 0,
        weights_ready: bool = False,
    ) -> Any:
        """The product of arrays: `out`, or `pre` where only that is stored, or both as (out, pre).

        G, N, K: groups, n, k. T: rows of all groups. W: n, or n / 2 behind a gate.

        grouping      a              b          out, pre       besides
        Dense         [m, K]         [N, K]     [m, W]
        Batched       [G, m, K]      [G, N, K]  [G, m, W]
        Offsets       [T, K]         [G, N, K]  [T, W]         ends int32 [G]
        RowGroups     [T, K]         [G, N, K]  [T, W]         group_of_row int32 [T]
        Masked        [G, max_m, K]  [G, N, K]  [G, max_m, W]  counts int32 [G]
        KGroups       [m, K]         [N, K]     [G, m, W]      ends int32 [G]
        Pointers      G [M_g, K_g]   G [N_g, K_g]  G [M_g, W_g]

        a, b: bf16, or moxie.Quantized of elements [..., K / 2] and blocked scales; b: packed weights uint8 with
        b_format. bias: bf16 [G, N], of Dense [N]. With gather, `a` is [count, K], and row r is computed from row
        gather_rows[r] // gather_divisor, gather_rows int32 [T]. Rows may lie apart; the last dimension may not.
        out, pre: arrays to write into, moxie.Quantized where they are quantized; what the call does not write keeps
        its values, and is 0 in a new one. out_tensor_scale, pre_tensor_scale: float32 of one element, for nvfp4.
        Pointers take sequences of bf16 arrays, and give a list; N_g is a multiple of 8, of 16 with a gate, and rows are
        multiples of 16 bytes apart.

        Arrays in host memory are copied to the device, and the call waits for results that go back. With arrays on the
        device alone it is asynchronous on the stream, and results that were not given are moxie.DeviceArrays.
        workspace: uint8 in device memory; allocator: allocator(bytes, stream) gives an object with data_ptr() or ptr,
        whose memory must stay until the stream has passed; neither: memory that the product keeps for each thread and
        stream. TypeError, ValueError: nothing was launched.
        """
        refuse_after_fork()
        if isinstance(self.groups, Pointers):
            unknown = {"ends": ends, "group_of_row": group_of_row, "counts": counts, "gather_rows": gather_rows}
            for name, value in unknown.items():
                if value is not None:
                    raise ValueError(f"{name} is not for groups by pointers")
            return self._by_pointers(a, b, bias, out, pre, workspace, allocator, stream)
        call = Call(self.device, stream)
        groups, d = self.groups, self._described.pointer
        shape_a = self._shape(a, "a", stream)
        rows = shape_a[0] if shape_a else 0
        if d.gather:
            if gather_rows is None:
                raise ValueError("gather_rows is required: the description gathers rows of a")
            counted = view(gather_rows, "gather_rows", stream).shape
            rows = counted[0] if counted else 0
        elif gather_rows is not None:
            raise ValueError("gather_rows was given, and the description does not gather rows of a")
        count = getattr(groups, "count", 1)
        total: int | None = None
        lead_a: tuple[int, ...]
        lead_b: tuple[int, ...]
        lead: tuple[int, ...]
        if isinstance(groups, Dense):
            lead_a, lead_b, lead = (groups.m,), (d.n,), (groups.m,)
        elif isinstance(groups, Batched):
            lead_a, lead_b, lead = (count, groups.m), (count, d.n), (count, groups.m)
        elif isinstance(groups, Masked):
            lead_a, lead_b, lead = (count, groups.max_m), (count, d.n), (count, groups.max_m)
        elif isinstance(groups, KGroups):
            lead_a, lead_b, lead = (groups.m,), (d.n,), (count, groups.m)
            total = self._k_of(a, stream)
        else:
            lead_a, lead_b, lead = (shape_a[0] if shape_a else 0,), (count, d.n), (rows,)
            total = rows
        k = total if isinstance(groups, KGroups) else d.k
        tensors: dict[str, Any] = {}
        self._operand(call, tensors, "a", a, d.format, (*lead_a, k), total)
        self._operand(call, tensors, "b", b, d.b_format if d.has_b_format else d.format, (*lead_b, k), total)
        if (bias is None) == bool(d.bias):
            raise ValueError("bias is required by the description" if d.bias else "bias is not in the description")
        tensors["bias"] = call.dense("bias", bias, "bf16", (d.n,) if isinstance(groups, Dense) else (count, d.n))
        if gather_rows is not None:
            tensors["gather_rows"] = call.dense("gather_rows", gather_rows, "int32", (rows,))
            tensors["gather_count"], tensors["gather_divisor"] = lead_a[0], gather_divisor
        wanted = {"offsets": "ends", "k_groups": "ends", "row_groups": "group_of_row", "masked": "counts"}
        for name, value in (("ends", ends), ("group_of_row", group_of_row), ("counts", counts)):
            if wanted.get(groups.grouping) == name:
                if value is None:
                    raise ValueError(f"{name} is required with {type(groups).__name__}")
                tensors[name] = call.dense(name, value, "int32", (rows if name == "group_of_row" else count,))
            elif value is not None:
                raise ValueError(f"{name} is not for {type(groups).__name__}")
        results: list[Any] = []
        if not d.no_out:
            width = d.n // 2 if d.activation.function >= lib.MOXIE_ACTIVATION_SWIGLU else d.n
            results.append(self._result(call, tensors, "out", out, d.out, (*lead, width), total, out_tensor_scale))
        elif out is not None:
            raise ValueError("out is not stored by the description")
        if d.has_pre:
            results.append(self._result(call, tensors, "pre", pre, d.pre, (*lead, d.n), total, pre_tensor_scale))
        elif pre is not None:
            raise ValueError("pre is not stored by the description")
        at, size = call.workspace(self.workspace_bytes(total), workspace, allocator, self._workspaces)
        self.run(
            total=total, workspace=at, workspace_bytes=size, stream=stream, weights_ready=weights_ready, **tensors
        )
        call.finish()
        return results[0] if len(results) == 1 else tuple(results)

    @staticmethod
    def _shape(operand: Any, name: str, stream: int) -> tuple[int, ...]:
        return view(operand.elements if isinstance(operand, Quantized) else operand, name, stream).shape

    def _k_of(self, a: Any, stream: int) -> int:
        shape = self._shape(a, "a", stream)
        columns = shape[-1] if shape else 0
        return columns if self._described.pointer.format == lib.MOXIE_OPERAND_FORMAT_BF16 else 2 * columns

    def _scale_bytes(self, name: str, total: int | None) -> int:
        nbytes = ffi.new("size_t*")
        total = lib.MOXIE_NO_TOTAL if total is None else total
        check(getattr(lib, f"moxie_{name}_scale_bytes")(self._described.pointer, total, nbytes))
        return nbytes[0]

    def _operand(
        self, call: Call, tensors: dict[str, Any], name: str, value: Any, format: int, shape: Any, total: int | None
    ) -> None:
        d = self._described.pointer
        if name == "b" and d.has_b_format and format != d.format:
            nbytes = ffi.new("size_t*")
            check(lib.moxie_packed_weight_bytes(getattr(self.groups, "count", 1), d.n, d.k, nbytes))
            tensors[name] = call.dense(name, value, "uint8", (nbytes[0],))
            return
        if format == lib.MOXIE_OPERAND_FORMAT_BF16:
            tensors[name], tensors[f"ld_{name}"] = call.matrix(name, value, "bf16", shape)
            return
        if not isinstance(value, Quantized):
            raise TypeError(f"{name} is a moxie.Quantized, since its format is {enum_name('operand_format', format)}")
        at, ld = call.matrix(f"{name}.elements", value.elements, "uint8", (*shape[:-1], shape[-1] // 2))
        tensors[name], tensors[f"ld_{name}"] = at, 2 * ld
        nbytes = self._scale_bytes(name, total)
        tensors[f"{name}_scales"] = call.at_least(f"{name}.scales", value.scales, "uint8", nbytes)
        if value.tensor_scale is not None:
            # One float; of b one for each group.
            count = getattr(self.groups, "count", 1) if name == "b" and not isinstance(self.groups, KGroups) else 1
            tensors[f"{name}_tensor_scale"] = call.at_least(f"{name}.tensor_scale", value.tensor_scale, "f32", count)

    def _result(
        self,
        call: Call,
        tensors: dict[str, Any],
        name: str,
        given: Any,
        data_type: int,
        shape: tuple[int, ...],
        total: int | None,
        tensor_scale: Any,
    ) -> Any:
        dtype = enum_name("data_type", data_type)
        if dtype in NUMPY:
            if tensor_scale is not None:
                raise ValueError(f"{name}_tensor_scale is for nvfp4, and {name} is {dtype}")
            result, tensors[name], tensors[f"ld_{name}"] = call.output(name, given, dtype, shape)
            return result
        if given is not None and not isinstance(given, Quantized):
            raise TypeError(f"{name} is a moxie.Quantized, since its format is {dtype}")
        given = Quantized(None, None) if given is None else given
        per_byte = 1 if dtype == "mxfp8" else 2
        elements, at, ld = call.output(
            f"{name}.elements", given.elements, "uint8", (*shape[:-1], shape[-1] // per_byte)
        )
        tensors[name], tensors[f"ld_{name}"] = at, per_byte * ld
        nbytes = self._scale_bytes(name, total)
        scales, tensors[f"{name}_scales"], _ = call.output(f"{name}.scales", given.scales, "uint8", (nbytes,))
        tensor_scale = given.tensor_scale if tensor_scale is None else tensor_scale
        if tensor_scale is not None:
            at = call.at_least(f"{name}_tensor_scale", tensor_scale, "f32", 1)
            tensors[f"{name}_tensor_scale"] = at
        return Quantized(elements, scales, tensor_scale)

    def run_pointers(
        self,
        *,
        sizes: int,
        a: int,
        ld_a: int,
        b: int,
        ld_b: int,
        out: int = 0,
        ld_out: int = 0,
        pre: int = 0,
        ld_pre: int = 0,
        bias: int = 0,
        a_scales: int = 0,
        b_scales: int = 0,
        out_scales: int = 0,
        pre_scales: int = 0,
        a_tensor_scale: int = 0,
        b_tensor_scale: int = 0,
        out_tensor_scale: int = 0,
        pre_tensor_scale: int = 0,
        workspace: int = 0,
        workspace_bytes: int = 0,
        stream: int = 0,
        programmatic: bool = True,
    ) -> None:
        """`run` for Pointers. Every argument is the address of an array in device memory with one entry a group.

        sizes: int32 [G, 3], M_g, N_g and K_g. a, b, out, pre, bias, *_scales: addresses. ld_*: int64, elements.
        *_tensor_scale: float32, of `a`, out and pre one, of b [G].
        """
        refuse_after_fork()
        tensors = arguments("moxie_group_pointers", sizes=sizes, bias=bias)
        for name, data, ld, scales, tensor_scale in (
            ("a", a, ld_a, a_scales, a_tensor_scale),
            ("b", b, ld_b, b_scales, b_tensor_scale),
            ("pre", pre, ld_pre, pre_scales, pre_tensor_scale),
            ("out", out, ld_out, out_scales, out_tensor_scale),
        ):
            word = word_of("moxie_group_pointers", name, "data")
            ffi.cast("uintptr_t*", tensors)[word : word + 4] = (data, ld, scales, tensor_scale)
        options = arguments("moxie_launch_options", stream=stream, no_programmatic=not programmatic)
        space = ffi.cast("void*", workspace)
        check(lib.moxie_grouped_gemm_run_pointers(self.handle, tensors, space, workspace_bytes, options))

    def _by_pointers(
        self, a: Any, b: Any, bias: Any, out: Any, pre: Any, workspace: Any, allocator: Any, stream: int
    ) -> Any:
        groups: Any = self.groups
        d, count = self._described.pointer, groups.count
        if d.format != lib.MOXIE_OPERAND_FORMAT_BF16 or d.has_b_format:
            raise ValueError("groups by pointers are called with arrays of bf16 alone; run_pointers takes the others")
        call = Call(self.device, stream)

        def listed(name: str, value: Any) -> list[Any]:
            if not isinstance(value, (list, tuple)):
                raise TypeError(f"{name} is a sequence of {count} arrays, and {type(value).__name__} is none")
            if len(value) != count:
                raise ValueError(f"{name} has {len(value)} arrays, and must have {count}")
            return list(value)

        sizes, addresses = [], {}
        a, b = listed("a", a), listed("b", b)
        for g in range(count):
            m, k = pair(f"a[{g}]", a[g], stream)
            n, k_of_b = pair(f"b[{g}]", b[g], stream)
            if k != k_of_b:
                raise ValueError(f"b[{g}] has shape {[n, k_of_b]}, and must have {[n, k]}")
            for name, size, most in (("rows", m, groups.max_m), ("n", n, d.n), ("k", k, d.k)):
                if size > most:
                    raise ValueError(f"group {g} has {name} {size}, and the description's is {most}")
            sizes.append((m, n, k))
        addresses["a"] = [call.matrix(f"a[{g}]", a[g], "bf16", (sizes[g][0], sizes[g][2])) for g in range(count)]
        addresses["b"] = [call.matrix(f"b[{g}]", b[g], "bf16", (sizes[g][1], sizes[g][2])) for g in range(count)]
        if (bias is None) == bool(d.bias):
            raise ValueError("bias is required by the description" if d.bias else "bias is not in the description")
        if bias is not None:
            bias = listed("bias", bias)
            addresses["bias"] = [(call.dense(f"bias[{g}]", bias[g], "bf16", sizes[g][1:2]), 0) for g in range(count)]
        gated = d.activation.function >= lib.MOXIE_ACTIVATION_SWIGLU
        results = []
        stored: dict[str, str] = {}
        for name, is_stored, given, data_type, halves in (
            ("out", not d.no_out, out, d.out, gated),
            ("pre", bool(d.has_pre), pre, d.pre, False),
        ):
            if not is_stored:
                if given is not None:
                    raise ValueError(f"{name} is not stored by the description")
                continue
            dtype = enum_name("data_type", data_type)
            if dtype not in NUMPY:
                raise ValueError(f"{name} is {dtype}, which run_pointers alone writes")
            stored[name] = dtype
            each = [None] * count if given is None else listed(name, given)
            made = []
            for g, (m, n, _) in enumerate(sizes):
                made.append(call.output(f"{name}[{g}]", each[g], dtype, (m, n // 2 if halves else n)))
            results.append([result for result, _, _ in made])
            widths = [n // 2 if halves else n for _, n, _ in sizes]
            addresses[name] = [(at, ld or width) for (_, at, ld), width in zip(made, widths, strict=True)]
        for name, of in (("a", sizes), ("b", sizes)):
            addresses[name] = [(at, ld or size[2]) for (at, ld), size in zip(addresses[name], of, strict=True)]
        # Kernels read sizes and addresses where no one can be told, and leave out the groups that break these rules.
        units = {name: 16 // NUMPY[dtype].itemsize for name, dtype in stored.items()}
        multiple = 16 if gated else 8
        for g, (m, n, _) in enumerate(sizes):
            if m and n % multiple:
                raise ValueError(f"b[{g}] has {n} rows, and must have a multiple of {multiple}")
            for name, each in addresses.items():
                (at, ld), unit = each[g], units.get(name, 8)
                if m and ld % unit:
                    raise ValueError(f"{name}[{g}] has rows {ld} elements apart, and must have a multiple of {unit}")
                if m and at % 16:
                    raise ValueError(f"{name}[{g}] does not begin at a multiple of 16 bytes")
        arrays: dict[str, Any] = {}
        for name, pairs in addresses.items():
            arrays[name] = call.dense(name, np.array([at for at, _ in pairs], np.uint64), "uint64", (count,))
            if name != "bias":
                arrays[f"ld_{name}"] = call.dense(name, np.array([ld for _, ld in pairs]), "int64", (count,))
        arrays["sizes"] = call.dense("sizes", np.array(sizes, np.int32), "int32", (count, 3))
        at, size = call.workspace(self.workspace_bytes(), workspace, allocator, self._workspaces)
        self.run_pointers(workspace=at, workspace_bytes=size, stream=stream, **arrays)
        call.finish()
        return results[0] if len(results) == 1 else tuple(results)


def pair(name: str, array: Any, stream: int) -> tuple[int, int]:
    """The shape of a matrix."""
    shape = view(array, name, stream).shape
    if len(shape) != 2:
        raise ValueError(f"{name} has shape {list(shape)}, and must have 2 dimensions")
    return shape[0], shape[1]
