# SPDX-License-Identifier: Apache-2.0
"""moxie.grouped_mm beside double precision and torch's own."""

import pytest
import torch
from support import DEFAULTS, DEVICE, GATED, PLAIN, assert_close, bf16, ends, grouped, product

import moxie
from moxie.torch import grouped_mm


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_is_torchs_own_product():
    a, w, offs = bf16(23, 64), bf16(3, 40, 64), ends(9, 9, 23)
    result = moxie.grouped_mm(a, w.transpose(-2, -1), offs=offs)
    theirs = getattr(torch.nn.functional, "grouped_mm", torch._grouped_mm)  # its name before 2.10
    assert torch.equal(result, theirs(a, w.transpose(-2, -1), offs=offs))
    assert_close(result, grouped(a, w.transpose(-2, -1), offs))


@pytest.mark.parametrize("activation", [*PLAIN, *GATED])
@pytest.mark.parametrize("bias", [False, True])
def test_activations(activation, bias):
    a, w, offs = bf16(30, 32), bf16(4, 48, 32, scale=0.4), ends(0, 17, 17, 30)
    b = bf16(4, 48) if bias else None
    for gate in ("split", "interleaved", "split_up_first") if activation in GATED else ("split",):
        result = grouped_mm(a, w.transpose(1, 2), offs=offs, bias=b, activation=activation, gate=gate)
        assert_close(result, grouped(a, w.transpose(1, 2), offs, b, activation=activation, gate=gate))


@pytest.mark.parametrize("activation", DEFAULTS)
def test_parameters_of_activations(activation):
    parameters = {name: value / 3 for name, value in DEFAULTS[activation].items()}
    a, w, offs = bf16(12, 32), bf16(2, 32, 32), ends(5, 12)
    result = grouped_mm(
        a, w.transpose(1, 2), offs=offs, activation=activation, activation_parameters=parameters, gate="interleaved"
    )
    expected = grouped(a, w.transpose(1, 2), offs, activation=activation, parameters=parameters, gate="interleaved")
    assert_close(result, expected)


def test_float32_results():
    a, w, offs = bf16(20, 96), bf16(2, 24, 96), ends(11, 20)
    result = grouped_mm(a, w.transpose(1, 2), offs=offs, out_dtype=torch.float32)
    assert result.dtype == torch.float32
    assert_close(result, grouped(a, w.transpose(1, 2), offs), rounded=False)


def test_rows_past_the_last_end_are_left_out():
    a, w, offs = bf16(40, 32), bf16(2, 16, 32), ends(3, 10)
    a[10:] = float("nan")
    assert_close(grouped_mm(a, w.transpose(1, 2), offs=offs)[:10], grouped(a, w.transpose(1, 2), offs))


def test_ends_in_disorder_are_brought_into_order():
    a, w = bf16(20, 32), bf16(4, 16, 32)
    result = grouped_mm(a, w.transpose(1, 2), offs=ends(8, 2, -5, 10**6))
    expected = grouped(a, w.transpose(1, 2), ends(8, 8, 8, 20))
    assert_close(result, expected)


@pytest.mark.parametrize("divisor", [1, 4])
def test_gather(divisor):
    a, w, offs = bf16(9, 32), bf16(3, 16, 32), ends(4, 20, 31)
    rows = torch.randint(0, 9 * divisor, (31,), dtype=torch.int32).to(DEVICE)
    rows[5] = 9 * divisor  # a row that a does not have stands for zeros
    gathered = torch.cat([a, torch.zeros_like(a[:1])])[(rows // divisor).long()]
    result = grouped_mm(a, w.transpose(1, 2), offs=offs, gather=rows, divisor=divisor)
    assert_close(result, grouped(gathered, w.transpose(1, 2), offs))


def test_batches():
    a, w, bias = bf16(3, 13, 64), bf16(3, 32, 64), bf16(3, 32)
    result = grouped_mm(a, w.transpose(1, 2), bias=bias, activation="swiglu")
    assert result.shape == (3, 13, 16)
    assert_close(result, product(a, w.transpose(1, 2), bias, activation="swiglu"))


def test_strides():
    wide, w, offs = bf16(21, 96), bf16(3, 40, 64), ends(1, 9, 21)
    expected = grouped(wide[:, 8:72], w.transpose(1, 2), offs)
    assert_close(grouped_mm(wide[:, 8:72], w.transpose(1, 2), offs=offs), expected)
    # Rows that begin at no multiple of 16 bytes are copied.
    assert_close(
        grouped_mm(wide[:, 3:67], w.transpose(1, 2), offs=offs), grouped(wide[:, 3:67], w.transpose(1, 2), offs)
    )
    columns = bf16(64, 21).T
    assert_close(grouped_mm(columns, w.transpose(1, 2), offs=offs), grouped(columns, w.transpose(1, 2), offs))
    # Weights: rows apart from each other, groups apart from each other, and stored [G, K, N].
    apart = bf16(3, 40, 80)[..., :64]
    assert_close(
        grouped_mm(wide[:, :64], apart.transpose(1, 2), offs=offs),
        grouped(wide[:, :64], apart.transpose(1, 2), offs),
    )
    every_second = bf16(6, 40, 64)[::2]
    assert_close(
        grouped_mm(wide[:, :64], every_second.transpose(1, 2), offs=offs),
        grouped(wide[:, :64], every_second.transpose(1, 2), offs),
    )
    stored = bf16(3, 64, 40)
    assert_close(grouped_mm(wide[:, :64], stored, offs=offs), grouped(wide[:, :64], stored, offs))
    strided_ends = torch.stack([offs, offs + 100], dim=1)[:, 0]
    assert_close(grouped_mm(wide[:, 8:72], w.transpose(1, 2), offs=strided_ends), expected)


def test_nothing_to_do():
    w = bf16(2, 16, 32)
    assert grouped_mm(bf16(0, 32), w.transpose(1, 2), offs=ends(0, 0)).shape == (0, 16)
    assert grouped_mm(bf16(2, 0, 32), w.transpose(1, 2)).shape == (2, 0, 16)


def test_one_and_many_rows():
    w = bf16(4, 32, 64)
    for rows in (1, 2, 3, 33, 300):
        a, offs = bf16(rows, 64), ends(rows // 2, rows // 2, rows - 1, rows)
        assert_close(grouped_mm(a, w.transpose(1, 2), offs=offs), grouped(a, w.transpose(1, 2), offs))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_graph_break(backend):
    a, w, bias, offs = bf16(23, 64), bf16(3, 32, 64), bf16(3, 32), ends(9, 9, 23)

    def run(a, w, bias, offs):
        h = grouped_mm(a * 2, w.transpose(1, 2), offs=offs, bias=bias, activation="swiglu")
        return h + 1

    compiled = torch.compile(run, fullgraph=True, backend=backend)
    assert torch.equal(compiled(a, w, bias, offs), run(a, w, bias, offs))


def test_dynamic_rows_compile_once():
    w = bf16(3, 32, 64)
    count = 0

    def backend(graph, inputs):
        nonlocal count
        count += 1
        return graph.forward

    compiled = torch.compile(
        lambda a, offs: grouped_mm(a, w.transpose(1, 2), offs=offs), fullgraph=True, dynamic=True, backend=backend
    )
    for rows in (7, 12, 31):
        a, offs = bf16(rows, 64), ends(2, 5, rows)
        assert_close(compiled(a, offs), grouped(a, w.transpose(1, 2), offs))
    assert count == 1
