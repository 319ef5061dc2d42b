#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bytes that the plan's kernels move from and to memory, counted by ncu, beside the compulsory ones: every operand and
every result once. Groups have equal rows. Runs in an unpacked bundle on a machine with a Hopper GPU and ncu.

    python3 bench/bytes.py --out bytes.json                  # the five shapes with most multiply-adds of those listed
    python3 bench/bytes.py --shapes 'unseen:grok-1.first.*'"""

from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import subprocess
import tempfile

import shapes as shapes_module

HERE = pathlib.Path(__file__).resolve().parent
METRICS = ("dram__bytes_read.sum", "dram__bytes_write.sum", "gpu__time_duration.sum")
UNITS = {"byte": 1, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1}


def count(shape: shapes_module.Shape) -> dict[str, float]:
    """Of one launch, after two others; ncu runs it alone."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as problem:
        print(shapes_module.list_line(shape), file=problem, flush=True)
        command = ["ncu", "--clock-control", "none", "--cache-control", "none", "--csv", "-k", "regex:moxie"]
        command += ["--launch-skip", "2", "--launch-count", "1", "--kill", "yes", "--metrics", ",".join(METRICS)]
        command += [str(HERE.parent / "bin/moxie"), "bench", "--list", problem.name]
        environment = {**os.environ, "MOXIE_DEVICE": "cuda"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    found = {}
    for row in csv.DictReader(lines):
        if row["Metric Name"] in METRICS:
            found[row["Metric Name"]] = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
    if len(found) < len(METRICS):
        raise SystemExit(f"bytes.py: {shape.name}: ncu counted nothing:\n{done.stdout[-1000:]}{done.stderr[-1000:]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="*,unseen:*", help="names or patterns, as in peers.py")
    parser.add_argument("--most", type=int, default=5, help="so many of them, those with most multiply-adds")
    parser.add_argument("--out", default="bytes.json")
    arguments = parser.parse_args()
    chosen = [s for s in shapes_module.select(arguments.shapes) if s.routing == "balanced"]
    chosen = sorted(chosen, key=lambda s: -s.flops)[: arguments.most]
    records = []
    for shape in chosen:
        found = count(shape)
        out = 2.0 * shape.rows * ((shape.n // 2 if shape.gated else shape.n) + (shape.n if shape.pre else 0))
        reads = shape.bytes(shape.groups) - out
        record = {
            "shape": shape.name,
            "read": found[METRICS[0]],
            "written": found[METRICS[1]],
            "compulsory_read": reads,
        }
        record |= {"compulsory_written": out, "seconds": found[METRICS[2]]}
        records.append(record)
        print(
            f"{shape.name}: {record['read'] * 1e-9:.2f} GB read, compulsory {reads * 1e-9:.2f}: "
            f"{record['read'] / reads:.2f}; {record['written'] * 1e-9:.2f} written, {out * 1e-9:.2f}",
            flush=True,
        )
        pathlib.Path(arguments.out).write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
