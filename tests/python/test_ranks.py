# SPDX-License-Identifier: Apache-2.0
"""Layers over ranks by addresses. tests/hopper/ranks_test.cpp has their kernels, tests/torch/test_distributed.py the
module that users call."""

import ctypes
import os
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from reference import assert_layer, bf16, f64, layer

import moxie

E, TOP_K, H, WIDTH = 2, 2, 64, 32
SIZES = {"experts": E, "top_k": TOP_K, "hidden": H, "width": WIDTH, "max_tokens": 8, "gate": "split"}


class Rank:
    """One rank's layer, window and tensors on its device."""

    def __init__(self, device, rank, ranks, random, tokens, **options):
        self.layer = moxie.ExpertLayer(device, **SIZES, ranks=moxie.Ranks(ranks, rank, **options))
        self.device, self.tokens = device, tokens
        self.window = device.allocate(self.layer.window_bytes())
        self.layer.prepare_window(self.window.ptr)
        self.up = bf16(random, E, 2 * WIDTH, H)
        self.down = bf16(random, E, H, WIDTH)
        self.x = bf16(random, tokens, H)
        self.ids = np.argsort(random.random((tokens, ranks * E)), axis=1)[:, :TOP_K].astype(np.int32)
        self.weights = random.random((tokens, TOP_K)).astype(np.float32)
        arrays = (self.x, self.up, self.down, self.ids, self.weights, np.zeros((tokens, H), self.x.dtype))
        self.arrays = [moxie.DeviceArray.of(device, each) for each in arrays]
        self.workspace = device.allocate(self.layer.workspace_bytes(tokens))

    def run(self, windows):
        x, up, down, ids, weights, out = (each.ptr for each in self.arrays)
        self.layer.run(
            tokens=self.tokens, x=x, up=up, down=down, out=out, topk_ids=ids, topk_weights=weights, windows=windows,
            workspace=self.workspace.ptr, workspace_bytes=self.workspace.nbytes,
        )  # fmt: skip
        self.device.synchronize()


def test_a_rank_alone_and_one_that_nobody_joins(device, random):
    alone = Rank(device, 0, 1, random, 5)
    alone.run([alone.window.ptr])
    alone.layer.check_ranks(alone.window.ptr)
    expected = layer(alone.x, alone.up, alone.down, alone.ids, alone.weights, "swiglu", "split")
    assert_layer(alone.arrays[-1].numpy(), expected)

    waiting = Rank(device, 1, 3, random, 5, time_limit=0.05)
    others = [device.allocate(waiting.window.nbytes) for _ in range(2)]
    waiting.run([others[0].ptr, waiting.window.ptr, others[1].ptr])
    with pytest.raises(RuntimeError, match="ranks 0, 2 sent no numbers of rows in call 1 within 0.05 seconds"):
        waiting.layer.check_ranks(waiting.window.ptr)


def enable_peers(devices):
    """What torch's symmetric memory does for memory of its own: each device reaches the others'."""
    driver = ctypes.CDLL(devices[0].info.driver_path)
    contexts = []
    for device in devices:
        context, handle = ctypes.c_void_p(), ctypes.c_int()
        assert driver.cuDeviceGet(ctypes.byref(handle), device.ordinal) == 0
        assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle) == 0
        contexts.append(context)
    for context in contexts:
        assert driver.cuCtxPushCurrent_v2(context) == 0
        for peer in contexts:
            if peer is not context:
                assert driver.cuCtxEnablePeerAccess(peer, 0) == 0
        assert driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p())) == 0


def through_mxfp8(x):
    """Rounded to E4M3 with a power of two for every 32 columns, and back."""
    blocks = f64(x).reshape(len(x), -1, 32)
    scales = 2.0 ** (np.floor(np.log2(np.abs(blocks).max(-1, keepdims=True))) - 8)
    return (f64(np.clip(blocks / scales, -448, 448).astype(ml_dtypes.float8_e4m3fn)) * scales).reshape(x.shape)


def two_ranks():
    devices = [moxie.Device("sim", ordinal) for ordinal in range(2)]
    enable_peers(devices)
    for format, rounded in (("bf16", lambda x: x), ("mxfp8", through_mxfp8)):
        compute(devices, format, rounded)
    print("both are right")


def compute(devices, format, rounded):
    random = np.random.default_rng(3)
    ranks = [Rank(each, rank, 2, random, 5 + rank, format=format) for rank, each in enumerate(devices)]
    windows = [rank.window.ptr for rank in ranks]
    for _ in range(2):
        threads = [threading.Thread(target=rank.run, args=(windows,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        up, down = (np.concatenate([getattr(rank, name) for rank in ranks]) for name in ("up", "down"))
        for rank in ranks:
            rank.layer.check_ranks(rank.window.ptr)
            expected = layer(rounded(rank.x), up, down, rank.ids, rank.weights, "swiglu", "split")
            assert_layer(rank.arrays[-1].numpy(), expected)


def test_ranks_on_devices_of_their_own():
    """In a process whose simulator has two."""
    environment = os.environ | {"MOXIE_SIM_DEVICES": "2"}
    run = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True)
    assert run.stdout == "both are right\n", run.stderr


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"ranks": moxie.Ranks(73, 0)}, "ranks.ranks is 73, but must be 1 to 72"),
        ({"ranks": moxie.Ranks(2, 2)}, "ranks.rank is 2, but must be 0 to 1"),
        ({"ranks": moxie.Ranks(2, 0, time_limit=-1.0)}, "ranks.time_limit is -1, but must be above 0"),
        ({"ranks": moxie.Ranks(2, 0, format="fp4")}, "fp4"),
        ({"ranks": moxie.Ranks(2, 0, format="mxfp8"), "permute": False}, "tokens that travel in mxfp8 are copied"),
        ({"ranks": moxie.Ranks(2, 0), "first_expert": 1}, "first_expert is 1, but with ranks must be 0"),
    ],
)
def test_wrong_ranks_are_refused(device, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        moxie.ExpertLayer(device, **SIZES, **options)


if __name__ == "__main__":
    two_ranks()
