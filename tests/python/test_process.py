# SPDX-License-Identifier: Apache-2.0
"""Threads, forks, interrupts, and what the package holds."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from reference import assert_close, bf16, f64

import moxie


def python(code, **environment):
    """A process of its own; its output, once it has ended well."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_eight_threads(device):
    """All share a product and a layer, and each finds its own results."""
    product = moxie.GroupedGemm(device, moxie.Offsets(2), n=64, k=64)
    layer = moxie.ExpertLayer(device, experts=2, top_k=1, hidden=64, width=32, max_tokens=8, expected_tokens=8)
    wrong = []
    start = threading.Barrier(8)

    def work(seed):
        try:
            random = np.random.default_rng(seed)
            a, b, ends = bf16(random, 16, 64), bf16(random, 2, 64, 64), np.array([seed, 16], np.int32)
            x, up, down = bf16(random, 8, 64), bf16(random, 2, 64, 64), bf16(random, 2, 64, 32)
            ids = random.integers(0, 2, (8, 1)).astype(np.int32)
            start.wait()
            alone = layer(x, up, down, ids)
            for _ in range(3):
                result = product(a, b, ends=ends)
                assert_close(result[seed:], f64(a)[seed:] @ f64(b)[1].T)
                assert np.array_equal(layer(x, up, down, ids), alone)
                with pytest.raises(ValueError, match=r"must have \[2\]"):
                    product(a, b, ends=np.zeros(3 + seed, np.int32))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_devices_are_one(device):
    found = []
    threads = [threading.Thread(target=lambda: found.append(moxie.Device("sim"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(each is device for each in found)


def test_the_gil_is_released(device, random):
    """While a call computes in the simulator, another thread of Python goes on."""
    product = moxie.GroupedGemm(device, moxie.Dense(1024), n=512, k=512)
    a, b = (moxie.DeviceArray.of(device, each) for each in (bf16(random, 1024, 512), bf16(random, 512, 512)))
    out = moxie.DeviceArray(device, (1024, 512), "bf16")
    product(a, b, out=out)
    device.synchronize()
    ticks, ended = [0], threading.Event()

    def count():
        while not ended.is_set():
            ticks[0] += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    before = ticks[0]
    for _ in range(3):
        product(a, b, out=out)
        device.synchronize()
    during = ticks[0] - before
    ended.set()
    counter.join()
    assert during > 3


def test_interrupts_between_calls(device, random):
    """KeyboardInterrupt is raised when a call has ended, and the next call is as good as any."""
    layer = moxie.ExpertLayer(device, experts=2, top_k=1, hidden=64, width=32, max_tokens=8, expected_tokens=8)
    x, up, down = bf16(random, 8, 64), bf16(random, 2, 64, 64), bf16(random, 2, 64, 32)
    ids = np.zeros((8, 1), np.int32)
    expected = layer(x, up, down, ids)
    interrupted = 0
    for wait in np.linspace(0.001, 0.02, 12):
        timer = threading.Timer(wait, lambda: os.kill(os.getpid(), signal.SIGINT))
        try:
            end = time.monotonic() + 20
            timer.start()
            while time.monotonic() < end:
                layer(x, up, down, ids)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        assert np.array_equal(layer(x, up, down, ids), expected)
    assert interrupted == 12


FORKED = """
import os, sys, moxie
{before}
child = os.fork()
if child == 0:
    status = 1
    try:
        {inside}
        status = 0
    finally:
        os._exit(status)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
REFUSED = """
        for call in ({calls}):
            try:
                call()
            except RuntimeError as error:
                assert "forked after moxie had opened a device" in str(error), error
            else:
                raise AssertionError
        del device, product
"""


def test_a_fork_after_the_import():
    inside = "from moxie._selftest import compute; assert 'within' in compute()"
    python(FORKED.format(before="", inside=inside))


def test_a_fork_after_a_device():
    before = "device = moxie.Device('sim'); product = moxie.GroupedGemm(device, moxie.Dense(8), n=8, k=8)"
    calls = (
        "lambda: moxie.Device('sim'), lambda: product(None, None), lambda: product.run(a=0, b=0), moxie.devices, "
        "lambda: device.allocate(1), device.synchronize, lambda: moxie.GroupedGemm(device, moxie.Dense(8), n=8, k=8)"
    )
    python(FORKED.format(before=before, inside=REFUSED.format(calls=calls).strip()))
    # The parent goes on.
    after = "\nfrom moxie._selftest import compute\nassert 'within' in compute()\n"
    python(FORKED.format(before=before, inside="pass").replace("sys.exit", "status = ") + after)


def test_the_self_test(capfd):
    moxie.selftest()
    assert "is within" in capfd.readouterr().out


def test_the_self_test_needs_no_compiler():
    assert "is within" in python("import moxie; moxie.selftest()", MOXIE_NVRTC="/nonexistent", MOXIE_CACHE_DIR="/none")


def test_a_compiler_that_is_missing():
    code = """
import moxie
try:
    moxie.GroupedGemm(moxie.Device("sim"), moxie.Dense(8), n=8, k=8)
except RuntimeError as error:
    print(error)
"""
    assert "NVRTC" in python(code, MOXIE_NVRTC="/nonexistent", MOXIE_CACHE_DIR="/none")


def test_the_program():
    command = pathlib.Path(sys.executable).with_name("moxie")
    version = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert moxie.__version__ in version
    listed = subprocess.run([command, "devices"], capture_output=True, text=True, check=True).stdout
    assert "simulator" in listed.lower()


def test_the_devices():
    simulated = [each for each in moxie.devices() if each.simulated]
    assert len(simulated) == 1 and simulated[0].arch == 90
    assert pathlib.Path(simulated[0].driver_path).is_relative_to(pathlib.Path(moxie.__file__).parent)


def test_the_device_that_the_environment_names():
    assert "True" in python("import moxie; print(moxie.Device().info.simulated)", MOXIE_DEVICE="sim")


def test_what_is_exported_is_described():
    assert (pathlib.Path(moxie.__file__).parent / "py.typed").exists()
    for name in moxie.__all__:
        if not name.startswith("__"):
            assert getattr(moxie, name).__doc__, name


def test_blackwell():
    """The simulator of sm_100a is another process's: groups along K, MXFP4 and NVFP4 operands."""
    cases = pathlib.Path(__file__).with_name("blackwell_cases.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)],
        env=os.environ | {"MOXIE_SIM_ARCH": "sm_100a"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_the_example():
    example = pathlib.Path(__file__).parents[2] / "examples/python/layer_numpy.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, env=os.environ, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "y (24, 128)" in done.stdout and "MXFP4: " in done.stdout


def test_vllm_is_missing():
    """The plugin of vLLM does nothing unless it is asked for, and says in one sentence what it needs."""
    code = "from moxie.integrations import vllm; vllm.register()"
    python(code)
    python(code, MOXIE_VLLM="0")
    caught = "\ntry: vllm.register()\nexcept (RuntimeError, ValueError) as error: print(error)"
    code = "import sys; sys.modules['vllm'] = None; from moxie.integrations import vllm" + caught
    assert python(code, MOXIE_VLLM="1").startswith("MOXIE_VLLM is 1, which needs vllm 0.33 or newer")
    assert python(code, MOXIE_VLLM="yes") == "MOXIE_VLLM is 'yes', but must be 0 or 1\n"
