#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/layer-peers.md of the files layers-*.json under bench/results, which bench/layers.py wrote: whole expert
layers beside what users would call in Moxie's place.

    python3 bench/report_layers.py"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Collection

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS, PAGE = ROOT / "bench/results", ROOT / "docs/layer-peers.md"
GPUS = {"h100": "H100", "h200": "H200"}
MODELS = {
    "gpt-oss-20b": "GPT-OSS 20B",
    "mxfp4:gpt-oss-20b": "GPT-OSS 20B, MXFP4",
    "mxfp4:gpt-oss-120b": "GPT-OSS 120B, MXFP4",
    "qwen3-30b-a3b": "Qwen3-30B-A3B",
    "mixtral-8x7b": "Mixtral 8x7B",
    "deepseek-v3": "DeepSeek-V3, 32 of 256 experts",
    "phi-3.5-moe": "Phi-3.5-MoE",
    "qwen3-235b-a22b": "Qwen3-235B-A22B",
}
# Columns, and the contenders of each: the fastest counts.
PEERS = {
    "Triton": ("triton", "triton, [E, N, K]"),
    "Triton, routed": ("triton, routed", "triton, routed, [E, N, K]"),
    "grouped_mm": ("grouped_mm",),
    "compiled": ("compiled",),
    "batched_mm": ("batched_mm",),
    "vLLM, routed": ("vllm, routed",),
}
ROUTED = {"Triton, routed", "vLLM, routed"}  # with what depends on the routing made beforehand
# A result further than this from float64's is wrong, and its time no time.
LARGEST_ERROR = 0.02


class Layer:
    """A model's layer with so many tokens on one GPU. Times are microseconds; None: not timed, or refused."""

    def __init__(self, record: dict) -> None:
        self.model, self.tokens, self.contenders = record["model"], record["tokens"], record["contenders"]
        self.moxie = self.contenders["moxie"]["us"]
        self.peers = {title: self.least(names) for title, names in PEERS.items()}

    def least(self, names: tuple[str, ...]) -> float | None:
        found = [self.contenders[name] for name in names if "us" in self.contenders.get(name, {})]
        return min((each["us"] for each in found if each["error"] < LARGEST_ERROR), default=None)

    def ratio(self, without: Collection[str] = ()) -> float:
        """Of the best peer's time to Moxie's."""
        return min(us for title, us in self.peers.items() if us and title not in without) / self.moxie


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def runs_of(key: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"layers-{key}*.json"))]


def layers_of(runs: list[dict]) -> list[Layer]:
    """What was timed in the latest run that has all contenders; a run of some adds theirs, as ratios of Moxie's."""
    found: dict[tuple, dict] = {}
    for run in sorted(runs, key=lambda run: (len(run["layers"]), run["date"]), reverse=True):
        for record in run["layers"]:
            first = found.setdefault((record["model"], record["tokens"]), record)
            factor = first["contenders"]["moxie"]["us"] / record["contenders"]["moxie"]["us"]
            for name, entry in record["contenders"].items():
                if name not in first["contenders"] and "us" in entry:
                    first["contenders"][name] = entry | {"us": entry["us"] * factor}
    order = list(MODELS)
    return sorted(map(Layer, found.values()), key=lambda layer: (order.index(layer.model), layer.tokens))


def summary(title: str, layers: list[Layer]) -> str:
    cells = [title, str(len(layers))]
    for without in (ROUTED, ()):
        ratios = [(layer.ratio(without), layer) for layer in layers]
        least, worst = min(ratios, key=lambda pair: pair[0])
        cells.append(f"{mean([ratio for ratio, _ in ratios]):.2f}")
        cells.append(f"{least:.2f} ({MODELS[worst.model]}, {worst.tokens:,})")
    return "| " + " | ".join(cells) + " |\n"


def table(layers: list[Layer]) -> str:
    titles = [title for title in PEERS if any(layer.peers[title] for layer in layers)]
    text = "| " + " | ".join(["tokens", "Moxie", *titles, "best peer / Moxie"]) + " |\n"
    text += "| --- " * (len(titles) + 3) + "|\n"
    for layer in layers:
        times = [layer.moxie, *(layer.peers[title] for title in titles)]
        cells = [f"{layer.tokens:,}", *(f"{us:,.1f}" if us else "-" for us in times), f"{layer.ratio():.2f}"]
        text += "| " + " | ".join(cells) + " |\n"
    return text


def main() -> int:
    text = "# Expert layers beside their peers\n\n"
    text += "Written by bench/report_layers.py from bench/results. What the columns stand for is in "
    text += "[layer.md](layer.md#beside-the-peers).\nTimes are microseconds.\n"
    for key, gpu in GPUS.items():
        runs = runs_of(key)
        if not runs:
            continue
        layers = layers_of(runs)
        text += f"\n## {gpu}\n\n"
        for run in runs:
            text += f"- {run['gpu']}: PyTorch {run['torch']}; {run['date']}, commit {run['commit']}, "
            text += f"{len(run['layers'])} layers.\n"
        text += "\n| | layers | best peer from ids / Moxie, geometric mean | least | best of all / Moxie | least |\n"
        text += "| --- " * 6 + "|\n"
        packed = [layer for layer in layers if layer.model.startswith("mxfp4:")]
        text += summary("MXFP4, up to 64 tokens", [layer for layer in packed if layer.tokens <= 64])
        text += summary("MXFP4", packed) + summary("bf16", [layer for layer in layers if layer not in packed])
        text += summary("all", layers)
        for model, title in MODELS.items():
            of_model = [layer for layer in layers if layer.model == model]
            if of_model:
                text += f"\n### {gpu}: {title}\n\n{table(of_model)}"
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
