# SPDX-License-Identifier: Apache-2.0
"""The classes that moxie.integrations.vllm makes known to vLLM. Importing them needs vllm 0.33 or newer."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch
from torch import Tensor
from vllm.logger import init_logger
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.fused_moe.activation import ApplyMoEActivationConfig, MoEActivation
from vllm.model_executor.layers.fused_moe.config import (
    FusedMoEConfig,
    FusedMoEParallelConfig,
    FusedMoEQuantConfig,
    mxfp4_w4a16_moe_quant_config,
)
from vllm.model_executor.layers.fused_moe.modular_kernel import (
    FusedMoEActivationFormat,
    FusedMoEExpertsModular,
    TopKWeightAndReduce,
)
from vllm.model_executor.layers.fused_moe.oracle.mxfp4 import (
    Mxfp4MoeBackend,
    _user_moe_activation_override,
    make_mxfp4_moe_kernel,
)
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization import register_quantization_config
from vllm.model_executor.layers.quantization.mxfp4 import (
    GptOssMxfp4Config,
    GptOssMxfp4MoEMethod,
    Mxfp4Config,
    Mxfp4MoEMethod,
)
from vllm.model_executor.layers.quantization.utils.quant_utils import QuantKey, kMxfp4Static
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from moxie import torch as ops

__all__ = ["MoxieExperts", "MoxieMxfp4Experts", "install"]

BASE = FusedMoEExpertsModular
_MOST_CHOSEN = 16
_MOST_EXPERTS = 1024

# Under vLLM's own name, which its log is configured for.
_logger = init_logger("vllm.moxie")


# ---- Activations ----


class _Gate(NamedTuple):
    """What Moxie calls a layer's activation."""

    activation: str
    parameters: tuple[float, ...] | None = None
    layout: str = "split"


_GATES = {
    MoEActivation.GELU_TANH: _Gate("geglu"),
    MoEActivation.SILU_NO_MUL: _Gate("silu"),
    MoEActivation.GELU_NO_MUL: _Gate("gelu_erf"),
    MoEActivation.GELU_TANH_NO_MUL: _Gate("gelu"),
    MoEActivation.RELU2_NO_MUL: _Gate("relu2"),
}
_PARAMETRIC = (
    MoEActivation.SILU,
    MoEActivation.SITU,
    MoEActivation.SWIGLUOAI,
    MoEActivation.SWIGLUOAI_UNINTERLEAVE,
)


def _gate_of(activation: MoEActivation, config: ApplyMoEActivationConfig) -> _Gate | str:
    """The gate of a layer with vLLM's parameters, or what is not supported."""
    limit = config.clamp_limit
    if activation == MoEActivation.SILU:
        return _Gate("swiglu") if limit is None else _Gate("swiglu_clamped", (limit, limit))
    if activation == MoEActivation.SWIGLUOAI:
        # vLLM's kernels have GPT-OSS's numbers in them, and its configuration may say nothing.
        if limit not in (None, 7.0) or config.alpha not in (1.0, 1.702) or config.beta not in (0.0, 1.0):
            return f"swigluoai with alpha {config.alpha}, beta {config.beta} and limit {limit}"
        return _Gate("swiglu_oai", (1.702, 7.0), "interleaved")
    if activation == MoEActivation.SWIGLUOAI_UNINTERLEAVE:
        if limit is None:
            return "swigluoai_uninterleave without a limit"
        if config.beta == 1:
            return _Gate("swiglu_oai", (config.alpha, limit))
        if config.beta == 0 and config.alpha == 1:
            return _Gate("swiglu_clamped", (limit, limit))
        return f"swigluoai_uninterleave with alpha {config.alpha} and beta {config.beta}"
    if activation == MoEActivation.SITU:
        beta, linear_beta = config.activation_situ_beta, config.activation_situ_linear_beta
        if beta is None or linear_beta is None:
            return "situ without both of its parameters"
        return _Gate("situ", (beta, linear_beta))
    return _GATES.get(activation, f"{activation.value} activation")


# ---- Experts ----


def _local_ids(ids: Tensor, expert_map: Tensor) -> Tensor:
    """Ids of this rank's experts, and -1 for all others, whatever they are."""
    known = (ids >= 0) & (ids < expert_map.shape[0])
    return torch.where(known, expert_map[torch.where(known, ids, 0).long()], -1).to(ids.dtype)


class MoxieExperts(FusedMoEExpertsModular):
    """Experts whose weights are bf16: w1 [E, 2 I, H] with a gate, else [E, I, H]; w2 [E, H, I].

    One call of Moxie's layer computes both products, the activation and the weighted sum, so that vLLM has nothing left
    to reduce. Its workspace is vLLM's.
    """

    packed = False

    def __init__(
        self,
        moe_config: FusedMoEConfig,
        quant_config: FusedMoEQuantConfig,
        max_num_tokens: int | None = None,
        num_dispatchers: int | None = None,
    ) -> None:
        super().__init__(moe_config, quant_config, max_num_tokens, num_dispatchers)
        gate = _gate_of(moe_config.activation, self.activation_config)
        if isinstance(gate, str):
            raise ValueError(f"Moxie's experts do not support {gate}")
        self._gate = gate
        # An expert map that is no more than an offset, which the layer knows itself.
        self._offset_map: Tensor | None = None
        self._first_expert = 0
        self._workspace_bytes: dict[tuple[int, ...], int] = {}

    # ---- What vLLM asks before it chooses ----

    @staticmethod
    def activation_format() -> FusedMoEActivationFormat:
        return FusedMoEActivationFormat.Standard

    @staticmethod
    def is_supported_config(
        cls: type[FusedMoEExpertsModular],
        moe_config: FusedMoEConfig,
        weight_key: QuantKey | None,
        activation_key: QuantKey | None,
        activation_format: FusedMoEActivationFormat,
    ) -> tuple[bool, str | None]:
        supported, reason = FusedMoEExpertsModular.is_supported_config(
            cls, moe_config, weight_key, activation_key, activation_format
        )
        if not supported:
            return supported, reason
        defaults = FusedMoEQuantConfig.make()
        gate = _gate_of(moe_config.activation, ApplyMoEActivationConfig.from_configs(moe_config, defaults))
        width = moe_config.intermediate_size_per_partition
        if isinstance(gate, str):
            reason = gate
        elif moe_config.in_dtype != torch.bfloat16:
            reason = f"{moe_config.in_dtype}, but bfloat16 alone"
        elif moe_config.experts_per_token > _MOST_CHOSEN:
            reason = f"{moe_config.experts_per_token} experts of a token, but up to {_MOST_CHOSEN}"
        elif moe_config.num_local_experts > _MOST_EXPERTS:
            reason = f"{moe_config.num_local_experts} experts of a GPU, but up to {_MOST_EXPERTS}"
        elif cls.weight_key() is None and width % 8:  # type: ignore[attr-defined]
            reason = f"a width of {width}, but multiples of 8"
        return reason is None, None if reason is None else f"kernel does not support {reason}"

    @staticmethod
    def weight_key() -> QuantKey | None:
        """The format of the weights; None: they are not quantized."""
        return None

    @staticmethod
    def _supports_current_device() -> bool:
        if current_platform.is_cuda():
            return current_platform.is_device_capability(90)
        return os.environ.get("MOXIE_DEVICE") == "sim"

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return True

    @staticmethod
    def _supports_quant_scheme(weight_key: QuantKey | None, activation_key: QuantKey | None) -> bool:
        return weight_key is None and activation_key is None

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation in _GATES or activation in _PARAMETRIC

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: FusedMoEParallelConfig) -> bool:
        # What exchanges tokens between ranks, or moves experts, has not been tried.
        return not moe_parallel_config.use_all2all_kernels and not moe_parallel_config.enable_eplb

    @staticmethod
    def _supports_shape(hidden_dim: int) -> bool:
        return hidden_dim % 8 == 0

    # ---- What vLLM asks of a layer ----

    def finalize_weight_and_reduce_impl(self) -> TopKWeightAndReduce:
        return TopKWeightAndReduceNoOP()

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        expert_map = getattr(layer, "expert_map", None)
        self._offset_map = None
        self._first_expert = 0
        self._workspace_bytes = {}
        if expert_map is None:
            return
        ours = expert_map.tolist()
        first = next((i for i, local in enumerate(ours) if local == 0), None)
        if first is not None and ours == _offset_map(len(ours), first, sum(local >= 0 for local in ours)):
            self._offset_map, self._first_expert = expert_map, first

    def workspace_shapes(
        self,
        M: int,
        N: int,
        K: int,
        topk: int,
        global_num_experts: int,
        local_num_experts: int,
        expert_tokens_meta: Any,
        activation: MoEActivation,
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        sizes = M, N, K, topk, global_num_experts, local_num_experts
        nbytes = self._workspace_bytes.get(sizes)
        if nbytes is None:
            nbytes = self._workspace_bytes[sizes] = self._most_workspace(*sizes)
        # The output may lie in the first workspace.
        return (0,), ((nbytes + 1) // 2,), (M, K)

    def _most_workspace(self, tokens: int, rows: int, hidden: int, top_k: int, everywhere: int, here: int) -> int:
        """The most bytes that a call of up to so many tokens wants.

        vLLM makes its largest call first, and lets its workspace grow no more once it has captured its graphs, so that
        a smaller call that wanted more would end it. By this, what smaller calls run is compiled with the largest.
        """
        where = self._where()
        width = self.adjust_N_for_activation(rows, self.moe_config.activation)
        biases = self.w1_bias is not None, self.w2_bias is not None
        return max(
            ops.experts_workspace_bytes(
                where, most, here, top_k, hidden, width, self.packed, *biases, False, torch.bfloat16, torch.int32,
                *self._gate, self._first_expert, _all_experts(everywhere, here),
            )
            for most in ops.token_ranges(tokens)
        )  # fmt: skip

    def _where(self) -> Any:
        if torch.device(self.moe_config.device).type == "cpu":
            return ops._Simulator()
        return ops._Gpu.at_index(torch.cuda.current_device())

    def apply(
        self,
        output: Tensor,
        hidden_states: Tensor,
        w1: Tensor,
        w2: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: Tensor | None,
        a1q_scale: Tensor | None,
        a2_scale: Tensor | None,
        workspace13: Tensor,
        workspace2: Tensor,
        expert_tokens_meta: Any,
        apply_router_weight_on_input: bool,
    ) -> None:
        if activation != self.moe_config.activation:
            raise ValueError(f"activation is {activation}, but the layer was made for {self.moe_config.activation}")
        if self.post_gemm2_hook is not None:
            raise NotImplementedError("post_gemm2_hook is set, but Moxie's experts do the weighted sum themselves")
        first = self._first_expert if expert_map is self._offset_map else 0
        if expert_map is not None and expert_map is not self._offset_map:
            topk_ids = _local_ids(topk_ids, expert_map)
        ops.experts_into(
            output,
            workspace2,
            hidden_states,
            topk_ids,
            # vLLM has multiplied the tokens already where the weights are applied on the input.
            None if apply_router_weight_on_input else topk_weights.to(torch.float32),
            w1,
            w2,
            self.w1_bias,
            self.w2_bias,
            None,
            *self._gate,
            first,
            _all_experts(global_num_experts, w1.shape[0]),
            None,
        )


def _offset_map(length: int, first: int, count: int) -> list[int]:
    return [i - first if first <= i < first + count else -1 for i in range(length)]


def _all_experts(everywhere: int, here: int) -> int | None:
    return everywhere if everywhere > here else None


class MoxieMxfp4Experts(MoxieExperts):
    """Experts whose weights are MXFP4, packed for Moxie's kernels: w1 and w2 are uint8 [E, bytes]."""

    packed = True

    @staticmethod
    def weight_key() -> QuantKey | None:
        return kMxfp4Static

    @staticmethod
    def _supports_quant_scheme(weight_key: QuantKey | None, activation_key: QuantKey | None) -> bool:
        return weight_key == kMxfp4Static and activation_key is None

    @staticmethod
    def _supports_shape(hidden_dim: int) -> bool:
        return hidden_dim % 32 == 0

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Packs, one of the two weights at a time, and releases the checkpoint's order and its scales."""
        super().process_weights_after_loading(layer)
        gated = self.moe_config.activation.is_gated
        for name, gate in (("w13", self._gate.layout if gated else None), ("w2", None)):
            codes, scales = getattr(layer, f"{name}_weight"), getattr(layer, f"{name}_weight_scale")
            packed = ops.pack_weights(codes.data, scales.data, gate=gate)
            replace_parameter(layer, f"{name}_weight", packed)
            replace_parameter(layer, f"{name}_weight_scale", scales.data.new_empty(scales.shape[0], 0))

    def moe_problem_size(
        self, a1: Tensor, w1: Tensor, w2: Tensor, topk_ids: Tensor
    ) -> tuple[int, int, int, int, int]:
        tokens, hidden = a1.shape
        return w1.shape[0], tokens, ops._packed_rows(w1, hidden), hidden, topk_ids.shape[1]


# ---- How vLLM comes to them ----


def _suits(experts: type[MoxieExperts], moe: FusedMoEConfig, activation_key: QuantKey | None = None) -> bool:
    """Whether a layer gets Moxie's experts, which the log says. activation_key: what tokens are to be quantized to."""
    if moe.moe_backend != "auto":
        reason: str | None = f"moe_backend is {moe.moe_backend!r}"
    else:
        batched = moe.moe_parallel_config.use_batched_activation_format
        format = FusedMoEActivationFormat.BatchedExperts if batched else FusedMoEActivationFormat.Standard
        _, reason = experts.is_supported_config(experts, moe, experts.weight_key(), activation_key, format)
    if reason is None:
        _logger.info_once("Using %s of Moxie.", experts.__name__)
    else:
        _logger.warning_once("MOXIE_VLLM is 1, but experts stay vLLM's own: %s.", reason)
    return reason is None


class MoxieUnquantizedMethod(UnquantizedFusedMoEMethod):
    """vLLM's method of unquantized experts, with Moxie's where they suit."""

    def __init__(self, moe: FusedMoEConfig) -> None:
        super().__init__(moe)
        if _suits(MoxieExperts, moe):
            # Triton's weights lie as Moxie's do, as they are loaded.
            self.unquantized_backend, self.experts_cls = UnquantizedMoeBackend.TRITON, MoxieExperts


class _Mxfp4Method:
    """What vLLM's two methods of MXFP4 experts have in common here."""

    def __init__(self, moe: FusedMoEConfig, *more: Any, **named: Any) -> None:
        super().__init__(moe, *more, **named)
        activation_key = getattr(self, "activation_key", None) or _user_moe_activation_override()
        self.moxie = _suits(MoxieMxfp4Experts, moe, activation_key)
        if self.moxie:
            # The backend with bf16 activations that takes the checkpoint's weights and sizes as they are.
            self.mxfp4_backend, self.experts_cls = Mxfp4MoeBackend.B12X_MXFP4_BF16, MoxieMxfp4Experts
            self.supports_pre_processed_weights = False

    def maybe_roundup_sizes(self, *sizes: Any, **named: Any) -> tuple[int, int]:
        hidden, width = super().maybe_roundup_sizes(*sizes, **named)  # type: ignore[misc]
        # A slice of tensor parallelism may end within a scale's 32 values.
        return hidden, -(-width // 32) * 32 if self.moxie else width

    def _setup_kernel(self, layer: Any, *weights: Tensor | None) -> None:
        if not self.moxie:
            super()._setup_kernel(layer, *weights)  # type: ignore[misc]
            return
        # Without scales, which the packed weights hold.
        theirs = super().get_fused_moe_quant_config(layer)  # type: ignore[misc]
        self.moe_quant_config = mxfp4_w4a16_moe_quant_config(
            None,
            None,
            theirs.w1_bias,
            theirs.w2_bias,
            theirs.gemm1_alpha,
            theirs.gemm1_beta,
            theirs.gemm1_clamp_limit,
        )
        self.moe_kernel = make_mxfp4_moe_kernel(
            moe_quant_config=self.moe_quant_config,
            moe_config=self.moe,  # type: ignore[attr-defined]
            experts_cls=self.experts_cls,
            mxfp4_backend=self.mxfp4_backend,
            routing_tables=layer._expert_routing_tables(),
        )
        self.moe_kernel.fused_experts.process_weights_after_loading(layer)

    def get_fused_moe_quant_config(self, layer: Any) -> FusedMoEQuantConfig | None:
        return self.moe_quant_config if self.moxie else super().get_fused_moe_quant_config(layer)  # type: ignore[misc]


class MoxieGptOssMxfp4Method(_Mxfp4Method, GptOssMxfp4MoEMethod):
    """vLLM's method of GPT-OSS's MXFP4 experts, with Moxie's where they suit."""


class MoxieMxfp4Method(_Mxfp4Method, Mxfp4MoEMethod):
    """vLLM's method of other MXFP4 experts, with Moxie's where they suit."""


class MoxieGptOssMxfp4Config(GptOssMxfp4Config):
    def _make_moe_method(self, moe: FusedMoEConfig) -> Any:
        return MoxieGptOssMxfp4Method(moe)


class MoxieMxfp4Config(Mxfp4Config):
    def _make_moe_method(self, moe: FusedMoEConfig) -> Any:
        return MoxieMxfp4Method(moe)


def install() -> None:
    """Gives the classes to vLLM. RuntimeError: another plugin has replaced the same method."""
    name = UnquantizedFusedMoEMethod.__name__
    present = op_registry_oot.get(name)
    if present is MoxieUnquantizedMethod:
        return
    if present is not None:
        raise RuntimeError(f"MOXIE_VLLM is 1, but another plugin has replaced vLLM's {name} by {present.__name__}")
    UnquantizedFusedMoEMethod.register_oot(MoxieUnquantizedMethod)
    register_quantization_config("gpt_oss_mxfp4")(MoxieGptOssMxfp4Config)
    register_quantization_config("mxfp4")(MoxieMxfp4Config)
