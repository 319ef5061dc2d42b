#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call from Python costs, beside torch's own and the call of the library, on the GPU of torch.

    bench/python.py                      # calls and memory
    bench/python.py --parts              # what the host's time of a call is made of
    bench/python.py --model LAYERS       # a stack of GPT-OSS-20B's layers under transformers, by implementation

The host's time is that of handing 50 small calls to the GPU, in turns, the median of 40 turns; the GPU's is that of a
CUDA graph of 20 calls. With MOXIE_DEVICE=sim all of it runs once on the simulator, in small, which shows that it works
and times nothing.
"""

import argparse
import copy
import ctypes
import os
import statistics
import time
from types import SimpleNamespace

import torch

import moxie
import moxie.torch
from moxie._calls import _gpu, structure_of
from moxie._library import ffi
from moxie.nn import Experts

SIMULATED = os.environ.get("MOXIE_DEVICE") == "sim"
DEVICE = "cpu" if SIMULATED else "cuda"


def synchronize():
    if not SIMULATED:
        torch.cuda.synchronize()


def host_times(calls):
    """Microseconds of the host for each call of a dictionary, the calls taking turns."""
    for call in calls.values():
        call()
    if SIMULATED:
        return dict.fromkeys(calls, float("nan"))
    times = {name: [] for name in calls}
    for _ in range(40):
        for name, call in calls.items():
            synchronize()
            begin = time.perf_counter()
            for _ in range(50):
                call()
            times[name].append((time.perf_counter() - begin) / 50 * 1e6)
            synchronize()
    return {name: statistics.median(each) for name, each in times.items()}


def gpu_time(call, count=20):
    """Microseconds of the GPU, by graph replays."""
    if SIMULATED:
        call()
        return float("nan")
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(count):
            call()
    times = []
    for _ in range(15):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / count * 1e3)
    return statistics.median(times)


def made_known(call):
    """What a first call hands to moxie.torch._make_known."""
    made = []
    make_known, moxie.torch._make_known = moxie.torch._make_known, lambda *given: made.append(given)
    moxie.torch._known_products.clear(), moxie.torch._known_layers.clear()
    for where in (moxie.torch._Simulator, *moxie.torch._Gpu._opened.values()):
        where.calls.clear()
    try:
        call()
    finally:
        moxie.torch._make_known = make_known
    for where in (moxie.torch._Simulator, *moxie.torch._Gpu._opened.values()):
        where.calls.clear()
    return made[-1]


def bare_call(call):
    """The library's call that a call makes, with its structure filled already: what is left without Python's part."""
    *_, tensors, _, _, out, operation, given = made_known(call)
    if SIMULATED:
        return lambda: None
    nbytes = given["workspace_bytes"]
    workspace = torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)
    struct = ffi.from_buffer(structure_of(operation, given))
    options = ffi.new("moxie_launch_options*")
    options.size = ffi.sizeof("moxie_launch_options")
    at, run, handle = ffi.cast("void*", workspace.data_ptr()), operation._run, operation.handle
    struct = ffi.cast(ffi.typeof(run).args[1], struct), struct
    return lambda: (run(handle, struct[0], at, nbytes, options), workspace, out, tensors)


def known_call(made, is_idle=True, **changes):
    """A table that knows one call. is_idle: a function that returns 0 at once stands in the library's place:
    pthread_equal of the handle and the structure."""
    where, _, options, tensors, places, out_word, out, operation, given = made
    if is_idle:
        operation, original = copy.copy(operation), operation
        idle = ctypes.cast(ctypes.CDLL(None).pthread_equal, ctypes.c_void_p).value
        operation._run = ffi.cast(ffi.typeof(original._run), idle)
    known = {}
    moxie.torch._make_known(where, known, options, tensors, places, out_word, out, operation, given | changes)
    return known.get(options, SimpleNamespace(run=lambda *tensors: None))


def parts():
    """What the host's time of a known call is made of, in microseconds, mostly by differences.

    in Python: the public function and its options. look-up: reading the tensors and finding the call. result: its
    tensor. workspace: taken and given back. rest: the stream, the structure, the interpreter lock. library: its call.
    For comparison: the library's call alone as bench/python.py times it, torch.empty_like, and the current stream.
    """
    found = all(_gpu()) and moxie.torch._empty_here is not None
    print(f"torch's functions for memory of the current GPU: {'found' if found else 'not found'}")
    experts, hidden, width, top_k = (4, 64, 32, 2) if SIMULATED else (32, 2880, 2880, 4)
    w1 = torch.randn(experts, 2 * width, hidden, device=DEVICE).bfloat16()
    w2 = torch.randn(experts, hidden, width, device=DEVICE).bfloat16()
    transposed = w1.mT
    print(f"{'':28}{'tokens':>7} " + "".join(f"{name:>11}" for name in (
        "whole", "in Python", "look-up", "result", "workspace", "rest", "library", "alone", "empty_like", "stream"
    )))  # fmt: skip
    for tokens in (1, 16) if SIMULATED else (1, 16, 64, 1024):
        x = torch.randn(tokens, hidden, device=DEVICE).bfloat16()
        ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).to(DEVICE)
        scores = torch.rand(tokens, top_k, device=DEVICE)
        rows = torch.randn(tokens * top_k, hidden, device=DEVICE).bfloat16()
        offs = torch.bincount(ids.flatten(), minlength=experts).cumsum(0).int()
        for name, call in {
            "moxie.experts": lambda x=x, i=ids, s=scores: moxie.experts(x, i, s, w1, w2),
            "moxie.grouped_mm": lambda r=rows, o=offs: moxie.grouped_mm(r, transposed, offs=o),
        }.items():
            made = made_known(call)
            tensors, out = made[3], made[6]
            others = tensors[::-1]  # are read as long, and not known
            to_library, to_nothing = known_call(made, is_idle=False), known_call(made)
            without_workspace = known_call(made, workspace_bytes=0)
            shape = tuple(out.shape), out.stride(), out.dtype
            pattern = torch.empty_like(out)
            pattern.untyped_storage().resize_(0)
            make_here = None if SIMULATED else moxie.torch._empty_here
            time = host_times({
                "whole": call,
                "to library": lambda f=to_library, t=tensors: f.run(*t),
                "to nothing": lambda f=to_nothing, t=tensors: f.run(*t),
                "without workspace": lambda f=without_workspace, t=tensors: f.run(*t),
                "look-up": lambda f=to_nothing, t=others: f.run(*t),
                "nothing": lambda: None,
                "result": (lambda f=make_here, s=shape: f(*s)) if make_here else (lambda: None),
                "empty_like": lambda p=pattern: torch.empty_like(p),
                "stream": (lambda: None) if SIMULATED else (lambda: torch._C._cuda_getCurrentRawStream(0)),
                "alone": bare_call(call),
            })  # fmt: skip
            look_up, result = time["look-up"] - time["nothing"], time["result"] - time["nothing"]
            each = (
                time["whole"], time["whole"] - time["to library"], look_up, result,
                time["to nothing"] - time["without workspace"], time["without workspace"] - time["look-up"] - result,
                time["to library"] - time["to nothing"], time["alone"], time["empty_like"] - time["nothing"],
                time["stream"] - time["nothing"],
            )  # fmt: skip
            print(f"{name:28}{tokens:7} " + "".join(f"{part:11.2f}" for part in each), flush=True)


def calls():
    experts, hidden, width, top_k = (4, 64, 32, 2) if SIMULATED else (32, 2880, 2880, 4)
    module = Experts(experts, hidden, width, device=DEVICE)
    for weight in module.parameters():
        weight.normal_(std=0.05)
    w1, w2 = module.gate_up_proj, module.down_proj
    transposed = w1.mT
    compiled = torch.compile(module, fullgraph=True)
    print(f"{'call':44} {'tokens':>6} {'host us':>8} {'GPU us':>8}")
    for tokens in (1, 16, 64, 1024):
        if SIMULATED and tokens > 16:
            continue
        x = torch.randn(tokens, hidden, device=DEVICE).bfloat16()
        ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).to(DEVICE)
        scores = torch.rand(tokens, top_k, device=DEVICE)
        rows = torch.randn(tokens * top_k, hidden, device=DEVICE).bfloat16()
        offs = torch.bincount(ids.flatten(), minlength=experts).cumsum(0).int()
        each = {
            "layer: the library's call": bare_call(lambda x=x, i=ids, s=scores: moxie.experts(x, i, s, w1, w2)),
            "layer: moxie.experts": lambda x=x, i=ids, s=scores: moxie.experts(x, i, s, w1, w2),
            "layer: torch.ops.moxie.experts": lambda x=x, i=ids, s=scores: torch.ops.moxie.experts(
                x, i, s, w1, w2, None, None, None, "swiglu", None, "split", 0, None, None
            ),
            "layer: moxie.nn.Experts": lambda x=x, i=ids, s=scores: module(x, i, s),
            "layer: moxie.nn.Experts, compiled": lambda x=x, i=ids, s=scores: compiled(x, i, s),
            "product: the library's call": bare_call(lambda r=rows, o=offs: moxie.grouped_mm(r, transposed, offs=o)),
            "product: moxie.grouped_mm": lambda r=rows, o=offs: moxie.grouped_mm(r, transposed, offs=o),
            "product: moxie.grouped_mm with swiglu": lambda r=rows, o=offs: moxie.grouped_mm(
                r, transposed, offs=o, activation="swiglu"
            ),
            "product: torch's grouped_mm": lambda r=rows, o=offs: torch.nn.functional.grouped_mm(r, transposed, offs=o),
        }
        host = host_times(each)
        for name, call in each.items():
            compiled_one = name.endswith("compiled") or name.endswith("library's call")
            gpu = float("nan") if compiled_one else gpu_time(call)
            print(f"{name:44} {tokens:6} {host[name]:8.1f} {gpu:8.1f}", flush=True)


def memory():
    print(f"\n{'module':28} {'checkpoint MB':>14} {'module MB':>10} {'peak MB':>9}")
    experts, hidden, width = (4, 64, 32) if SIMULATED else (32, 2880, 2880)
    for layout, weights in (("qwen3", "bf16"), ("gpt_oss", "bf16"), ("gpt_oss", "mxfp4")):
        module = Experts(experts, hidden, width, layout=layout, weights=weights, device=DEVICE)
        checkpoint = sum(each.nbytes for each in module.parameters())
        if not SIMULATED:
            torch.cuda.reset_peak_memory_stats()
        module.pack()
        module(torch.zeros(1, hidden, device=DEVICE).bfloat16(), torch.zeros(1, 1, device=DEVICE, dtype=torch.int64))
        peak = 0 if SIMULATED else torch.cuda.max_memory_allocated()
        held = sum(each.nbytes for each in (*module.parameters(), *module.buffers()))
        print(f"{layout + ' ' + weights:28} {checkpoint / 1e6:14.2f} {held / 1e6:10.2f} {peak / 1e6:9.1f}")
        del module


def model(layers):
    """Tokens a second of a stack of GPT-OSS-20B's layers with random weights in bf16."""
    from transformers import AutoModelForCausalLM, GptOssConfig, logging

    import moxie.integrations.transformers

    logging.set_verbosity_error()
    moxie.integrations.transformers.register()
    small = {"hidden_size": 64, "intermediate_size": 32, "num_local_experts": 4, "vocab_size": 64, "head_dim": 16,
             "num_attention_heads": 4, "num_key_value_heads": 2, "num_experts_per_tok": 2}  # fmt: skip
    config = GptOssConfig(num_hidden_layers=layers, eos_token_id=None, pad_token_id=0, **(small if SIMULATED else {}))
    with torch.device(DEVICE):
        stack = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    print(f"\n{layers} layers: {'experts':12} {'batch':>6} {'prompt':>7} {'generated':>10} {'tokens/s':>9}")
    jobs = [(1, 8, 4), (2, 8, 4)] if SIMULATED else [(1, 32, 64), (64, 32, 64), (1, 4096, 0)]
    for batch, prompt, new in jobs:
        ids = torch.randint(3, config.vocab_size, (batch, prompt), device=DEVICE)
        times = {implementation: [] for implementation in ("moxie", "grouped_mm", "eager")}
        for turn in range(1 if SIMULATED else 6):
            for implementation, each in times.items():
                stack.set_experts_implementation(implementation)
                synchronize()
                begin = time.perf_counter()
                if new == 0:
                    stack(ids, use_cache=False, logits_to_keep=1)
                else:
                    stack.generate(ids, max_new_tokens=new, min_new_tokens=new, do_sample=False)
                synchronize()
                if turn > 0:  # the first turn loads kernels
                    each.append(time.perf_counter() - begin)
        for implementation, each in times.items():
            rate = batch * (new or prompt) / statistics.median(each) if each else float("nan")
            print(f"          {implementation:12} {batch:6} {prompt:7} {new:10} {rate:9.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=int, metavar="LAYERS")
    parser.add_argument("--parts", action="store_true")
    arguments = parser.parse_args()
    print(f"torch {torch.__version__}, moxie {moxie.__version__}, " + (
        "simulator: no time means anything" if SIMULATED else torch.cuda.get_device_name()
    ))  # fmt: skip
    with torch.no_grad():
        if arguments.model:
            model(arguments.model)
        elif arguments.parts:
            parts()
        else:
            calls()
            memory()
