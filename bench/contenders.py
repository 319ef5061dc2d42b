# SPDX-License-Identifier: Apache-2.0
"""The contenders of peers.py. Each makes, for the tensors of one shape, an object with run(turn), which launches one
product on the current stream, and results(), which gives the tensors that the last run wrote.

kind says what a time stands for: "peer" (the whole fused result), "compute" (a ceiling of the arithmetic) or "copy" (a
ceiling of the traffic)."""

from __future__ import annotations

import ctypes
import math
import re
import statistics

import torch

from cublaslt import CublasLt
from shapes import Shape, group_rows

ALPHA, LIMIT = 1.702, 7.0
ACTIVATIONS = {"none": 0, "swiglu": 6, "swiglu-oai": 7}


class Refused(Exception):
    """The contender does not do this shape."""


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def dequantized(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Codes [..., k / 2] and scales [..., k / 32] of 1 to 254 in float32, exactly."""
    table = torch.tensor(E2M1, device=codes.device)
    values = torch.stack((table[(codes & 15).long()], table[(codes >> 4).long()]), dim=-1).flatten(-2)
    powers = (scales.int() << 23).view(torch.float32)
    return (values.unflatten(-1, (-1, 32)) * powers.unsqueeze(-1)).flatten(-2)


class Mxfp4Weights:
    """Random weights as checkpoints hold them: all codes alike, and scales over nine binades, so that sums are about
    as large as with normal weights of variance 1 / k. A bf16 holds each of the weights exactly."""

    latest: tuple[tuple, Mxfp4Weights] | None = None

    def __init__(self, groups: int, n: int, k: int, copies: int, seed: int) -> None:
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def random(low: int, high: int, columns: int) -> torch.Tensor:
            values = torch.empty(groups, n, columns, device="cuda", dtype=torch.uint8)
            return values.random_(low, high, generator=generator)

        middle = 127 - round(math.log2(4.5 * k**0.5))  # codes have a root mean square of 2.9, these scales of 1.5
        self.codes = [random(0, 256, k // 2) for _ in range(copies)]
        self.scales = [random(middle - 6, middle + 3, k // 32) for _ in range(copies)]
        self.bf16 = [torch.empty(groups, n, k, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
        for codes, scales, whole in zip(self.codes, self.scales, self.bf16, strict=True):
            for g in range(groups):
                whole[g] = dequantized(codes[g], scales[g])
        self.bias = torch.empty(groups, n, device="cuda", dtype=torch.bfloat16).normal_(generator=generator)
        self.prepared: dict[object, list] = {}

    @classmethod
    def of(cls, groups: int, n: int, k: int, copies: int, seed: int) -> Mxfp4Weights:
        """Those of the last shape, where that is one of the same weights."""
        key = (groups, n, k, copies, seed)
        if cls.latest is None or cls.latest[0] != key:
            cls.latest = None  # before others are made, so that the memory is free
            torch.cuda.empty_cache()
            cls.latest = key, cls(*key)
        return cls.latest[1]

    def prepared_weights(self, name: object, make) -> list:
        """make(codes, scales) of each copy: what a contender does once, before anything is timed."""
        if name not in self.prepared:
            self.prepared[name] = [make(c, s) for c, s in zip(self.codes, self.scales, strict=True)]
            torch.cuda.synchronize()
        return self.prepared[name]


class Tensors:
    """Inputs and outputs of a shape: several turns, so that what one reads and writes has left the L2 cache when it
    comes round again."""

    def __init__(self, shape: Shape, l2_bytes: int, data: str = "normal", seed: int = 1) -> None:
        self.shape = shape
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def fresh(*size: int, scale: float = 1.0) -> torch.Tensor:
            values = torch.empty(*size, device="cuda", dtype=torch.bfloat16)
            if data == "normal":
                return values.normal_(generator=generator).mul_(scale)
            if data == "uniform":
                return values.uniform_(-1, 1, generator=generator).mul_(scale * 3**0.5)
            return values.random_(-4, 5, generator=generator)  # integers: what CUTLASS's examples fill in

        weights = shape.groups * shape.group_weight_bytes
        active = sum(int((group_rows(shape, t) > 0).sum()) for t in range(4)) / 4
        self.turns = int(min(12, max(2, -(-4 * l2_bytes // shape.bytes(active)))))
        copies = int(min(self.turns, max(1, -(-4 * l2_bytes // weights))))
        self.rows = [group_rows(shape, t) for t in range(self.turns)]
        self.active = [int((r > 0).sum()) for r in self.rows]
        self.host_ends = [torch.from_numpy(r.cumsum()).to(torch.int32) for r in self.rows]
        self.ends = [e.cuda() for e in self.host_ends]
        self.ids = [
            torch.repeat_interleave(torch.arange(shape.groups), torch.from_numpy(r)).cuda() for r in self.rows
        ]
        self.a = [fresh(shape.rows, shape.k) for _ in range(self.turns)]
        self.mxfp4 = None
        if shape.weights == "mxfp4":
            self.mxfp4 = Mxfp4Weights.of(shape.groups, shape.n, shape.k, copies, seed)
            weights_of_copy = self.mxfp4.bf16
        else:
            weights_of_copy = [fresh(shape.groups, shape.n, shape.k, scale=shape.k**-0.5) for _ in range(copies)]
        self.copy_of_turn = [t % copies for t in range(self.turns)]
        self.b = [weights_of_copy[c] for c in self.copy_of_turn]
        if not shape.bias:
            self.bias = None
        elif self.mxfp4:  # a contender's prepared weights may hold it
            self.bias = self.mxfp4.bias
        else:
            self.bias = fresh(shape.groups, shape.n)
        self.out_columns = shape.n // 2 if shape.gated else shape.n
        new = lambda columns: torch.empty(shape.rows, columns, device="cuda", dtype=torch.bfloat16)
        self.pre = [new(shape.n) for _ in range(self.turns)] if shape.pre else None
        self.out = [new(self.out_columns) for _ in range(self.turns)] if shape.out else None

    @property
    def bytes(self) -> float:
        return self.shape.bytes(sum(self.active) / self.turns)

    def poison(self) -> None:
        for tensors in (self.pre, self.out):
            for t in tensors or []:
                t.fill_(float("nan"))

    def outputs(self, turn: int) -> dict[str, torch.Tensor]:
        found = {}
        if self.pre:
            found["pre"] = self.pre[turn % self.turns]
        if self.out:
            found["out"] = self.out[turn % self.turns]
        return found


def activate(x: torch.Tensor, activation: str) -> torch.Tensor:
    """In float32, from pre with interleaved gate and up."""
    x = x.float()
    if activation == "none":
        return x
    gate, up = x[:, ::2], x[:, 1::2]
    if activation == "swiglu":
        return gate * torch.sigmoid(gate) * up
    gate, up = gate.clamp(max=LIMIT), up.clamp(-LIMIT, LIMIT)
    return gate * torch.sigmoid(ALPHA * gate) * (up + 1)


def errors(tensors: Tensors, turn: int, results: dict[str, torch.Tensor]) -> dict[str, float]:
    """Relative Frobenius error of each result against float32 sums of the same inputs; nan when anything was not
    written. Group by group, so that the reference of a large shape fits the memory."""
    shape, first = tensors.shape, 0
    off = {name: 0.0 for name in results}
    norm = {name: 0.0 for name in results}
    for g, end in enumerate(tensors.host_ends[turn].tolist()):
        if end > first:
            pre = tensors.a[turn][first:end].float() @ tensors.b[turn][g].float().T
            if tensors.bias is not None:
                pre += tensors.bias[g].float()
            for name, result in results.items():
                exact = pre if name == "pre" else activate(pre, shape.activation)
                off[name] += (result[first:end].float() - exact).square().sum(dtype=torch.float64)
                norm[name] += exact.square().sum(dtype=torch.float64)
        first = end
    return {name: float((off[name] / norm[name]).sqrt()) for name in results}


# Behind the interface of peer.h.


class PeerProblem(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("groups", "rows", "n", "k", "expected_rows")] + [
        (name, ctypes.c_int32)
        for name in (
            "activation",
            "bias",
            "pre",
            "out",
            "schedule",
            "tile_m",
            "tile_n",
            "multicast",
            "serial",
            "variant",
            "waits",
            "weights",
        )
    ]


class PeerTensors(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_void_p) for name in ("a", "b", "bias", "ends", "host_ends", "pre", "out", "workspace")
    ] + [("alpha", ctypes.c_float), ("limit", ctypes.c_float)]


def parse_kernel(text: str) -> dict[str, int]:
    """A kernel as Moxie describes it, "ping-pong 128x128x64, 5 stages, cluster 2 (B multicast)", or in short
    pingpong:128x128:b, as choices of PeerProblem."""
    found = re.search(r"(cooperative|ping-?pong)[ :](\d+)x(\d+)", text)
    if not found:
        form = "SCHEDULE:ROWSxCOLUMNS[:a|b|e], such as pingpong:128x128:b"
        raise SystemExit(f"peers.py: --kernels: {text} is not {form}")
    operand = re.search(r"\((A|B|A or B) multicast\)|:([abe])$", text)
    letter = "-"
    if operand:
        letter = operand.group(2) or {"A": "a", "B": "b", "A or B": "e"}[operand.group(1)]
    return {
        "schedule": 0 if found.group(1) == "cooperative" else 1,
        "tile_m": int(found.group(2)),
        "tile_n": int(found.group(3)),
        "multicast": {"-": 0, "a": 1, "b": 2, "e": 3}[letter],
    }


class PeerLibrary:
    """A shared library with the interface of peer.h: Moxie's own, or one given by --peer."""

    kind = "peer"

    def __init__(
        self,
        name: str,
        path: str,
        choices: dict[str, int] | None = None,
        outputs: str | None = None,
        dequantized: bool = False,  # MXFP4 weights are given to it as bf16
    ) -> None:
        self.name, self.choices, self.outputs, self.dequantized = name, choices or {}, outputs, dequantized
        lib = self.lib = ctypes.CDLL(path)
        for function in ("peer_error", "peer_describe"):
            getattr(lib, function).restype = ctypes.c_char_p
        for function in ("peer_create", "peer_bind"):
            getattr(lib, function).restype = ctypes.c_void_p
        lib.peer_workspace_bytes.restype = ctypes.c_int64
        for function in ("peer_describe", "peer_workspace_bytes", "peer_destroy", "peer_unbind"):
            getattr(lib, function).argtypes = [ctypes.c_void_p]
        self.packs = hasattr(lib, "peer_prepare_weights")  # libraries made before there were such weights have it not
        if self.packs:
            lib.peer_weight_bytes.restype = ctypes.c_int64
            lib.peer_weight_bytes.argtypes = [ctypes.c_void_p]
            lib.peer_prepare_weights.argtypes = [ctypes.c_void_p] * 4
        lib.peer_bind.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        lib.peer_launch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def make(self, tensors: Tensors) -> PeerRun:
        variants = range(self.lib.peer_variants())
        if len(variants) == 1:
            return PeerRun(self, tensors, 0)
        best, best_time, why = None, 0.0, ""
        for variant in variants:
            try:
                run = PeerRun(self, tensors, variant)
                time = quick_time(run.run, tensors.turns)
            except (Refused, RuntimeError) as refused:
                why = str(refused)
                continue
            if best is None or time < best_time:
                best, best_time = run, time
        if best is None:
            raise Refused(why)
        return best

    def error(self) -> str:
        return self.lib.peer_error().decode()


class SameKernel(PeerLibrary):
    """Moxie storing other outputs than the shape's, by the kernel that the plan chooses for those of the shape: what
    the fused outputs cost."""

    def make(self, tensors: Tensors) -> PeerRun:
        outputs, self.outputs, self.choices = self.outputs, None, {}
        try:
            self.choices = parse_kernel(PeerRun(self, tensors, 0).detail)
        finally:
            self.outputs = outputs
        return PeerRun(self, tensors, 0)


class PeerRun:
    def __init__(self, library: PeerLibrary, tensors: Tensors, variant: int) -> None:
        self.library, self.tensors, lib, shape = library, tensors, library.lib, tensors.shape
        outputs = library.outputs or ",".join(tensors.outputs(0))
        self.names = outputs.split(",")
        if not set(self.names) <= set(tensors.outputs(0)):
            raise Refused(f"the shape does not store {outputs} (--outputs pre,out)")
        packed = tensors.mxfp4 is not None and not library.dequantized
        if packed and not library.packs:
            raise Refused("it takes no MXFP4 weights")
        problem = PeerProblem(
            groups=shape.groups,
            rows=shape.rows,
            n=shape.n,
            k=shape.k,
            expected_rows=shape.expected_rows,
            activation=ACTIVATIONS[shape.activation],
            bias=int(shape.bias),
            pre=int("pre" in self.names),
            out=int("out" in self.names),
            schedule=-1,
            multicast=-1,
            variant=variant,
            weights=int(packed),
        )
        for name, value in library.choices.items():
            setattr(problem, name, value)
        self.created = self._checked(lib.peer_create(ctypes.byref(problem)))
        self.detail = lib.peer_describe(self.created).decode()
        self.kept, self.bound, self.turn = [], [], 0
        weights = tensors.b
        if packed:
            make = self._packing(lib.peer_weight_bytes(self.created))
            made = tensors.mxfp4.prepared_weights((lib, shape.gated), make)
            weights = [made[c] for c in tensors.copy_of_turn]
        self.weight_bytes = weights[0].nbytes
        for t in range(tensors.turns):
            workspace = torch.zeros(max(lib.peer_workspace_bytes(self.created), 16), dtype=torch.uint8, device="cuda")
            results = tensors.outputs(t)
            arguments = PeerTensors(
                a=tensors.a[t].data_ptr(),
                b=weights[t].data_ptr(),
                bias=tensors.bias.data_ptr() if tensors.bias is not None else None,
                ends=tensors.ends[t].data_ptr(),
                host_ends=tensors.host_ends[t].data_ptr(),
                pre=results["pre"].data_ptr() if "pre" in self.names else None,
                out=results["out"].data_ptr() if "out" in self.names else None,
                workspace=workspace.data_ptr(),
                alpha=ALPHA,
                limit=LIMIT,
            )
            self.kept.append((workspace, arguments))
            self.bound.append(self._checked(lib.peer_bind(self.created, ctypes.byref(arguments))))

    def _packing(self, size: int):
        def pack(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
            packed = torch.empty(size, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            pointers = (t.data_ptr() for t in (codes, scales, packed))
            if size == 0 or self.library.lib.peer_prepare_weights(self.created, *pointers) != 0:
                raise Refused(self.library.error())
            return packed

        return pack

    def _checked(self, pointer):
        if not pointer:
            raise Refused(self.library.error())
        return pointer

    def run(self, turn: int) -> None:
        self.turn = turn % self.tensors.turns
        stream = torch.cuda.current_stream().cuda_stream
        if self.library.lib.peer_launch(self.bound[self.turn], stream) != 0:
            raise RuntimeError(self.library.error())

    def results(self) -> dict[str, torch.Tensor]:
        return {n: t for n, t in self.tensors.outputs(self.turn).items() if n in self.names}

    def __del__(self) -> None:
        for bound in getattr(self, "bound", []):
            self.library.lib.peer_unbind(bound)
        if getattr(self, "created", None):
            self.library.lib.peer_destroy(self.created)


def quick_time(run, turns: int, launches: int = 5) -> float:
    """Milliseconds of one launch, roughly: to choose between variants."""
    for t in range(2):
        run(t)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for t in range(launches):
        run(t % turns)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / launches


def fastest(runs: list, turns: int, rounds: int = 3):
    """The run whose launches take least, as medians of graph replays in turn: with launches from Python a short
    kernel's time is the host's."""
    timed = []
    for run in runs:
        rough = quick_time(run.run, turns, 1)
        launches = turns * max(1, min(6, round(0.5 / max(rough, 1e-3) / turns)))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for t in range(launches):
                run.run(t)
        graph.replay()
        timed.append((graph, launches, []))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds):
        for graph, launches, times in timed:
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / launches)
    medians = [statistics.median(times) for _, _, times in timed]
    return runs[medians.index(min(medians))]


# The ceilings.


class Dense:
    """cuBLASLt: one dense product [all rows, k] x [k, n] without bias or activation, the fastest of its heuristics."""

    kind, name = "compute", "cublaslt"

    def __init__(self) -> None:
        self.lt = CublasLt()

    def make(self, tensors: Tensors):
        return DenseRun(self.lt, tensors)


class DenseRun:
    def __init__(self, lt: CublasLt, tensors: Tensors) -> None:
        shape, self.tensors, self.turn = tensors.shape, tensors, 0
        self.d = [
            torch.empty(shape.rows, shape.n, device="cuda", dtype=torch.bfloat16) for _ in range(tensors.turns)
        ]
        self.product = lt.product(shape.rows, shape.n, shape.k)
        algorithms = self.product.algorithms(8)
        times = []
        for algorithm in algorithms:
            self.product.chosen = algorithm
            times.append(quick_time(self.run, tensors.turns))
        best = min(range(len(times)), key=times.__getitem__)
        self.product.chosen = algorithms[best]
        self.detail = f"algorithm {best} of {len(times)}"

    def run(self, turn: int) -> None:
        self.turn = t = turn % self.tensors.turns
        # Group t: a weight matrix that other turns do not read.
        weights = self.tensors.b[t][t % self.tensors.shape.groups]
        self.product.run(self.tensors.a[t].data_ptr(), weights.data_ptr(), self.d[t].data_ptr())

    def results(self) -> dict[str, torch.Tensor]:
        return {}

    def check(self) -> float:
        self.run(0)
        rows = min(256, self.tensors.shape.rows)
        exact = self.tensors.a[0][:rows].float() @ self.tensors.b[0][0].float().T
        return float((self.d[0][:rows].float() - exact).norm() / exact.norm())


class Copy:
    """A device-to-device copy of 512 MiB."""

    kind, name, bytes = "copy", "copy", 2 * (512 << 20)

    def __init__(self) -> None:
        self.source = torch.empty(512 << 20, dtype=torch.uint8, device="cuda").random_(256)
        self.target = torch.empty_like(self.source)
        self.detail = "512 MiB, device to device"

    def make(self, tensors: Tensors):
        return self

    def run(self, turn: int) -> None:
        self.target.copy_(self.source)

    def results(self) -> dict[str, torch.Tensor]:
        return {}
