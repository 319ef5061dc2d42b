#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/weights-peers.md of the files weights-*.json under bench/results, which the step `weights` of
bench/measure wrote: products of MXFP4 weights and bf16 activations beside what users would take instead.

    python3 bench/report_weights.py"""

from __future__ import annotations

import json
import math
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "bench/results", ROOT / "docs/weights-peers.md"
GPUS = {"h100": "H100", "h200": "H200"}
MODELS = {
    "gpt-oss-20b": "GPT-OSS 20B",
    "gpt-oss-120b": "GPT-OSS 120B",
    "deepseek-v4-flash": "DeepSeek-V4-Flash",
    "kimi-k3-like": "384 experts, 7168, 2048, top 8",
}
PEERS = {
    "transformers": "transformers",
    "hf-triton-kernels": "gpt-oss-triton-kernels",
    "triton-kernels": "triton_kernels",
    "humming": "Humming",
}
CLASSES = {"1 to 64": (1, 64, 1.5), "128 to 1,024": (128, 1024, 1.4), "4,096 and more": (4096, 1 << 30, 1.12)}


class Record:
    """One shape on one GPU."""

    def __init__(self, record: dict) -> None:
        self.model, self.product, tokens, self.routing = record["shape"].removeprefix("mxfp4:").split(".")
        self.tokens, self.entries, self.record = int(tokens), record["contenders"], record

    def seconds(self, name: str) -> float | None:
        return self.entries.get(name, {}).get("seconds")

    @property
    def speedup(self) -> float:
        return self.record["speedup"]

    @property
    def of_bf16(self) -> float:
        """Moxie's time over that of its kernel for the same weights in bf16."""
        return self.seconds("moxie") / self.seconds("moxie-bf16")

    @property
    def share(self) -> float:
        return self.entries["moxie"]["share_of_copy"]

    @property
    def name(self) -> str:
        return f"{MODELS[self.model]}, {self.product}, {self.tokens:,}"


class Gpu:
    def __init__(self, key: str) -> None:
        self.key, found = key, {}
        self.runs = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"weights-{key}*.json"))]
        for run in sorted(self.runs, key=lambda run: run["date"]):
            found |= {record["shape"]: Record(record) for record in run["shapes"]}
        order = list(MODELS)
        self.records = sorted(found.values(), key=lambda r: (order.index(r.model), r.product, r.tokens))

    def of(self, low: int, high: int, gpt_oss: bool) -> list[Record]:
        return [r for r in self.records if low <= r.tokens <= high and r.model.startswith("gpt-oss") == gpt_oss]


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def verdict(good: bool) -> str:
    return "reached" if good else "**not reached**"


def goals(gpu: Gpu) -> list[tuple[str, str, str]]:
    rows = []
    for name, (low, high, aim) in CLASSES.items():
        records = gpu.of(low, high, True)
        if not records:
            continue
        least = min(records, key=lambda r: r.speedup)
        found = mean([r.speedup for r in records])
        worst = f"least {least.speedup:.2f} ({least.name})"
        goal = f"{name} tokens, against the best peer of each shape: geometric mean at least {aim}"
        rows.append((goal, f"{found:.2f} over {len(records)} shapes, {worst}", verdict(found >= aim)))
        if low == 1:
            few = sum(r.speedup >= 1.15 for r in records)
            found = f"{few} of {len(records)} at 1.15 or more"
            rows.append(("no shape of these under 1.15", found, verdict(few == len(records))))
            large = [r for r in records if r.tokens > 1 and r.record["active_weight_bytes"] > 64e6]
            good = sum(r.share >= 0.88 for r in large)
            least = min(large, key=lambda r: r.share)
            found = f"{good} of {len(large)}, least {least.share:.2f} ({least.name})"
            goal = "packed bytes at 88% of the copy's rate, where active weights exceed 64 MB"
            rows.append((goal, found, verdict(good == len(large))))
            ones = [r.share for r in records if r.tokens == 1]
            found = f"{min(ones):.2f} to {max(ones):.2f}"
            rows.append(("75% of it for one token", found, verdict(min(ones) >= 0.75)))
        else:
            allowed = 1 if low == 128 else 1 / 0.88
            slower = [r for r in records if r.of_bf16 > allowed]
            worst = max(records, key=lambda r: r.of_bf16)
            goal = "at least 0.88 of the rate of Moxie's bf16 kernel"
            goal = "no slower than Moxie's bf16 kernel" if low == 128 else goal
            found = f"{len(records) - len(slower)} of {len(records)}, least {1 / worst.of_bf16:.3f} ({worst.name})"
            rows.append((goal, found, verdict(not slower)))
        if gpu.key == "h200":
            for r in records:
                if (r.product, r.tokens) == ("first", 16384):
                    rate = r.entries["moxie"]["tflops"]
                    rows.append((f"{r.name}: 590 TFLOP/s", f"{rate:.0f}", verdict(rate >= 590)))
    return rows


def cell(seconds: float | None) -> str:
    return f"{seconds * 1e6:,.1f}" if seconds else "-"


def table(records: list[Record]) -> str:
    names = [n for n in PEERS if any(r.seconds(n) for r in records)]
    header = ["tokens", "Moxie", "of the copy's rate", "TFLOP/s", "Moxie, bf16", *(PEERS[n] for n in names)]
    header.append("best peer / Moxie")
    text = "| " + " | ".join(header) + " |\n" + "| --- " * len(header) + "|\n"
    for r in records:
        moxie = r.entries["moxie"]
        cells = [f"{r.tokens:,}", cell(moxie["seconds"]), f"{r.share:.2f}", f"{moxie['tflops']:.0f}"]
        cells += [cell(r.seconds(n)) for n in ("moxie-bf16", *names)]
        text += "| " + " | ".join([*cells, f"{r.speedup:.2f}"]) + " |\n"
    return text


def sizes(records: list[Record]) -> str:
    names = {"moxie": "Moxie", "moxie-bf16": "bf16"} | PEERS
    text = "| MB | " + " | ".join(names.values()) + " |\n" + "| --- " * (len(names) + 1) + "|\n"
    for model in MODELS:
        for product in ("first", "second"):
            found: dict[str, int] = {}
            for r in records:
                if (r.model, r.product) == (model, product):
                    found |= {n: e["weight_bytes"] for n, e in r.entries.items() if n in names and "weight_bytes" in e}
            if found:
                row = [f"{found[n] * 1e-6:,.1f}" if n in found else "-" for n in names]
                text += f"| {MODELS[model]}, {product} | " + " | ".join(row) + " |\n"
    return text


def main() -> int:
    gpus = [Gpu(key) for key in GPUS]
    gpus = [gpu for gpu in gpus if gpu.records]
    if not gpus:
        raise SystemExit(f"report_weights.py: no weights-*.json in {RESULTS}; bench/measure writes them")
    text = "# MXFP4 weights beside the peers\n\n"
    text += "Written by bench/report_weights.py from bench/results. What the columns stand for is in "
    text += "[weights.md](weights.md#beside-the-peers).\n\n"
    for gpu in gpus:
        for run in gpu.runs:
            m = run["machine"]
            text += f"- {m['gpu']}: PyTorch {m['torch']}, Triton {m['triton']}, CUDA {m['cuda']}; {run['date']}, "
            text += f"commit {run['commit']}, {len(run['shapes'])} shapes.\n"
    text += "\nTimes are microseconds. Routings are skewed, but for one token.\n"
    for gpu in gpus:
        text += f"\n## {GPUS[gpu.key]}\n\n"
        for name, title in PEERS.items():
            lacking = sum(r.seconds(name) is None for r in gpu.records)
            text += f"{title} has no time in {lacking} of {len(gpu.records)} shapes.\n" if lacking else ""
        text += "\n| GPT-OSS 20B and 120B, both products | measured | |\n| --- | --- | --- |\n"
        for row in goals(gpu):
            text += "| " + " | ".join(row) + " |\n"
        for model, title in MODELS.items():
            for product in ("first", "second"):
                records = [r for r in gpu.records if (r.model, r.product) == (model, product)]
                if records:
                    text += f"\n### {GPUS[gpu.key]}: {title}, {product} product\n\n{table(records)}"
    text = text.replace("\n\n\n", "\n\n") + "\n## Stored weights\n\n" + sizes([r for gpu in gpus for r in gpu.records])
    PAGE.write_text(text)
    for gpu in gpus:
        print(GPUS[gpu.key], *goals(gpu), sep="\n  ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
