# SPDX-License-Identifier: Apache-2.0
"""Where arrays come from, how they lie, and whose memory a call uses."""

import ctypes

import numpy as np
import pytest
from reference import assert_close, bf16, f64

import moxie

M, N, K = 12, 32, 64


class OnlyDlpack:
    """Nothing but the protocol, and not a numpy array."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.fixture(scope="module")
def product(device):
    return moxie.GroupedGemm(device, moxie.Dense(M), n=N, k=K, out="f32")


@pytest.fixture
def operands(random):
    a, b = bf16(random, M, K), bf16(random, N, K)
    return a, b, f64(a) @ f64(b).T


def test_dlpack(product, operands):
    a, b, expected = operands
    # numpy gives bf16's bits alone to DLPack.
    a, b = OnlyDlpack(a.view(np.uint16)), OnlyDlpack(b.view(np.uint16))
    out = np.zeros((M, N), np.float32)
    given = OnlyDlpack(out)
    assert product(a, b, out=given) is given
    assert_close(out, expected, 1e-6)


class SaysCuda(OnlyDlpack):
    """What lies on a GPU, to whoever asks where."""

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream):
        assert stream == 1  # DLPack's name of the default stream
        return self._array.__dlpack__()


def test_memory_of_another_device(product, operands):
    a, b, _ = operands
    with pytest.raises(ValueError, match="a is in the memory of CUDA device 0, and the call is for moxie.Device"):
        product(SaysCuda(a.view(np.uint16)), b)


class SaysNo(OnlyDlpack):
    """What gives nothing by DLPack, such as a tensor that requires a gradient."""

    def __dlpack__(self):
        raise BufferError("it is mine")


class GivesNoCapsule(OnlyDlpack):
    def __dlpack__(self):
        return 3


def test_dlpack_that_gives_nothing(product, operands):
    a, b, _ = operands
    with pytest.raises(TypeError, match="^a gives no memory by DLPack: it is mine$"):
        product(SaysNo(a.view(np.uint16)), b)
    with pytest.raises(TypeError, match="^b gives no memory by DLPack: "):
        product(a, GivesNoCapsule(b.view(np.uint16)))


def test_dlpack_offsets(product, operands):
    """A tensor may begin some bytes behind its address."""
    a, b, expected = operands
    late = np.concatenate([np.zeros(8, np.uint16), a.view(np.uint16).reshape(-1)])

    class Tensor(ctypes.Structure):  # DLTensor of DLPack
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint8 * 4),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.c_void_p),
            ("byte_offset", ctypes.c_uint64),
        ]

    class Late:
        def __init__(self):
            self.shape = (ctypes.c_int64 * 2)(M, K)
            self.tensor = Tensor(late.ctypes.data, (1, 0), 2, (4, 16, 1, 0), self.shape, None, 16)

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self):
            make = ctypes.pythonapi.PyCapsule_New
            make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
            return make(ctypes.addressof(self.tensor), b"dltensor", None)

    assert_close(product(Late(), b), expected, 1e-6)


def test_dlpack_strides(product, operands):
    a, b, expected = operands
    wide = np.zeros((M, 2 * K), np.uint16)
    wide[:, :K] = a.view(np.uint16)
    assert_close(product(OnlyDlpack(wide[:, :K]), b), expected, 1e-6)


def test_bits_and_other_strides(product, operands):
    a, b, expected = operands
    assert_close(product(np.asfortranarray(a), b.view(np.uint16)), expected, 1e-6)
    assert_close(product(a[::-1], b)[::-1], expected, 1e-6)
    out = np.full((M, 2 * N), 7, np.float32)
    product(a, b, out=out[:, ::2])
    assert_close(out[:, ::2], expected, 1e-6)
    assert np.all(out[:, 1::2] == 7)


def test_read_only_inputs(product, operands):
    a, b, expected = operands
    a.flags.writeable = b.flags.writeable = False
    assert_close(product(a, b), expected, 1e-6)


def test_device_arrays(device, product, operands):
    a, b, expected = operands
    there = [moxie.DeviceArray.of(device, each) for each in (a, b)]
    assert there[0].shape == (M, K) and there[0].dtype == "bf16"
    result = product(*there)
    assert isinstance(result, moxie.DeviceArray)
    assert_close(result.numpy(), expected, 1e-6)
    out = moxie.DeviceArray(device, (M, N), "f32")
    assert np.all(out.numpy() == 0)
    assert product(there[0], b, out=out) is out  # one in host memory, one not
    assert_close(out.numpy(), expected, 1e-6)


def test_raw_addresses(device, product, operands):
    a, b, expected = operands
    there = [moxie.DeviceArray.of(device, each) for each in (a, b)]
    out = moxie.DeviceArray(device, (M, N), "f32")
    product.run(a=there[0].ptr, b=there[1].ptr, out=out.ptr)
    device.synchronize()
    assert_close(out.numpy(), expected, 1e-6)


@pytest.mark.parametrize("kind", ["ptr", "data_ptr", "int"])
def test_allocator(device, random, kind):
    layer = moxie.ExpertLayer(device, experts=2, top_k=1, hidden=K, width=32, max_tokens=M)
    asked = []

    class Torchlike:
        def __init__(self, memory):
            self.memory = memory

        def data_ptr(self):
            return self.memory.ptr

    kept = []

    def allocate(nbytes, stream):
        asked.append((nbytes, stream))
        memory = device.allocate(nbytes)
        kept.append(memory)
        return {"ptr": memory, "data_ptr": Torchlike(memory), "int": memory.ptr}[kind]

    x, up, down = bf16(random, M, K), bf16(random, 2, 64, K), bf16(random, 2, K, 32)
    ids = random.integers(0, 2, (M, 1)).astype(np.int32)
    result = layer(x, up, down, ids, allocator=allocate)
    assert asked == [(layer.workspace_bytes(M), 0)] and asked[0][0] > 0
    workspace = moxie.DeviceArray(device, (asked[0][0],), "uint8")
    assert np.array_equal(layer(x, up, down, ids, workspace=workspace), result)
    assert np.array_equal(layer(x, up, down, ids), result)
    assert len(asked) == 1


def test_bf16_without_ml_dtypes(random):
    values = np.concatenate([random.standard_normal(100), [0, -0.0, 1e-45, 3.4e38, np.inf, -np.inf]])
    values = np.append(values, np.float32(1 + 2**-8)).astype(np.float32)  # a tie
    import ml_dtypes

    from moxie import _arrays

    own, _arrays._bfloat16 = _arrays._bfloat16, np.uint16
    try:
        bits = moxie.to_bf16(values)
    finally:
        _arrays._bfloat16 = own
    assert bits.dtype == np.uint16
    assert np.array_equal(bits, values.astype(ml_dtypes.bfloat16).view(np.uint16))
    assert np.array_equal(moxie.from_bf16(bits), values.astype(ml_dtypes.bfloat16).astype(np.float32))


@pytest.mark.parametrize("format", ["mxfp4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("layout", ["blocked", "row_major"])
@pytest.mark.parametrize("shape", [(5, 64), (3, 7, 96)])
def test_quantize_and_back(device, random, format, layout, shape):
    values = random.standard_normal(shape).astype(np.float32)
    quantized = moxie.quantize(device, values, format, layout=layout)
    back = moxie.dequantize(device, quantized, format, layout=layout)
    assert_close(back, f64(values), 0.05 if format == "mxfp8" else 0.2)
    again = moxie.quantize(device, back, format, layout=layout, tensor_scale=quantized.tensor_scale)
    assert np.array_equal(moxie.dequantize(device, again, format, layout=layout), back)


@pytest.mark.parametrize("format", ["mxfp4", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("shape", [(0, 64), (3, 0, 64), (0, 3, 64), (4, 0)])
def test_nothing_is_quantized_to_nothing(device, format, shape):
    for layout in ("blocked", "row_major"):
        quantized = moxie.quantize(device, np.zeros(shape, np.float32), format, layout=layout)
        assert quantized.elements.size == quantized.scales.size == 0
        assert moxie.dequantize(device, quantized, format, layout=layout).shape == shape
