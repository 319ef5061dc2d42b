# SPDX-License-Identifier: Apache-2.0
"""What stands around the products of a layer: the choice of experts, the sort of pairs by expert, and the sum."""

from __future__ import annotations

from typing import Any

from moxie._arrays import Allocator, Call, Workspaces, view
from moxie._describe import arguments, require_integers
from moxie._device import Device
from moxie._library import check, enum_value, ffi, lib, refuse_after_fork
from moxie._layer import Router

_workspaces = Workspaces()


def _options(stream: int) -> Any:
    return arguments("moxie_launch_options", stream=stream)


def _shape(array: Any, name: str, stream: int) -> tuple[int, int]:
    shape = view(array, name, stream).shape
    if len(shape) != 2:
        raise ValueError(f"{name} has shape {list(shape)}, and must have 2 dimensions")
    return shape[0], shape[1]


def route(
    device: Device,
    logits: Any,
    top_k: int,
    *,
    router: Router | None = None,
    correction_bias: Any = None,
    token_count: Any = None,
    stream: int = 0,
) -> tuple[Any, Any]:
    """The top_k experts of each token and their weights: ids int32 [T, k], weights float32 [T, k].

    logits: float32 or bf16 [T, E]. router: how they are chosen; its logits_type is that of the array. correction_bias:
    float32 [E], with a sigmoid router; required where the router says that there is one. token_count: int32 of one
    element, tokens that there are.
    """
    refuse_after_fork()
    call = Call(device, stream)
    tokens, experts = _shape(logits, "logits", stream)
    dtype = view(logits, "logits", stream).dtype
    if router is not None and not isinstance(router, Router):
        raise TypeError(f"router is a moxie.Router, and {router!r} is none")
    require_integers(top_k=top_k)
    members = (router or Router()).members()
    members.update(logits_type=enum_value("data_type", dtype))
    if members.pop("correction_bias") and correction_bias is None:
        raise ValueError("correction_bias is required by the router")
    at, ld = call.matrix("logits", logits, dtype, (tokens, experts))
    bias = call.dense("correction_bias", correction_bias, "f32", (experts,))
    count = call.dense("token_count", token_count, "int32", (1,))
    shape = (tokens, max(top_k, 0))  # the library refuses others
    ids, to_ids, _ = call.output("ids", None, "int32", shape)
    weights, to_weights, _ = call.output("weights", None, "f32", shape)
    of = arguments(
        "moxie_expert_routing",
        tokens=tokens,
        experts=experts,
        top_k=top_k,
        logits=at,
        ld_logits=ld,
        correction_bias=bias,
        token_count=count,
        ids=to_ids,
        weights=to_weights,
        **members,
    )
    check(lib.moxie_route(device.handle, of, _options(stream)))
    call.finish()
    return ids, weights


def sort_by_expert(
    device: Device,
    ids: Any,
    experts: int,
    *,
    first_expert: int = 0,
    token_count: Any = None,
    workspace: Any = None,
    allocator: Allocator | None = None,
    stream: int = 0,
) -> tuple[Any, Any, Any]:
    """Pairs of token and choice by expert: ends int32 [E], order int32 [T k] and inverse int32 [T, k].

    ids: int32 or int64 [T, k]; those outside first_expert to first_expert + experts - 1 are skipped. Row r of the
    sorted rows is a row of token order[r] // k; inverse holds each pair's row, or -1.
    """
    refuse_after_fork()
    call = Call(device, stream)
    tokens, top_k = _shape(ids, "ids", stream)
    dtype = view(ids, "ids", stream).dtype
    id_type = enum_value("id_type", dtype)
    at = call.dense("ids", ids, dtype, (tokens, top_k))
    count = call.dense("token_count", token_count, "int32", (1,))
    nbytes = ffi.new("size_t*")
    check(lib.moxie_sort_workspace_bytes(tokens, top_k, experts, nbytes))
    ends, to_ends, _ = call.output("ends", None, "int32", (experts,))
    order, to_order, _ = call.output("order", None, "int32", (tokens * top_k,))
    inverse, to_inverse, _ = call.output("inverse", None, "int32", (tokens, top_k))
    space, size = call.workspace(nbytes[0], workspace, allocator, _workspaces)
    of = arguments(
        "moxie_expert_sort",
        tokens=tokens,
        experts=experts,
        ids=at,
        ends=to_ends,
        order=to_order,
        inverse=to_inverse,
        top_k=top_k,
        id_type=id_type,
        first_expert=first_expert,
        token_count=count,
    )
    check(lib.moxie_sort_by_expert(device.handle, of, ffi.cast("void*", space), size, _options(stream)))
    call.finish()
    return ends, order, inverse


def permute(
    device: Device,
    x: Any,
    inverse: Any,
    *,
    row_count: int | None = None,
    out: Any = None,
    token_count: Any = None,
    stream: int = 0,
) -> Any:
    """out[inverse[t, j]] = x[t]: tokens in the order of their experts, for products that do not gather.

    x: bf16 or float32 [T, H]. inverse: int32 [T, k], as sort_by_expert gives it; what is not 0 to R - 1 is skipped.
    row_count: R; None: T k. out: [R, H] of x's dtype, to write into instead of a new array. Rows that no pair names
    keep what they held, and are 0 in a new array.
    """
    refuse_after_fork()
    call = Call(device, stream)
    tokens, width = _shape(x, "x", stream)
    top_k = _shape(inverse, "inverse", stream)[1]
    rows = tokens * top_k if row_count is None else row_count
    dtype = view(x, "x", stream).dtype
    at, ld = call.matrix("x", x, dtype, (tokens, width))
    at_inverse = call.dense("inverse", inverse, "int32", (tokens, top_k))
    count = call.dense("token_count", token_count, "int32", (1,))
    y, to, ld_out = call.output("out", out, dtype, (max(rows, 0), width))  # the library refuses others
    of = arguments(
        "moxie_expert_permutation",
        tokens=tokens,
        width=width,
        row_count=rows,
        x=at,
        inverse=at_inverse,
        out=to,
        top_k=top_k,
        type=enum_value("data_type", dtype),
        ld_x=ld,
        ld_out=ld_out,
        token_count=count,
    )
    check(lib.moxie_permute(device.handle, of, _options(stream)))
    call.finish()
    return y


def combine(
    device: Device,
    rows: Any,
    inverse: Any,
    weights: Any = None,
    *,
    residual: Any = None,
    out_dtype: str = "bf16",
    out: Any = None,
    token_count: Any = None,
    stream: int = 0,
) -> Any:
    """y[t] = residual[t] + sum over j of weights[t, j] * rows[inverse[t, j]], of out_dtype [T, H].

    rows: bf16 or float32 [R, H]. inverse: int32 [T, k]; what is not 0 to R - 1 is skipped. weights: float32 [T, k];
    None: 1. residual: [T, H] of out_dtype. out: to write into instead of a new array.
    """
    refuse_after_fork()
    call = Call(device, stream)
    row_count, width = _shape(rows, "rows", stream)
    tokens, top_k = _shape(inverse, "inverse", stream)
    dtype = view(rows, "rows", stream).dtype
    at, ld = call.matrix("rows", rows, dtype, (row_count, width))
    at_inverse = call.dense("inverse", inverse, "int32", (tokens, top_k))
    at_weights = call.dense("weights", weights, "f32", (tokens, top_k))
    count = call.dense("token_count", token_count, "int32", (1,))
    at_residual, ld_residual = 0, 0
    if residual is not None:
        at_residual, ld_residual = call.matrix("residual", residual, out_dtype, (tokens, width))
    y, to, ld_out = call.output("out", out, out_dtype, (tokens, width))
    of = arguments(
        "moxie_expert_combination",
        tokens=tokens,
        width=width,
        row_count=row_count,
        rows=at,
        inverse=at_inverse,
        out=to,
        top_k=top_k,
        rows_type=enum_value("data_type", dtype),
        out_type=enum_value("data_type", out_dtype),
        ld_rows=ld,
        weights=at_weights,
        residual=at_residual,
        ld_residual=ld_residual,
        ld_out=ld_out,
        token_count=count,
    )
    check(lib.moxie_combine(device.handle, of, _options(stream)))
    call.finish()
    return y
