# SPDX-License-Identifier: Apache-2.0
"""What users would take in Moxie's place for MXFP4 weights with bf16 activations on Hopper, as contenders of peers.py.
Their packages are no part of this project; each is imported where it is found (peers.py --peer-path FOLDER):

    gpt_oss_triton_kernels/    kernels-community/gpt-oss-triton-kernels, folder torch-ext, which transformers runs
    triton_kernels/            the wheel tokenspeed-triton-kernels, Triton's own kernels by their later interface
    humming/                   the wheel humming-kernels

Weights are brought to a peer's layout once and not timed. What depends on the routing (counts, offsets, which block has
which expert) is made beforehand too, and rows are sorted by expert already, so that no peer gathers. Where a package
has several ways to a result, the fastest counts."""

from __future__ import annotations

import dataclasses
import importlib
import itertools

import torch

from contenders import ALPHA, LIMIT, Refused, Tensors, fastest
from rivals import Epilogue

PIECE = 16  # groups that are brought to a layout at a time, since that takes many times their memory


def of_mxfp4(tensors: Tensors):
    if tensors.mxfp4 is None or tensors.shape.pre:
        raise Refused("for MXFP4 weights and one output alone")
    return tensors.mxfp4


class Run:
    """The product as `launch` gives it, then, where that is not fused into it, the activation."""

    def __init__(self, tensors: Tensors, detail: str, weight_bytes: int, launch, epilogue=None) -> None:
        self.tensors, self.detail, self.weight_bytes = tensors, detail, weight_bytes
        self.launch, self.epilogue, self.last = launch, epilogue, {}

    def run(self, turn: int) -> None:
        t = turn % self.tensors.turns
        d = self.launch(t)
        self.last = self.epilogue(d, t) if self.epilogue else {"out": d}

    def results(self) -> dict[str, torch.Tensor]:
        return self.last


def fastest_of(candidates: list, tensors: Tensors) -> Run:
    """The fastest of those that run; `candidates` make them."""
    runs, why = [], "nothing to choose from"
    for make in candidates:
        try:
            run = make()
            run.run(0)  # compiles
            torch.cuda.synchronize()
            runs.append(run)
        except Exception as error:  # a form that the package has not for this shape
            why = f"{type(error).__name__}: {error}"
            if "CUDA error" in why:
                raise
    if not runs:
        raise Refused(why)
    return fastest(runs, tensors.turns) if len(runs) > 1 else runs[0]


def in_pieces(convert, codes: torch.Tensor, scales: torch.Tensor):
    """convert(codes, scales) gives two tensors of the package's own; their data, put together over all groups."""
    pieces = [convert(c, s) for c, s in zip(codes.split(PIECE), scales.split(PIECE), strict=True)]
    joined = []
    for parts in zip(*pieces, strict=True):
        # Column-major data stay column-major.
        data = [part.storage.data for part in parts]
        turned = data[0].stride(-2) == 1
        whole = torch.cat([d.mT if turned else d for d in data])
        first = parts[0]
        storage = dataclasses.replace(first.storage, data=whole.mT if turned else whole)
        shape = [codes.shape[0], *first.shape[1:]]
        joined.append(dataclasses.replace(first, storage=storage, shape=shape, shape_max=None))
    return joined


def bytes_of(*parts) -> int:
    return sum(part.storage.data.nbytes for part in parts)


class TritonKernels:
    """What both generations of Triton's kernels have in common: kinds of weights, and how a product is launched."""

    kind = "peer"

    def make(self, tensors: Tensors) -> Run:
        weights, shape = of_mxfp4(tensors), tensors.shape
        bias = None if tensors.bias is None else tensors.bias.float()
        fused = shape.activation == "swiglu-oai"  # the only one that the package fuses
        epilogue = None if fused or shape.activation == "none" else Epilogue(tensors, bias_done=True)
        counts = [torch.from_numpy(rows).int().cuda() for rows in tensors.rows]
        metadata = [self.metadata(count, shape) for count in counts]

        def candidate(layout: str, constraints: dict):
            convert = self.convert(layout)
            name = (self.package.__name__, layout)
            made = weights.prepared_weights(name, lambda c, s: in_pieces(convert, c, s))

            def launch(t: int) -> torch.Tensor:
                w, scale = made[tensors.copy_of_turn[t]]
                out = None if epilogue else tensors.out[t]
                self.flags.update_opt_flags_constraints(constraints)
                try:
                    return self.product(tensors.a[t], w, scale, bias, metadata[t], fused, out)
                finally:
                    self.flags.reset_opt_flags_constraints()

            detail = f"{layout} scales" + "".join(f", {name} {value}" for name, value in constraints.items())
            return Run(tensors, detail, bytes_of(*made[0]), launch, epilogue)

        forms = itertools.product(self.layouts, self.choices)
        return fastest_of([lambda form=form: candidate(*form) for form in forms], tensors)


class HfTritonKernels(TritonKernels):
    """gpt-oss-triton-kernels in all its forms: scales plain or in Hopper's layout, K divided between blocks or not."""

    layouts, choices = ("plain", "Hopper"), ({}, {"split_k": 1})

    def __init__(self) -> None:
        import gpt_oss_triton_kernels as package

        self.package, self.matmul = package, package.matmul_ogs
        self.flags = importlib.import_module(package.__name__ + ".matmul_ogs_details.opt_flags")

    def convert(self, kind: str):
        layout, tensor = self.package.tensor_details.layout, self.package.tensor
        values, value_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        plain = (layout.StridedLayout, {})
        scale, scale_options = plain if kind == "plain" else layout.make_default_matmul_mxfp4_w_scale_layout(1, 8)

        def convert(codes: torch.Tensor, scales: torch.Tensor):
            w = tensor.wrap_torch_tensor(codes.transpose(-2, -1), dtype=tensor.FP4)
            s = tensor.wrap_torch_tensor(scales.transpose(-2, -1))
            return (
                tensor.convert_layout(w, values, **value_options),
                tensor.convert_layout(s, scale, **scale_options),
            )

        return convert

    def metadata(self, counts: torch.Tensor, shape):
        routing = self.package.routing
        data = routing.compute_expt_data(counts, shape.groups, shape.rows)
        return routing.RoutingData(None, counts, shape.groups, 1, data)

    def product(self, a, w, scale, bias, routing, fused: bool, out) -> torch.Tensor:
        m = self.matmul
        activation = None
        if fused:
            specs = m.FnSpecs("swiglu", self.package.swiglu.swiglu_fn, ("alpha", "limit"))
            activation = m.FusedActivation(specs, (ALPHA, LIMIT), 2)
        config = m.PrecisionConfig(weight_scale=scale)
        y = None if out is None else out[None]
        return m.matmul_ogs(a, w, bias, routing, precision_config=config, y=y, fused_activation=activation)


def never():
    return False


class Transformers(HfTritonKernels):
    """The same as transformers calls it (integrations/mxfp4.py): plain scales, and the package's choice of a kernel."""

    layouts, choices = ("plain",), ({},)


class LaterTritonKernels(TritonKernels):
    """triton_kernels by its later interface."""

    layouts, choices = ("Hopper",), ({},)

    def __init__(self) -> None:
        import triton
        import triton.language.target_info as target

        # The package is written for a later Triton. What it asks for and does not need here is supplied: a question
        # about AMD's GPUs, and where a function's text begins.
        if not hasattr(target, "is_hip_gfx1250"):
            target.is_hip_gfx1250 = triton.constexpr_function(never)
        if not hasattr(triton.runtime.jit.JITFunction, "def_file_line_number"):
            triton.runtime.jit.JITFunction.def_file_line_number = 1
            triton.runtime.jit.JITFunction.def_file_col_number = 0
        import triton_kernels.matmul
        import triton_kernels.swiglu
        import triton_kernels.tensor
        import triton_kernels.tensor_details.layout
        import triton_kernels.tensor_details.ragged_tensor

        self.package, self.matmul = triton_kernels, triton_kernels.matmul
        self.flags = importlib.import_module("triton_kernels.matmul_details.opt_flags")

    def convert(self, kind: str):
        layout, tensor = self.package.tensor_details.layout, self.package.tensor
        values = layout.make_default_matmul_mxfp4_w_layout(mx_axis=-2)
        scale = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=-2, num_warps=8)

        def convert(codes: torch.Tensor, scales: torch.Tensor):
            w = tensor.wrap_torch_tensor(codes.transpose(-2, -1), dtype=tensor.FP4)
            s = tensor.wrap_torch_tensor(scales.transpose(-2, -1))
            return tensor.convert_layout(w, values), tensor.convert_layout(s, scale)

        return convert

    def metadata(self, counts: torch.Tensor, shape):
        return self.package.tensor_details.ragged_tensor.make_ragged_tensor_metadata(counts, shape.rows)

    def product(self, a, w, scale, bias, metadata, fused: bool, out) -> torch.Tensor:
        m = self.matmul
        activation = None
        if fused:
            specs = m.FnSpecs("swiglu", self.package.swiglu.swiglu_fn, ("alpha", "limit"), reduction_n=2)
            activation = m.FusedActivation(specs, (ALPHA, LIMIT))
        config = m.PrecisionConfig(b_mx_scale=scale, b_microblock_size=32)
        return m.matmul(
            a, w, bias, a_ragged_metadata=metadata, precision_config=config, c=out, fused_activation=activation
        )


# In the words of Humming's kernel for inputs, which is given an expression of the gate a and of b.
HUMMING_ACTIVATIONS = {
    "swiglu": "a / (1.0f + __expf(-a)) * b",
    "swiglu-oai": (
        f"fminf(a, {LIMIT}f) / (1.0f + __expf(-{ALPHA}f * fminf(a, {LIMIT}f))) * "
        f"(fmaxf(fminf(b, {LIMIT}f), -{LIMIT}f) + 1.0f)"
    ),
}


class Humming:
    """humming-kernels: groups that follow each other, and rows by lists of indices, by the package's own heuristics;
    then, with a gate, the package's kernel for inputs or PyTorch's compiled epilogue."""

    kind = "peer"

    def __init__(self) -> None:
        import humming.layer
        import humming.ops
        import humming.tune

        self.humming = humming

    def make(self, tensors: Tensors) -> Run:
        weights, shape = of_mxfp4(tensors), tensors.shape
        name = ("humming", tensors.bias is not None)
        layers = weights.prepared_weights(name, lambda c, s: self.layer(tensors, c, s))
        parameters = dict(layers[0].named_parameters())
        size = sum(p.nbytes for n, p in parameters.items() if n.startswith("weight"))
        epilogues = [None]
        if shape.gated:
            epilogues = [Epilogue(tensors, bias_done=True), self.activation(tensors)]
        candidates = []
        for kind, epilogue in itertools.product(("grouped_contiguous", "indexed"), epilogues):
            candidates.append(lambda k=kind, e=epilogue: self.candidate(tensors, layers, size, k, e))
        return fastest_of(candidates, tensors)

    def layer(self, tensors: Tensors, codes: torch.Tensor, scales: torch.Tensor):
        shape = tensors.shape
        with torch.device("cuda"):
            layer = self.humming.layer.HummingLayer(
                shape_n=shape.n,
                shape_k=shape.k,
                weight_config={"quant_method": "mxfp4"},
                num_experts=shape.groups,
                pad_n_to_multiple=128,  # as its warp groups ask for, which take 128 columns on Hopper
                has_bias=tensors.bias is not None,
                torch_dtype=torch.bfloat16,
            )
        bias = {} if tensors.bias is None else {"bias": tensors.bias}
        layer.load_from_tensors({"weight": codes, "weight_scale": scales, **bias})
        layer.transform()
        return layer

    def candidate(self, tensors: Tensors, layers: list, size: int, kind: str, epilogue) -> Run:
        shape = tensors.shape
        tuning = self.humming.tune.get_heuristics_config(
            layers[0].humming_config, shape_m=shape.rows, gemm_type=kind
        )
        outputs = tensors.out
        if epilogue:
            outputs = [torch.empty(shape.rows, shape.n, device="cuda", dtype=torch.bfloat16)] * tensors.turns
        block = tuning["block_shape"]
        if kind == "indexed":
            routing = [self.indices(tensors, t, block[0]) for t in range(tensors.turns)]
        else:
            zero = torch.zeros(1, dtype=torch.int32, device="cuda")
            routing = [{"expert_layout": torch.cat((zero, ends))} for ends in tensors.ends]

        def launch(t: int) -> torch.Tensor:
            layers[tensors.copy_of_turn[t]](
                tensors.a[t],
                outputs=outputs[t],
                compute_config={"gemm_type": kind},
                tuning_config=tuning,
                **routing[t],
            )
            return outputs[t]

        how = "" if epilogue is None else ", compiled activation" if type(epilogue) is Epilogue else ", its activation"
        return Run(tensors, f"{kind}, tile {block}{how}", size, launch, epilogue)

    def indices(self, tensors: Tensors, turn: int, block: int) -> dict[str, torch.Tensor]:
        """Which rows and which expert each block of rows has; places without a row hold the number of rows."""
        rows, experts, first = [], [], 0
        for expert, end in enumerate(tensors.host_ends[turn].tolist()):
            blocks = -(-(end - first) // block)
            rows += range(first, end)
            rows += [tensors.shape.rows] * (blocks * block - (end - first))
            experts += [expert] * blocks
            first = end
        on_device = lambda values: torch.tensor(values, dtype=torch.int32, device="cuda")
        return {
            "sorted_ids": on_device(rows),
            "expert_ids": on_device(experts),
            "num_tokens_padded": on_device(len(rows)),
        }

    def activation(self, tensors: Tensors):
        expression = HUMMING_ACTIVATIONS[tensors.shape.activation]

        def activate(d: torch.Tensor, turn: int) -> dict[str, torch.Tensor]:
            out = tensors.out[turn]
            self.humming.ops.process_input(
                d, outputs=out, activation_type="binary_interleaved", activation_impl=expression
            )
            return {"out": out}

        return activate


MAKERS = {
    "transformers": Transformers,
    "hf-triton-kernels": HfTritonKernels,
    "triton-kernels": LaterTritonKernels,
    "humming": Humming,
}
