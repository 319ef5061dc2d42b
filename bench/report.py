#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/performance.md and its plots of the files under bench/results, which bench/measure wrote: the latest
result of each shape counts. Needs matplotlib.

    python3 bench/report.py"""

from __future__ import annotations

import collections
import json
import math
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS, PAGE, PLOTS = ROOT / "bench/results", ROOT / "docs/performance.md", ROOT / "docs/performance"
MODELS = {
    "gpt-oss-20b": "GPT-OSS 20B",
    "gpt-oss-120b": "GPT-OSS 120B",
    "qwen3-30b-a3b": "Qwen3 30B-A3B",
    "mixtral-8x7b": "Mixtral 8x7B",
    "deepseek-v3": "DeepSeek-V3, 32 experts of 256",
}
TITLES = {
    "moxie": "Moxie",
    "torch-grouped": "PyTorch grouped_mm + compiled epilogue",
    "cublaslt-groups": "cuBLASLt, a call a group + compiled epilogue",
    "triton": "Triton, fused",
    "cutlass57": "CUTLASS example 57 + epilogue kernel",
    "pr3256": "CUTLASS pull request 3256, fused",
    "deepgemm": "DeepGEMM + epilogue kernel",
}
VARIANTS = {  # of Moxie, in the reference's table alone
    "moxie-waits": "Moxie, without weights_ready",
    "moxie-serial": "Moxie, launches one after another",
}
STEPS = ("activation", "fused", "reference", "reference-integers", "shapes")  # of bench/measure; others are fitted to
COLOURS = ["#1a1a1a", "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"]


class Results:
    """What bench/measure left: files by the name of their step, and the record of each shape."""

    def __init__(self) -> None:
        paths = [RESULTS / f"{name}.json" for name in STEPS]
        self.files: dict[str, dict] = {p.stem: json.loads(p.read_text()) for p in paths if p.exists()}
        self.shapes: dict[str, dict] = {}
        for name, content in sorted(self.files.items(), key=lambda item: item[1]["date"]):
            if name in ("shapes", "reference"):
                self.shapes |= {record["shape"]: record for record in content["shapes"]}

    def text(self, name: str) -> str:
        path = RESULTS / f"{name}.txt"
        return path.read_text() if path.exists() else ""

    def record(self, file: str, shape: str) -> dict | None:
        records = self.files.get(file, {"shapes": []})["shapes"]
        return next((r for r in records if r["shape"] == shape), None)


def seconds(record: dict | None, contender: str) -> float | None:
    return (record or {"contenders": {}})["contenders"].get(contender, {}).get("seconds")


def moxie_seconds(record: dict) -> float | None:
    return seconds(record, "moxie")


def peers_of(record: dict) -> dict[str, float]:
    return {
        name: entry["seconds"]
        for name, entry in record["contenders"].items()
        if entry["kind"] == "peer" and "seconds" in entry and not name.startswith("moxie")
    }


def floor_of(record: dict) -> float | None:
    return max(record["floors"].values(), default=None)


def memory_bound(record: dict) -> bool:
    floors = record["floors"]
    return len(floors) == 2 and floors["bytes"] > floors["arithmetic"]


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def verdict(good: bool) -> str:
    return "reached" if good else "**not reached**"


def at_the_floors(results: Results) -> float:
    """Over the best peers, if every shape took its floor, or its fastest contender's time where that is shorter."""
    ratios = []
    for record in results.shapes.values():
        peers, time, floor = peers_of(record), moxie_seconds(record), floor_of(record)
        if peers and time and floor:
            best = min(peers.values())
            ratios.append(best / min(best, time, floor))
    return geometric_mean(ratios) if ratios else math.nan


def reasons(results: Results) -> str:
    return f"""
## What is not reached, and why

Counters of ncu, stamps of single stages and variants that leave one out are in bench/notes/hopper.md, with what was
tried and did not help. They are of 2026-11-20 and 21 and, but for the mean, stand here whatever the tables show.

- The reference. Under ncu Moxie takes 294,300 cycles at 1.49 GHz, cuBLASLt 283,800 at 1.59; the products alone need
  258,000. On one matrix and without an epilogue both run at 1.57 GHz, and Moxie takes 289,500 cycles, cuBLASLt 279,800:
  3.5% are cycles. The rest is the clock that the power limit leaves: 134 MB of weights in place of 17 take it to 1.54,
  storing `pre` to 1.50, both outputs to 1.49. 760 TFLOP/s would be more than cuBLASLt reaches on such data. Tiles of
  160 and 192 columns, either operand shared, stream-K, panels of 4 to 33 clusters and neighboring tiles on
  neighboring multiprocessors change it by -1.5 to +2.5%.
- The geometric mean. A shape whose every contender is at the floor leaves nothing to win: if each shape took its floor,
  or its fastest contender's time where that is shorter, the mean would be {at_the_floors(results):.3f}. Not a bound:
  reading alone may run up to a tenth faster than the copy that sets the floor of traffic.
- Memory-bound shapes of 512 and 4096 tokens with skew, and Qwen3 at 4096. A group of 129 rows takes two rows of tiles,
  and groups of many rows take longer to multiply than to read: the sum over the groups of the longer of the two, bytes
  at 4.35 TB/s and whole tiles at 720 TFLOP/s, is 0.87 to 1.06 of what is measured. Tiles that leave out rows that do
  not exist, dealt out beforehand or as blocks are done, gained nothing.
- `out` alone against `pre` alone on the reference: the epilogue runs beside the other warp group's products, so
  neither the stores that `out` saves nor the arithmetic it adds shows, but for the last tile's: leaving out its
  epilogue saves 4,700 cycles of 290,000 of `out`, 2,500 of `pre`. In six other runs the two differed by -0.7 to +0.2%.
"""


def goals(results: Results) -> list[tuple[str, str, str]]:
    """What is aimed at, what was measured, and whether that is enough."""
    rows: list[tuple[str, str, str]] = []

    def add(goal: str, found: str | None, good: bool = False) -> None:
        rows.append((goal, found or "not measured", verdict(good) if found else ""))

    reference = results.shapes.get("reference")
    time, dense = seconds(reference, "moxie"), seconds(reference, "cublaslt")
    goal = "8 x (1024 x 4096 x 2048), bias and GPT-OSS SwiGLU, both outputs: at least 760 TFLOP/s"
    rate = reference["flops"] / time * 1e-12 if time else 0.0
    add(goal, f"{rate:.0f} TFLOP/s" if time else None, rate >= 760)
    add(
        "the same against cuBLASLt's dense product of as many multiply-adds: at least 1.00",
        time and dense and f"{dense / time:.3f} (cuBLASLt {reference['flops'] / dense * 1e-12:.0f} TFLOP/s)",
        bool(time and dense) and dense >= time,
    )
    integers = results.record("reference-integers", "reference")
    time, dense = seconds(integers, "moxie"), seconds(integers, "cublaslt")
    if time:
        found = f"{integers['flops'] / time * 1e-12:.0f} TFLOP/s"
        found += f" (cuBLASLt {integers['flops'] / dense * 1e-12:.0f})" if dense else ""
        peer = seconds(integers, "pr3256")
        found += f", pull request 3256 here {integers['flops'] / peer * 1e-12:.0f}" if peer else ""
        rows.append(("the same on integers of -4 to 4, the data of the published 699 TFLOP/s", found, ""))

    for record in results.files.get("fused", {"shapes": []})["shapes"]:
        both, pre, out = (seconds(record, f"moxie-{o}") for o in ("both", "pre", "out"))
        if both and pre and out:
            add(
                f"{record['shape']}: both outputs cost at most 3% over pre alone; out alone is faster than pre alone",
                f"{(both / pre - 1) * 100:+.1f}%; {(out / pre - 1) * 100:+.1f}%",
                both <= 1.03 * pre and out < pre,
            )
    if "fused" not in results.files:
        add("both outputs cost at most 3% over pre alone; out alone is faster", None)

    speedups = {}
    for name, record in results.shapes.items():
        peers, time = peers_of(record), moxie_seconds(record)
        if peers and time:
            speedups[name] = min(peers.values()) / time
    if speedups:
        mean = geometric_mean(list(speedups.values()))
        goal = f"against the best peer of each shape, {len(speedups)} shapes: geometric mean at least 1.15"
        add(goal, f"{mean:.3f} ({at_the_floors(results):.3f} at the floors: see below)", mean >= 1.15)
        low = sorted((ratio, name) for name, ratio in speedups.items() if ratio < 0.97)
        least = low or [min((ratio, name) for name, ratio in speedups.items())]
        add("none under 0.97", ", ".join(f"{ratio:.3f} ({name})" for ratio, name in least), not low)
        for variant, how in (
            ("moxie-waits", "without weights_ready"),
            ("moxie-serial", "with Moxie's launches one after another"),
        ):
            ratios = {
                name: min(peers_of(results.shapes[name]).values()) / time
                for name in speedups
                if (time := seconds(results.shapes[name], variant))
            }
            if ratios:
                worst = min(ratios, key=ratios.get)
                found = f"mean {geometric_mean(list(ratios.values())):.3f}, least {ratios[worst]:.3f} ({worst})"
                rows.append((f"these two {how}", found, ""))
    else:
        add("against the best peer of each shape: geometric mean at least 1.15, none under 0.97", None)

    shares = {
        name: record["floors"]["bytes"] / moxie_seconds(record)
        for name, record in results.shapes.items()
        if memory_bound(record) and moxie_seconds(record)
    }
    if shares:
        below = sorted((share, name) for name, share in shares.items() if share < 0.9)
        found = f"{len(shares) - len(below)} of {len(shares)} shapes"
        found += f"; least {below[0][0]:.2f} ({below[0][1]})" if below else ""
        add("memory-bound shapes: at least 90% of the copy's rate, compulsory bytes", found, not below)
    else:
        add("memory-bound shapes: at least 90% of the copy's rate, compulsory bytes", None)

    ours = [record["contenders"]["moxie"] for record in results.shapes.values() if moxie_seconds(record)]
    replayed = [entry["errors_with_other_sizes"] for entry in ours if "errors_with_other_sizes" in entry]
    wrong = sum(not all(x < 1e-2 for x in e.values()) for e in replayed)
    add(
        "a captured graph replays right with other group sizes",
        f"{len(replayed) - wrong} of {len(replayed)} shapes" if replayed else None,
        wrong == 0,
    )
    host = [float(x) for x in re.findall(r"([\d.]+) us ", results.text("host"))]
    add(
        "host time of a call, plan cached, no graph: at most 5 microseconds on every shape",
        host and f"{sorted(host)[len(host) // 2]:.1f} (median of {len(host)} shapes), {max(host):.1f} at most",
        bool(host) and max(host) <= 5,
    )
    kernels = re.search(r": (\d+) kernels?", results.text("pack"))
    cold = re.search(r"cold: ([\d.]+) s on (\d+) cores", results.text("pack"))
    again = re.search(r"again: ([\d.]+) s", results.text("pack"))
    add("kernels for all shapes: at most 24", kernels and kernels[1], bool(kernels) and int(kernels[1]) <= 24)
    packed = f", {float(again[1]):.2f} s from a pack" if again else ""
    add(
        "all of them from nothing: at most 10 s on 16 cores",
        cold and f"{float(cold[1]):.1f} s on {cold[2]} cores{packed}",
        bool(cold) and float(cold[1]) <= 10,
    )
    return rows


def activation_table(results: Results) -> str:
    if "activation" not in results.files:
        return ""
    text = "\n## Arithmetic of the activation\n\n"
    text += (
        "`out` alone, in bf16. The library takes ex2.approx and rcp.approx; `exact` is expf and a division rounded to\n"
        "nearest, `tanh` the single instruction tanh.approx.f32. Errors: relative Frobenius norm against float32.\n\n"
    )
    text += "| shape | arithmetic | time, us | error |\n| --- | --- | --- | --- |\n"
    for record in results.files["activation"]["shapes"]:
        for name, entry in record["contenders"].items():
            if "seconds" in entry and name.startswith("moxie"):
                title = "ex2, rcp (the library)" if name == "moxie" else name.removeprefix("moxie-")
                error = max(entry["errors"].values())
                text += f"| {record['shape']} | {title} | {entry['seconds'] * 1e6:.1f} | {error:.3e} |\n"
    return text


def shape_table(results: Results, model: str) -> str:
    records = [r for name, r in results.shapes.items() if name.split(".")[0] == model]
    if not records:
        return ""
    names = [n for n in TITLES if any(seconds(r, n) for r in records)]
    header = ["shape", *(TITLES[n].split(",")[0].split(" + ")[0] for n in names), "best peer / Moxie", "floor / Moxie"]
    text = "| " + " | ".join(header) + " |\n| " + " | ".join(["---"] * len(header)) + " |\n"
    for record in records:
        times, ours = [seconds(record, n) for n in names], moxie_seconds(record)
        peers, floor = peers_of(record), floor_of(record)
        cells = [record["shape"].split(".", 1)[-1].replace(".", ", ")]
        cells += [f"{t * 1e6:.1f}" if t else "-" for t in times]
        cells.append(f"{min(peers.values()) / ours:.2f}" if peers and ours else "-")
        share = f"{floor / ours:.2f}" if floor and ours else "-"
        cells.append(share + (" (bytes)" if memory_bound(record) else ""))
        text += "| " + " | ".join(cells) + " |\n"
    return text


def plot(path: pathlib.Path, title: str, records: list[dict]) -> None:
    """Bars: the share of the machine's floor that each contender reaches; 1 is a ceiling."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "moxie"  # the same file from the same numbers
    import matplotlib.pyplot as plt

    names = [n for n in TITLES if any(seconds(r, n) for r in records)]
    figure, axes = plt.subplots(figsize=(max(6.5, 0.95 * len(records) + 1.2), 3.4))
    width = 0.85 / max(len(names), 1)
    for i, name in enumerate(names):
        heights = [(floor_of(r) or 0) / t if (t := seconds(r, name)) else 0 for r in records]
        places = [x + (i - (len(names) - 1) / 2) * width for x in range(len(records))]
        axes.bar(places, heights, width, label=TITLES[name], color=COLOURS[list(TITLES).index(name)])
    axes.axhline(1, color="#888888", linewidth=0.8)
    axes.set_xticks(range(len(records)))
    axes.set_xticklabels([r["shape"].split(".", 1)[-1].replace(".", "\n") for r in records], fontsize=7)
    axes.set_ylabel("share of the ceiling", fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_title(title, fontsize=9)
    axes.set_ylim(0, 1.15)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(fontsize=6.5, ncols=2, loc="lower center", frameon=False)
    figure.tight_layout(rect=(0, 0.05 + 0.03 * math.ceil(len(names) / 2), 1, 1))
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> int:
    results = Results()
    if not results.files:
        raise SystemExit(f"report.py: no results in {RESULTS}; bench/measure writes them")
    latest = max(results.files.values(), key=lambda content: content["date"])
    machine = latest["machine"]
    text = "# Performance\n\n"
    text += "Models that took no part in fitting the plan stand on pages of their own: [H100](performance-h100.md), "
    text += "[H200](performance-h200.md).\n\n"
    text += "Written by bench/report.py from bench/results, which bench/measure made. "
    text += f"{machine['gpu']}, {machine['sms']} multiprocessors; "
    text += f"PyTorch {machine['torch']}, Triton {machine['triton']}, "
    text += f"CUDA {machine['cuda']}; {latest['date']}, commit {latest['commit']}.\n\n"
    text += (
        "Times are medians of CUDA graph replays. All contenders run in one process on the same tensors, which rotate\n"
        "past the L2 cache, and take turns, so that they share the clocks; each was checked against float32 sums "
        "first.\n"
        "Operands are random (normal where no other data is named). What depends on the routing (pointers of groups, "
        "sizes on the host, lists of\n"
        "row blocks) was prepared for the peers and is not timed. Moxie's launches are programmatic, its default: "
        "each begins\n"
        "while the one before it ends; and `weights_ready` is set, so that weights and sizes, which no contender "
        "writes, are read before that end.\n"
        "Triton's are programmatic for few rows, where that is faster; the other peers launch as they come. "
        "The floor of a shape is the larger of two times of the\n"
        "same run: its compulsory bytes at the rate of a device-to-device copy, and cuBLASLt's dense product of as "
        "many\n"
        "multiply-adds, without bias and activation.\n\n"
    )
    text += "## Goals\n\n| goal | measured | |\n| --- | --- | --- |\n"
    for goal, found, good in goals(results):
        text += f"| {goal} | {found} | {good} |\n"
    if any(peers_of(record) and moxie_seconds(record) for record in results.shapes.values()):
        text += reasons(results)
    reference = results.shapes.get("reference")
    if reference:
        text += "\n## 8 x (1024 x 4096 x 2048), bias, GPT-OSS SwiGLU, both outputs\n\n"
        text += "![share of the ceiling](performance/reference.svg)\n\n"
        text += "| | time, us | TFLOP/s | |\n| --- | --- | --- | --- |\n"
        entries = {n: e for n, e in reference["contenders"].items() if "tflops" in e}
        for name, entry in sorted(entries.items(), key=lambda item: item[1]["seconds"]):
            title = "cuBLASLt, dense, no epilogue" if name == "cublaslt" else (TITLES | VARIANTS).get(name, name)
            text += f"| {title} | {entry['seconds'] * 1e6:.1f} | {entry['tflops']:.0f} | {entry['detail']} |\n"
        plot(PLOTS / "reference.svg", "8 x (1024 x 4096 x 2048), bias, GPT-OSS SwiGLU, both outputs", [reference])
    text += activation_table(results)
    for model, title in MODELS.items():
        table = shape_table(results, model)
        if not table:
            continue
        text += f"\n## {title}\n\nMicroseconds; tokens and how they are routed.\n\n{table}"
        by_product = collections.defaultdict(list)
        for name, record in results.shapes.items():
            if name.split(".")[0] == model:
                by_product[name.split(".")[1]].append(record)
        for product, records in by_product.items():
            plot(PLOTS / f"{model}-{product}.svg", f"{title}, {product} product", records)
            text += f"\n![{title}, {product} product](performance/{model}-{product}.svg)\n"
    PAGE.write_text(text)
    print(text[text.index("## Goals") : text.index("\n\n", text.index("## Goals") + 12)])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
