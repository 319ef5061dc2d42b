# SPDX-License-Identifier: Apache-2.0
"""A layer of experts as a module of PyTorch: called, compiled, and on a GPU replayed from a CUDA graph.

    MOXIE_DEVICE=sim python torch_module.py    # without a GPU: the simulator computes
"""

import os

import torch

from moxie.nn import Experts

experts, hidden, width, tokens, top_k = 8, 256, 128, 24, 2
device = "cpu" if os.environ.get("MOXIE_DEVICE") == "sim" else "cuda"
torch.manual_seed(0)

# Qwen3-MoE's names; a checkpoint's tensors would be loaded by load_state_dict.
module = Experts(experts, hidden, width, device=device)
for weight in module.parameters():
    weight.copy_(torch.randn_like(weight) * 0.1)
print(module, {name: tuple(value.shape) for name, value in module.state_dict().items()})


def route(x, router):
    weights, ids = torch.topk(torch.softmax(x.float() @ router, dim=-1), top_k)
    return ids, weights / weights.sum(-1, keepdim=True)


@torch.no_grad()
def layer(x, router):
    return module(x, *route(x, router), residual=x)


def reference(x, router):
    y = x.double()
    ids, weights = route(x, router)
    for e in range(experts):
        token, slot = torch.where(ids == e)
        gate, up = (x[token].double() @ module.gate_up_proj[e].double().T).chunk(2, dim=-1)
        row = (torch.nn.functional.silu(gate) * up) @ module.down_proj[e].double().T
        y.index_add_(0, token, row * weights[token, slot, None].double())
    return y


x = torch.randn(tokens, hidden, device=device).bfloat16()
router = torch.randn(hidden, experts, device=device) * 0.1
y = layer(x, router)
error = (y.double() - reference(x, router)).norm() / reference(x, router).norm()
print(f"called: relative error {error:.1e}")
assert error < 4e-3

compiled = torch.compile(layer, fullgraph=True, backend="aot_eager" if device == "cpu" else "inductor")
error = (compiled(x, router).double() - y.double()).norm() / y.double().norm()
print(f"torch.compile, one graph: differs by {error:.1e}")
assert error < 4e-3

if device == "cuda":
    module.warm_up(tokens, top_k=top_k)  # kernels are compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(x, router)
    x.copy_(torch.randn_like(x))  # other tokens, which the router sends elsewhere
    graph.replay()
    error = (captured.double() - reference(x, router)).norm() / reference(x, router).norm()
    print(f"CUDA graph, other routing: relative error {error:.1e}")
    assert error < 4e-3
