#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole expert layers, from chosen experts to the weighted sum, beside what users would call in Moxie's place.

    bench/layers.py --models gpt-oss-20b,mxfp4:gpt-oss-20b --tokens 1,16,64 --out layers.json
    MOXIE_DEVICE=sim bench/layers.py --small      # on the simulator and the CPU, which times nothing

It runs where torch, transformers and moxie are installed. Contenders:

    moxie               moxie.experts
    grouped_mm          transformers' experts by torch.nn.functional.grouped_mm
    batched_mm          by torch.bmm on weights that are gathered for each token, up to 8 GB of them
    compiled            grouped_mm under torch.compile(fullgraph=True)
    triton              Triton's kernels, with the top k and the sort of their package
    triton, routed      the same with everything that depends on the routing made beforehand
    ..., [E, N, K]      the same with bf16 weights in this order instead of [E, K, N]
    vllm, routed        vLLM's Triton kernel, with everything that depends on the routing made beforehand

Triton's kernels are found by --peer-path, a folder with gpt_oss_triton_kernels/ (rivals_mxfp4.py says which), and
vLLM's in the same or another (rivals_vllm.py).
All contenders have the same weights, tokens, experts and scores, and are checked against float64 for some tokens. Every
launch of a graph has tokens and experts of its own. Times are medians of graph replays, in an order that is shuffled
for each round. The first line printed for a layer is its shape, the others one contender each."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import sys

import numpy as np
import torch
from contenders import ALPHA, LIMIT, Refused, dequantized
from shapes import MODELS, MXFP4_MODELS, UNSEEN_MODELS, ZIPF, Model

import moxie
import moxie.torch

SIMULATED = os.environ.get("MOXIE_DEVICE") == "sim"
DEVICE = "cpu" if SIMULATED else "cuda"
SMALL = Model(8, 16, 64, 32, 3, "swiglu", False), Model(8, 8, 64, 64, 2, "swiglu-oai", True)
TURNS = 4
GATHERED_MOST = 8e9


def silu_and_multiply(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def swiglu_oai(both: torch.Tensor) -> torch.Tensor:
    gate, up = both[..., ::2].clamp(max=LIMIT), both[..., 1::2].clamp(-LIMIT, LIMIT)
    return gate * torch.sigmoid(ALPHA * gate) * (up + 1)


class Layer:
    """Weights of a model's experts, and what its calls get.

    up [E, 2 I, H] and down [E, H, I] are bf16. With MXFP4 up_codes [E, 2 I, H/2], up_scales [E, 2 I, H/32] and the same
    of down stand in their place. Gate and up alternate with swiglu-oai, else gate comes first.
    """

    def __init__(self, model: Model, weights: str, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.model, self.mxfp4 = model, weights == "mxfp4"
        sizes = {"up": (2 * model.intermediate, model.hidden), "down": (model.hidden, model.intermediate)}
        for name, (n, k) in sizes.items():
            if self.mxfp4:
                setattr(self, f"{name}_codes", self.integers(0, 256, n, k // 2))
                setattr(self, f"{name}_scales", self.integers(117, 121, n, k // 32))
            else:
                weight = torch.empty(model.experts, n, k, dtype=torch.bfloat16, device=DEVICE)
                setattr(self, name, weight.normal_(std=k**-0.5))
            bias = torch.randn(model.experts, n, device=DEVICE).bfloat16() if model.bias else None
            setattr(self, f"{name}_bias", bias)

    def integers(self, low: int, high: int, n: int, columns: int) -> torch.Tensor:
        return torch.randint(low, high, (self.model.experts, n, columns), dtype=torch.uint8, device=DEVICE)

    @property
    def activation(self):
        return swiglu_oai if self.model.activation == "swiglu-oai" else silu_and_multiply

    def weight(self, name: str, expert: int) -> torch.Tensor:
        if not self.mxfp4:
            return getattr(self, name)[expert]
        return dequantized(getattr(self, f"{name}_codes")[expert], getattr(self, f"{name}_scales")[expert])

    def draw(self, tokens: int, generator: np.random.Generator):
        """Tokens [T, H], experts [T, k] and scores [T, k]; experts of other GPUs are those from model.experts on."""
        m = self.model
        popularity = generator.permutation(-ZIPF * np.log(np.arange(1, m.all_experts + 1)))
        keys = popularity + generator.gumbel(size=(tokens, m.all_experts))
        ids = torch.from_numpy(np.argsort(-keys, axis=1)[:, : m.top].copy()).to(DEVICE)
        x = torch.randn(tokens, m.hidden, device=DEVICE).bfloat16()
        return x, ids, torch.rand(tokens, m.top, device=DEVICE).softmax(-1)

    def reference(self, x: torch.Tensor, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The layer of a few tokens in float64."""
        y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for t, k in np.ndindex(*ids.shape):
            expert = int(ids[t, k])
            if expert >= self.model.experts:
                continue
            inner = self.weight("up", expert).double() @ x[t].double()
            if self.up_bias is not None:
                inner += self.up_bias[expert].double()
            inner = self.activation(inner)
            row = self.weight("down", expert).double() @ inner
            if self.down_bias is not None:
                row += self.down_bias[expert].double()
            y[t] += scores[t, k].double() * row
        return y


# ---- Contenders: functions of a layer that return one of x, ids and scores ----


def of_moxie(layer: Layer):
    oai = layer.model.activation == "swiglu-oai"
    gate = "interleaved" if oai else "split"
    if layer.mxfp4:
        pack = moxie.torch.pack_weights
        weights = [pack(layer.up_codes, layer.up_scales, gate=gate), pack(layer.down_codes, layer.down_scales)]
    else:
        weights = [layer.up, layer.down]
    options = {"activation": "swiglu_oai" if oai else "swiglu", "gate": gate, "all_experts": layer.model.all_experts}
    return lambda x, ids, scores: moxie.experts(
        x, ids, scores, *weights, b1=layer.up_bias, b2=layer.down_bias, **options
    )


def of_transformers(layer: Layer, implementation: str):
    """transformers' modules of experts, which hold the layer's own tensors."""
    from transformers.models.gpt_oss import configuration_gpt_oss, modeling_gpt_oss
    from transformers.models.qwen3_moe import configuration_qwen3_moe, modeling_qwen3_moe

    m = layer.model
    if layer.mxfp4:
        raise Refused("in bf16 alone")
    with torch.device("meta"):
        if m.activation == "swiglu-oai":
            config = configuration_gpt_oss.GptOssConfig(
                num_local_experts=m.experts, hidden_size=m.hidden, intermediate_size=m.intermediate
            )
            module = modeling_gpt_oss.GptOssExperts(config)
        else:
            config = configuration_qwen3_moe.Qwen3MoeConfig(
                num_experts=m.experts, hidden_size=m.hidden, moe_intermediate_size=m.intermediate
            )
            module = modeling_qwen3_moe.Qwen3MoeExperts(config)
    module.config._experts_implementation = implementation
    for name, value in (("gate_up_proj", layer.up), ("down_proj", layer.down)):
        if module.is_transposed:
            value = value.transpose(-2, -1).contiguous()
        setattr(module, name, torch.nn.Parameter(value, requires_grad=False))
    if m.bias:
        module.gate_up_proj_bias = torch.nn.Parameter(layer.up_bias, requires_grad=False)
        module.down_proj_bias = torch.nn.Parameter(layer.down_bias, requires_grad=False)
    module._is_expert_parallel = m.all_experts > m.experts

    def run(x, ids, scores):
        foreign = ids >= m.experts
        return module(x, ids.masked_fill(foreign, m.experts), scores.masked_fill(foreign, 0))

    return run if m.all_experts > m.experts else module


def routing_data(kernels, ids: torch.Tensor, scores: torch.Tensor, experts: int):
    """What the package's products want to know of a routing. Pairs with experts from `experts` on come last and have
    no row, as transformers' routing_torch_dist makes them."""
    routing, pairs = kernels.routing, ids.flatten().long()
    here = pairs < experts
    order = torch.argsort(pairs.clamp(max=experts), stable=True)
    place = torch.argsort(order).masked_fill(~here, -1).int()
    gates = scores.flatten()[order]
    counts = torch.bincount(pairs[here], minlength=experts).int()
    order = order.masked_fill(~here[order], -1).int()
    data = routing.compute_expt_data(counts, experts, len(pairs))
    return (
        routing.RoutingData(gates, counts, experts, ids.shape[1], data),
        routing.GatherIndx(src_indx=order, dst_indx=place),
        routing.ScatterIndx(src_indx=place, dst_indx=order),
    )


def of_triton(layer: Layer, routed: bool, order: str = ""):
    """Triton's kernels: they gather, sum and weight as they multiply. bf16 weights lie in `order`, [E, K, N] or
    [E, N, K]. Routing data come from the package's kernels, or are made beforehand, since making them of ids asks the
    GPU for values, which no graph captures."""
    import gpt_oss_triton_kernels as kernels
    from transformers.integrations import mxfp4

    if layer.mxfp4 and order == "[E, N, K]":
        raise Refused("for bf16 weights alone")
    mxfp4.triton_kernels_hub = kernels
    m, ogs = layer.model, kernels.matmul_ogs
    products = []
    for name in ("up", "down"):
        scale = None
        if layer.mxfp4:
            codes, scales = getattr(layer, f"{name}_codes"), getattr(layer, f"{name}_scales")
            weight, scale = mxfp4.swizzle_mxfp4(codes.transpose(-2, -1), scales.transpose(-2, -1), kernels)
        else:
            weight = getattr(layer, name).transpose(-2, -1)
            weight = weight if order == "[E, N, K]" else weight.contiguous()
        bias = getattr(layer, f"{name}_bias")
        precision = ogs.PrecisionConfig(weight_scale=scale, flex_ctx=ogs.FlexCtx(rhs_data=ogs.InFlexData()))
        products.append((weight, None if bias is None else bias.float(), precision))
    fused = m.activation == "swiglu-oai"
    specs = ogs.FnSpecs("swiglu", kernels.swiglu.swiglu_fn, ("alpha", "limit"))
    activation = ogs.FusedActivation(specs, (ALPHA, LIMIT), 2) if fused else None
    separate = None if fused else torch.compile(silu_and_multiply, dynamic=True)

    if not routed and m.all_experts > m.experts:
        raise Refused("for all experts of a model alone")
    prepared: dict[int, tuple] = {}

    def route(ids, scores):
        key = ids.data_ptr()
        if routed:
            if key not in prepared:
                prepared[key] = routing_data(kernels, ids, scores, m.experts)
            return prepared[key]
        if key not in prepared:
            # The package's kernels choose the experts, and make the scores, from logits.
            prepared[key] = scores.new_full((len(ids), m.experts), -1e4).scatter_(1, ids, scores.log())
        return kernels.routing.routing(prepared[key], m.top)

    def run(x, ids, scores):
        data, gather, scatter = route(ids, scores)
        (up, up_bias, up_precision), (down, down_bias, down_precision) = products
        inner = ogs.matmul_ogs(
            x, up, up_bias, data, gather_indx=gather, precision_config=up_precision, fused_activation=activation
        )
        if separate:
            inner = separate(inner)
        return ogs.matmul_ogs(
            inner, down, down_bias, data, scatter_indx=scatter, precision_config=down_precision, gammas=data.gate_scal
        )

    return run


def of_vllm(layer: Layer):
    import rivals_vllm

    m = layer.model
    if layer.mxfp4:
        raise Refused("in bf16 alone")
    here = m.all_experts == m.experts
    return rivals_vllm.Experts(layer.up, layer.down, layer.up_bias, layer.down_bias, layer.activation, here)


def contenders(layer: Layer, tokens: int):
    yield "moxie", lambda: of_moxie(layer)
    yield "grouped_mm", lambda: of_transformers(layer, "grouped_mm")
    m = layer.model
    if tokens * m.top * m.hidden * m.intermediate * 6 < GATHERED_MOST:
        yield "batched_mm", lambda: of_transformers(layer, "batched_mm")
    yield "compiled", lambda: torch.compile(of_transformers(layer, "grouped_mm"), fullgraph=True)
    yield "triton", lambda: of_triton(layer, False)
    yield "triton, [E, N, K]", lambda: of_triton(layer, False, "[E, N, K]")
    yield "triton, routed", lambda: of_triton(layer, True)
    yield "triton, routed, [E, N, K]", lambda: of_triton(layer, True, "[E, N, K]")
    yield "vllm, routed", lambda: of_vllm(layer)


# ---- Measuring ----


class Timed:
    """The graph of a contender's calls with every turn's tensors."""

    def __init__(self, call, turns: list, milliseconds: float) -> None:
        self.call = call  # the graph reads its weights
        self.times: list[float] = []
        if SIMULATED:
            return
        begin, end = self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        begin.record()
        for turn in turns:
            call(*turn)
        end.record()
        end.synchronize()
        self.count = max(1, min(40, round(milliseconds / max(begin.elapsed_time(end), 1e-3)))) * len(turns)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(self.count):
                call(*turns[i % len(turns)])
        self.replay()

    def replay(self) -> None:
        begin, end = self.events
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        self.times.append(begin.elapsed_time(end) / self.count * 1e3)


def error_of(layer: Layer, call, turn: tuple) -> float:
    """The greatest relative error of some tokens' results, as norms."""
    x, ids, scores = turn
    some = torch.linspace(0, x.shape[0] - 1, min(4, x.shape[0])).long().unique().to(x.device)
    got, expected = call(*turn)[some].double(), layer.reference(x[some], ids[some], scores[some])
    scale = expected.norm(dim=-1).clamp(min=1e-3)
    return float(((got - expected).norm(dim=-1) / scale).max())


def measure(layer: Layer, tokens: int, chosen: str, rounds: int, milliseconds: float) -> dict:
    generator = np.random.default_rng(tokens)
    turns = [layer.draw(tokens, generator) for _ in range(TURNS)]
    timed, results = {}, {}
    for name, make in contenders(layer, tokens):
        if chosen and name not in chosen.split(";"):
            continue
        try:
            call = make()
            error = error_of(layer, call, turns[0])
            for turn in turns:
                call(*turn)
            timed[name] = Timed(call, turns, milliseconds)
            results[name] = {"error": error}
        except Refused as why:
            results[name] = {"refused": str(why)}
        except Exception as error:  # one contender's failure is no other's
            if "CUDA error" in str(error):
                raise
            results[name] = {"refused": f"{type(error).__name__}: {str(error)[:200]}"}
    shuffled = random.Random(1)
    for _ in range(0 if SIMULATED else rounds):
        for each in shuffled.sample(list(timed.values()), len(timed)):
            each.replay()
    for name, each in timed.items():
        if each.times:
            results[name]["us"] = statistics.median(each.times[1:])
    return results


def write(path: str, records: list[dict]) -> None:
    record = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": "simulator" if SIMULATED else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "moxie": moxie.__version__,
        "layers": records,
    }
    with open(path, "w") as file:
        json.dump(record, file, indent=1)


def main() -> None:
    everything = {**MODELS, **UNSEEN_MODELS, **{f"mxfp4:{name}": model for name, model in MXFP4_MODELS.items()}}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt-oss-20b,mxfp4:gpt-oss-20b", help=", ".join(everything))
    parser.add_argument("--tokens", default="1,16,64,256,1024,4096,16384")
    parser.add_argument("--contenders", default="", help="those alone, with ; between them")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--graph-ms", type=float, default=3.0, help="of a replay, about")
    parser.add_argument("--peer-path", action="append", default=[], help="a folder with packages of contenders")
    parser.add_argument("--small", action="store_true", help="two layers of no model: does it all run?")
    parser.add_argument("--out", help="JSON")
    options = parser.parse_args()
    sys.path += options.peer_path
    if options.small:
        everything = {"small": SMALL[0], "small-oai": SMALL[1], "mxfp4:small-oai": SMALL[1]}
        options.models, options.tokens = ",".join(everything), "1,5"
    unknown = [name for name in options.models.split(",") if name not in everything]
    if unknown:
        parser.error(f"{unknown[0]} is no model: {', '.join(everything)}")
    records = []
    with torch.no_grad():
        for name in options.models.split(","):
            layer = Layer(everything[name], "mxfp4" if name.startswith("mxfp4:") else "bf16")
            for tokens in map(int, options.tokens.split(",")):
                results = measure(layer, tokens, options.contenders, options.rounds, options.graph_ms)
                records.append({"model": name, "tokens": tokens, "contenders": results})
                if options.out:
                    write(options.out, records)
                ours = results.get("moxie", {}).get("us")
                print(f"{name}, {tokens} tokens", flush=True)
                for contender, result in results.items():
                    if "refused" in result:
                        print(f"  {contender:25} {result['refused']}")
                        continue
                    us = result.get("us", float("nan"))
                    ratio = us / ours if ours else float("nan")
                    print(f"  {contender:25} {us:10.1f} us {ratio:7.2f}   error {result['error']:.1e}", flush=True)
            del layer
            if not SIMULATED:
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
