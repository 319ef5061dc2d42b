#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Moxie beside what its users would pick instead and beside the machine's ceilings, in one process and on the same
tensors: medians of CUDA graph replays, contenders taking turns so that they share the clocks. Every contender is
checked against float32 sums first; one that fails is reported and left out. Needs a Hopper GPU, PyTorch and Triton.

    make bundle     # here; then in the folder moxie of build-bundle/moxie.tar.gz, unpacked on the GPU's machine:
    python3 bench/peers.py --shapes reference --only moxie,cublaslt,copy --out results.json
    python3 bench/peers.py --out results.json     # everything; --list shows the shapes and contenders
    python3 bench/peers.py --shapes 'gpt-oss-20b.*' --kernels pingpong:128x128:b,cooperative:128x256
    python3 bench/peers.py --shapes reference --only moxie-pre,moxie-out,moxie-both    # what each output costs
    python3 bench/peers.py --shapes 'mxfp4:gpt-oss-*.skewed' --peer-path FOLDER    # MXFP4 weights, bf16 activations

--peer NAME=PATH adds a shared library with the interface of bench/peer.h. --peer-path, or MOXIE_PEERS, names a folder
of Python packages: bench/rivals_mxfp4.py says which."""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import pathlib
import random
import statistics
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import shapes as shapes_module  # noqa: E402

DEFAULT = "moxie moxie-waits moxie-serial copy cublaslt torch-grouped cublaslt-groups triton".split()
# By default for weights in MXFP4.
MXFP4 = "moxie moxie-bf16 copy transformers hf-triton-kernels triton-kernels humming".split()
# The last three: the plan's kernel for all outputs, storing some of them.
NAMES = DEFAULT + MXFP4[1:2] + MXFP4[3:] + "moxie-pre moxie-out moxie-both".split()
TOLERANCE = 2e-2  # of contenders that round D to bf16 before the activation; Moxie's own tests are far stricter


def library_path() -> pathlib.Path:
    for root in (HERE.parent, HERE.parent / "build"):
        if (root / "lib/libmoxie_peer.so").exists():
            return root / "lib/libmoxie_peer.so"
    raise SystemExit("peers.py: no lib/libmoxie_peer.so beside bench/ and none in build/: build it, or give --lib")


def make_contenders(names: list[str], arguments: argparse.Namespace) -> tuple[list, dict[str, str]]:
    import contenders as c

    made, failed = [], {}

    def add(name: str, make) -> None:
        try:
            contender = make()
            contender.name = name
            made.append(contender)
        except Exception as error:  # a peer that is not there must not stop the others
            failed[name] = f"{type(error).__name__}: {error}"

    moxie = str(arguments.lib or library_path())
    for name in names:
        if name == "moxie":
            add(name, lambda: c.PeerLibrary(name, moxie))
        elif name == "moxie-serial":  # without programmatic dependent launch
            add(name, lambda: c.PeerLibrary(name, moxie, {"serial": 1}))
        elif name == "moxie-waits":  # without the promise that weights and sizes are ready
            add(name, lambda: c.PeerLibrary(name, moxie, {"waits": 1}))
        elif name == "moxie-bf16":  # on MXFP4 weights dequantized once
            add(name, lambda: c.PeerLibrary(name, moxie, dequantized=True))
        elif name in ("moxie-pre", "moxie-out", "moxie-both"):
            outputs = name.removeprefix("moxie-").replace("both", "pre,out")
            add(name, lambda: c.SameKernel(name, moxie, outputs=outputs))
        elif name == "copy":
            add(name, c.Copy)
        elif name == "cublaslt":
            add(name, c.Dense)
        else:
            rivals = "rivals_mxfp4" if name in MXFP4 else "rivals"
            add(name, lambda: importlib.import_module(rivals).MAKERS[name]())
    for kernel in filter(None, arguments.kernels.split(",")):
        add(f"moxie:{kernel}", lambda: c.PeerLibrary(kernel, moxie, c.parse_kernel(kernel)))
    for peer in arguments.peer:
        name, _, path = peer.partition("=")
        add(name, lambda: c.PeerLibrary(name, path))
    return made, failed


class Timer:
    """One contender's graph: several launches over all turns, so that the graph's own start does not count."""

    def __init__(self, contender, run, turns: int, target_ms: float) -> None:
        import torch
        from contenders import quick_time

        self.contender, self.run, self.times = contender, run, []
        rough = quick_time(run.run, turns)
        self.launches = turns * max(1, min(40, round(target_ms / max(rough, 1e-3) / turns)))
        torch.cuda.synchronize()
        self.graph = None
        if contender.kind != "copy":  # a graph's copies go through the copy engine, at two thirds of the rate
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                for t in range(self.launches):
                    run.run(t)
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.launch()
        torch.cuda.synchronize()

    def launch(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        else:
            for t in range(self.launches):
                self.run.run(t)

    def replay(self) -> None:
        self.start.record()
        self.launch()
        self.end.record()

    def read(self) -> None:
        self.end.synchronize()
        self.times.append(self.start.elapsed_time(self.end) * 1e-3 / self.launches)


def measure(shape, contenders, arguments, l2_bytes: int) -> dict:
    import torch
    from contenders import Refused, Tensors, errors

    tensors = Tensors(shape, l2_bytes, arguments.data)
    record = {
        "shape": shape.name,
        "groups": shape.groups,
        "rows": shape.rows,
        "n": shape.n,
        "k": shape.k,
        "activation": shape.activation,
        "bias": shape.bias,
        "outputs": list(tensors.outputs(0)),
        "routing": shape.routing,
        "weights": shape.weights,
        "active_groups": sum(tensors.active) / tensors.turns,
        "most_rows": int(max(r.max() for r in tensors.rows)),
        "flops": shape.flops,
        "bytes": tensors.bytes,
        "active_weight_bytes": shape.group_weight_bytes * sum(tensors.active) / tensors.turns,
        "turns": tensors.turns,
        "contenders": {},
    }
    timers = []
    for contender in contenders:
        entry = record["contenders"][contender.name] = {"kind": contender.kind}
        try:
            with torch.no_grad():
                run = contender.make(tensors)
                entry["detail"] = run.detail
                if hasattr(run, "weight_bytes"):
                    entry["weight_bytes"] = run.weight_bytes
                tensors.poison()
                run.run(0)
                torch.cuda.synchronize()
                entry["errors"] = errors(tensors, 0, run.results())
                if hasattr(run, "check"):
                    entry["errors"]["d"] = run.check()
                wrong = {n: e for n, e in entry["errors"].items() if not e < TOLERANCE}
                if wrong:
                    entry["failed"] = f"wrong result: relative error {wrong}"
                    continue
                timers.append(Timer(contender, run, tensors.turns, arguments.graph_ms))
        except Refused as refused:
            entry["refused"] = str(refused)
        except Exception as error:
            entry["failed"] = f"{type(error).__name__}: {error}"
            if arguments.verbose:
                traceback.print_exc()
            if "CUDA error" in str(error) or "CUDA_ERROR" in str(error):
                raise  # the context is lost
    for round_ in range(arguments.rounds):
        order = random.Random(round_).sample(timers, len(timers))  # what ran just before moves a time by up to 3%
        for timer in order:
            timer.replay()
        for timer in order:
            timer.read()
    for timer in timers:
        entry = record["contenders"][timer.contender.name]
        seconds = statistics.median(timer.times)
        ordered = sorted(timer.times)
        entry["seconds"] = seconds
        entry["spread"] = (ordered[-1 - len(ordered) // 4] - ordered[len(ordered) // 4]) / seconds
        entry["launches"] = timer.launches
        if timer.contender.kind != "copy":
            entry["tflops"] = shape.flops / seconds * 1e-12
        entry["gbs"] = (timer.contender.bytes if timer.contender.kind == "copy" else tensors.bytes) / seconds * 1e-9
        if timer.contender.name == "moxie":
            entry["errors_with_other_sizes"] = replay_with_other_sizes(tensors, timer)
            if not all(e < TOLERANCE for e in entry["errors_with_other_sizes"].values()):
                print(f"{shape.name}: wrong after the group sizes changed: {entry['errors_with_other_sizes']}")
    add_ceilings(record)
    return record


def replay_with_other_sizes(tensors, timer) -> dict[str, float]:
    """Errors of the first turn's results after its group sizes were changed in device memory and the captured graph was
    replayed as it is."""
    import numpy as np
    import torch
    from contenders import errors

    groups = tensors.shape.groups
    rows = np.random.default_rng(7).multinomial(tensors.shape.rows, np.full(groups, 1 / groups))
    kept = tensors.host_ends[0]
    tensors.host_ends[0] = torch.from_numpy(rows.cumsum()).to(torch.int32)
    tensors.ends[0].copy_(tensors.host_ends[0])
    tensors.poison()
    timer.launch()
    torch.cuda.synchronize()
    names = timer.run.results()
    found = errors(tensors, 0, {n: t for n, t in tensors.outputs(0).items() if n in names})
    tensors.host_ends[0] = kept
    tensors.ends[0].copy_(kept)
    return found


def add_ceilings(record: dict) -> None:
    """The floor of the time: arithmetic at the dense product's rate, compulsory traffic at the copy's."""
    entries = record["contenders"]
    copy, dense = entries.get("copy", {}), entries.get("cublaslt", {})
    floors = {}
    if "gbs" in copy:
        floors["bytes"] = record["bytes"] / (copy["gbs"] * 1e9)
    if "seconds" in dense:
        floors["arithmetic"] = dense["seconds"]
    record["floors"] = floors
    peers = {
        n: e["seconds"]
        for n, e in entries.items()
        if e["kind"] == "peer" and "seconds" in e and not n.startswith("moxie")
    }
    if peers and "seconds" in entries.get("moxie", {}):
        best = min(peers, key=peers.get)
        record["best_peer"] = best
        record["speedup"] = peers[best] / entries["moxie"]["seconds"]
    if record["weights"] == "mxfp4" and "gbs" in copy:
        for name, entry in entries.items():
            if "weight_bytes" in entry and "seconds" in entry and name != "moxie-bf16":
                entry["share_of_copy"] = record["active_weight_bytes"] / entry["seconds"] * 1e-9 / copy["gbs"]


def print_record(record: dict) -> None:
    floors = record["floors"]
    print(
        f"\n{record['shape']}: {record['groups']} groups, {record['rows']} rows (most {record['most_rows']}, "
        f"{record['active_groups']:.4g} groups active) x {record['n']} x {record['k']}, {record['activation']}"
        f"{' + bias' if record['bias'] else ''}, stores {'+'.join(record['outputs'])}"
    )
    for name, entry in record["contenders"].items():
        if "seconds" not in entry:
            print(f"  {name:<28} {entry.get('refused') or entry.get('failed')}"[:300])
            continue
        line = f"  {name:<28} {entry['seconds'] * 1e3:9.4f} ms"
        line += f" {entry['tflops']:7.1f} TFLOP/s" if "tflops" in entry else " " * 16
        line += f" {entry['gbs']:6.0f} GB/s"
        line += f"  {entry['share_of_copy']:5.2f} of the copy" if "share_of_copy" in entry else ""
        for what, floor in floors.items():
            if entry["kind"] == "peer":
                line += f"  {floor / entry['seconds']:5.2f} of {what}"
        worst = max(entry["errors"].values(), default=None)
        line += f"  error {worst:.1e}" if worst is not None else ""
        if record["weights"] == "mxfp4" and "weight_bytes" in entry:
            line += f"  {entry['weight_bytes'] * 1e-6:.1f} MB of weights"
        print(f"{line}  ±{entry['spread'] * 50:.1f}%  {entry['detail']}")
    if "speedup" in record:
        print(f"  moxie against the best peer ({record['best_peer']}): {record['speedup']:.3f}")


def machine() -> dict:
    import torch
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }


def commit() -> str:
    if (HERE.parent / "COMMIT").exists():  # in a bundle
        return (HERE.parent / "COMMIT").read_text().strip()
    return os.popen(f"git -C '{HERE}' rev-parse --short HEAD 2>/dev/null").read().strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="*", help="names, patterns or GROUPSxMxNxK, separated by commas")
    parser.add_argument("--only", default="", help="contenders, separated by commas; all by default (see --list)")
    kernels = "further contenders: Moxie's kernel SCHEDULE:ROWSxCOLUMNS[:a|b|e]"
    parser.add_argument("--kernels", default="", help=kernels)
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH", help="a library as in peer.h")
    parser.add_argument("--peer-path", default=os.environ.get("MOXIE_PEERS", ""), help="folder of Python packages")
    parser.add_argument("--outputs", default="", help="pre, out or pre,out in place of what the shapes store")
    parser.add_argument(
        "--data",
        choices=("normal", "uniform", "integers"),
        default="normal",
        help="what the operands hold; the GPU's power, and with it its clock, depends on it",
    )
    parser.add_argument("--out", default="peers.json", help="results, rewritten after every shape")
    parser.add_argument("--lib", help="libmoxie_peer.so")
    parser.add_argument("--rounds", type=int, default=15, help="replays of each contender's graph")
    parser.add_argument("--graph-ms", type=float, default=2.0, help="milliseconds that a graph should last")
    parser.add_argument("--limit", type=float, default=0, help="begin no further shape after so many seconds")
    parser.add_argument("--verbose", action="store_true", help="where errors came from")
    parser.add_argument("--list", action="store_true", help="shapes and contenders")
    arguments = parser.parse_args()

    chosen = shapes_module.select(arguments.shapes)
    if arguments.outputs:
        import dataclasses

        outputs = arguments.outputs.split(",")
        chosen = [dataclasses.replace(s, pre="pre" in outputs, out="out" in outputs) for s in chosen]
    if arguments.peer_path:
        sys.path.insert(1, arguments.peer_path)
    default = MXFP4 if all(s.weights == "mxfp4" for s in chosen) else DEFAULT
    names = arguments.only.split(",") if arguments.only else default
    for name in names:
        if name not in NAMES:
            raise SystemExit(f"peers.py: --only: {name} is none of {', '.join(NAMES)}")
    if arguments.list:
        print("\n".join(s.name for s in chosen))
        print("contenders:", ", ".join(NAMES))
        return 0

    os.environ.setdefault("MOXIE_DEVICE", "cuda")
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("peers.py: PyTorch sees no GPU")
    started = time.time()
    results = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "machine": machine(),
        "rounds": arguments.rounds,
        "data": arguments.data,
        "shapes": [],
    }
    contenders, results["absent"] = make_contenders(names, arguments)
    print(f"{results['machine']['gpu']}, PyTorch {torch.__version__}, {len(chosen)} shapes")
    for name, why in results["absent"].items():
        print(f"  {name}: {why}"[:300])
    l2_bytes = results["machine"]["l2_bytes"]
    for shape in chosen:
        if arguments.limit and time.time() - started > arguments.limit:
            print(f"\n--limit: {shape.name} and what follows it is left out")
            break
        begun = time.time()
        try:
            record = measure(shape, contenders, arguments, l2_bytes)
        except Exception as error:  # the context is lost, or the memory; what was measured stands in the file
            print(f"\n{shape.name}: {type(error).__name__}: {error}"[:1000])
            return 1
        record["took"] = time.time() - begun
        results["shapes"].append(record)
        write(pathlib.Path(arguments.out), results)
        print_record(record)
        sys.stdout.flush()
        torch.cuda.empty_cache()
    summary(results)
    return 0


def write(path: pathlib.Path, results: dict) -> None:
    """One line a shape."""
    head = json.dumps({name: value for name, value in results.items() if name != "shapes"})
    lines = ",\n".join(json.dumps(record) for record in results["shapes"])
    path.write_text(f'{head[:-1]}, "shapes": [\n{lines}\n]}}\n')


def summary(results: dict) -> None:
    import math

    speedups = [r["speedup"] for r in results["shapes"] if "speedup" in r]
    if speedups:
        mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
        worst = min((r for r in results["shapes"] if "speedup" in r), key=lambda r: r["speedup"])
        print(
            f"\n{len(speedups)} shapes: moxie against the best peer {mean:.3f} (geometric mean), "
            f"worst {worst['speedup']:.3f} ({worst['shape']})"
        )


if __name__ == "__main__":
    raise SystemExit(main())
