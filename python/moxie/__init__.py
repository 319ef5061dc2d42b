# SPDX-License-Identifier: Apache-2.0
"""Mixture-of-Experts matrix products for NVIDIA GPUs, and a simulator of them."""

from moxie._describe import Batched, Dense, KGroups, Masked, Offsets, Pointers, RowGroups
from moxie._device import Device, DeviceInfo, devices
from moxie._gemm import GroupedGemm
from moxie._layer import ExpertLayer, Router
from moxie._library import lib as _lib
from moxie._library import text as _text

__version__ = _text(_lib.moxie_version())

__all__ = [
    "Batched",
    "Dense",
    "Device",
    "DeviceInfo",
    "ExpertLayer",
    "GroupedGemm",
    "KGroups",
    "Masked",
    "Offsets",
    "Pointers",
    "RowGroups",
    "Router",
    "__version__",
    "devices",
]
