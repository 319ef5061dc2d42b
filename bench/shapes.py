# SPDX-License-Identifier: Apache-2.0
"""The shapes that are measured, and how many rows each expert gets.

A shape's name is MODEL.PRODUCT.TOKENS.ROUTING, such as gpt-oss-20b.first.512.skewed; the shape of CUTLASS pull request
3256 is called reference. Weights are bf16, and MXFP4 where the name begins with mxfp4: as in
mxfp4:gpt-oss-20b.first.64.skewed."""

from __future__ import annotations

import dataclasses
import fnmatch
import sys

import numpy as np

TOKENS = (1, 32, 512, 4096, 16384)
UNSEEN_TOKENS = (1, 16, 128, 1024, 4096, 16384)
MXFP4_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)
ROUTINGS = ("balanced", "skewed")
# Popularity of the expert of rank r is 1 / r^ZIPF: the busiest of 32 gets about three times the mean, of 128 five
# times.
ZIPF = 0.5


@dataclasses.dataclass(frozen=True)
class Model:
    experts: int  # on this GPU
    all_experts: int
    hidden: int
    intermediate: int
    top: int
    activation: str
    bias: bool


MODELS = {
    "gpt-oss-20b": Model(32, 32, 2880, 2880, 4, "swiglu-oai", True),
    "gpt-oss-120b": Model(128, 128, 2880, 2880, 4, "swiglu-oai", True),
    "qwen3-30b-a3b": Model(128, 128, 2048, 768, 8, "swiglu", False),
    "mixtral-8x7b": Model(8, 8, 4096, 14336, 2, "swiglu", False),
    "deepseek-v3": Model(32, 256, 7168, 2048, 8, "swiglu", False),  # experts spread over 8 GPUs
}
# Models that took no part in fitting the plan's cost model, with the figures of their published configurations. Grok-1
# has GeGLU, which is timed as SwiGLU.
UNSEEN_MODELS = {
    "qwen3-235b-a22b": Model(128, 128, 4096, 1536, 8, "swiglu", False),
    "deepseek-v2-lite": Model(64, 64, 2048, 1408, 6, "swiglu", False),
    "phi-3.5-moe": Model(16, 16, 4096, 6400, 2, "swiglu", False),
    "jamba-1.5-large": Model(16, 16, 8192, 24576, 2, "swiglu", False),
    "arctic": Model(128, 128, 7168, 4864, 2, "swiglu", False),
    "hunyuan-large": Model(16, 16, 6400, 18304, 1, "swiglu", False),
    "mixtral-8x22b": Model(8, 8, 6144, 16384, 2, "swiglu", False),
    "grok-1": Model(8, 8, 6144, 32768, 2, "swiglu", False),
}
# Models that are published in MXFP4, whole on one GPU. Kimi-K3 has SiTU, which is timed as SwiGLU.
MXFP4_MODELS = {
    "gpt-oss-20b": MODELS["gpt-oss-20b"],
    "gpt-oss-120b": MODELS["gpt-oss-120b"],
    "deepseek-v4-flash": Model(256, 256, 4096, 2048, 6, "swiglu", False),
    "kimi-k3-like": Model(384, 384, 7168, 2048, 8, "swiglu", False),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    groups: int
    rows: int  # of all groups
    n: int  # before a gate halves it
    k: int
    activation: str  # none, swiglu, swiglu-oai
    bias: bool
    pre: bool  # which results are stored
    out: bool
    routing: str
    top: int = 0  # experts of a token; 0: any number
    weights: str = "bf16"  # or mxfp4

    @property
    def gated(self) -> bool:
        return self.activation != "none"

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.n * self.k

    @property
    def group_weight_bytes(self) -> float:
        """Of one group; MXFP4: codes and scales."""
        return self.n * self.k * (17 / 32 if self.weights == "mxfp4" else 2)

    def bytes(self, active: float) -> float:
        """Compulsory traffic: the weights of `active` groups and every row once."""
        out_columns = (self.n if self.pre else 0) + (self.n // (2 if self.gated else 1) if self.out else 0)
        bias = 2.0 * active * self.n if self.bias else 0
        return active * self.group_weight_bytes + 2.0 * self.rows * (self.k + out_columns) + bias

    @property
    def expected_rows(self) -> int:
        return max(1, -(-self.rows // self.groups))


def shapes_of(models: dict[str, Model], token_counts: tuple[int, ...], weights: str = "bf16") -> list[Shape]:
    shapes, prefix = [], "" if weights == "bf16" else f"{weights}:"
    for name, model in models.items():
        for product in ("first", "second"):
            first = product == "first"
            for tokens in token_counts:
                rows = max(1, tokens * model.top * model.experts // model.all_experts)
                for routing in ROUTINGS if tokens > 1 else ROUTINGS[:1]:  # one token has no skew
                    shapes.append(
                        Shape(
                            f"{prefix}{name}.{product}.{tokens}.{routing}",
                            model.experts,
                            rows,
                            2 * model.intermediate if first else model.hidden,
                            model.hidden if first else model.intermediate,
                            model.activation if first else "none",
                            model.bias,
                            False,
                            True,
                            routing,
                            model.top if model.experts == model.all_experts else 0,
                            weights,
                        )
                    )
    return shapes


def all_shapes() -> list[Shape]:
    reference = Shape("reference", 8, 8 * 1024, 4096, 2048, "swiglu-oai", True, True, True, "balanced")
    return [reference, *shapes_of(MODELS, TOKENS)]


def unseen_shapes() -> list[Shape]:
    return shapes_of(UNSEEN_MODELS, UNSEEN_TOKENS)


def mxfp4_shapes() -> list[Shape]:
    return shapes_of(MXFP4_MODELS, MXFP4_TOKENS, "mxfp4")


def select(patterns: str) -> list[Shape]:
    """The shapes whose name matches one of the comma-separated patterns, those of models that the plan has not seen
    behind `unseen:`; GROUPSxMxNxK[:activation] is a shape of its own with M rows in each group, with MXFP4 weights
    behind `mxfp4:`."""
    chosen: list[Shape] = []
    for pattern in patterns.split(","):
        _, unseen, rest = pattern.rpartition("unseen:")
        known = unseen_shapes() if unseen else [*all_shapes(), *mxfp4_shapes()]
        matches = [s for s in known if fnmatch.fnmatchcase(s.name, rest) and (":" in s.name) == (":" in rest)]
        if not matches:
            _, mxfp4, rest = pattern.rpartition("mxfp4:")
            extents, _, activation = rest.partition(":")
            try:
                groups, m, n, k = (int(x) for x in extents.split("x"))
            except ValueError:
                raise SystemExit(f"peers.py: --shapes: no shape is called {pattern} (--list shows them)") from None
            activation = activation or "swiglu-oai"
            weights = "mxfp4" if mxfp4 else "bf16"
            rows = groups * m
            matches = [Shape(pattern, groups, rows, n, k, activation, True, False, True, "balanced", weights=weights)]
        chosen += [s for s in matches if s not in chosen]
    return chosen


def group_rows(shape: Shape, turn: int) -> np.ndarray:
    """Rows of each group. Different turns prefer different groups, so that few rows do not always meet the same
    weights."""
    groups, rows = shape.groups, shape.rows
    if shape.routing == "balanced":
        counts = np.full(groups, rows // groups)
        extra = rows % groups
        counts[(np.arange(extra) * groups // max(extra, 1) + turn * max(1, extra)) % groups] += 1
        return counts
    rng = np.random.default_rng(1000 + turn)
    popularity = rng.permutation(1.0 / np.arange(1, groups + 1) ** ZIPF)
    popularity /= popularity.sum()
    if shape.top == 0:
        return rng.multinomial(rows, popularity)
    # Each token's experts differ: the `top` greatest of popularity in logarithms with Gumbel noise.
    tokens = rows // shape.top
    keys = np.log(popularity) + rng.gumbel(size=(tokens, groups))
    chosen = np.argpartition(-keys, shape.top - 1, axis=1)[:, : shape.top]
    return np.bincount(chosen.ravel(), minlength=groups)


def list_line(shape: Shape) -> str:
    """The shape in the words of `moxie plan`: bench/shapes.txt, for moxie bench, tune and pack."""
    words = f"{shape.rows} {shape.n} {shape.k} --groups {shape.groups} --grouping offsets"
    words += f" --expected-rows {shape.expected_rows} --activation {shape.activation}"
    words += " --bias" if shape.bias else ""
    words += " --outputs pre,out" if shape.pre and shape.out else ""
    words += " --format mxfp4" if shape.weights == "mxfp4" else ""
    return f"{words}  # {shape.name}"


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "shapes"
    lists = {"shapes": all_shapes, "unseen": unseen_shapes, "mxfp4": mxfp4_shapes}
    command = " ".join(["python3 bench/shapes.py", *sys.argv[1:]])
    print(f"# The shapes of bench/shapes.py, which writes this list: {command} > bench/{name}.txt")
    print("\n".join(list_line(s) for s in lists[name]() if s.routing == "balanced"))
