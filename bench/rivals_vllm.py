# SPDX-License-Identifier: Apache-2.0
"""vLLM's Triton kernel for experts in bf16 with its tuned configurations, as a contender of layers.py.

It is no part of this project. Of vLLM's wheel (0.33.0 was run) it takes the file fused_moe.py and the folder configs/
beside it, by --peer-path FOLDER: FOLDER/vllm/model_executor/layers/fused_moe/. The rest of vLLM needs a PyTorch of one
version, so what the file imports of it is stood in for. A layer is two launches of the kernel, as fused_experts_impl()
makes them. PyTorch compiles what vLLM has kernels of its own for: the activation and the sum over a token's choices.
Which block has which pairs is made beforehand and not timed; vLLM has a kernel for that, too."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types

import torch
import triton
import triton.language as tl

FILE = "vllm/model_executor/layers/fused_moe/fused_moe.py"


class Nothing:
    """Stands for anything: it may be called, asked for attributes and joined to types, and is false."""

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __bool__(self) -> bool:
        return False

    def __or__(self, other):
        return self

    __ror__ = __or__


class StandIn(types.ModuleType):
    __path__: list[str] = []

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "vllm":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module) -> None:
        if module.__name__ == "vllm.triton_utils":
            module.triton, module.tl = triton, tl
        if module.__name__ == "vllm.envs":
            module.VLLM_TUNED_CONFIG_FOLDER = None


@functools.cache
def fused_moe():
    """The module that the file is, found by sys.path."""
    found = [path for folder in sys.path if (path := pathlib.Path(folder) / FILE).exists()]
    if not found:
        raise ImportError(f"no {FILE} in --peer-path")
    finder = StandInFinder()
    sys.meta_path.insert(0, finder)
    try:
        spec = importlib.util.spec_from_file_location("fused_moe_of_vllm", found[0])
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        importlib.import_module("vllm.model_executor.layers.fused_moe")  # imported by one of its functions
    finally:
        sys.meta_path.remove(finder)
    module.get_device_name_as_file_name = lambda: torch.cuda.get_device_name().replace(" ", "_")
    module.resolve_moe_use_td = lambda: False
    module.next_power_of_2 = triton.next_power_of_2
    return module


def assign_blocks(ids: torch.Tensor, block: int, experts: int):
    """What vLLM's moe_align_block_size gives: pairs sorted by expert, those of each padded to whole blocks, the expert
    of every block, and how many places that makes. Pairs of experts from `experts` on are left out. Sizes are the most
    that any routing could need."""
    pairs = ids.flatten().long()
    counts = torch.bincount(pairs[pairs < experts], minlength=experts)
    blocks = (counts + block - 1) // block
    most = len(pairs) + experts * (block - 1)
    if len(pairs) < experts:
        most = min(most, len(pairs) * block)
    order = torch.argsort(pairs, stable=True)[: int(counts.sum())]
    expert = pairs[order]
    rank = torch.arange(len(order), device=ids.device) - (counts.cumsum(0) - counts)[expert]
    sorted_ids = torch.full((most,), len(pairs), dtype=torch.int32, device=ids.device)
    sorted_ids[((blocks.cumsum(0) - blocks) * block)[expert] + rank] = order.int()
    of_block = torch.full((triton.cdiv(most, block),), -1, dtype=torch.int32, device=ids.device)
    used = torch.repeat_interleave(torch.arange(experts, device=ids.device), blocks)
    of_block[: len(used)] = used.int()
    return sorted_ids, of_block, (blocks.sum() * block).int().reshape(1)


class Experts:
    """up [E, 2 I, H], down [E, H, I] and their biases, which may be None. `activation` makes [P, I] of [P, 2 I]."""

    def __init__(self, up, down, up_bias, down_bias, activation, all_here: bool) -> None:
        self.vllm = fused_moe()
        self.up, self.down, self.biases = up, down, (up_bias, down_bias)
        self.activation = torch.compile(activation, dynamic=True)
        self.sum = torch.compile(self.sum_of, dynamic=True)
        self.all_here = all_here
        self.prepared: dict[int, tuple] = {}

    @staticmethod
    def sum_of(rows: torch.Tensor, here: torch.Tensor | None) -> torch.Tensor:
        return (rows if here is None else rows.where(here, 0)).sum(1)

    def prepare(self, ids: torch.Tensor):
        key = ids.data_ptr()
        if key not in self.prepared:
            tokens, top = ids.shape
            experts = len(self.up)
            config = self.vllm.try_get_optimal_moe_config(self.up.shape, self.down.shape, top, None, tokens)
            block = config["BLOCK_SIZE_M"]
            if self.all_here and tokens * top * 4 <= experts:  # a block for each pair
                places = torch.full((1,), ids.numel() * block, dtype=torch.int32, device=ids.device)
                assigned = None, ids.flatten().int(), places
            else:
                assigned = assign_blocks(ids, block, experts)
            here = None if self.all_here else (ids < experts).unsqueeze(-1)
            self.prepared[key] = config, assigned, here
        return self.prepared[key]

    def product(self, x, weight, bias, scores, assigned, config, top: int, pairs: int) -> torch.Tensor:
        out = x.new_empty(pairs // top, top, weight.shape[1])
        self.vllm.invoke_fused_moe_triton_kernel(
            x, weight, out, None, None, scores, *assigned, scores is not None, top, config, tl.bfloat16,
            False, False, False, False, False, None, bias,
        )  # fmt: skip
        return out.flatten(0, 1)

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        config, assigned, here = self.prepare(ids)
        tokens, top = ids.shape
        pairs = ids.numel()
        both = self.product(x, self.up, self.biases[0], None, assigned, config, top, pairs)
        inner = self.activation(both)
        rows = self.product(inner, self.down, self.biases[1], scores, assigned, config, 1, pairs)
        return self.sum(rows.view(tokens, top, -1), here)
