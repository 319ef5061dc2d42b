# SPDX-License-Identifier: Apache-2.0
"""DeepEP's dispatch and combine beside those of ranks.py, over the GPUs of one host that NVLink joins.

ranks.py asks `beside` for a DeepEP of a layer's sizes and, for each batch of tokens, `measure` for a check of every row
and for times. It needs the package deep_ep (github.com/deepseek-ai/DeepEP) in version 2, that of ElasticBuffer, and the
NCCL that it was built with, loaded in the place of torch's. NVLink's multicast stays off.

What is timed, each between barriers of all ranks:

    deep_ep_dispatch         a call that is given tokens, experts and weights and knows nothing of the routing before,
                             until the tokens lie in a tensor; the host waits for nothing
    deep_ep_dispatch_cached  the same with the handle of a dispatch of the same routing, which counts no tokens anew
    deep_ep_combine          one bf16 row for each (token, rank) back, and the sum of a token's rows on its own rank
    ..._few                  the same with as many multiprocessors as get_theoretical_num_sms says, to leave the others
                             to computing; the times without it are of BEST_SMS or more
    ..._kernel, _copy, _sum  single kernels by bench_kineto, with which its authors' tests/elastic/test_ep.py times: the
                             one that sends, and the one behind it that copies what came into a tensor, or adds it

Settings are those of that test. Facts about what travels are from its kernels, deep_ep/include/deep_ep.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import statistics

import torch
import torch.distributed as dist

# Without the first it asks for InfiniBand; without the second its windows lie on the communicator of torch, whose calls
# ranks.py captures.
os.environ.setdefault("EP_DISABLE_GIN", "1")
os.environ.setdefault("EP_REUSE_NCCL_COMM", "0")

LEAST_NCCL = (2, 30, 4)  # README, Requirements
BEST_SMS = 64  # README, Performance: "64 (Max perf)"; as many as its test takes, with prefer_overlap_with_compute=0
WIDTH = 256  # impls/combine.cuh: "Invalid hidden" for hidden sizes that are no multiples of it
MOST_TOP = 32  # impls/dispatch.cuh: one lane of a warp for each choice
NVLINK_GBPS = 430.0  # get_nvlink_gbs on H100 and H200: 0.9 of 18 links of 26.56 GB/s; where nvidia-smi does not say
TIMEOUT = 60  # seconds that a kernel waits for other ranks


def library():
    """The package deep_ep, or None where it is not there."""
    return importlib.import_module("deep_ep") if importlib.util.find_spec("deep_ep") else None


def loaded_nccl():
    """The version of the NCCL in this process; torch.cuda.nccl.version() is that of the one torch was built with."""
    version = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    return version.value // 10000, version.value // 100 % 100, version.value % 100


def why_not(package, ranks, experts, top):
    """Why the package cannot be timed with these sizes, or None."""
    if not hasattr(package, "ElasticBuffer"):
        return "it has no ElasticBuffer, so it is not version 2"
    if os.environ.get("NCCL_NVLS_ENABLE") != "0":
        return "NCCL_NVLS_ENABLE is not 0, and NVLink's multicast must stay off"
    if loaded_nccl() < LEAST_NCCL:
        return "the NCCL that is loaded is {}.{}.{}, and it needs {}.{}.{}".format(*loaded_nccl(), *LEAST_NCCL)
    if experts % ranks:
        return f"{experts} experts do not divide among {ranks} ranks"
    return f"it takes up to {MOST_TOP} choices a token, not {top}" if top > MOST_TOP else None


def said(error):
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def first_problem(problem, group):
    """The first of all ranks' problems, with the rank; None where no rank has one."""
    problems = [None] * group.size()
    dist.all_gather_object(problems, problem, group)
    return next((f"rank {rank}: {each}" for rank, each in enumerate(problems) if each), None)


def beside(group, hidden, experts, top, max_tokens):
    """A DeepEP for these sizes; None where the package is not there or, as rank 0 then says, cannot be used."""
    if group.size() == 1:
        return None
    peer = problem = None
    try:
        package = library()
        problem = "it is not there" if package is None else why_not(package, group.size(), experts, top)
    except Exception as error:
        package, problem = None, f"it cannot be imported: {said(error)}"
    found = first_problem(problem, group)
    if found is None:
        try:
            peer = DeepEP(package, group, hidden, experts, top, max_tokens)
        except Exception as error:
            problem = f"no ElasticBuffer can be made: {said(error)}"
        found = first_problem(problem, group)
    if found and group.rank() == 0 and found != "rank 0: it is not there":
        print(f"DeepEP is not timed; {found}.", flush=True)
    return None if found else peer


class DeepEP:
    """An ElasticBuffer for one layer's sizes on one rank."""

    def __init__(self, package, group, hidden, experts, top, max_tokens):
        self.package, self.group = package, group
        self.rank, self.ranks = group.rank(), group.size()
        self.experts, self.top, self.max_tokens = experts, top, max_tokens
        # Zeros fill up a token, as those who use the library with such sizes do it.
        self.hidden, self.padded = hidden, -(-hidden // WIDTH) * WIDTH
        self.buffer = package.ElasticBuffer(
            group,
            num_max_tokens_per_rank=max_tokens,
            hidden=self.padded,
            num_topk=top,
            num_gpu_timeout_secs=TIMEOUT,
            explicitly_destroy=True,
        )
        rate = importlib.import_module("deep_ep.utils.envs").get_nvlink_gbs() or NVLINK_GBPS
        self.few = self.buffer.get_theoretical_num_sms(experts, top, nvlink_gbs=rate)
        self.best = max(self.few, BEST_SMS)

    def close(self):
        """Gives the memory back; all ranks call it."""
        self.buffer.destroy()

    def dispatch(self, x, ids, weights, sms):
        return self.buffer.dispatch(
            x, topk_idx=ids, topk_weights=weights, num_experts=self.experts, num_sms=sms, do_cpu_sync=False
        )

    def measure(self, x, ids, weights, graph_time, kernels=True):
        """Times of the tokens x [tokens, hidden] in bf16 with their experts and weights [tokens, top].

        Every rank has as many tokens. graph_time is that of ranks.py. The result has "us", "..._GBps" and, under
        "deep_ep", what else there is to say, or only the "problem" where a check fails or a call.
        """
        x = torch.nn.functional.pad(x, (0, self.padded - self.hidden)).contiguous()
        ids, weights = ids.to(self.package.topk_idx_t).contiguous(), weights.float().contiguous()
        try:
            problem, table = self._check(x, ids, weights)
        except Exception as error:
            problem, table = said(error), None
        problem = first_problem(problem, self.group)
        if problem:
            if self.rank == 0:
                print(f"DeepEP is not timed; {problem}.", flush=True)
            return {"us": {}, "deep_ep": {"problem": problem}}

        times, how = {}, set()
        for sms, suffix in dict([(self.few, "_few"), (self.best, "")]).items():
            received, _, _, handle, _ = self.dispatch(x, ids, weights, sms)
            calls = {
                "dispatch": lambda: self.dispatch(x, ids, weights, sms),
                "dispatch_cached": lambda: self.buffer.dispatch(x, handle=handle, num_sms=sms),
                "combine": lambda: self.buffer.combine(received, handle=handle, num_sms=sms),
            }
            for name, call in calls.items():
                times[f"deep_ep_{name}{suffix}"], by = self._time(call, graph_time)
                how.add(by)
        if kernels:
            times |= self._kernels(calls)

        # A token travels once to each rank that has any of its experts, and a bf16 row comes back from there.
        others = 1 - torch.eye(self.ranks, dtype=table.dtype, device=table.device)
        away = table * others
        most = 2 * self.hidden * int(torch.stack((away.sum(0), away.sum(1))).max())
        rates = {
            f"{name}_GBps": most / us * 1e-3
            for name, us in times.items()
            if us and not name.endswith(("_copy", "_sum"))
        }
        return {
            "us": times,
            **rates,
            "deep_ep": {
                "version": self.package.__version__,
                "nccl": ".".join(map(str, loaded_nccl())),
                "sms": self.best,
                "few_sms": self.few,
                "timed": sorted(how),
                "bytes": most,
                # common/layout.cuh: behind a token go its experts, weights, source and places, in multiples of 16.
                "row_bytes": {
                    "dispatch": 2 * self.padded + -(-4 * (3 * self.top + 1) // 16) * 16,
                    "combine": 2 * self.padded,
                },
            },
        }

    def _check(self, x, ids, weights):
        """What is wrong with a dispatch and a combine, or None, and how many tokens go from each rank to each."""
        tokens, each = x.shape[0], self.experts // self.ranks
        all_x, all_ids, all_weights = (self._of_all(given) for given in (x, ids, weights))
        owners = all_ids // each
        goes = torch.stack([(owners == rank).any(-1) for rank in range(self.ranks)])  # [to, from, token]
        table = goes.sum(-1).T

        received, its_ids, its_weights, handle, _ = self.dispatch(x, ids, weights, self.best)
        combined, _, _ = self.buffer.combine(received, handle=handle, num_sms=self.best)
        count = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1])
        source = handle.recv_src_metadata[:count, 0].long()
        rank, token = source // self.max_tokens, source % self.max_tokens
        expected = (goes[self.rank].flatten()).nonzero().flatten()
        if not torch.equal((rank * tokens + token).sort().values, expected):
            return "dispatch brings other tokens than those of this rank's experts", table
        if not torch.equal(received[:count].view(torch.uint8), all_x[rank, token].view(torch.uint8)):
            return "dispatch changes a token", table
        mine = owners[rank, token] == self.rank
        if not torch.equal(its_ids[:count], torch.where(mine, all_ids[rank, token] - each * self.rank, -1)):
            return "dispatch brings other experts", table
        if not torch.equal(its_weights[:count][mine], all_weights[rank, token][mine]):
            return "dispatch brings other weights", table
        # A row from each rank with any of a token's experts is added, without weights.
        expected = x.float() * goes[:, self.rank].sum(0).unsqueeze(1)
        if not bool(((combined.float() - expected).abs() <= expected.abs() * 2**-8).all()):
            return "combine returns other sums", table
        return None, table

    def _of_all(self, given):
        """All ranks' tensors, [ranks, ...]."""
        parts = [torch.empty_like(given).view(torch.uint8) for _ in range(self.ranks)]
        dist.all_gather(parts, given.view(torch.uint8), group=self.group)
        return torch.stack(parts).view(given.dtype)

    def _time(self, call, graph_time):
        """Microseconds of a call, from a graph or, where it cannot be captured, between events around calls."""
        try:
            return graph_time(call), "graph"
        except RuntimeError as error:
            if self.rank == 0:
                print(f"a call is timed without a graph; {said(error)}.", flush=True)
        # A capture that failed leaves its own stream behind.
        torch.cuda.set_stream(torch.cuda.default_stream())
        return self._called(call), "calls"

    def _called(self, call, count=10, turns=9):
        """Microseconds of a call between events, the host's time included; the longest of all ranks."""
        call()
        times = []
        for _ in range(turns):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            dist.barrier(self.group, device_ids=[torch.cuda.current_device()])
            begin.record()
            for _ in range(count):
                call()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / count * 1e3)
        return self._longest(statistics.median(times))

    def _kernels(self, calls):
        """Microseconds of single kernels, as its authors' test takes them; the longest of all ranks."""
        bench_kineto = importlib.import_module("deep_ep.utils.testing").bench_kineto
        times = {}
        for name, kernels in (
            ("dispatch", {"kernel": "dispatch_impl", "copy": "dispatch_copy_epilogue_impl"}),
            ("combine", {"kernel": "combine_impl", "sum": "combine_reduce_epilogue_impl"}),
        ):
            try:
                seconds = bench_kineto(
                    calls[name],
                    tuple(kernels.values()),
                    num_tests=8,
                    barrier_comm_profiling=True,
                    barrier=self.buffer.barrier,
                )
            except (AssertionError, ValueError, IndexError):  # where it cannot read torch's table
                seconds = [0] * len(kernels)
            for kernel, each in zip(kernels, seconds, strict=True):
                times[f"deep_ep_{name}_{kernel}"] = self._longest(each * 1e6) or None
        return times

    def _longest(self, value):
        values = [None] * self.ranks
        dist.all_gather_object(values, value, self.group)
        return max(values)
