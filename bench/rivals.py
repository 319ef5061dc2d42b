# SPDX-License-Identifier: Apache-2.0
"""What users would take in Moxie's place, from PyTorch, cuBLASLt and Triton, as contenders of peers.py. Preparations
that depend on the routing (the expert of each row, lists of blocks, sizes on the host) are made beforehand and not
timed, to their advantage."""

from __future__ import annotations

import functools

import torch

from contenders import ACTIVATIONS, ALPHA, LIMIT, Refused, Tensors, activate, fastest
from cublaslt import CublasLt


@functools.cache
def compiled_epilogue(activation: str, has_bias: bool, store_pre: bool, store_out: bool):
    """(d, bias [groups, n] or None, group of each row) -> the results, compiled by PyTorch into one kernel."""

    def epilogue(d, bias, ids):
        x = d.float()
        if has_bias:
            x = x + bias[ids].float()
        results = {}
        if store_pre:
            results["pre"] = x.to(torch.bfloat16)
        if store_out:
            results["out"] = activate(x, activation).to(torch.bfloat16)
        return results

    torch._dynamo.config.recompile_limit = 64
    return torch.compile(epilogue)


class Epilogue:
    """The kernel after the product, or nothing where the product is the result."""

    def __init__(self, tensors: Tensors, bias_done: bool = False) -> None:
        shape, self.tensors = tensors.shape, tensors
        has_bias = shape.bias and not bias_done
        self.bias = tensors.bias if has_bias else None
        self.nothing = not has_bias and (shape.activation == "none" or not shape.out)
        self.pre_done = shape.pre and not has_bias
        if not self.nothing:
            self.run = compiled_epilogue(shape.activation, has_bias, shape.pre and has_bias, shape.out)

    def __call__(self, d: torch.Tensor, turn: int) -> dict[str, torch.Tensor]:
        shape = self.tensors.shape
        if self.nothing:
            return {name: d for name in ("pre", "out") if getattr(shape, name)}
        if d.shape[0] > 1:
            torch._dynamo.maybe_mark_dynamic(d, 0)
            torch._dynamo.maybe_mark_dynamic(self.tensors.ids[turn], 0)
        results = dict(self.run(d, self.bias, self.tensors.ids[turn]))
        if self.pre_done:
            results["pre"] = d
        return results


class TorchGrouped:
    """PyTorch's grouped_mm, then bias and activation compiled by PyTorch."""

    kind = "peer"

    def make(self, tensors: Tensors):
        return TorchGroupedRun(tensors)


class TorchGroupedRun:
    def __init__(self, tensors: Tensors) -> None:
        self.tensors, self.epilogue = tensors, Epilogue(tensors)
        public = getattr(torch.nn.functional, "grouped_mm", None)
        self.grouped_mm = public or torch._grouped_mm
        self.detail = "torch.nn.functional.grouped_mm" if public else "torch._grouped_mm"
        self.last: dict[str, torch.Tensor] = {}

    def run(self, turn: int) -> None:
        t = turn % self.tensors.turns
        d = self.grouped_mm(self.tensors.a[t], self.tensors.b[t].transpose(-2, -1), offs=self.tensors.ends[t])
        self.last = self.epilogue(d, t)

    def results(self) -> dict[str, torch.Tensor]:
        return self.last


class CublasLtGroups:
    """One cuBLASLt call a group, which adds the bias, on four streams; then the activation compiled by PyTorch."""

    kind = "peer"

    def __init__(self) -> None:
        self.lt = CublasLt()
        self.streams = [torch.cuda.Stream() for _ in range(4)]

    def make(self, tensors: Tensors):
        return CublasLtGroupsRun(self.lt, self.streams, tensors)


class CublasLtGroupsRun:
    def __init__(self, lt: CublasLt, streams: list, tensors: Tensors) -> None:
        shape, self.tensors, self.streams = tensors.shape, tensors, streams
        self.epilogue = Epilogue(tensors, bias_done=True)
        self.d = [torch.empty(shape.rows, shape.n, device="cuda", dtype=torch.bfloat16) for _ in range(tensors.turns)]
        self.detail = "its first heuristic, 4 streams"
        products: dict[int, object] = {}
        self.calls = []
        for t in range(tensors.turns):
            calls, first = [], 0
            for g, end in enumerate(tensors.host_ends[t].tolist()):
                rows = end - first
                if rows > 0:
                    if rows not in products:
                        products[rows] = lt.product(rows, shape.n, shape.k, shape.bias, alignment=16)
                    calls.append(
                        (
                            products[rows],
                            tensors.a[t].data_ptr() + 2 * first * shape.k,
                            tensors.b[t].data_ptr() + 2 * g * shape.n * shape.k,
                            self.d[t].data_ptr() + 2 * first * shape.n,
                            tensors.bias.data_ptr() + 2 * g * shape.n if tensors.bias is not None else 0,
                        )
                    )
                first = end
            calls.sort(key=lambda call: id(call[0]))  # so that every stream gets some of each size
            self.calls.append(calls)
        self.last: dict[str, torch.Tensor] = {}

    def run(self, turn: int) -> None:
        t = turn % self.tensors.turns
        current, calls = torch.cuda.current_stream(), self.calls[t]
        streams = self.streams[: len(calls)] if len(calls) > 1 else []
        for stream in streams:
            stream.wait_stream(current)
        for i, (product, a, b, d, bias) in enumerate(calls):
            with torch.cuda.stream(streams[i % len(streams)] if streams else current):
                product.run(a, b, d, bias)
        for stream in streams:
            current.wait_stream(stream)
        self.last = self.epilogue(self.d[t], t)

    def results(self) -> dict[str, torch.Tensor]:
        return self.last


class Triton:
    """triton_grouped.py, the fastest of a few configurations."""

    kind = "peer"

    def __init__(self) -> None:
        import triton_grouped

        self.module = triton_grouped

    def make(self, tensors: Tensors):
        m = self.module
        shape = tensors.shape
        rows = shape.rows / max(1.0, sum(tensors.active) / tensors.turns)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        runs, why = [], ""
        for config, pdl in m.configurations(rows):
            try:
                launch = m.Launch(tensors, config, pdl, ACTIVATIONS[shape.activation], ALPHA, LIMIT, sms)
                launch.run(0)  # compiles
                torch.cuda.synchronize()
                runs.append(TritonRun(launch, tensors, config, pdl))
            except Exception as error:  # a configuration that needs more than the device has
                why = f"{type(error).__name__}: {error}"
        if not runs:
            raise Refused(why)
        return fastest(runs, tensors.turns)


class TritonRun:
    def __init__(self, launch, tensors: Tensors, config: tuple, pdl: bool) -> None:
        self.launch, self.tensors, self.turn = launch, tensors, 0
        self.detail = "{}x{}x{}, {} stages, {} warps, {} a multiprocessor".format(*config) + (", PDL" if pdl else "")

    def run(self, turn: int) -> None:
        self.turn = turn
        self.launch.run(turn)

    def results(self) -> dict[str, torch.Tensor]:
        return self.tensors.outputs(self.turn)


MAKERS = {"torch-grouped": TorchGrouped, "cublaslt-groups": CublasLtGroups, "triton": Triton}
