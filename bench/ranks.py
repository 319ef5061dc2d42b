#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Expert layers over the GPUs of one host, beside NCCL's all_to_all_single and the rate of copies in the same run.

    bench/ranks.py --ranks 2 --out ranks.json
    torchrun --nproc-per-node 8 bench/ranks.py --out ranks.json
    MOXIE_DEVICE=sim bench/ranks.py --small      # on CPU over gloo, each rank with a simulator; it times nothing

It runs where torch and moxie are installed. NVLink's multicast is off. For each model, number of tokens a rank and
routing it writes, in microseconds, the longest of all ranks:

    windows             moxie.distributed.Experts over windows, replayed from a CUDA graph
    windows_shared      the same with a shared expert as wide as the others, and `shared` that expert alone (--shared)
    steps               of that, by torch.profiler: from the end of the kernel before to that of a step's last one, on
                        the rank that waits least for the others in it
    dispatch, combine   likewise: exchange, dispatch and meet, or send_few, which sorts, too; meet and combine, without
                        the way of the rows, which is in the step of the second product, or combine_sums
    local               moxie.experts on one rank with the tokens that come to it, which sends nothing
    all_to_all          moxie.distributed.Experts over all_to_all, called; whole, halves: with tokens that travel so
    planned             what the cost model of docs/scale.md says of these, for even routing, and whether halves pay
    nccl dispatch, combine  all_to_all_single alone with the bytes of windows between each two ranks, from a CUDA graph
    deep_ep_...         DeepEP's, where its package is there: see rivals_deep_ep.py

and beside each transfer GB/s: of the bytes that the rank with most of them sends to others, or gets. copy_rate is
that of copies to a neighbor's memory and from it, all ranks at once. Every result is compared with that of one rank
that has all experts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import socket
import statistics
import sys
import tempfile
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.distributed as dist
import torch.multiprocessing
from rivals_deep_ep import beside, loaded_nccl
from shapes import MODELS, UNSEEN_MODELS, ZIPF, Model

import moxie
from moxie.distributed import Experts

SIMULATED = os.environ.get("MOXIE_DEVICE") == "sim"
# Whole models, whose experts all ranks hold together.
RANKED = {
    "deepseek-v3": Model(256, 256, 7168, 2048, 8, "swiglu", False),
    "qwen3-235b-a22b": UNSEEN_MODELS["qwen3-235b-a22b"],
    "gpt-oss-120b": MODELS["gpt-oss-120b"],
}
SMALL = {"small": Model(8, 8, 64, 32, 3, "swiglu", False)}


class Shared(torch.nn.Module):
    """A shared expert, by torch."""

    def __init__(self, model, device):
        super().__init__()
        generator = torch.Generator(device).manual_seed(2)
        for name, n, k in (("up", 2 * model.intermediate, model.hidden), ("down", model.hidden, model.intermediate)):
            weight = torch.empty(n, k, dtype=torch.bfloat16, device=device).normal_(std=k**-0.5, generator=generator)
            self.register_buffer(name, weight)

    def forward(self, x):
        gate, up = torch.nn.functional.linear(x, self.up).chunk(2, -1)
        return torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, self.down)


class Bench:
    """One rank."""

    def __init__(self, rank, ranks, options):
        self.rank, self.ranks, self.options = rank, ranks, options
        self.device = torch.device("cpu" if SIMULATED else f"cuda:{rank}")
        self.results = {
            "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "device": "simulator" if SIMULATED else torch.cuda.get_device_name(),
            "ranks": ranks,
            "torch": torch.__version__,
            "nccl": None if SIMULATED else ".".join(map(str, loaded_nccl())),
            "moxie": moxie.__version__,
            "layers": [],
        }

    # ---- Times ----

    def worst(self, value):
        """The largest of all ranks' numbers; None: a rank has none."""
        values = [None] * self.ranks
        dist.all_gather_object(values, value)
        return None if any(each is None for each in values) else max(values)

    def graph_of(self, call, count):
        """`count` calls in a graph; None without a GPU."""
        call()
        if SIMULATED:
            return None
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        return graph

    def graph_time(self, call, turns=9):
        """Microseconds of a call, by replays that all ranks begin together, as far as their hosts can."""
        time = self.replay_time(call, 10, 3)
        if time is None:
            return None
        # The hosts are some ten microseconds apart, which is to be a small part of a replay.
        return self.replay_time(call, min(max(10, math.ceil(5000 / time)), 100), turns)

    def replay_time(self, call, count, turns):
        """Microseconds of a call of a graph of so many."""
        graph = self.graph_of(call, count)
        if graph is None:
            return None
        times = []
        for _ in range(turns):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            dist.barrier(device_ids=[self.rank])
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / count * 1e3)
        # A communicator whose calls are in a graph that is alive is not torn down.
        graph.reset()
        return self.worst(statistics.median(times))

    def call_time(self, call, count=10, turns=5):
        """Microseconds of a call whose host takes part."""
        call()
        if SIMULATED:
            return None
        times = []
        for _ in range(turns):
            torch.cuda.synchronize()
            dist.barrier(device_ids=[self.rank])
            begin = time.perf_counter()
            for _ in range(count):
                call()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / count * 1e6)
        return self.worst(statistics.median(times))

    def steps(self, call, sums, count=10):
        """Microseconds of the steps of a call over windows, and of dispatch and combine, which are several of them."""
        graph = self.graph_of(call, count)
        if graph is None:
            return None, None, None
        from torch.profiler import ProfilerActivity, profile

        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            dist.barrier(device_ids=[self.rank])
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                graph.replay()
                torch.cuda.synchronize()
            profiled.export_chrome_trace(file.name)
            with open(file.name) as written:
                events = json.load(written)["traceEvents"]
        graph.reset()
        kernels = [e for e in events if e.get("cat") == "kernel" and e["name"].startswith("moxie_kernel")]
        calls = steps_of(
            [(e["ts"], e["ts"] + e["dur"], e["args"].get("grid"), e["args"].get("block")) for e in kernels],
            count,
            sums,
        )
        for each in calls:
            sends = ("exchange", "send few", "dispatch", "meet tokens")
            each["all dispatch"] = sum(each.get(name, 0) for name in sends)
            each["all combine"] = sum(each.get(name, 0) for name in ("meet results", "combine", "combine sums"))
        medians = {name: statistics.median(each[name] for each in calls) for name in calls[0]}
        of_ranks = [None] * self.ranks
        dist.all_gather_object(of_ranks, medians)
        least = {name: min(each[name] for each in of_ranks) for name in medians}
        return least, least.pop("all dispatch"), least.pop("all combine")

    def copy_rate(self, nbytes):
        """GB/s of copies to a neighbor and from it, all ranks at once."""
        if SIMULATED or self.ranks == 1:
            return None
        from torch.distributed import _symmetric_memory as symmetric

        window = symmetric.empty(nbytes, dtype=torch.uint8, device=self.device)
        handle = symmetric.rendezvous(window, dist.group.WORLD)
        peer = handle.get_buffer((self.rank + 1) % self.ranks, (nbytes,), torch.uint8)
        own = torch.zeros(nbytes, dtype=torch.uint8, device=self.device)
        rates = {}
        for name, copy in (("to", lambda: peer.copy_(own)), ("from", lambda: own.copy_(peer))):
            rates[name] = nbytes / self.graph_time(copy) * 1e-3
        return rates

    # ---- Layers ----

    def layer(self, name, model):
        generator = torch.Generator(self.device).manual_seed(1)
        full = {}
        gpt_oss = model.activation == "swiglu-oai"
        for weight, n, k in (
            ("gate_up_proj", 2 * model.intermediate, model.hidden),
            ("down_proj", model.hidden, model.intermediate),
        ):
            full[weight] = torch.empty(model.experts, n, k, dtype=torch.bfloat16, device=self.device)
            full[weight].normal_(std=k**-0.5, generator=generator)
            if model.bias:
                bias = torch.randn(model.experts, n, generator=generator, device=self.device)
                full[f"{weight}_bias"] = bias.bfloat16()
        options = {
            "top_k": model.top,
            "activation": "swiglu_oai" if gpt_oss else "swiglu",
            "gate": "interleaved" if gpt_oss else "split",
            "bias": model.bias,
            "timeout": 120.0,
            "device": self.device,
        }
        sizes = model.experts, model.hidden, model.intermediate
        most = max(self.options.tokens)
        modules = {"all_to_all": Experts(None, *sizes, **options, transport="all_to_all")}
        if not SIMULATED:
            modules["windows"] = Experts(
                None,
                *sizes,
                **options,
                transport="windows",
                max_tokens=most,
                results=self.options.results,
                row_format=self.options.row_format,
            )
        for module in modules.values():
            module.load_state_dict(full)
        peer = None
        if self.options.deep_ep and not SIMULATED:
            peer = beside(dist.group.WORLD, model.hidden, model.experts, model.top, most)
        for tokens in self.options.tokens:
            for routing in ("balanced", "skewed"):
                result = self.step(model, full, modules, tokens, routing, peer)
                self.results["layers"].append({"model": name, "tokens": tokens, "routing": routing, **result})
                if self.rank == 0:
                    print(name, tokens, routing, json.dumps(result), flush=True)
                    if self.options.out:
                        with open(self.options.out, "w") as file:
                            json.dump(self.results, file, indent=1)
        if peer:
            peer.close()

    def step(self, model, full, modules, tokens, routing, peer=None):
        generator = torch.Generator(self.device).manual_seed(100 * tokens + self.rank)
        x = torch.randn(tokens, model.hidden, generator=generator, device=self.device).bfloat16()
        # The same experts are popular on all ranks.
        shuffle = torch.randperm(model.experts, generator=torch.Generator().manual_seed(tokens))
        popularity = torch.arange(1, model.experts + 1, dtype=torch.float32)[shuffle] ** -ZIPF
        if routing == "balanced":
            popularity = torch.ones(model.experts)
        popularity = popularity.to(self.device).expand(tokens, -1)
        ids = torch.multinomial(popularity, model.top, generator=generator)
        weights = torch.softmax(torch.randn(tokens, model.top, generator=generator, device=self.device), -1)
        module = modules["all_to_all"]
        options = {
            "b1": full.get("gate_up_proj_bias"),
            "b2": full.get("down_proj_bias"),
            "activation": module.activation,
            "gate": module.gate,
        }
        expected = moxie.experts(x, ids, weights, full["gate_up_proj"], full["down_proj"], **options).double()
        result = {"errors": {}}
        for transport, each in modules.items():
            for attempt in range(2):
                y = each(x, ids, weights).double()
                error = float((y - expected).norm() / expected.norm())
                rounds = transport == "windows" and self.options.row_format != "bf16"
                if not (math.isfinite(error) and error < (6e-2 if rounds else 4e-3)):
                    raise SystemExit(f"rank {self.rank}: {transport}, call {attempt}: differs by {error}")
            each.synchronize()
            result["errors"][transport] = self.worst(error)

        # What travels through windows: a token to each rank that has any of its experts; back a row for each pair, or a
        # sum for each token and rank.
        ranks = module._table_on(self.device)[0][ids]
        goes = torch.stack([(ranks == rank).any(1).sum() for rank in range(self.ranks)]).tolist()
        pairs = [int((ranks == rank).sum()) for rank in range(self.ranks)]
        goes_of, pairs_of = [None] * self.ranks, [None] * self.ranks
        dist.all_gather_object(goes_of, goes)
        dist.all_gather_object(pairs_of, pairs)
        row = 2 * model.hidden
        back = [list(each) for each in zip(*pairs_of, strict=True)], row
        results = self.options.results or results_of(model.top, self.ranks, model.intermediate)
        if results != "rows":
            back = [list(each) for each in zip(*goes_of, strict=True)], row * (2 if results == "sums" else 1)
        result["results"] = results
        transfers = {}
        result["row_format"] = self.options.row_format
        token = row if self.options.row_format == "bf16" else model.hidden + 4 * -(-model.hidden // 128)
        for phase, (table, width) in (("dispatch", (goes_of, token)), ("combine", back)):
            sent = [sum(n for to, n in enumerate(each) if to != rank) for rank, each in enumerate(table)]
            got = [sum(each[rank] for other, each in enumerate(table) if other != rank) for rank in range(self.ranks)]
            transfers[phase] = table, width, width * max(*sent, *got)
            result[f"{phase}_bytes"] = transfers[phase][2]

        times = {}
        for name, halves in (("all_to_all", None), ("whole", False), ("halves", True)):
            module.halves = halves
            times[name] = self.call_time(lambda: module(x, ids, weights))
        module.halves = None
        result["planned"] = self.planned(module, tokens)
        if "windows" in modules:
            times["windows"] = self.graph_time(lambda: modules["windows"](x, ids, weights))
            result["steps"], times["dispatch"], times["combine"] = self.steps(
                lambda: modules["windows"](x, ids, weights), results != "rows"
            )
            if self.options.shared:
                times |= self.shared(model, modules["windows"], x, ids, weights, expected)
        # The tokens that come to this rank, with the choices that are its own.
        ids_of = [None] * self.ranks
        dist.all_gather_object(ids_of, ids.cpu())
        rank, slot = (each[torch.cat(ids_of).to(self.device)] for each in module._table_on(self.device))
        here = torch.where(rank == self.rank, slot, -1)
        here = here[(here >= 0).any(1)]
        its = torch.randn(here.shape[0], model.hidden, generator=generator, device=self.device).bfloat16()
        w1, w2 = module._operands()
        if model.bias:
            options |= {"b1": module.gate_up_proj_bias, "b2": module.down_proj_bias}
        times["local"] = self.graph_time(lambda: moxie.experts(its, here, None, w1, w2, **options))
        for phase, (table, width, nbytes) in transfers.items():
            given = torch.zeros(sum(table[self.rank]), width, dtype=torch.uint8, device=self.device)
            counts = [each[self.rank] for each in table]
            out = given.new_empty((sum(counts), width))
            if not SIMULATED:
                times[f"nccl_{phase}"] = self.graph_time(
                    lambda out=out, given=given, counts=counts, table=table: dist.all_to_all_single(
                        out, given, counts, table[self.rank]
                    )
                )
            for name in (phase, f"nccl_{phase}"):
                # Rows travel with the second product, and combine is what is left.
                if times.get(name) and (name, results) != ("combine", "rows"):
                    result[f"{name}_GBps"] = nbytes / times[name] * 1e-3
        if peer:
            found = peer.measure(x, ids, weights, self.graph_time)
            times |= found.pop("us")
            result |= found
        result["us"] = times
        return result

    def planned(self, module, tokens):
        """Microseconds by the cost model."""
        figures = module._watch.devices(self.device, 120.0)[0]["figures"]
        layer = {
            "tokens": tokens,
            "experts": module.all_experts,
            "ranks": self.ranks,
            "top_k": module.top_k,
            "n": module.up_rows,
            "k": module.hidden,
            "bias": module.has_bias,
            "activation": module.activation,
            "gate": module.gate,
            **figures,
        }
        near = moxie.rank_costs(**layer, windows=True, row_format=self.options.row_format)
        far = moxie.rank_costs(**layer)
        parts = {"dispatch": near.dispatch, "combine": near.combine, "windows": near.sum, "whole": far.sum}
        parts["halves"] = far.in_halves
        return {name: seconds * 1e6 for name, seconds in parts.items()} | {
            "in_halves": module._in_halves([tokens] * self.ranks, self.device)
        }

    def shared(self, model, module, x, ids, weights, expected):
        """Times of a layer with a shared expert, and of that expert alone."""
        module.shared = Shared(model, self.device)
        try:
            expected = expected + module.shared(x).double()
            error = float((module(x, ids, weights).double() - expected).norm() / expected.norm())
            if not (math.isfinite(error) and error < (4e-3 if self.options.row_format == "bf16" else 6e-2)):
                raise SystemExit(f"rank {self.rank}: windows with a shared expert: differs by {error}")
            alone = self.graph_time(lambda: module.shared(x))
            return {"windows_shared": self.graph_time(lambda: module(x, ids, weights)), "shared": alone}
        finally:
            module.shared = None

    def run(self):
        with torch.no_grad():
            self.results["copy_rate"] = self.copy_rate(1 << 28)
            if self.rank == 0:
                print(self.results, flush=True)
            models = SMALL if self.options.small else RANKED
            for name in self.options.models or models:
                self.layer(name, models[name])
                if not SIMULATED:
                    torch.cuda.empty_cache()


def results_of(top, ranks, width):
    """What travels back where the caller does not say (sums_wait_less() in src/ops/ranks.cpp)."""
    others = ranks - 1
    rows, sums = 2 * top * others / ranks, 4 * others * (1 - (others / ranks) ** top)
    wait = max(0, 1.25 * rows - 0.0014 * top * width) + 0.25 * top
    return "sums" if rows and 1.25 * sums < wait else "rows"


def steps_of(kernels, count, sums):
    """The steps of each of so many calls, from (begin, end, grid, block) of their kernels in any order.

    A call is sort..., exchange, dispatch and meet, or send_few, then gather_rows or none, up, down, and combine, for
    many tokens with a meeting in front, or, where sums travel, combine_sums. The meeting is one block of 32 threads
    (kMeetThreads), send_few one of 1024 (kSendFewThreads). Kernels begin before those in front of them have ended, so
    only their ends count, but for the very first.
    """
    kernels = sorted(kernels)
    ends = [end for _, end, _, _ in kernels]
    befores = [kernels[0][0], *ends]
    alone = [block[0] if grid[0] == 1 else 0 for _, _, grid, block in kernels]  # threads of kernels of one block
    each, rest = divmod(len(kernels), count)
    if rest:
        raise SystemExit(f"{len(kernels)} kernels are not {count} calls")
    found = []
    for first in range(0, len(kernels), each):
        meets = alone[first + each - 2] == 32
        steps = ["up", "down", *(["meet results"] if meets else []), "combine sums" if sums else "combine"]
        up = first + each - len(steps)
        if alone[up - 1] not in (32, 1024):
            steps.insert(0, "gather")
            up -= 1
        steps = [*(["send few"] if alone[up - 1] == 1024 else ["exchange", "dispatch", "meet tokens"]), *steps]
        places = range(first + each - len(steps), first + each)
        found.append({name: ends[i] - befores[i] for name, i in zip(steps, places, strict=True)})
    return found


def begin(rank, ranks, options, method):
    backend = "gloo" if SIMULATED else "cpu:gloo,cuda:nccl"
    if SIMULATED:
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, init_method=method, rank=rank, world_size=ranks, timeout=datetime.timedelta(minutes=5)
    )
    bench = Bench(rank, ranks, options)
    bench.run()
    dist.barrier()
    if rank == 0 and options.out:
        with open(options.out, "w") as file:
            json.dump(bench.results, file, indent=1)
    sys.stdout.flush()
    # Communicators whose calls were captured may wait for ever when they are torn down.
    os._exit(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", type=lambda text: text.split(","), help=", ".join(RANKED))
    parser.add_argument("--tokens", type=lambda text: [int(each) for each in text.split(",")])
    parser.add_argument("--out", help="a file for JSON, written again after each layer")
    parser.add_argument("--results", choices=["rows", "sums", "bf16_sums"], help="what travels back through windows")
    parser.add_argument("--row-format", choices=["bf16", "fp8", "mxfp8"], default="bf16", help="of tokens in windows")
    parser.add_argument("--shared", action="store_true", help="times a shared expert beside windows, too")
    parser.add_argument("--no-deep-ep", dest="deep_ep", action="store_false", help="leaves out DeepEP, if it is there")
    parser.add_argument("--small", action="store_true", help="a tiny layer, for the simulator")
    options = parser.parse_args()
    options.tokens = options.tokens or ([1, 5] if options.small else [1, 16, 64, 256, 1024, 4096])
    if "LOCAL_RANK" in os.environ:
        begin(int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"]), options, "env://")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        method = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    context = torch.multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=begin, args=(rank, options.ranks, options, method)) for rank in range(options.ranks)
    ]
    for process in processes:
        process.start()
    # One that fails leaves the others waiting.
    while any(process.is_alive() for process in processes):
        time.sleep(0.2)
        if any(process.exitcode not in (None, 0) for process in processes):
            for process in processes:
                process.kill()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


if __name__ == "__main__":
    main()
