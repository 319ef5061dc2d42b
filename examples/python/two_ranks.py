# SPDX-License-Identifier: Apache-2.0
"""A layer whose experts are divided among ranks, started by torchrun.

    MOXIE_DEVICE=sim torchrun --nproc-per-node 2 two_ranks.py    # on CPU: gloo, and each rank's own simulator
    torchrun --nproc-per-node 2 two_ranks.py                     # on two GPUs
"""

import os

import torch
import torch.distributed as dist

import moxie
from moxie.distributed import Experts

experts, hidden, width, top_k = 8, 256, 128, 2
simulated = os.environ.get("MOXIE_DEVICE") == "sim"
dist.init_process_group("gloo" if simulated else "cpu:gloo,cuda:nccl")
rank, ranks = dist.get_rank(), dist.get_world_size()
device = torch.device("cpu" if simulated else f"cuda:{rank % torch.cuda.device_count()}")
if not simulated:
    torch.cuda.set_device(device)

# All experts' weights, of which each rank keeps its own; a checkpoint would be read by load_checkpoint.
torch.manual_seed(0)
full = {
    "gate_up_proj": (torch.randn(experts, 2 * width, hidden) * 0.1).bfloat16(),
    "down_proj": (torch.randn(experts, hidden, width) * 0.1).bfloat16(),
}
module = Experts(None, experts, hidden, width, top_k=top_k, timeout=60.0, device=device)
module.load_state_dict(full)

# Each rank has tokens of its own, and another number of them.
torch.manual_seed(1 + rank)
tokens = 24 + 8 * rank
x = torch.randn(tokens, hidden).bfloat16().to(device)
ids = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).to(device)
weights = torch.rand(tokens, top_k).to(device)

w1, w2 = (full[name].to(device) for name in ("gate_up_proj", "down_proj"))
alone = moxie.experts(x, ids, weights, w1, w2)  # one rank with all experts


def difference(y):
    """Of all ranks' results from those of one rank, the largest."""
    worst = (y.double() - alone.double()).norm() / alone.double().norm()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return f"differs by {worst:.1e} from one rank"


def say(text):
    if rank == 0:
        print(text, flush=True)


with torch.no_grad():
    say(module)
    result = difference(module(x, ids, weights))
    say(f"experts {module.placement.experts_of(0)} here, {tokens} tokens: {result}")
    module.move([e % ranks for e in range(experts)])
    result = difference(module(x, ids, weights))
    say(f"experts {module.placement.experts_of(0)} here, after a move: {result}")
    assert float(result.split()[2]) < 4e-3
module.synchronize()
dist.destroy_process_group()
