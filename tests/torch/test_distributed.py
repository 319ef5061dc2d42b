# SPDX-License-Identifier: Apache-2.0
"""moxie.distributed.Experts over processes, beside one process with all experts. On CPU: gloo and a simulator each."""

import contextlib
import json
import os
import random
import re
import signal
import time
from types import SimpleNamespace

import pytest
import ranks
import torch
from ranks import EXPERTS, HIDDEN, MOST, WIDTH, Ranks, full_weights, one_rank, shared_expert, tokens_of
from support import mxfp4

from moxie.distributed import Placement
from moxie.nn import Experts

ALL = os.environ.get("MOXIE_TEST_ALL") == "1"
# Experts 0 to 11 on four ranks, one of which has one and one many.
UNEVEN = [2, 0, 3, 3, 3, 0, 3, 3, 1, 1, 3, 3]


@pytest.fixture(scope="module")
def world():
    # Compiles what the ranks need, which otherwise would all compile it at once.
    for count in (1, 4, 16, 64, 100):
        x, ids, weights = tokens_of(0, count, 4)
        one_rank(x, ids, weights)
        one_rank(x, ids[:, :1], weights[:, :1])
    with Ranks(MOST) as made:
        yield made


def needs(count):
    return pytest.mark.skipif(count > MOST, reason=f"needs {count} GPUs")


def compare(results, counts, top_k, routing="random", residual=None):
    """Ranks' results are those of one rank with all experts, to the last bit."""
    for rank, y in enumerate(results):
        x, ids, weights = tokens_of(rank, counts[rank], top_k, routing=routing)
        added = None if residual is None else residual(x)
        assert torch.equal(y, one_rank(x, ids, weights, residual=added)), f"rank {rank}"
    assert any(y.numel() and y.abs().max() > 0 for y in results)


def some(count):
    """Uneven tokens, none from one rank."""
    return [(7 * rank + 3) % 11 * (rank != 2) for rank in range(count)]


# ---- Beside one rank ----


@pytest.mark.parametrize("size", [pytest.param(size, marks=needs(size)) for size in (1, 2, 4, 8)])
@pytest.mark.parametrize("halves", [None, False, True])
def test_random_routing_and_uneven_tokens(world, size, halves):
    counts = some(size)
    compare(world.run(ranks.layer, range(size), counts, 4, "random", {"halves": halves}), counts, 4)


@pytest.mark.parametrize("size", [pytest.param(size, marks=needs(size)) for size in (2, 4)])
def test_halves_are_chosen_by_all_ranks_alike(world, size):
    """By the mean of all tokens, whatever a rank has of them, and anew in each call."""
    few, many = [0, 1, 0, 3][:size], [0, 9, 1, 2][:size]
    for rank, calls in enumerate(world.run(ranks.chosen, range(size), [few, many, few], 3)):
        assert [halves for _, halves in calls] == [False, True, False]
        for (y, _), counts in zip(calls, (few, many, few), strict=True):
            assert torch.equal(y, one_rank(*tokens_of(rank, counts[rank], 4)))


@pytest.mark.parametrize(
    "tokens, hosts, halves",
    [
        ([4096] * 8, ["a"] * 8, True),
        ([64] * 8, ["a"] * 8, False),
        ([4096] * 2, ["a"] * 2, False),
        ([8192, 0] * 4, ["a"] * 8, True),
        ([1024, 0] * 256, [str(rank // 8) for rank in range(512)], True),
        ([64] * 512, [str(rank // 8) for rank in range(512)], False),
        ([1, 0], ["a", "b"], False),
        ([4096], ["a"], False),
    ],
)
def test_halves_are_those_of_the_plan(tokens, hosts, halves):
    """DeepSeek-V3's layer on H100s, as docs/scale.md has it."""
    figures = {"arch": 90, "sm_count": 132, "memory_rate": 3.352e12}
    said = [{"host": host, "figures": figures} for host in hosts]
    watch = SimpleNamespace(size=len(tokens), devices=lambda device, limit: said)
    layer = SimpleNamespace(
        halves=None, _watch=watch, timeout=1.0, all_experts=256, top_k=8, up_rows=4096, hidden=7168, weights="bf16",
        has_bias=False, activation="swiglu", gate="split",
    )  # fmt: skip
    assert ranks.Experts._in_halves(layer, tokens, None) == halves
    for forced in (False, True):
        layer.halves = forced
        assert ranks.Experts._in_halves(layer, tokens, None) == forced


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 8, 16])
def test_choices_of_a_token(world, top_k):
    size = min(2, MOST)
    counts = [16 + 7 * rank for rank in range(size)]  # with fewer, all choices of one expert may be foreign
    compare(world.run(ranks.layer, range(size), counts, top_k), counts, top_k)


@needs(4)
@pytest.mark.parametrize("routing", [[0], [0, 1, 2], [11], [5, -1], [3, EXPERTS]])
def test_all_tokens_to_few_ranks(world, routing):
    counts = some(4)
    compare(world.run(ranks.layer, range(4), counts, 4, routing), counts, 4, routing)


@needs(4)
def test_one_token_in_all_and_none(world):
    counts = [0, 0, 1, 0]
    for y in world.run(ranks.layer, range(4), [0] * 4, 4):
        assert y.shape == (0, HIDDEN)
    compare(world.run(ranks.layer, range(4), counts, 4), counts, 4)
    for y in world.run(ranks.layer, range(4), [3] * 4, 4, [-7, EXPERTS, 10**6]):
        assert torch.equal(y, torch.zeros(3, HIDDEN, dtype=torch.bfloat16))


def test_ids_weights_and_residual(world):
    size = min(2, MOST)
    counts = [5, 6][:size]
    compare(world.run(ranks.layer, range(size), counts, 3, "random", None, torch.int32, True, True), counts, 3,
            residual=lambda x: x)  # fmt: skip
    for rank, y in enumerate(world.run(ranks.layer, range(size), counts, 3, "random", None, torch.int64, False)):
        x, ids, weights = tokens_of(rank, counts[rank], 3)
        assert torch.equal(y, one_rank(x, ids, torch.ones_like(weights)))


@pytest.mark.parametrize("halves", [False, True])
def test_shared_experts(world, halves):
    size = min(2, MOST)
    counts = [5, 6][:size]
    options = {"shared": shared_expert(), "halves": halves}
    compare(world.run(ranks.layer, range(size), counts, 3, "random", options), counts, 3, residual=shared_expert())


def test_sums_that_float32_does_not_hold_are_close(world):
    """And the bits are those of any other number of ranks."""
    size = min(4, MOST)
    counts = [6] * size
    options = {"activation": "swiglu"}
    for rank, y in enumerate(world.run(ranks.layer, range(size), counts, 4, "random", options)):
        x, ids, weights = tokens_of(rank, 6, 4)
        alone = world.run(ranks.one_swiglu, [rank], x, ids, weights)[0]
        assert (y.double() - alone.double()).norm() <= 4e-3 * alone.double().norm()


@pytest.mark.skipif(0 < ranks.GPUS < MOST, reason="gloo sends no tensors of a GPU by isend")
def test_a_backend_without_all_to_all(world):
    size = min(4, MOST)
    compare(world.run(ranks.without_all_to_all, range(size), some(size), 4), some(size), 4)


def test_compiled_around(world):
    size = min(2, MOST)
    compare(world.run(ranks.compiled, range(size), some(size), 4), some(size), 4)


# ---- Windows ----


# Several ranks have windows on GPUs alone; tests/hopper/ranks_test.cpp has their kernels over simulated devices.
WINDOWED = (1,) if ranks.DEVICE == "cpu" else (1, 2, 4, 8)


@pytest.fixture(scope="module")
def windowed(world):
    """The world of a size: ranks must have opened as many windows as each other."""
    with contextlib.ExitStack() as stack:
        worlds = {1: world}

        def of(size):
            if size not in worlds:
                worlds[size] = stack.enter_context(Ranks(size))
            return worlds[size]

        yield of


@pytest.mark.parametrize("size", [pytest.param(size, marks=needs(size)) for size in WINDOWED])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_experts": 14, "results": "sums"},
        {"shared": shared_expert(), "results": "rows"},
        {"row_format": "mxfp8"},
    ],
)
def test_windows(windowed, size, options):
    counts, table = some(size), [(e * 5 + 3) % EXPERTS % size for e in range(EXPERTS)]
    if size > 1:
        options = options | {"max_experts": EXPERTS}
    added = options.get("shared", lambda x: None)
    for rank, results in enumerate(windowed(size).run(ranks.windows, range(size), counts, 4, options, table)):
        called, residual, compiled, replayed, moved = results
        x, ids, weights = tokens_of(rank, counts[rank], 4)
        expected = one_rank(x, ids, weights, residual=added(x))
        assert all(torch.equal(y, expected) for y in (called, compiled, replayed, moved))
        both = x if added(x) is None else x + added(x)
        assert torch.equal(residual, one_rank(x, ids, weights, residual=both))


def test_a_call_with_too_many_rows_is_an_error_alone(windowed):
    size = min(2, MOST) if ranks.DEVICE == "cuda" else 1
    for rank, (results, lost, said) in enumerate(windowed(size).run(ranks.too_many_rows, range(size))):
        assert lost.isnan().all()
        assert len(said) == 2 and all(f"max_rows is {9 * size}" in each for each in said), said
        expected = one_rank(*tokens_of(rank, 4, 2, routing=[0, 1]))
        assert all(torch.equal(y, expected) for y in results)


@pytest.mark.skipif(ranks.DEVICE != "cpu", reason="numbers of GPUs' windows count")
def test_ranks_with_other_numbers_of_windows_are_told_so(world):
    for said in world.run(ranks.windows_of_another_number, range(2)):
        assert "the ranks cannot have: rank 1 has opened 1 windows before and rank 0 0, but torch's symmetric" in said


@pytest.mark.skipif(ranks.DEVICE != "cpu", reason="GPUs have windows")
def test_ranks_without_windows_are_told_so(world):
    for named, chosen in world.run(ranks.windows_of_others, range(2)):
        assert "transport is 'windows', which the ranks cannot have: rank 0: its tensors are on cpu" in named
        assert chosen == "all_to_all"


# ---- Groups ----


@needs(4)
def test_some_ranks_of_all(world):
    counts = [4, 7]
    compare(world.run(ranks.layer, [1, 3], counts, 4), counts, 4)
    compare(world.run(ranks.layer, [0, 2, 3], [4, 0, 7], 4), [4, 0, 7], 4)


def test_meshes():
    if MOST < 4:
        pytest.skip("needs 4 GPUs")
    counts = [3, 0, 5, 2]
    with Ranks(4) as world:
        for fsdp in (False, True):
            compare(world.run(ranks.on_mesh, None, counts, 4, fsdp), counts, 4)


# ---- Where experts are ----


def test_tables():
    even = Placement.contiguous(7, 3)
    assert even.ranks == (0, 0, 0, 1, 1, 2, 2) and even.slots == (0, 1, 2, 0, 1, 0, 1)
    table = Placement.of([(1, 1), (0, 0), (1, 0)], 3, 2)
    assert table.experts_of(1) == [2, 0] and table.experts_of(0) == [1]
    assert Placement.of(torch.tensor([1, 0, 1]), 3, 2) == Placement((1, 0, 1), (0, 0, 1))
    assert Placement.of(Placement.of(UNEVEN, EXPERTS, 4), EXPERTS, 4) == Placement.of(UNEVEN, EXPERTS, 4)
    for wrong, sentence in (
        ([0, 0], "placement has 2 experts, but must have 3"),
        ([0, 1, 2], "placement puts expert 2 on rank 2, but ranks are 0 to 1"),
        ([(0, 0), (0, 0), (1, 0)], "placement puts experts 0 and 1 into slot 0 of rank 0"),
        ([(0, 0), (0, 2), (1, 0)], "placement puts expert 1 into slot 2 of rank 0, which has 2 experts"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Placement.of(wrong, 3, 2)


@needs(4)
@pytest.mark.parametrize("table", [UNEVEN, [3] * EXPERTS, [e % 4 for e in range(EXPERTS)]])
def test_placement(world, table):
    counts = some(4)
    compare(world.run(ranks.layer, range(4), counts, 4, "random", {"placement": table}), counts, 4)


@needs(4)
def test_moves(world):
    counts = some(4)
    reverse = [(3 - e // 3, 2 - e % 3) for e in range(EXPERTS)]
    for results in zip(*world.run(ranks.moved, range(4), counts, 4, [UNEVEN, [2] * EXPERTS, reverse]), strict=True):
        compare(results, counts, 4)


# ---- Weights ----


def test_state_dicts(world):
    assert all(world.run(ranks.state_dicts, range(min(4, MOST))))


def test_checkpoints(world, tmp_path):
    save_file = pytest.importorskip("safetensors.torch").save_file
    prefix, full, size = "model.layers.3.mlp.experts.", full_weights(3), min(4, MOST)
    single = {}
    for e in range(EXPERTS):
        gate, up = full["gate_up_proj"][e].chunk(2)
        for name, value in (("gate_proj", gate), ("up_proj", up), ("down_proj", full["down_proj"][e])):
            single[f"{prefix}{e}.{name}.weight"] = value.contiguous()
    folders = [tmp_path / "fused", tmp_path / "single"]
    for folder, tensors in zip(folders, ({prefix + n: v for n, v in full.items()}, single), strict=True):
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
    # A file for each expert; only those of one rank are there.
    table = Placement.contiguous(EXPERTS, size)
    for rank in range(size):
        folder = tmp_path / f"own{rank}"
        folder.mkdir()
        weight_map = {name: f"expert{name[len(prefix):].split('.')[0]}.safetensors" for name in single}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        for e in table.experts_of(rank):
            own = {name: value for name, value in single.items() if weight_map[name] == f"expert{e}.safetensors"}
            save_file(own, folder / f"expert{e}.safetensors")
    names = [str(folder) for folder in (*folders, tmp_path / "own")]
    assert all(world.run(ranks.checkpoint, range(size), names, prefix))


@pytest.mark.parametrize("weights", ["bf16", "mxfp4"])
def test_gpt_oss(world, weights):
    size = min(2, MOST)
    whole = Experts(EXPERTS, HIDDEN, WIDTH, layout="gpt_oss", weights=weights, device=ranks.DEVICE)
    state = {name: torch.randn(value.shape).bfloat16() * 0.2 for name, value in whole.state_dict().items()}
    for name, n, k in (("gate_up_proj", 2 * WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)):
        if weights == "mxfp4":
            codes, scales = mxfp4(EXPERTS, n, k)
            state[f"{name}_blocks"], state[f"{name}_scales"] = codes.view(EXPERTS, n, k // 32, 16).cpu(), scales.cpu()
    whole.load_state_dict(state)
    function = ranks.packed if weights == "mxfp4" else ranks.gpt_oss
    for rank, results in enumerate(world.run(function, range(size), state, 6, [e % size for e in range(EXPERTS)])):
        expected = whole(*ranks.on_device(tokens_of(rank, 6, 2))).cpu().double()
        for y in results:
            assert (y.double() - expected).norm() <= 4e-3 * expected.norm()


# ---- What must agree ----


@needs(4)
@pytest.mark.parametrize(
    "options, sentence",
    [
        ({2: {"top_k": 4}}, "rank 2 has top_k 4, but rank 0 has 2"),
        ({0: {"hidden": 128}}, "rank 1 has hidden 64, but rank 0 has 128"),
        ({3: {"placement": [0] * 6 + [1] * 6}}, r"rank 3 has placement\[3\] \[0, 3\], but rank 0 has \[1, 0\]"),
        ({1: {"experts": 8}}, "rank 1 has experts 8, but rank 0 has 12"),
        ({1: {"weights": "mxfp4"}}, "rank 1 has weights 'mxfp4', but rank 0 has 'bf16'"),
        ({1: {"halves": True}}, "rank 1 has halves True, but rank 0 has None"),
        ({2: {"top_k": 17}}, "rank 2 refuses its arguments: top_k is 17, but must be 1 to 16"),
        ({1: {"hidden": 20}}, "rank 1 refuses its arguments: hidden is 20, but must be a positive multiple of 8"),
        ({1: {"placement": [7] * 12}}, "rank 1 refuses its arguments: placement puts expert 0 on rank 7"),
    ],
)
def test_ranks_that_disagree_are_told_so(world, options, sentence):
    for said in world.run(ranks.disagree, range(4), options):
        assert said is not None
        assert re.search(sentence, said), said


def test_wrong_calls_are_refused_alone(world):
    x, ids, weights = tokens_of(0, 4, 2)
    for said, y in world.run(ranks.refused_calls, range(min(2, MOST))):
        assert len(said) == 7 and torch.equal(y, one_rank(x, ids, weights)), said


def test_groups_that_are_none():
    with pytest.raises(ValueError, match="torch.distributed is not initialized"):
        ranks.Experts(None, EXPERTS, HIDDEN, WIDTH, top_k=2)


# ---- Many steps ----


def test_steps_with_changing_routing(world):
    count, size = 1000 if ALL else 20, min(4, MOST)
    for rank, (results, grown) in enumerate(world.run(ranks.steps, range(size), count, 4, {})):
        for step, y in results:
            assert torch.equal(y, one_rank(*tokens_of(rank, (5 * step + 3 * rank) % 13, 4, seed=step)))
        assert grown < 32e6, f"rank {rank} grew by {grown} bytes"


# ---- Failures ----


def check_failures(answers, culprit, timeout, since=None):
    for rank, answer in answers:
        assert not isinstance(answer, BaseException), answer
        said, ended, waited, again = answer
        assert f"rank {culprit} " in said or f"rank {culprit}," in said, said
        assert "takes no further calls" in again
        # The clock's other users may keep a process from running for a while.
        assert waited < timeout + 5, f"rank {rank} waited {waited} s: {said}"
        assert since is None or ended - since < timeout + 5


@pytest.mark.parametrize("transport", ["all_to_all"] + ["windows"] * (ranks.DEVICE == "cuda"))
@pytest.mark.parametrize("store", ["file", "tcp"])
@pytest.mark.parametrize("number", range(5 if ALL else 1))
def test_a_killed_rank_is_named(transport, store, number):
    """At a random moment; with a store that rank 0 holds, that rank. On GPUs one of as many ranks as there are."""
    size, timeout, generator = min(3, MOST), 6.0, random.Random(f"{store}{number}")
    if ranks.DEVICE == "cuda":
        size = MOST
    if size < 2:
        pytest.skip("needs 2 GPUs")
    culprit = 0 if store == "tcp" else generator.randrange(size)
    with Ranks(size, store) as world:
        world.run(ranks.layer, None, [2] * size, 2)
        options = {"transport": transport, "max_tokens": 4 if transport == "windows" else None}
        world.start(ranks.until_failure, None, timeout, None, 0, options)
        time.sleep(generator.uniform(0.05, 1.0))
        os.kill(world.processes[culprit].pid, signal.SIGKILL)
        since = time.time()
        others = [rank for rank in range(size) if rank != culprit]
        check_failures(zip(others, world.results(others), strict=True), culprit, timeout, since)


def test_a_late_rank_is_named():
    size, timeout = min(3, MOST), 4.0
    if size < 2:
        pytest.skip("needs 2 GPUs")
    with Ranks(size) as world:
        world.start(ranks.until_failure, None, timeout, 1, 2)
        check_failures(enumerate(world.results()), 1, timeout)


def test_a_stopped_rank_is_named():
    size, timeout = min(3, MOST), 6.0
    if size < 2:
        pytest.skip("needs 2 GPUs")
    with Ranks(size) as world:
        world.start(ranks.until_failure, None, timeout)
        time.sleep(1)
        os.kill(world.processes[1].pid, signal.SIGSTOP)
        others = [rank for rank in range(size) if rank != 1]
        check_failures(zip(others, world.results(others), strict=True), 1, timeout)
        os.kill(world.processes[1].pid, signal.SIGKILL)


def test_a_rank_that_calls_in_another_order_is_named():
    size = min(3, MOST)
    if size < 2:
        pytest.skip("needs 2 GPUs")
    with Ranks(size) as world:
        for said in world.run(ranks.other_order, None):
            assert "all ranks must call in the same order" in said and "rank 1 " in said, said


def test_a_rank_that_fails_in_a_call_tells_the_others():
    size = min(3, MOST)
    if size < 2:
        pytest.skip("needs 2 GPUs")
    with Ranks(size) as world:
        for rank, (kind, said, waited) in enumerate(world.run(ranks.failing_module, None, 1, {})):
            assert "no such expert" in said and waited < 30
            assert kind == ("KeyError" if rank == 1 else "RuntimeError")
            assert rank == 1 or "rank 1 has failed in step 2" in said


def test_a_module_that_fails_over_windows():
    with Ranks(1) as world:
        options = {"transport": "windows", "max_tokens": 8}
        kind, said, _ = world.run(ranks.failing_module, None, 0, options)[0]
        assert kind == "KeyError" and "no such expert" in said
