# SPDX-License-Identifier: Apache-2.0
"""Mixture-of-Experts matrix products for NVIDIA GPUs, and a simulator of them."""

from importlib import import_module as _import_module
from typing import Any as _Any

from moxie._arrays import DeviceArray, Quantized, from_bf16, to_bf16
from moxie._describe import Batched, Dense, KGroups, Masked, Offsets, Pointers, RowGroups
from moxie._device import Device, DeviceInfo, Memory, devices
from moxie._formats import (
    dequantize,
    find_tensor_scale,
    pack_weights,
    packed_weight_bytes,
    quantize,
    unpack_weights,
)
from moxie._gemm import GroupedGemm
from moxie._layer import ExpertLayer, Ranks, Router
from moxie._library import lib as _lib
from moxie._library import text as _text
from moxie._plan import Plan, PlanCandidate, RankCosts, plan, rank_costs
from moxie._routing import combine, permute, route, sort_by_expert
from moxie._selftest import selftest

__version__ = _text(_lib.moxie_version())

__all__ = [
    "Batched",
    "Dense",
    "Device",
    "DeviceArray",
    "DeviceInfo",
    "ExpertLayer",
    "GroupedGemm",
    "KGroups",
    "Masked",
    "Memory",
    "Offsets",
    "Plan",
    "PlanCandidate",
    "Pointers",
    "Quantized",
    "RankCosts",
    "Ranks",
    "Router",
    "RowGroups",
    "__version__",
    "combine",
    "dequantize",
    "devices",
    "find_tensor_scale",
    "from_bf16",
    "pack_weights",
    "packed_weight_bytes",
    "permute",
    "plan",
    "quantize",
    "rank_costs",
    "route",
    "selftest",
    "sort_by_expert",
    "to_bf16",
    "unpack_weights",
]

# These need torch, which is imported when they are asked for.
_OF_TORCH = ("experts", "grouped_mm")


def __getattr__(name: str) -> _Any:
    if name in ("distributed", "nn", "torch"):
        return _import_module(f"moxie.{name}")
    if name not in _OF_TORCH:
        raise AttributeError(f"module 'moxie' has no attribute {name!r}")
    # Kept: to come here at every call would cost more than to make it.
    globals()[name] = getattr(_import_module("moxie.torch"), name)
    return globals()[name]
