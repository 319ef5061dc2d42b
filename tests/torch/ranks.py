# SPDX-License-Identifier: Apache-2.0
"""Processes that are the ranks of a process group, and what they are asked to compute."""

import itertools
import multiprocessing
import os
import pathlib
import resource
import socket
import tempfile
import time

import torch
import torch._dynamo  # this and the next before any process is forked, so that it takes their time once
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import moxie
from moxie import distributed
from moxie._ranks import Exchange, Windows
from moxie.distributed import Experts

DEVICE = "cpu" if os.environ.get("MOXIE_DEVICE", "sim") == "sim" else "cuda"
GPUS = 0 if DEVICE == "cpu" else torch.cuda.device_count()
# Ranks of a world. MOXIE_TEST_RANKS: more than there are GPUs take turns on them and use gloo, since NCCL wants a GPU
# for each; symmetric memory is told that this is meant.
MOST = 8 if DEVICE == "cpu" else int(os.environ.get("MOXIE_TEST_RANKS", GPUS))
if 0 < GPUS < MOST:
    os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"

# Children of one process that has imported all of it, but opened no device. Python before 3.12 does not tell it where.
_here = str(pathlib.Path(__file__).parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (_here, os.environ.get("PYTHONPATH"))))
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["ranks"])


class Ranks:
    """`count` processes of one world. It is a context; processes that are left at its end are killed."""

    def __init__(self, count, store="file"):
        self.folder = tempfile.TemporaryDirectory()
        method = f"file://{self.folder.name}/store"
        if store == "tcp":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                method = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        pipes = [_processes.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            _processes.Process(target=_serve, args=(theirs, method, rank, count), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            pipe.close()
            if any(error):
                process.kill()
        for process in self.processes:
            process.join(timeout=20)
            process.kill()
        self.folder.cleanup()

    def start(self, function, members, *arguments):
        """The members of the world call function(group, *arguments), whose group they are; None: all of the world."""
        members = list(range(len(self.pipes))) if members is None else list(members)
        # All of the world make a group.
        for pipe in self.pipes:
            pipe.send((function, members, arguments))

    def results(self, members=None, limit=120):
        """What each member returned, or raised."""
        found = []
        for rank in members if members is not None else range(len(self.pipes)):
            assert self.pipes[rank].poll(limit), f"rank {rank} gave no answer"
            found.append(self.pipes[rank].recv())
        return found

    def run(self, function, members, *arguments):
        """The results of the members. What one raised is raised."""
        self.start(function, members, *arguments)
        results = self.results()
        for each in results:
            if isinstance(each, BaseException):
                raise each
        return results if members is None else [results[rank] for rank in members]


def _serve(pipe, method, rank, count):
    torch.set_num_threads(1)
    backend = "gloo"
    if DEVICE == "cuda":
        torch.cuda.set_device(rank % GPUS)
        if MOST <= GPUS:
            backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=count)
    groups = {}
    while True:
        try:
            function, members, arguments = pipe.recv()
        except EOFError:
            # What a failed group left under way is not waited for.
            os._exit(0)
        key = tuple(members)
        if key not in groups:
            groups[key] = dist.new_group(members) if len(members) < count else dist.group.WORLD
        try:
            result = None
            if rank in members:
                with torch.no_grad():
                    result = function(groups[key], *arguments)
        except Exception as error:
            # What it was raised from need not be one that can be sent.
            error.__cause__ = error.__context__ = None
            result = error
        pipe.send(result)


# ---- Layers whose sums float32 holds ----

EXPERTS, HIDDEN, WIDTH = 12, 64, 32


def whole(values, generator, *shape):
    return torch.randint(-values, values + 1, shape, generator=generator).bfloat16()


def full_weights(seed=0):
    """Of all experts, under the names of a state dict."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "gate_up_proj": whole(2, generator, EXPERTS, 2 * WIDTH, HIDDEN) / 2,
        "down_proj": whole(2, generator, EXPERTS, HIDDEN, WIDTH) / 2,
    }


def tokens_of(rank, count, top_k, seed=0, routing="random"):
    """x, topk_ids and topk_weights of a rank. routing: "random", with ids that are no experts among them, or the
    experts that tokens choose from."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    x = whole(2, generator, count, HIDDEN)
    if routing == "random":
        ids = torch.rand(count, EXPERTS + 4, generator=generator).argsort(1)[:, :top_k] - 2
    else:
        ids = torch.tensor(routing)[torch.randint(len(routing), (count, top_k), generator=generator)]
    return x, ids, torch.randint(0, 5, (count, top_k), generator=generator) / 4


def on_device(tensors):
    return [each.to(DEVICE) for each in tensors]


def make(group, top_k, state=None, **options):
    options = {"activation": "reglu", "timeout": 60.0, "device": DEVICE} | options
    module = Experts(group, EXPERTS, HIDDEN, WIDTH, top_k=top_k, **options)
    module.load_state_dict(state or full_weights(), strict="shared" not in options)
    return module.to(DEVICE)


def shared_expert():
    """On the CPU, since each rank moves its own to its GPU."""
    module = torch.nn.Linear(HIDDEN, HIDDEN, bias=False, dtype=torch.bfloat16)
    module.weight = torch.nn.Parameter(whole(1, torch.Generator().manual_seed(5), HIDDEN, HIDDEN))
    return module.requires_grad_(False)


def one_rank(x, ids, weights, state=None, residual=None):
    state = state or full_weights()
    w1, w2, x, ids, weights = on_device([state["gate_up_proj"], state["down_proj"], x, ids, weights])
    residual = None if residual is None else residual.to(DEVICE)
    return moxie.experts(x, ids, weights, w1, w2, activation="reglu", residual=residual).cpu()


# ---- What ranks are asked to do ----


def layer(group, counts, top_k, routing="random", options=None, id_type=torch.int64, weighted=True, residual=False):
    module = make(group, top_k, **(options or {}))
    rank = dist.get_rank(group)
    x, ids, weights = on_device(tokens_of(rank, counts[rank], top_k, routing=routing))
    return module(x, ids.to(id_type), weights if weighted else None, x if residual else None).cpu()


def chosen(group, calls, least):
    """The results of calls with so many tokens, and which of them were in halves, where these pay from `least` tokens
    of a rank on average."""
    module, rank = make(group, 4), dist.get_rank(group)
    pays, distributed._halves_pay = distributed._halves_pay, lambda tokens, layer: tokens >= least
    start, transfers = Exchange.start, []
    Exchange.start = lambda *given: transfers.append(given[-1]) or start(*given)
    results = []
    try:
        for counts in calls:
            transfers.clear()
            y = module(*on_device(tokens_of(rank, counts[rank], 4))).cpu()
            assert transfers.count("tokens") == transfers.count("results") and transfers.count("sizes") == 1
            results.append((y, transfers.count("tokens") == 2))
    finally:
        Exchange.start, distributed._halves_pay = start, pays
    return results


def moved(group, counts, top_k, tables):
    """A layer before and after each move of its experts."""
    module = make(group, top_k)
    x, ids, weights = on_device(tokens_of(dist.get_rank(group), counts[dist.get_rank(group)], top_k))
    results = [module(x, ids, weights).cpu()]
    for table in tables:
        module.move(table)
        results.append(module(x, ids, weights).cpu())
        own = module.placement.experts_of(dist.get_rank(group))
        for name, value in full_weights().items():
            assert torch.equal(module.state_dict()[name].cpu(), value[own])
    return results


def without_all_to_all(group, counts, top_k):
    module = make(group, top_k)
    x, ids, weights = on_device(tokens_of(dist.get_rank(group), counts[dist.get_rank(group)], top_k))
    exchange = Exchange.of(module._watch, x.device)
    all_to_all, dist.all_to_all_single = dist.all_to_all_single, _no_all_to_all
    try:
        y = module(x, ids, weights).cpu()
    finally:
        dist.all_to_all_single = all_to_all
    used, exchange.has_all_to_all = not exchange.has_all_to_all, True
    assert used
    return y


def _no_all_to_all(*given, **more):
    raise RuntimeError("Backend mine does not support alltoall_base")


def on_mesh(group, counts, top_k, fsdp):
    """Experts over the inner dimension of a mesh of 2 by 2, with FSDP2 over the outer one or without."""
    mesh = dist.device_mesh.init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("dp", "ep"))
    module = make(mesh["ep"], top_k)
    rank = dist.get_rank()
    x, ids, weights = on_device(tokens_of(rank, counts[rank], top_k))
    if not fsdp:
        return module(x, ids, weights).cpu()
    model = torch.nn.ModuleDict({"experts": module})
    fully_shard(module, mesh=mesh["dp"])
    held = sum(each.to_local().numel() for each in module.parameters())
    assert held == 3 * WIDTH * HIDDEN * EXPERTS // 4
    return [model["experts"](x, ids, weights).cpu() for _ in range(2)][-1]


def state_dicts(group):
    """Each form of a state dict gives this rank its own experts."""
    rank, full = dist.get_rank(group), full_weights(3)
    module = make(group, 2)
    own = module.placement.experts_of(rank)
    single = {}
    for e in range(EXPERTS):
        single[f"{e}.w1.weight"], single[f"{e}.w3.weight"] = full["gate_up_proj"][e].chunk(2)
        single[f"{e}.w2.weight"] = full["down_proj"][e]
    for state in (full, {name: value[own] for name, value in full.items()}, single):
        module.load_state_dict(full_weights(4))
        module.load_state_dict(state)
        back = module.state_dict()
        assert back.keys() == full.keys()
        assert all(torch.equal(back[name].cpu(), value[own]) for name, value in full.items())
    return True


def checkpoint(group, folders, prefix):
    """Each folder has the same experts in other files. The last one lacks those of other ranks."""
    rank, full = dist.get_rank(group), full_weights(3)
    for folder in (*folders[:-1], f"{folders[-1]}{rank}"):
        module = Experts(group, EXPERTS, HIDDEN, WIDTH, top_k=2, device=DEVICE)
        module.load_checkpoint(folder, prefix)
        own = module.placement.experts_of(rank)
        assert all(torch.equal(module.state_dict()[name].cpu(), value[own]) for name, value in full.items())
    return True


def packed(group, state, count, table):
    """GPT-OSS's layout in MXFP4, with a move of what is packed."""
    module = Experts(group, EXPERTS, HIDDEN, WIDTH, top_k=2, layout="gpt_oss", weights="mxfp4", device=DEVICE)
    module.load_state_dict(state)
    x, ids, weights = on_device(tokens_of(dist.get_rank(group), count, 2))
    results = [module(x, ids, weights).cpu()]
    module.move(table)
    results.append(module(x, ids, weights).cpu())
    own = module.placement.experts_of(dist.get_rank(group))
    back = module.state_dict()
    assert all(torch.equal(back[name].cpu(), value[own]) for name, value in state.items())
    return results


def gpt_oss(group, state, count, table):
    module = Experts(group, EXPERTS, HIDDEN, WIDTH, top_k=2, layout="gpt_oss", device=DEVICE)
    module.load_state_dict(state)
    x, ids, weights = on_device(tokens_of(dist.get_rank(group), count, 2))
    results = [module(x, ids, weights).cpu()]
    module.move(table)
    assert all(value.shape[1:] == state[name].shape[1:] for name, value in module.state_dict().items())
    return [*results, module(x, ids, weights).cpu()]


def disagree(group, options_of):
    """What this rank is told when ranks describe other objects."""
    options = {"experts": EXPERTS, "hidden": HIDDEN, "top_k": 2} | options_of.get(dist.get_rank(group), {})
    begin = time.monotonic()
    try:
        Experts(group, options.pop("experts"), options.pop("hidden"), WIDTH, timeout=30.0, **options)
    except ValueError as error:
        assert time.monotonic() - begin < 10
        return str(error)
    return None


def steps(group, count, top_k, options):
    """Results of steps with changing routing and tokens, and how many bytes the process grew behind the first ones."""
    module = make(group, top_k, **options)
    rank = dist.get_rank(group)
    results, held = [], 0
    for step in range(count):
        x, ids, weights = on_device(tokens_of(rank, (5 * step + 3 * rank) % 13, top_k, seed=step))
        y = module(x, ids, weights).cpu()
        if step in (0, count // 2, count - 1):
            results.append((step, y))
        if step == count // 5:
            held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return results, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held)


def until_failure(group, timeout, late=None, at_step=0, options=None):
    """Steps until one is an error: its sentence, when it came (of the system's clock), and that of the next call."""
    begin = time.monotonic()
    try:
        module = make(group, 2, timeout=timeout, **(options or {}))
    except RuntimeError as error:
        return str(error), time.time(), time.monotonic() - begin, str(error)
    rank = dist.get_rank(group)
    x, ids, weights = on_device(tokens_of(rank, 4, 2))
    for step in itertools.count():
        if late == rank and step == at_step:
            time.sleep(2.5 * timeout)
        begin = time.monotonic()
        try:
            module(x, ids, weights)
        except RuntimeError as error:
            ended, waited = time.time(), time.monotonic() - begin
            try:
                module(x, ids, weights)
            except RuntimeError as again:
                return str(error), ended, waited, str(again)
            return str(error), ended, waited, "the next call was taken"


def other_order(group):
    """Rank 1 calls its objects in another order than the others."""
    modules = [make(group, 2, timeout=20.0) for _ in range(2)]
    x, ids, weights = on_device(tokens_of(0, 4, 2))
    if dist.get_rank(group) == 1:
        modules.reverse()
    try:
        for module in modules:
            module(x, ids, weights)
    except RuntimeError as error:
        return str(error)


class Failing(torch.nn.Module):
    """A shared module that fails on one rank in its second call."""

    def __init__(self, rank):
        super().__init__()
        self.rank, self.calls = rank, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 2 and dist.get_rank() == self.rank:
            raise KeyError("no such expert")
        return x


def failing_module(group, rank, options):
    """What each rank is told when one of them fails in the middle of a call, and how long it took."""
    module = make(group, 2, shared=Failing(rank), **options)
    x, ids, weights = on_device(tokens_of(0, 4, 2))
    module(x, ids, weights)
    begin = time.monotonic()
    try:
        module(x, ids, weights)
        module.synchronize()  # on a GPU the call may return before the other rank has failed
    except (KeyError, RuntimeError) as error:
        return type(error).__name__, str(error), time.monotonic() - begin


def refused_calls(group):
    """Sentences about calls that are wrong, none of which any other rank sees."""
    module = make(group, 2)
    x, ids, weights = on_device(tokens_of(0, 4, 2))
    said = []
    for wrong in (
        (x[:, :8], ids, weights), (x.float(), ids, weights), (x, ids[:, :1], weights), (x, ids[:3], weights),
        (x, ids.float(), weights), (x, ids, weights[:, :1]), (x, ids, weights, x[:2]),
    ):  # fmt: skip
        try:
            module(*wrong)
        except ValueError as error:
            said.append(str(error))
    return said, module(x, ids, weights).cpu()


def compiled(group, counts, top_k):
    module = make(group, top_k)
    x, ids, weights = on_device(tokens_of(dist.get_rank(group), counts[dist.get_rank(group)], top_k))
    return torch.compile(lambda x: module(x * 1, ids, weights) * 1, backend="eager")(x).cpu()


def one_swiglu(group, x, ids, weights):
    return make(group, ids.shape[1], activation="swiglu")(*on_device((x, ids, weights))).cpu()


def replayed(call):
    """What a call gives when a graph of it is replayed; on CPU, when it is called."""
    if DEVICE == "cpu":
        return call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()
    y.fill_(float("nan"))
    graph.replay()
    return y.clone()


def windows(group, counts, top_k, options, table):
    """A layer over windows, called, compiled, replayed on GPUs and after a move; each rank's results."""
    module = make(group, top_k, transport="windows", max_tokens=16, **options)
    assert module.transport == "windows"
    x, ids, weights = on_device(tokens_of(dist.get_rank(group), counts[dist.get_rank(group)], top_k))
    results = [module(x, ids, weights), module(x, ids.int(), weights, x)]
    compiled = torch.compile(lambda x: module(x * 1, ids, weights) * 1, backend="eager", fullgraph=True)
    results.append(compiled(x))
    results.append(replayed(lambda: module(x, ids, weights)))
    module.move(table)
    results.append(module(x, ids, weights))
    module.synchronize()
    return [each.cpu() for each in results]


def too_many_rows(group):
    """What the call after one that has too many rows says, and results before and behind it."""
    ranks = dist.get_world_size(group)
    module = make(group, 2, transport="windows", max_tokens=16, max_rows=9 * ranks)
    x, ids, weights = on_device(tokens_of(dist.get_rank(group), 4, 2, routing=[0, 1]))
    results = [module(x, ids, weights).cpu()]
    many = on_device(tokens_of(dist.get_rank(group), 6, 2, routing=[0, 1]))
    lost = module(*many).cpu()
    said = []
    for call in (lambda: module(x, ids, weights), lambda: module(*many) is None or module.synchronize()):
        try:
            call()
        except RuntimeError as error:
            said.append(str(error))
        results.append(module(x, ids, weights).cpu())
    return results, lost, said


def windows_of_another_number(group):
    """What is said where a rank has opened more windows than another."""
    Windows._opened, missing, Windows.missing = dist.get_rank(group), Windows.missing, staticmethod(lambda *given: None)
    try:
        make(group, 2, transport="windows", max_tokens=16)
    except ValueError as error:
        return str(error)
    finally:
        Windows._opened, Windows.missing = 0, missing


def windows_of_others(group):
    """What is said where not all ranks can have windows, and what None comes to."""
    said = []
    for transport in ("windows", None):
        try:
            said.append(make(group, 2, transport=transport, max_tokens=16).transport)
        except ValueError as error:
            said.append(str(error))
    return said
