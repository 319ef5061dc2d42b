# SPDX-License-Identifier: Apache-2.0
"""moxie.experts and its neighbors beside double precision."""

import subprocess
import sys
import threading

import pytest
import torch
from support import DEVICE, assert_close, bf16, dequantized, ends, layer, mxfp4, routing

import moxie
from moxie.torch import _Gpu, dequantize, experts, experts_into, grouped_mm, pack_weights, quantize, unpack_weights

E, H, W = 5, 64, 32


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def weights(gated=True):
    return bf16(E, 2 * W if gated else W, H, scale=0.2), bf16(E, H, W, scale=0.2)


def test_output_of_a_caller():
    x, (w1, w2), (ids, scores) = bf16(9, H), weights(), routing(9, E, 2)
    memory = torch.full((11, H), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    workspace = torch.empty(1 << 20, dtype=torch.bfloat16, device=DEVICE)
    rest = ids, scores, w1, w2, None, None, None, "swiglu", None, "split", 0, None, None
    experts_into(memory[1:10], workspace, x, *rest)
    assert torch.equal(memory[1:10], experts(x, ids, scores, w1, w2))
    assert memory[[0, 10]].isnan().all()


def test_workspace_of_a_caller():
    """It is used where it is large and aligned enough."""
    gpu, like = object.__new__(_Gpu), torch.empty(0, dtype=torch.bfloat16)
    memory = torch.empty(1024, dtype=torch.uint8)
    aligned = memory[-memory.data_ptr() % 256 :][:512]
    assert gpu.workspace(512, like, aligned) == (aligned.data_ptr(), aligned)
    for nbytes, given in ((513, aligned), (256, aligned[1:]), (256, None)):
        address, kept = gpu.workspace(nbytes, like, given)
        assert address == kept.data_ptr() and kept.nbytes >= nbytes and kept is not given
    assert gpu.workspace(0, like, aligned)[0] == 0


@pytest.mark.parametrize("tokens", [1, 2, 3, 9, 33, 140])
def test_layer(tokens):
    x, (w1, w2), (ids, scores) = bf16(tokens, H), weights(), routing(tokens, E, 2)
    result = moxie.experts(x, ids, scores, w1, w2)
    assert result.dtype == torch.bfloat16
    assert_close(result, layer(x, ids, scores, w1, w2))


@pytest.mark.parametrize("gate", ["split", "interleaved", "split_up_first"])
@pytest.mark.parametrize("id_type", [torch.int32, torch.int64])
def test_biases_gates_and_ids(gate, id_type):
    x, (w1, w2), (ids, scores) = bf16(7, H), weights(), routing(7, E, 3, id_type)
    b1, b2 = bf16(E, 2 * W), bf16(E, H)
    result = experts(x, ids, scores, w1, w2, b1=b1, b2=b2, activation="swiglu_oai", gate=gate)
    assert_close(result, layer(x, ids, scores, w1, w2, b1, b2, "swiglu_oai", gate=gate))


def test_without_a_gate_or_weights():
    x, (w1, w2), (ids, _) = bf16(7, H), weights(gated=False), routing(7, E, 2)
    result = experts(x, ids, None, w1, w2, activation="relu2")
    assert_close(result, layer(x, ids, None, w1, w2, activation="relu2"))


def test_weights_in_bf16_are_taken():
    x, (w1, w2), (ids, scores) = bf16(7, H), weights(), routing(7, E, 2)
    scores = scores.bfloat16()
    assert torch.equal(experts(x, ids, scores, w1, w2), experts(x, ids, scores.float(), w1, w2))


def test_residual_and_float32():
    x, (w1, w2), (ids, scores) = bf16(7, H), weights(), routing(7, E, 2)
    residual = torch.randn(7, H + 8, device=DEVICE)[:, :H]
    result = experts(x, ids, scores, w1, w2, residual=residual, out_dtype=torch.float32)
    assert result.dtype == torch.float32
    assert_close(result - residual, layer(x, ids, scores, w1, w2))


def test_ids_that_are_not_here_are_skipped():
    x, (w1, w2), (ids, scores) = bf16(9, H), weights(), routing(9, E, 2)
    ids[0, 0], ids[1], ids[2, 1] = E, 10**9, -1
    assert_close(experts(x, ids, scores, w1, w2), layer(x, ids, scores, w1, w2))
    ids += 3
    assert_close(
        experts(x, ids, scores, w1, w2, first_expert=3, all_experts=16), layer(x, ids, scores, w1, w2, first=3)
    )


def test_strides():
    (w1, w2), (ids, scores) = weights(), routing(7, E, 2)
    x = bf16(7, H + 24)[:, 8 : H + 8]
    expected = layer(x, ids, scores, w1, w2)
    assert_close(experts(x, ids, scores, w1, w2), expected)
    # Transposed views are copied, and give the same.
    assert_close(
        experts(x, ids, scores, w1.transpose(1, 2).contiguous().transpose(1, 2), w2.mT.contiguous().mT), expected
    )
    assert_close(experts(x.T.contiguous().T, ids.T.contiguous().T, scores.T.contiguous().T, w1, w2), expected)


def test_no_token():
    (w1, w2), (ids, scores) = weights(), routing(1, E, 2)
    assert experts(bf16(0, H), ids[:0], scores[:0], w1, w2).shape == (0, H)


@pytest.mark.parametrize("gate", ["split", "interleaved"])
def test_packed_weights(gate):
    x, (ids, scores) = bf16(9, H), routing(9, E, 2)
    (c1, s1), (c2, s2) = mxfp4(E, 2 * W, H), mxfp4(E, H, W)
    p1, p2 = pack_weights(c1, s1, gate=gate), pack_weights(c2.view(E, H, W // 32, 16), s2)
    b1, b2 = bf16(E, 2 * W), bf16(E, H)
    result = experts(x, ids, scores, p1, p2, b1=b1, b2=b2, gate=gate)
    assert_close(result, layer(x, ids, scores, dequantized(c1, s1), dequantized(c2, s2), b1, b2, gate=gate))
    for packed, codes, scales, of in ((p1, c1, s1, gate), (p2, c2, s2, None)):
        assert packed.nbytes <= 1.01 * (codes.nbytes + scales.nbytes) + 16 * E * codes.shape[1]
        back = unpack_weights(packed, codes.shape[1], 2 * codes.shape[2], gate=of)
        assert torch.equal(back[0], codes) and torch.equal(back[1], scales)


def test_scales_too_far_apart_are_refused():
    codes, scales = mxfp4(2, 16, 64)
    scales[1, 3] = torch.tensor([10, 200], dtype=torch.uint8)
    with pytest.raises(ValueError, match="scales of row 3 of expert 1 lie too far apart"):
        pack_weights(codes, scales)


def test_sort_and_combine():
    ids, scores = routing(9, E + 2, 3)
    ids -= 1
    ends_of, order, inverse = moxie.torch.sort_by_expert(ids, E)
    pairs = [p for e in range(E) for p, each in enumerate(ids.flatten().tolist()) if each == e]
    assert order[: len(pairs)].tolist() == pairs and ends_of[-1] == len(pairs)
    assert inverse.flatten().tolist() == [pairs.index(p) if p in pairs else -1 for p in range(27)]
    rows, residual = bf16(len(pairs), H), bf16(9, H)
    expected = residual.double()
    for t in range(9):
        for j in range(3):
            if inverse[t, j] >= 0:
                expected[t] += rows[inverse[t, j]].double() * scores[t, j].double()
    assert_close(moxie.torch.combine(rows, inverse, scores, residual=residual), expected)
    # Nothing to sort, and nothing to sum.
    assert torch.equal(moxie.torch.sort_by_expert(ids[:0], E)[0], ends(*[0] * E))
    assert torch.equal(moxie.torch.combine(rows[:0], inverse, scores, residual=residual), residual)
    assert not moxie.torch.combine(rows[:0], inverse, scores).any()


@pytest.mark.parametrize("layout", ["row_major", "blocked"])
@pytest.mark.parametrize("format", ["mxfp4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_formats(format, layout, dtype):
    values = torch.randn(3, 20, 96, device=DEVICE).to(dtype)
    elements, scales, *tensor_scale = quantize(values, format, layout=layout)
    back = dequantize(
        elements, scales, format, layout=layout, tensor_scale=tensor_scale[0] if tensor_scale else None, dtype=dtype
    )
    assert back.dtype == dtype
    bound = {"mxfp4": 0.2, "mxfp8": 0.04, "nvfp4": 0.12}[format]
    assert (back - values).norm() < bound * values.norm()
    # What was quantized once is exact.
    again = quantize(back, format, layout=layout, tensor_scale=tensor_scale[0] if tensor_scale else None)
    assert torch.equal(again[0].view(torch.uint8), elements.view(torch.uint8)) and torch.equal(again[1], scales)


@pytest.mark.parametrize("format", ["mxfp4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (0, 3, 64), (4, 0)])
def test_nothing_is_quantized_to_nothing(format, shape):
    for layout in ("row_major", "blocked"):
        elements, scales, *tensor_scale = quantize(torch.zeros(shape, device=DEVICE), format, layout=layout)
        assert elements.numel() == scales.numel() == 0
        more = {"tensor_scale": tensor_scale[0]} if tensor_scale else {}
        assert dequantize(elements, scales, format, layout=layout, **more).shape == shape


def test_no_expert_is_packed_to_nothing():
    packed = pack_weights(*mxfp4(0, 32, 64))
    assert packed.shape == (0, 32 * (32 + 2 + 1))
    assert [each.shape for each in unpack_weights(packed, 32, 64)] == [(0, 32, 32), (0, 32, 2)]


def test_row_major_mxfp4_is_ocps():
    values = bf16(2, 8, 64)
    elements, scales = quantize(values)
    expected = dequantized(elements, scales)
    assert torch.equal(dequantize(elements, scales, dtype=torch.float32).double(), expected)
    exponent = torch.floor(torch.log2(values.view(2, 8, 2, 32).abs().amax(-1).double()))
    assert torch.equal(scales.double() - 127, exponent - 2)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_graph_break(backend):
    x, (w1, w2), (ids, scores) = bf16(9, H), weights(), routing(9, E, 2)

    def run(x, scores):
        return experts(x + 1, ids, scores, w1, w2, activation_parameters=None) * 2

    compiled = torch.compile(run, fullgraph=True, backend=backend)
    assert torch.equal(compiled(x, scores), run(x, scores))


def test_eight_threads():
    calls, results = [], {}
    for index in range(8):
        tokens = (3, 17, 40)[index % 3]
        calls.append((bf16(tokens, H), *routing(tokens, E, 2), *weights()))

    def work(index):
        for _ in range(3):
            x, ids, scores, w1, w2 = calls[index]
            results[index] = experts(x, ids, scores, w1, w2), grouped_mm(
                x, w1.transpose(1, 2), offs=ends(1, 1, 2, 3, 3)
            )

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, (x, ids, scores, w1, w2) in enumerate(calls):
        assert_close(results[index][0], layer(x, ids, scores, w1, w2))
        assert results[index][1].shape == (x.shape[0], 2 * W)


def test_results_are_the_same_bits():
    x, (w1, w2), (ids, scores) = bf16(40, H), weights(), routing(40, E, 4)
    assert torch.equal(experts(x, ids, scores, w1, w2), experts(x, ids, scores, w1, w2))


def test_cpu_tensors_need_the_simulator():
    code = """
import torch, moxie
x = torch.zeros(2, 32, dtype=torch.bfloat16)
moxie.grouped_mm(x, x.new_zeros(1, 32, 16), offs=torch.tensor([2], dtype=torch.int32))
"""
    import os

    environment = {**os.environ, "MOXIE_DEVICE": "cuda"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert "RuntimeError: the tensors are on the CPU, where Moxie computes on its simulator alone" in run.stderr
    assert run.returncode == 1


def test_moxie_alone_imports_no_torch():
    code = "import sys, moxie; assert 'torch' not in sys.modules; moxie.experts; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
