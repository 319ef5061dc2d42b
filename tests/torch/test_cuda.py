# SPDX-License-Identifier: Apache-2.0
"""What only a GPU has: streams, CUDA graphs and torch's allocator there."""

import pytest
import torch
from support import DEVICE, assert_close, bf16, ends, grouped, layer, routing

import moxie
from moxie.nn import Experts

pytestmark = pytest.mark.skipif(DEVICE != "cuda", reason="no GPU was asked for")
E, H, W = 8, 256, 128


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_a_graph_replays_other_routings_and_allocates_nothing():
    module = Experts(E, H, W, device="cuda")
    for weight in module.parameters():
        weight.normal_(std=0.1)
    x, (ids, scores) = bf16(40, H), routing(40, E, 2)
    module.warm_up(40, top_k=2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module(x, ids, scores)
    graph.replay()
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        more_ids, more_scores = routing(40, E, 2)
        ids.copy_(more_ids), scores.copy_(more_scores)
        held = torch.cuda.memory_stats()["allocation.all.allocated"]
        graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == held
        assert_close(y, layer(x, ids, scores, module.gate_up_proj, module.down_proj))
    assert before > 0


def test_products_in_a_graph():
    a, w, offs = bf16(40, H), bf16(E, W, H), ends(5, 5, 9, 20, 21, 30, 30, 40)
    moxie.grouped_mm(a, w.mT, offs=offs, activation="silu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = moxie.grouped_mm(a, w.mT, offs=offs, activation="silu")
    offs.copy_(ends(0, 1, 2, 3, 37, 38, 39, 40))
    graph.replay()
    assert_close(y, grouped(a, w.mT, offs, activation="silu"))


def test_work_goes_to_the_current_stream():
    x, w1, w2, (ids, scores) = bf16(40, H), bf16(E, 2 * W, H, scale=0.1), bf16(E, H, W, scale=0.1), routing(40, E, 2)
    moxie.experts(x, ids, scores, w1, w2)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        later = x * 2
        y = moxie.experts(later, ids, scores, w1, w2)
        done = stream.record_event()
    assert not done.query()  # the host waited for nothing
    stream.synchronize()
    assert_close(y, layer(x * 2, ids, scores, w1, w2))


def test_torch_compile_with_graphs():
    x, w1, w2, (ids, scores) = bf16(40, H), bf16(E, 2 * W, H, scale=0.1), bf16(E, H, W, scale=0.1), routing(40, E, 2)
    moxie.experts(x, ids, scores, w1, w2)
    compiled = torch.compile(
        lambda x: moxie.experts(x + 1, ids, scores, w1, w2) * 2, fullgraph=True, mode="reduce-overhead"
    )
    for _ in range(4):
        y = compiled(x).clone()
    assert torch.equal(y, moxie.experts(x + 1, ids, scores, w1, w2) * 2)


def test_addresses_are_looked_at_in_every_call():
    """Of two tensors alike in all but where they begin, the second one has to be copied."""
    w, offs = bf16(E, W, H, scale=0.1), ends(5, 5, 9, 20, 21, 30, 30, 40)
    memory = bf16(40 * H + 8)
    for begin in (0, 1, 0, 3):
        a = memory[begin : begin + 40 * H].view(40, H)
        assert_close(moxie.grouped_mm(a, w.mT, offs=offs), grouped(a, w.mT, offs))
    w1, w2, (ids, scores) = bf16(E, 2 * W, H, scale=0.1), bf16(E, H, W, scale=0.1), routing(40, E, 2)
    for begin in (0, 1):
        x = memory[begin : begin + 40 * H].view(40, H)
        assert_close(moxie.experts(x, ids, scores, w1, w2), layer(x, ids, scores, w1, w2))


def test_tensors_of_other_devices_are_refused():
    x, w1, w2, (ids, scores) = bf16(4, H), bf16(E, 2 * W, H), bf16(E, H, W), routing(4, E, 2)
    for changed in ({"w1": w1.cpu()}, {"topk_ids": ids.cpu()}, {"x": x.cpu()}):
        arguments = {"x": x, "topk_ids": ids, "topk_weights": scores, "w1": w1, "w2": w2, **changed}
        with pytest.raises((ValueError, RuntimeError), match="is on c|are on the CPU"):
            moxie.experts(**arguments)


def known_layer(device="cuda"):
    """A call of moxie.experts that is known (python/native/calls.c), and its result."""
    tensors = [bf16(40, H), *routing(40, E, 2), bf16(E, 2 * W, H, scale=0.1), bf16(E, H, W, scale=0.1)]
    tensors = [each.to(device) for each in tensors]
    moxie.experts(*tensors)
    return lambda: moxie.experts(*tensors), moxie.experts(*tensors)


def test_a_known_call_allocates_its_result_and_its_workspace():
    call, expected = known_layer()
    torch.cuda.synchronize()
    held, count = torch.cuda.memory_allocated(), torch.cuda.memory_stats()["allocation.all.allocated"]
    y = call()
    assert torch.cuda.memory_allocated() - held == y.nbytes  # the workspace has been given back
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - count == 2
    assert y.equal(expected) and y.is_contiguous() and not y.requires_grad


def test_a_known_call_in_a_graph():
    call, expected = known_layer()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = call()
    # What others allocate meanwhile must not lie in the graph's workspace.
    others = [torch.full((1 << 16,), 7.0, device="cuda") for _ in range(64)]
    for _ in range(2):
        y.zero_()
        graph.replay()
        assert y.equal(expected)
    assert all(each.eq(7).all() for each in others)


def test_a_known_call_allocates_in_the_pool_of_its_thread():
    call, expected = known_layer()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        y = call()
    segments = [(each["address"], each["address"] + each["total_size"]) for each in pool.snapshot()]
    assert any(begin <= y.data_ptr() < end for begin, end in segments)
    assert y.equal(expected)


def test_a_known_call_in_inference_mode():
    call, expected = known_layer()
    with torch.inference_mode():
        y = call()
    assert y.is_inference() and not call().is_inference() and y.equal(expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
def test_a_known_call_on_a_gpu_that_is_not_the_current_one():
    call, expected = known_layer("cuda:1")
    held = [torch.cuda.memory_allocated(i) for i in range(2)]
    y = call()
    assert y.device.index == 1 and y.equal(expected)
    assert torch.cuda.memory_allocated(0) == held[0]
    with torch.cuda.device(1):
        assert call().equal(expected)
