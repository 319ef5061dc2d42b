# SPDX-License-Identifier: Apache-2.0
"""Moxie as an implementation of the experts of Hugging Face's transformers (5.23 or newer).

    import moxie.integrations.transformers
    moxie.integrations.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.bfloat16, experts_implementation="moxie")

Every model whose experts use transformers' interface of implementations is served, in bf16: transposed or not, gate and
up side by side or interleaved, with biases, with ids of other ranks' experts. GPT-OSS with MXFP4 weights keeps them in
MXFP4, packed for Moxie's kernels.

A module's gate is recognized by what it computes: it is called once with values of all magnitudes, and taken for one of
Moxie's activations where the results are the same. Where none is, the products are Moxie's and the gate is the module's
own, between them. A change of a module's gate after its first call needs `prepare` again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING
from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer

from moxie import torch as ops
from moxie.nn import Experts

__all__ = ["prepare", "register"]

_OLDEST = (5, 23)


class Gate(NamedTuple):
    """What Moxie calls a module's activation. activation is None where it has no such one.

    norm: the module has a function of its own for what comes of the second product.
    """

    activation: str | None
    parameters: dict[str, float] | None
    layout: str
    norm: bool = False


# ---- Recognizing a gate ----


def _gated(numbers: list[float]) -> Iterator[tuple[str, dict[str, float] | None, Callable[[Tensor, Tensor], Tensor]]]:
    """Moxie's gated activations, with the parameters that a module may hold."""
    yield "swiglu", None, lambda g, u: nn.functional.silu(g) * u
    yield "geglu", None, lambda g, u: nn.functional.gelu(g, approximate="tanh") * u
    yield "reglu", None, lambda g, u: g.relu() * u
    limits = [each for each in numbers if each > 0]
    for limit in limits:
        yield (
            "swiglu_clamped",
            {"gate_limit": limit, "up_limit": limit},
            lambda g, u, limit=limit: nn.functional.silu(g.clamp(max=limit)) * u.clamp(-limit, limit),
        )
    for alpha in numbers:
        for limit in (*limits, math.inf):
            yield (
                "swiglu_oai",
                {"alpha": alpha, "limit": limit},
                lambda g, u, alpha=alpha, limit=limit: g.clamp(max=limit)
                * (alpha * g.clamp(max=limit)).sigmoid()
                * (u.clamp(-limit, limit) + 1),
            )


_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "relu": torch.relu,
    "relu2": lambda x: x.relu().square(),
    "gelu": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "gelu_erf": nn.functional.gelu,
    "silu": nn.functional.silu,
}


def _same(result: Any, expected: Tensor) -> bool:
    return (
        isinstance(result, Tensor)
        and result.shape == expected.shape
        and torch.allclose(result.double(), expected, rtol=1e-5, atol=1e-7)
    )


@torch.no_grad()
def recognize(module: nn.Module) -> Gate:
    """Which of Moxie's activations a module of experts has between its products."""
    positive = torch.cat([torch.logspace(-3, 15, 55, dtype=torch.float64), torch.linspace(0.5, 24, 48).double()])
    values = torch.cat([-positive, torch.zeros(1, dtype=torch.float64), positive])
    try:
        if not module.has_gate:
            result = module.act_fn(values[None])
            found = (name for name, formula in _PLAIN.items() if _same(result, formula(values)[None]))
            return Gate(next(found, None), None, "interleaved")
        gate, up = (each.reshape(1, -1) for each in torch.meshgrid(values, values, indexing="ij"))
        numbers = sorted({float(v) for v in vars(module).values() if type(v) in (int, float) and v == v})
        for layout, both in (("split", torch.cat([gate, up], -1)), ("interleaved", torch.stack([gate, up], -1))):
            result = module._apply_gate(both.reshape(1, -1))
            for name, parameters, formula in _gated(numbers):
                if _same(result, formula(gate, up)):
                    return Gate(name, parameters, layout)
    except Exception:  # a gate that takes no such values is the module's own
        pass
    return Gate(None, None, "split")


# ---- Preparing a module ----


def _norm(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """What a module may do to experts' rows before they are weighted. After transformers 5.23 it is a method."""
    return getattr(module, "_apply_post_expert", None) or module.post_expert_norm


def _has_norm(module: nn.Module) -> bool:
    if not hasattr(module, "_apply_post_expert"):
        return getattr(module, "has_post_expert_norm", False)
    row = torch.zeros(1)
    try:
        return module._apply_post_expert(row) is not row
    except Exception:  # it takes rows of the module's width
        return True


def _up_name(module: nn.Module) -> str:
    return "gate_up_proj" if module.has_gate else "up_proj"


def _prepared(module: nn.Module) -> Gate:
    """Recognizes the module's gate, and brings transposed weights into the kernels' order.

    A transposed weight keeps its shape [E, K, N] and its values, but lies in memory as [E, N, K]. One weight at a time
    is copied, so that memory for one more is needed meanwhile.
    """
    if module.is_transposed:
        for name in (_up_name(module), "down_proj"):
            weight = getattr(module, name)
            if weight.stride(-2) != 1 and not weight.is_meta:
                weight.data = weight.data.transpose(-2, -1).contiguous().transpose(-2, -1)
    module._moxie_gate = recognize(module)._replace(norm=_has_norm(module))
    return module._moxie_gate


_TORCH = tuple(int(each) for each in torch.__version__.split(".")[:2])

if _TORCH >= (2, 15):
    # Under torch.compile this runs while the module is traced, and its result is a constant of the graph.
    _prepared_in_trace = torch.compiler.assume_constant_result(_prepared)
else:

    def _prepared_in_trace(module: nn.Module) -> Gate:
        raise RuntimeError("call moxie.integrations.transformers.prepare(model), or the model, before torch.compile")


def prepare(model: nn.Module) -> None:
    """Prepares all experts of a model at once. Without it each module is prepared at its first call.

    Wanted before torch.compile where single layers are compiled, since each unprepared one is compiled by itself, and
    with torch before 2.15; and after a change of a gate or of transposed weights.
    """
    for module in model.modules():
        if isinstance(module, Experts):
            module.pack()
        elif hasattr(module, "is_transposed") and hasattr(module, "has_gate"):
            _prepared(module)


# ---- Forward ----


def experts_forward(self: nn.Module, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The experts of a layer: hidden_states [T, H], top_k_index and top_k_weights [T, k] to [T, H]."""
    gate = getattr(self, "_moxie_gate", None)
    if gate is None:
        gate = _prepared_in_trace(self) if torch.compiler.is_compiling() else _prepared(self)
    up, down = getattr(self, _up_name(self)), self.down_proj
    if up.dtype != torch.bfloat16:
        raise ValueError(
            f"experts_implementation is 'moxie', which computes in bf16, but weights are {up.dtype}: load the model "
            "with dtype=torch.bfloat16"
        )
    x = hidden_states.to(torch.bfloat16)
    up_bias = getattr(self, f"{_up_name(self)}_bias") if self.has_bias else None
    down_bias = self.down_proj_bias if self.has_bias else None
    if self.is_transposed:
        up, down = up.transpose(-2, -1), down.transpose(-2, -1)
    if gate.activation is None or gate.norm:
        return _unfused(self, x, top_k_index, top_k_weights, up, down, up_bias, down_bias).to(hidden_states.dtype)
    return ops.experts(
        x,
        top_k_index,
        top_k_weights.to(torch.float32),
        up,
        down,
        b1=up_bias,
        b2=down_bias,
        activation=gate.activation,
        activation_parameters=gate.parameters,
        gate=gate.layout,
    ).to(hidden_states.dtype)


def _unfused(
    self: nn.Module,
    x: Tensor,
    top_k_index: Tensor,
    top_k_weights: Tensor,
    up: Tensor,
    down: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> Tensor:
    """Two grouped products with the module's own gate between them, and its norm behind them where it has one."""
    tokens, top_k = top_k_index.shape
    ids = top_k_index.reshape(-1)
    absent = (ids < 0) | (ids >= self.num_experts)
    sorted_ids, order = torch.sort(torch.where(absent, self.num_experts, ids), stable=True)
    ends = torch.searchsorted(sorted_ids, torch.arange(self.num_experts, device=ids.device), right=True, out_int32=True)
    inner = ops.grouped_mm(
        x, up.transpose(-2, -1), offs=ends, bias=up_bias, gather=order.to(torch.int32), divisor=top_k
    )
    inner = self._apply_gate(inner) if self.has_gate else self.act_fn(inner)
    rows = ops.grouped_mm(inner, down.transpose(-2, -1), offs=ends, bias=down_bias)
    if self._moxie_gate.norm:
        rows = _norm(self)(rows)
    # Rows past the last end are no results.
    rows = torch.empty_like(rows).index_copy_(0, order, rows).masked_fill(absent.unsqueeze(-1), 0)
    weights = top_k_weights.reshape(-1, 1).to(torch.float32)
    return (rows * weights).view(tokens, top_k, -1).sum(dim=1).to(x.dtype)


# ---- GPT-OSS in MXFP4 ----


class Mxfp4Experts(Experts):
    """GPT-OSS's experts, whose weights stay MXFP4."""

    def __init__(self, config: Any) -> None:
        super().__init__(
            config.num_local_experts,
            config.hidden_size,
            config.intermediate_size,
            layout="gpt_oss",
            weights="mxfp4",
            activation_parameters={
                "alpha": getattr(config, "swiglu_alpha", 1.702),
                "limit": getattr(config, "swiglu_limit", 7.0),
            },
        )

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:  # type: ignore
        y = super().forward(hidden_states.to(torch.bfloat16), top_k_index, top_k_weights.to(torch.float32))
        return y.to(hidden_states.dtype)


class MoxieMxfp4Quantizer(Mxfp4HfQuantizer):
    """transformers' quantizer of MXFP4, which leaves the weights to Moxie where experts_implementation is "moxie".

    For other implementations it is transformers' own.
    """

    moxie = False

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        # Whether Triton's kernels are needed depends on the configuration, which comes next.
        self._environment = args, kwargs

    def update_attn_implementation(self, config: Any) -> Any:
        text = config.get_text_config()
        self.moxie = text._experts_implementation == "moxie" and not self.quantization_config.dequantize
        if self.moxie and not self.pre_quantized:
            raise ValueError(
                "experts_implementation is 'moxie', which reads checkpoints in MXFP4, but this one is not: load it "
                "without quantization_config"
            )
        if not self.moxie:
            args, kwargs = self._environment
            super().validate_environment(*args, **kwargs)
        return super().update_attn_implementation(config)

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        return not self.moxie and super().param_needs_quantization(model, param_name, **kwargs)

    def _process_model_before_weight_loading(self, model: Any, use_kernels: bool = False, **kwargs: Any) -> Any:
        if not self.moxie:
            return super()._process_model_before_weight_loading(model, use_kernels=use_kernels, **kwargs)
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP
        from transformers.quantizers.quantizers_utils import should_convert_module

        kept = self.get_modules_to_not_convert(
            model, self.quantization_config.modules_to_not_convert, model._keep_in_fp32_modules
        )
        for name, module in model.named_modules():
            if isinstance(module, GptOssMLP) and should_convert_module(f"{name}.experts", kept):
                with torch.device("meta"):
                    module.experts = Mxfp4Experts(model.config.get_text_config())
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if not self.moxie:
            return super()._process_model_after_weight_loading(model, **kwargs)
        for module in model.modules():
            # A model that is still on the CPU is packed where it is called.
            if isinstance(module, Mxfp4Experts) and _computes(module.gate_up_proj_blocks):
                module.pack()
        return model

    def get_load_operations(self) -> dict:
        # The parameters have the checkpoint's names.
        return {} if self.moxie else super().get_load_operations()

    def get_state_dict_and_metadata(self, model: Any) -> Any:
        return (model.state_dict(), {}) if self.moxie else super().get_state_dict_and_metadata(model)

    @property
    def is_compileable(self) -> bool:
        return self.moxie or super().is_compileable


def _computes(tensor: Tensor) -> bool:
    return tensor.is_cuda or (tensor.device.type == "cpu" and os.environ.get("MOXIE_DEVICE") == "sim")


def register() -> None:
    """Makes experts_implementation="moxie" known to transformers. RuntimeError: transformers is too old."""
    version = tuple(int(each) for each in transformers.__version__.split(".")[:2])
    if version < _OLDEST:
        raise RuntimeError(f"transformers is {transformers.__version__}, but must be 5.23 or newer")
    ALL_EXPERTS_FUNCTIONS.register("moxie", experts_forward)
    AUTO_QUANTIZER_MAPPING["mxfp4"] = MoxieMxfp4Quantizer
