# SPDX-License-Identifier: Apache-2.0
"""Whole expert layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moxie import _library
from moxie._arrays import Allocator, Call, Quantized, Workspaces, view
from moxie._describe import Description, activation_members, arguments, require_integers
from moxie._device import Device, require_device
from moxie._library import check, enum_name, enum_value, ffi, lib, owned, refuse_after_fork, word_of
from moxie._plan import Plan, plan_of

_TENSORS = "moxie_expert_layer_tensors"
_SIZE = ffi.sizeof(_TENSORS)
_OPTIONS_SIZE = ffi.sizeof("moxie_launch_options")
_X, _OUT = word_of(_TENSORS, "x", "data"), word_of(_TENSORS, "out", "data")
_UP, _DOWN = word_of(_TENSORS, "up", "data"), word_of(_TENSORS, "down", "data")
_IDS, _WEIGHTS = word_of(_TENSORS, "topk_ids"), word_of(_TENSORS, "topk_weights")
_UP_BIAS, _DOWN_BIAS = word_of(_TENSORS, "up_bias"), word_of(_TENSORS, "down_bias")
_RESIDUAL, _TOKEN_COUNT = word_of(_TENSORS, "residual", "data"), word_of(_TENSORS, "token_count")
_LOGITS, _CORRECTION_BIAS = word_of(_TENSORS, "logits"), word_of(_TENSORS, "correction_bias")
_CHOSEN_IDS, _CHOSEN_WEIGHTS = word_of(_TENSORS, "chosen_ids"), word_of(_TENSORS, "chosen_weights")
_PLACES = word_of(_TENSORS, "places")
_X_TENSOR_SCALE, _INNER_TENSOR_SCALE = word_of(_TENSORS, "x", "tensor_scale"), word_of(_TENSORS, "inner_tensor_scale")
_UP_SCALES, _DOWN_SCALES = word_of(_TENSORS, "up", "scales"), word_of(_TENSORS, "down", "scales")
_UP_TENSOR_SCALE = word_of(_TENSORS, "up", "tensor_scale")
_DOWN_TENSOR_SCALE = word_of(_TENSORS, "down", "tensor_scale")
_STREAM = word_of("moxie_launch_options", "stream")


@dataclass(frozen=True)
class Router:
    """How a layer chooses experts from logits [T, all_experts].

    score: "softmax" or "sigmoid". renormalize: weights are divided by their sum. correction_bias: calls bring a bias
    that is added to choose by. chosen_groups of expert_groups groups of neighboring experts are looked at.
    """

    logits_type: str = "f32"
    score: str = "softmax"
    renormalize: bool = True
    scaling_factor: float = 1.0
    correction_bias: bool = False
    expert_groups: int = 1
    chosen_groups: int = 1

    def members(self) -> dict[str, Any]:
        return {
            "logits_type": enum_value("data_type", self.logits_type),
            "score": enum_value("router_score", self.score),
            "no_renormalize": not self.renormalize,
            "scaling_factor": self.scaling_factor,
            "correction_bias": self.correction_bias,
            "expert_groups": self.expert_groups,
            "chosen_groups": self.chosen_groups,
        }


@dataclass(frozen=True)
class Ranks:
    """A layer whose experts are spread over GPUs of which each reaches a window of every other's memory.

    ranks: R, up to 72. rank: this one. max_rows: the most rows, one for each pair of a token and an expert, that a
    rank's experts get in a call; None: room for all. time_limit: seconds that a kernel waits for another rank. format:
    of tokens on their way, "bf16", "fp8" or "mxfp8". results: what travels back, "rows", a row for each pair, which are
    summed as on one rank, or "sums" or "bf16_sums", for each token and rank the weighted sum of its rows there, in
    float32 or bf16; None: "rows", or "sums" where these are faster. All but rank and time_limit are the same on all
    ranks.
    """

    ranks: int
    rank: int
    max_rows: int | None = None
    time_limit: float = 30.0
    format: str = "bf16"
    results: str | None = None

    def members(self) -> dict[str, Any]:
        results = None if self.results is None else enum_value("result_format", self.results)
        return {
            "ranks": self.ranks,
            "rank": self.rank,
            "max_rows": self.max_rows,
            "time_limit": self.time_limit,
            "format": enum_value("row_format", self.format),
            "has_results": results is not None,
            "results": results,
        }


class ExpertLayer:
    """A Mixture-of-Experts layer that is planned and compiled:

        y[t] = residual[t] + sum over the top_k experts e of token t:
               weight[t, e] * (act(x[t] up[e]^T + up_bias[e]) down[e]^T + down_bias[e])

    T: tokens of a call, k: top_k, E: experts, H: hidden, I: width.

    experts: 1 to 1,024 experts whose weights are here. hidden, width: multiples of 8, of 32 with scales. max_tokens:
    the most that a call has, up to 1,048,576. weights: "bf16", or "mxfp4" for packed weights (moxie.pack_weights).
    activations: "bf16"; on sm_100a "mxfp4" or "nvfp4" as well, in which tokens and the rows between the products are
    then multiplied, with weights of the same format. activation: "swiglu", "swiglu_oai"... with activation_parameters
    where they are not the defaults. gate: where gate and up lie in the rows of `up`: "interleaved", "split" or
    "split_up_first". first_expert, all_experts: pairs with ids outside first_expert to first_expert + experts - 1 are
    skipped, whatever they are. id_type: "int32" or "int64". router: calls bring logits instead of topk_ids and
    topk_weights. expected_tokens: of a typical call, where all have about as many; then one kernel a product is
    compiled. permute: whether a launch of its own copies the tokens in the order of their experts first, or the first
    product gathers them; None: what costs less for a call's tokens. ranks: experts are spread over several GPUs, as
    many of them on each; calls are those of `run` (docs/distributed.md of the project).

    ValueError: a rule is broken, or the device has no kernel for it. RuntimeError: driver, compiler.
    Safe from several threads. The GIL is released while the library works.
    """

    def __init__(
        self,
        device: Device,
        *,
        experts: int,
        top_k: int,
        hidden: int,
        width: int,
        max_tokens: int,
        weights: str = "bf16",
        activations: str = "bf16",
        activation: str = "swiglu",
        activation_parameters: Mapping[str, float] | None = None,
        gate: str = "interleaved",
        up_bias: bool = False,
        down_bias: bool = False,
        residual: bool = False,
        out: str = "bf16",
        id_type: str = "int32",
        first_expert: int = 0,
        all_experts: int | None = None,
        router: Router | None = None,
        expected_tokens: int | None = None,
        permute: bool | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        refuse_after_fork()
        require_device(device)
        if router is not None and not isinstance(router, Router):
            raise TypeError(f"router is a moxie.Router, and {router!r} is none")
        if ranks is not None and not isinstance(ranks, Ranks):
            raise TypeError(f"ranks is a moxie.Ranks, and {ranks!r} is none")
        require_integers(
            experts=experts, top_k=top_k, hidden=hidden, width=width, max_tokens=max_tokens, first_expert=first_expert
        )
        description = Description(
            "moxie_expert_layer_description",
            {
                "experts": experts,
                "hidden": hidden,
                "width": width,
                "max_tokens": max_tokens,
                "activation": activation_members(activation, activation_parameters),
                "top_k": top_k,
                "weights": enum_value("operand_format", weights),
                "activations": enum_value("operand_format", activations),
                "first_expert": first_expert,
                "all_experts": all_experts,
                "gate": enum_value("gate_layout", gate),
                "up_bias": up_bias,
                "down_bias": down_bias,
                "residual": residual,
                "out": enum_value("data_type", out),
                "id_type": enum_value("id_type", id_type),
                "has_expected_tokens": expected_tokens is not None,
                "expected_tokens": expected_tokens,
                "has_permute": permute is not None,
                "permute": permute,
            },
        )
        if router is not None:
            description.pointer.router = description.fill("moxie_router_description", router.members())
        if ranks is not None:
            description.pointer.ranks = description.fill("moxie_rank_description", ranks.members())
        handle = ffi.new("moxie_expert_layer**")
        check(lib.moxie_expert_layer_create(device.handle, description.pointer, handle))
        self._description = description
        self._router = router
        self._names = (out, id_type)
        self._workspaces = Workspaces()
        self.device = device
        self.handle = owned(handle[0], lib.moxie_expert_layer_release)
        self._run = lib.moxie_expert_layer_run

    def workspace_bytes(self, tokens: int | None = None) -> int:
        """Bytes of workspace for calls of so many tokens or fewer; None: max_tokens."""
        nbytes = ffi.new("size_t*")
        tokens = lib.MOXIE_NO_TOTAL if tokens is None else tokens
        check(lib.moxie_expert_layer_workspace_bytes(self.handle, tokens, nbytes))
        return nbytes[0]

    def window_bytes(self) -> int:
        """With ranks: bytes of a window, the same on all ranks; else 0."""
        nbytes = ffi.new("size_t*")
        check(lib.moxie_expert_layer_window_bytes(self.handle, nbytes))
        return nbytes[0]

    def prepare_window(self, window: int, stream: int = 0) -> None:
        """Prepares this rank's own window. All ranks do so, and then wait for each other, before any of them calls."""
        at, stream = ffi.cast("void*", window), ffi.cast("moxie_stream", stream)
        check(lib.moxie_expert_layer_prepare_window(self.handle, at, stream))

    def check_ranks(self, window: int, stream: int = 0) -> None:
        """Waits for the stream. RuntimeError, which names the ranks: what went wrong between ranks so far."""
        at, stream = ffi.cast("void*", window), ffi.cast("moxie_stream", stream)
        check(lib.moxie_expert_layer_check_ranks(self.handle, at, stream))

    def run(
        self,
        *,
        tokens: int,
        x: int,
        up: int,
        down: int,
        out: int,
        topk_ids: int = 0,
        topk_weights: int = 0,
        up_bias: int = 0,
        down_bias: int = 0,
        residual: int = 0,
        token_count: int = 0,
        logits: int = 0,
        correction_bias: int = 0,
        chosen_ids: int = 0,
        chosen_weights: int = 0,
        ld_x: int = 0,
        ld_up: int = 0,
        ld_down: int = 0,
        ld_out: int = 0,
        ld_residual: int = 0,
        ld_logits: int = 0,
        up_scales: int = 0,
        down_scales: int = 0,
        x_tensor_scale: int = 0,
        inner_tensor_scale: int = 0,
        up_tensor_scale: int = 0,
        down_tensor_scale: int = 0,
        windows: Sequence[int] = (),
        places: int = 0,
        workspace: int = 0,
        workspace_bytes: int = 0,
        stream: int = 0,
        part: str = "all",
    ) -> None:
        """Computes on the stream, asynchronously, from addresses in device memory; 0 stands for what is absent.

        x: bf16 [T, H]. up: [E, 2 I, H] with a gate, else [E, I, H]; down: [E, H, I]; bf16 or packed. out: [T, H].
        topk_ids: [T, k] of id_type. topk_weights: float32 [T, k]; 0: every weight is 1. up_bias: bf16 [E, 2 I or I].
        down_bias: bf16 [E, H]. residual: [T, H] of out's type. token_count: int32, tokens that there are. logits:
        [T, all_experts], with a router, which may write chosen_ids and chosen_weights. ld_*: elements from row to row;
        0 stands for the width. up_scales, down_scales: with quantized activations, blocked; of nvfp4 x_tensor_scale and
        inner_tensor_scale: one float32, up_tensor_scale and down_tensor_scale: float32 [E]; 0: 1. windows, with ranks:
        the window of each, of window_bytes(). places, with ranks: int32 [all_experts], rank * experts + number of each
        expert; 0: their order. workspace: workspace_bytes(tokens), aligned to 256 bytes; calls that may run at the same
        time need one each. Nothing is allocated, and CUDA graphs may capture it. part, with ranks: a call may be
        launched as "send", "multiply" and "sum", on one stream with the same addresses; only "sum" reads the residual.
        ValueError, RuntimeError: nothing was launched.
        """
        if _library.forked:
            refuse_after_fork()
        tensors = ffi.new("moxie_expert_layer_tensors*")
        tensors.size = _SIZE
        words = ffi.cast("uintptr_t*", tensors)
        tensors.tokens = tokens
        words[_X] = x
        words[_UP] = up
        words[_DOWN] = down
        words[_OUT] = out
        words[_IDS] = topk_ids
        words[_WEIGHTS] = topk_weights
        if up_bias:
            words[_UP_BIAS] = up_bias
        if down_bias:
            words[_DOWN_BIAS] = down_bias
        if residual:
            words[_RESIDUAL] = residual
            tensors.residual.ld = ld_residual
        if token_count:
            words[_TOKEN_COUNT] = token_count
        if logits:
            words[_LOGITS] = logits
            tensors.ld_logits = ld_logits
            words[_CORRECTION_BIAS] = correction_bias
            words[_CHOSEN_IDS] = chosen_ids
            words[_CHOSEN_WEIGHTS] = chosen_weights
        if up_scales or down_scales:
            words[_UP_SCALES] = up_scales
            words[_DOWN_SCALES] = down_scales
            words[_X_TENSOR_SCALE] = x_tensor_scale
            words[_INNER_TENSOR_SCALE] = inner_tensor_scale
            words[_UP_TENSOR_SCALE] = up_tensor_scale
            words[_DOWN_TENSOR_SCALE] = down_tensor_scale
        if windows:
            addresses = ffi.new("void*[]", [ffi.cast("void*", window) for window in windows])
            tensors.windows = addresses
            words[_PLACES] = places
        if ld_x:
            tensors.x.ld = ld_x
        if ld_up:
            tensors.up.ld = ld_up
        if ld_down:
            tensors.down.ld = ld_down
        if ld_out:
            tensors.out.ld = ld_out
        options = ffi.NULL
        if stream:
            options = ffi.new("moxie_launch_options*")
            options.size = _OPTIONS_SIZE
            ffi.cast("uintptr_t*", options)[_STREAM] = stream
        memory = ffi.cast("void*", workspace)
        if part == "all":
            status = self._run(self.handle, tensors, memory, workspace_bytes, options)
        else:
            which = enum_value("layer_part", part)
            status = lib.moxie_expert_layer_run_part(self.handle, which, tensors, memory, workspace_bytes, options)
        if status:
            check(status)

    def plan(self, tokens: int | None = None) -> tuple[Plan, Plan]:
        """The plans of both products for calls of so many tokens; None: max_tokens."""
        up, down = ffi.new("moxie_plan**"), ffi.new("moxie_plan**")
        tokens = lib.MOXIE_NO_TOTAL if tokens is None else tokens
        check(lib.moxie_expert_layer_plan(self.handle, tokens, up, down))
        return plan_of(up[0]), plan_of(down[0])

    def __call__(
        self,
        x: Any,
        up: Any,
        down: Any,
        topk_ids: Any = None,
        topk_weights: Any = None,
        *,
        logits: Any = None,
        up_bias: Any = None,
        down_bias: Any = None,
        residual: Any = None,
        correction_bias: Any = None,
        token_count: Any = None,
        x_tensor_scale: Any = None,
        inner_tensor_scale: Any = None,
        out: Any = None,
        chosen_ids: Any = None,
        chosen_weights: Any = None,
        workspace: Any = None,
        allocator: Allocator | None = None,
        stream: int = 0,
    ) -> Any:
        """The layer of arrays: y [T, H] of out's type.

        x: bf16 [T, H]. up: bf16 [E, 2 I, H] with a gate, else [E, I, H]; down: bf16 [E, H, I]; or both packed weights,
        uint8; with quantized activations both moxie.Quantized of elements [..., K / 2] and blocked scales, as
        moxie.quantize makes them, of nvfp4 with a tensor_scale float32 [E] or None for 1. x_tensor_scale,
        inner_tensor_scale: of nvfp4, float32 of one element that tokens and the rows between the products are quantized
        with; None: 1. topk_ids: int32 or int64 [T, k], as the layer's id_type says; topk_weights: float32 [T, k], None:
        1. With a router instead: logits [T, all_experts] of its type, and correction_bias float32 [all_experts] where
        it has one; chosen_ids int32 and chosen_weights float32 [T, k] receive its choice where they are given. up_bias:
        bf16 [E, 2 I or I]. down_bias: bf16 [E, H]. residual: [T, H] of out's type. token_count: int32 of one element,
        tokens that there are; rows past it keep their values, and are 0 in a new array.

        Memory, waiting, workspace and allocator are as in GroupedGemm. TypeError, ValueError: nothing was launched.
        """
        refuse_after_fork()
        call = Call(self.device, stream)
        d = self._description.pointer
        shape = view(x, "x", stream).shape
        tokens = shape[0] if shape else 0
        out_type, id_type = self._names
        high = 2 * d.width if d.activation.function >= lib.MOXIE_ACTIVATION_SWIGLU else d.width
        all_experts = d.all_experts or d.first_expert + d.experts
        addresses: dict[str, int] = {"tokens": tokens}
        addresses["x"], addresses["ld_x"] = call.matrix("x", x, "bf16", (tokens, d.hidden))
        for name, value, n, k in (("up", up, high, d.hidden), ("down", down, d.hidden, d.width)):
            if d.activations != lib.MOXIE_OPERAND_FORMAT_BF16:
                self._quantized(call, addresses, name, value, n, k)
            elif d.weights == lib.MOXIE_OPERAND_FORMAT_BF16:
                addresses[name], addresses[f"ld_{name}"] = call.matrix(name, value, "bf16", (d.experts, n, k))
            else:
                packed = ffi.new("size_t*")
                check(lib.moxie_packed_weight_bytes(d.experts, n, k, packed))
                addresses[name] = call.dense(name, value, "uint8", (packed[0],))
        routed = self._router is not None
        router = self._router or Router()
        wants_bias = routed and router.correction_bias
        scaled = None if d.activations == lib.MOXIE_OPERAND_FORMAT_NVFP4 else False
        pairs = (tokens, d.top_k)
        size: tuple[int, ...]
        for name, value, dtype, size, wanted in (
            ("up_bias", up_bias, "bf16", (d.experts, high), bool(d.up_bias)),
            ("down_bias", down_bias, "bf16", (d.experts, d.hidden), bool(d.down_bias)),
            ("topk_ids", topk_ids, id_type, pairs, not routed),
            ("topk_weights", topk_weights, "f32", pairs, None if not routed else False),
            ("correction_bias", correction_bias, "f32", (all_experts,), wants_bias),
            ("token_count", token_count, "int32", (1,), None),
            ("x_tensor_scale", x_tensor_scale, "f32", (1,), scaled),
            ("inner_tensor_scale", inner_tensor_scale, "f32", (1,), scaled),
        ):
            _require(name, value, wanted)
            addresses[name] = call.dense(name, value, dtype, size)
        _require("logits", logits, routed)
        if routed:
            size = (tokens, all_experts)
            addresses["logits"], addresses["ld_logits"] = call.matrix("logits", logits, router.logits_type, size)
        _require("residual", residual, bool(d.residual))
        if residual is not None:
            size = (tokens, d.hidden)
            addresses["residual"], addresses["ld_residual"] = call.matrix("residual", residual, out_type, size)
        for name, value, dtype in (("chosen_ids", chosen_ids, "int32"), ("chosen_weights", chosen_weights, "f32")):
            if value is not None:
                _require(name, value, None if routed else False)
                _, addresses[name], ld = call.output(name, value, dtype, pairs)
                if ld not in (0, d.top_k):
                    raise ValueError(f"{name} has a row stride of {ld} elements, and must be contiguous")
        y, addresses["out"], addresses["ld_out"] = call.output("out", out, out_type, (tokens, d.hidden))
        at, nbytes = call.workspace(self.workspace_bytes(tokens), workspace, allocator, self._workspaces)
        self.run(workspace=at, workspace_bytes=nbytes, stream=stream, **addresses)
        call.finish()
        return y

    def _quantized(self, call: Call, addresses: dict[str, int], name: str, value: Any, n: int, k: int) -> None:
        d = self._description.pointer
        if not isinstance(value, Quantized):
            format = enum_name("operand_format", d.weights)
            raise TypeError(f"{name} is a moxie.Quantized, since its format is {format}")
        addresses[name], ld = call.matrix(f"{name}.elements", value.elements, "uint8", (d.experts, n, k // 2))
        addresses[f"ld_{name}"] = 2 * ld
        of = arguments(
            "moxie_quantization",
            format=enum_value("data_type", enum_name("operand_format", d.weights)),
            groups=d.experts,
            rows=n,
            k=k,
        )
        nbytes = ffi.new("size_t*")
        check(lib.moxie_scale_bytes(of, nbytes))
        addresses[f"{name}_scales"] = call.at_least(f"{name}.scales", value.scales, "uint8", nbytes[0])
        if value.tensor_scale is not None:
            at = call.at_least(f"{name}.tensor_scale", value.tensor_scale, "f32", d.experts)
            addresses[f"{name}_tensor_scale"] = at


def _require(name: str, value: Any, wanted: bool | None) -> None:
    if wanted and value is None:
        raise ValueError(f"{name} is required by the layer's description")
    if wanted is False and value is not None:
        raise ValueError(f"{name} is not in the layer's description")
