# SPDX-License-Identifier: Apache-2.0
"""Block-scaled formats and packed weights, on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from moxie._arrays import Call, DeviceArray, Quantized, view
from moxie._describe import arguments
from moxie._device import Device
from moxie._library import check, enum_value, ffi, lib, refuse_after_fork

_PER_BYTE = {"mxfp4": 2, "nvfp4": 2, "mxfp8": 1}


def _elements(format: str, k: int) -> int:
    enum_value("data_type", format)
    if format not in _PER_BYTE:
        raise ValueError(f"format is one of {', '.join(_PER_BYTE)}, and {format!r} is none of them")
    return k // _PER_BYTE[format]


def _require_quantized(name: str, value: Any) -> None:
    if not isinstance(value, Quantized):
        raise TypeError(f"{name} is a moxie.Quantized, and {type(value).__name__} is none")


def _rows(shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Groups, rows and columns of [rows, k] or [groups, rows, k]."""
    if len(shape) not in (2, 3):
        raise ValueError(f"{name} has shape {list(shape)}, and must have 2 or 3 dimensions")
    groups, rows, columns = (1, *shape)[-3:]
    return (groups, rows, columns) if groups else (1, 0, columns)  # 0 groups would stand for 1 in C


def _scale_shape(of: Any, layout: str, lead: tuple[int, ...], k: int, format: str) -> tuple[int, ...]:
    if layout.replace("-", "_") == "row_major":
        return (*lead, k // (16 if format == "nvfp4" else 32))
    nbytes = ffi.new("size_t*")
    check(lib.moxie_scale_bytes(of, nbytes))
    return (nbytes[0],)


def quantize(
    device: Device,
    values: Any,
    format: str,
    *,
    offsets: Any = None,
    layout: str = "blocked",
    tensor_scale: Any = None,
    out: Quantized | None = None,
    stream: int = 0,
) -> Quantized:
    """Rows of bf16 or float32 to "mxfp4", "mxfp8" or "nvfp4".

    values: [rows, k] or [groups, rows, k]. offsets: int32 [groups], the ends of the groups of [rows, k]. layout: of the
    scales, "blocked" as products read them, or "row_major": [..., k / 32], nvfp4 [..., k / 16]. tensor_scale: float32
    of one element, for nvfp4 alone; None there: moxie.find_tensor_scale's. Returns elements uint8 [..., k / 2] (mxfp8:
    [..., k]), scales and the tensor scale; out: to write into instead. TypeError, ValueError: nothing was launched.
    """
    refuse_after_fork()
    if out is not None:
        _require_quantized("out", out)
    call = Call(device, stream)
    seen = view(values, "values", stream)
    groups, rows, k = _rows(seen.shape, "values")
    at, ld = call.matrix("values", values, seen.dtype, seen.shape)
    columns = _elements(format, k)
    ends = 0
    if offsets is not None:
        counted = view(offsets, "offsets", stream).shape
        if len(counted) != 1 or len(seen.shape) != 2:
            raise ValueError("offsets are [groups], beside values [rows, k]")
        groups = counted[0]
        ends = call.dense("offsets", offsets, "int32", counted)
    of = arguments(
        "moxie_quantization",
        format=enum_value("data_type", format),
        type=enum_value("data_type", seen.dtype),
        rows=rows,
        k=k,
        groups=groups,
        offsets=ends,
        values=at,
        ld_values=ld,
        stream=stream,
        layout=enum_value("scale_layout", layout),
    )
    if format == "nvfp4" and tensor_scale is None and (out is None or out.tensor_scale is None):
        found = DeviceArray(device, (1,), "f32", stream)
        check(lib.moxie_find_tensor_scale(device.handle, of, ffi.cast("float*", found.ptr)))
        tensor_scale = found.numpy(stream) if call.host else found
    elif tensor_scale is None and out is not None:
        tensor_scale = out.tensor_scale
    given = Quantized(None, None) if out is None else out
    elements, at, ld = call.output("elements", given.elements, "uint8", (*seen.shape[:-1], columns))
    of.elements, of.ld_elements = ffi.cast("void*", at), ld * _PER_BYTE[format]
    shape = _scale_shape(of, layout, seen.shape[:-1], k, format)
    scales, at, _ = call.output("scales", given.scales, "uint8", shape)
    of.scales = ffi.cast("void*", at)
    if tensor_scale is not None:
        of.tensor_scale = ffi.cast("float*", call.at_least("tensor_scale", tensor_scale, "f32", 1))
    check(lib.moxie_quantize(device.handle, of))
    call.finish()
    return Quantized(elements, scales, tensor_scale)


def dequantize(
    device: Device,
    quantized: Quantized,
    format: str,
    dtype: str = "f32",
    *,
    offsets: Any = None,
    layout: str = "blocked",
    out: Any = None,
    stream: int = 0,
) -> Any:
    """The way back: values [..., k] of dtype "f32" or "bf16", under the rules of moxie.quantize."""
    refuse_after_fork()
    _require_quantized("quantized", quantized)
    call = Call(device, stream)
    shape = view(quantized.elements, "elements", stream).shape
    groups, rows, columns = _rows(shape, "elements")
    _elements(format, 0)
    k = columns * _PER_BYTE[format]
    at, ld = call.matrix("elements", quantized.elements, "uint8", shape)
    ends = 0
    if offsets is not None:
        counted = view(offsets, "offsets", stream).shape
        if len(counted) != 1 or len(shape) != 2:
            raise ValueError("offsets are [groups], beside elements [rows, k / 2] (mxfp8: [rows, k])")
        groups = counted[0]
        ends = call.dense("offsets", offsets, "int32", counted)
    common: dict[str, Any] = {
        "format": enum_value("data_type", format),
        "type": enum_value("data_type", dtype),
        "rows": rows,
        "k": k,
        "groups": groups,
        "offsets": ends,
        "layout": enum_value("scale_layout", layout),
    }
    scales = math.prod(_scale_shape(arguments("moxie_quantization", **common), layout, shape[:-1], k, format))
    tensor_scale = None
    if quantized.tensor_scale is not None:
        tensor_scale = call.at_least("tensor_scale", quantized.tensor_scale, "f32", 1)
    at_scales = call.at_least("scales", quantized.scales, "uint8", scales)
    values, at_values, ld_values = call.output("out", out, dtype, (*shape[:-1], k))
    of = arguments(
        "moxie_dequantization",
        elements=at,
        ld_elements=ld * _PER_BYTE[format],
        scales=at_scales,
        tensor_scale=tensor_scale,
        values=at_values,
        ld_values=ld_values,
        stream=stream,
        **common,
    )
    check(lib.moxie_dequantize(device.handle, of))
    call.finish()
    return values


def find_tensor_scale(device: Device, values: Any, *, stream: int = 0) -> Any:
    """float32 [1]: the tensor scale of nvfp4 that uses the range of both its formats. values: [rows, k]."""
    refuse_after_fork()
    call = Call(device, stream)
    seen = view(values, "values", stream)
    groups, rows, k = _rows(seen.shape, "values")
    at, ld = call.matrix("values", values, seen.dtype, seen.shape)
    found, to, _ = call.output("tensor scale", None, "f32", (1,))
    of = arguments(
        "moxie_quantization",
        format=lib.MOXIE_DATA_TYPE_NVFP4,
        type=enum_value("data_type", seen.dtype),
        rows=rows,
        k=k,
        groups=groups,
        values=at,
        ld_values=ld,
        stream=stream,
    )
    check(lib.moxie_find_tensor_scale(device.handle, of, ffi.cast("float*", to)))
    call.finish()
    return found


def packed_weight_bytes(groups: int, n: int, k: int) -> int:
    """Bytes of packed weights of `groups` matrices [n, k]."""
    nbytes = ffi.new("size_t*")
    check(lib.moxie_packed_weight_bytes(groups, n, k, nbytes))
    return nbytes[0]


def pack_weights(
    device: Device, codes: Any, scales: Any, *, gate: str | None = None, out: Any = None, stream: int = 0
) -> Any:
    """MXFP4 weights from a checkpoint's order to that of the kernels: uint8 [packed_weight_bytes(G, n, k)].

    codes: uint8 [G, n, k / 2], E2M1, two in a byte, the first in the low nibble, or [G, n, k / 32, 16]. scales: uint8
    [G, n, k / 32], E8M0. gate: where gate and up lie along n, for products with a gated activation; None for others.
    k is a multiple of 32, n of 8, of 16 with a gate. Waits for the stream, and raises ValueError for a row whose
    scales lie too far apart to be exact.
    """
    refuse_after_fork()
    call = Call(device, stream)
    shape = view(codes, "codes", stream).shape
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] != 16):
        raise ValueError(f"codes have shape {list(shape)}, and must have [G, n, k / 2] or [G, n, k / 32, 16]")
    groups, n = shape[:2]
    k = 2 * math.prod(shape[2:])
    of = _packing("moxie_weight_packing", groups, n, k, gate, stream)
    nbytes = packed_weight_bytes(groups, n, k)
    of.codes = ffi.cast("void*", call.at_least("codes", codes, "uint8", groups * n * k // 2))
    of.scales = ffi.cast("void*", call.dense("scales", scales, "uint8", (groups, n, k // 32)))
    packed, to, _ = call.output("packed", out, "uint8", (nbytes,))
    of.packed = ffi.cast("void*", to)
    refused = DeviceArray.of(device, np.full(1, 2**64 - 1, np.uint64), stream)
    of.refused = ffi.cast("uint64_t*", refused.ptr)
    check(lib.moxie_pack_weights(device.handle, of))
    row = int(refused.numpy(stream)[0])
    if row != 2**64 - 1:
        raise ValueError(f"scales: those of row {row % n} of group {row // n} lie too far apart to be exact")
    call.finish()
    return packed


def unpack_weights(
    device: Device, packed: Any, groups: int, n: int, k: int, *, gate: str | None = None, stream: int = 0
) -> tuple[Any, Any]:
    """The way back: codes uint8 [groups, n, k / 2] and scales uint8 [groups, n, k / 32]."""
    refuse_after_fork()
    call = Call(device, stream)
    of = _packing("moxie_weight_unpacking", groups, n, k, gate, stream)
    of.packed = ffi.cast("void*", call.dense("packed", packed, "uint8", (packed_weight_bytes(groups, n, k),)))
    codes, to_codes, _ = call.output("codes", None, "uint8", (groups, n, k // 2))
    scales, to_scales, _ = call.output("scales", None, "uint8", (groups, n, k // 32))
    of.codes, of.scales = ffi.cast("void*", to_codes), ffi.cast("void*", to_scales)
    check(lib.moxie_unpack_weights(device.handle, of))
    call.finish()
    return codes, scales


def _packing(struct: str, groups: int, n: int, k: int, gate: str | None, stream: int) -> Any:
    return arguments(
        struct,
        n=n,
        k=k,
        groups=groups,
        stream=stream,
        gated=gate is not None,
        gate=None if gate is None else enum_value("gate_layout", gate),
    )
