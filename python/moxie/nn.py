# SPDX-License-Identifier: Apache-2.0
"""Modules of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from moxie import torch as ops

__all__ = ["Experts"]

# How checkpoints name and order what an expert has: gate and up of a row of the first weight, whether bf16 weights are
# stored [E, K, N], and the activation.
_LAYOUTS = {"qwen3": ("split", False, "swiglu", False), "gpt_oss": ("interleaved", True, "swiglu_oai", True)}
# Names of one expert's weights: gate, up, down.
_SINGLE = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


class Experts(torch.nn.Module):
    """The experts of a Mixture-of-Experts layer, with the names that checkpoints have.

    E experts, H hidden, I width. layout:

    - "qwen3" (Qwen3-MoE, Mixtral, DeepSeek-V3, OLMoE...): gate_up_proj [E, 2 I, H], gate before up, down_proj
      [E, H, I], SwiGLU, no bias. A state dict with a tensor for each expert, such as 0.gate_proj.weight or 0.w1.weight,
      loads as well.
    - "gpt_oss": gate_up_proj [E, H, 2 I], gate and up interleaved, down_proj [E, I, H], gate_up_proj_bias [E, 2 I] and
      down_proj_bias [E, H], GPT-OSS's SwiGLU. The parameters have these shapes, and lie in memory as [E, 2 I, H] and
      [E, H, I], which is what kernels read; so there is one copy of them.

    weights: "bf16", or "mxfp4": gate_up_proj_blocks [E, 2 I, H / 32, 16], gate_up_proj_scales [E, 2 I, H / 32],
    down_proj_blocks and down_proj_scales, uint8, in either layout. They are packed for the kernels by `pack`, or at the
    first call, which releases them; a state dict gets them back, to the last bit.

    activation, activation_parameters, gate and bias stand for the layout's where they are None. first_expert,
    all_experts: as for moxie.experts. There is no backward yet, so the parameters require no gradient.
    """

    def __init__(
        self,
        experts: int,
        hidden: int,
        width: int,
        *,
        layout: str = "qwen3",
        weights: str = "bf16",
        activation: str | None = None,
        activation_parameters: Mapping[str, float] | None = None,
        gate: str | None = None,
        bias: bool | None = None,
        first_expert: int = 0,
        all_experts: int | None = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        if layout not in _LAYOUTS:
            raise ValueError(f"layout is {layout!r}, but must be 'qwen3' or 'gpt_oss'")
        if weights not in ("bf16", "mxfp4"):
            raise ValueError(f"weights is {weights!r}, but must be 'bf16' or 'mxfp4'")
        its_gate, transposed, its_activation, its_bias = _LAYOUTS[layout]
        self.num_experts, self.hidden, self.width = experts, hidden, width
        self.layout, self.weights, self.transposed = layout, weights, transposed
        self.activation = activation or its_activation
        self.activation_parameters = dict(activation_parameters) if activation_parameters is not None else None
        self.gate = gate or its_gate
        self.first_expert, self.all_experts = first_expert, all_experts
        self.up_rows = 2 * width if self.activation in ops._GATED else width
        self.has_bias = its_bias if bias is None else bias
        if self.has_bias:
            self._add("gate_up_proj_bias", torch.zeros(experts, self.up_rows, dtype=torch.bfloat16, device=device))
            self._add("down_proj_bias", torch.zeros(experts, hidden, dtype=torch.bfloat16, device=device))
        self.register_buffer("gate_up_packed", None, persistent=False)
        self.register_buffer("down_packed", None, persistent=False)
        if weights == "mxfp4":
            self._add_blocks(device)
            return
        for name, n, k in self._products():
            stored = torch.zeros(experts, n, k, dtype=torch.bfloat16, device=device)
            self._add(name, stored.transpose(1, 2) if transposed else stored)

    def _add(self, name: str, value: Tensor) -> None:
        self.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))

    def _products(self) -> tuple[tuple[str, int, int], ...]:
        return ("gate_up_proj", self.up_rows, self.hidden), ("down_proj", self.hidden, self.width)

    def _add_blocks(self, device: Any) -> None:
        for name, n, k in self._products():
            for part, shape in (("blocks", (n, k // 32, 16)), ("scales", (n, k // 32))):
                self._add(f"{name}_{part}", torch.zeros(self.num_experts, *shape, dtype=torch.uint8, device=device))

    def extra_repr(self) -> str:
        return (
            f"{self.num_experts} experts, hidden {self.hidden}, width {self.width}, {self.weights}, {self.layout}, "
            f"{self.activation}"
        )

    @property
    def packed(self) -> bool:
        """Whether MXFP4 weights are in the kernels' order."""
        return self.gate_up_packed is not None

    def pack(self) -> None:
        """Brings MXFP4 weights into the kernels' order, one of the two weights at a time, and releases the others."""
        if self.weights != "mxfp4" or self.packed:
            return
        for name, gate in (("gate_up_proj", self._gate_of_pack()), ("down_proj", None)):
            blocks, scales = getattr(self, f"{name}_blocks"), getattr(self, f"{name}_scales")
            packed = ops.pack_weights(blocks.detach(), scales.detach(), gate=gate)
            del blocks, scales
            delattr(self, f"{name}_blocks")
            delattr(self, f"{name}_scales")
            setattr(self, name.replace("_proj", "_packed"), packed)

    def _gate_of_pack(self) -> str | None:
        return self.gate if self.activation in ops._GATED else None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.packed:
            return
        for name, gate in (("gate_up_proj", self._gate_of_pack()), ("down_proj", None)):
            packed = getattr(self, name.replace("_proj", "_packed"))
            n, k = next((n, k) for each, n, k in self._products() if each == name)
            codes, scales = ops.unpack_weights(packed, n, k, gate=gate)
            destination[f"{prefix}{name}_blocks"] = codes.view(self.num_experts, n, k // 32, 16)
            destination[f"{prefix}{name}_scales"] = scales

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        if self.packed and f"{prefix}gate_up_proj_blocks" in state_dict:
            device = self.gate_up_packed.device
            self.gate_up_packed = self.down_packed = None
            self._add_blocks(device)
        own = self._own()
        for gate, up, down in _SINGLE:
            if self.transposed or not own or f"{prefix}{own[0]}.{down}.weight" not in state_dict:
                continue

            def take(name: str) -> Tensor:
                return torch.stack([state_dict.pop(f"{prefix}{e}.{name}.weight") for e in own])

            state_dict[f"{prefix}gate_up_proj"] = torch.cat([take(gate), take(up)], dim=1)
            state_dict[f"{prefix}down_proj"] = take(down)
        super()._load_from_state_dict(state_dict, prefix, *more)

    def _own(self) -> Sequence[int]:
        """Which of a checkpoint's experts these are."""
        return range(self.num_experts)

    def _operands(self) -> tuple[Tensor, Tensor]:
        if self.weights == "mxfp4":
            if not self.packed:
                self.pack()
            return self.gate_up_packed, self.down_packed
        if self.transposed:
            return self.gate_up_proj.transpose(1, 2), self.down_proj.transpose(1, 2)
        return self.gate_up_proj, self.down_proj

    def forward(
        self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """y [T, H] of x [T, H], topk_ids [T, k], topk_weights [T, k] or None, and a residual [T, H]: moxie.experts."""
        w1, w2 = self._operands()
        return ops.experts(
            x,
            topk_ids,
            topk_weights,
            w1,
            w2,
            b1=self.gate_up_proj_bias if self.has_bias else None,
            b2=self.down_proj_bias if self.has_bias else None,
            activation=self.activation,
            activation_parameters=self.activation_parameters,
            gate=self.gate,
            residual=residual,
            first_expert=self.first_expert,
            all_experts=self.all_experts,
        )

    def warm_up(self, *tokens: int, top_k: int, id_type: torch.dtype = torch.int64) -> None:
        """Plans and compiles what calls of so many tokens need, and packs: before a CUDA graph is captured."""
        w1, w2 = self._operands()
        with torch.no_grad():
            for count in tokens:
                x = torch.zeros(count, self.hidden, dtype=torch.bfloat16, device=w1.device)
                self(x, torch.full((count, top_k), -1, dtype=id_type, device=w1.device), None)
