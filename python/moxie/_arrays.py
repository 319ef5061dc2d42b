# SPDX-License-Identifier: Apache-2.0
"""Arrays of callers: numpy's, everything that speaks DLPack, and device memory of the package's own."""

from __future__ import annotations

import ctypes
import math
import operator
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from moxie._device import Device, Memory, require_device
from moxie._library import ffi

try:
    from ml_dtypes import bfloat16 as _bfloat16
except ImportError:
    _bfloat16 = np.uint16

# Elements as the library calls them. bf16 is ml_dtypes.bfloat16 where that is installed, else its bits in a uint16.
NUMPY: dict[str, np.dtype[Any]] = {
    "bf16": np.dtype(_bfloat16),
    "f32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "uint8": np.dtype(np.uint8),
    "uint64": np.dtype(np.uint64),
}
_NAMES = {str(dtype): name for name, dtype in NUMPY.items()} | {"uint16": "bf16", "bfloat16": "bf16"}
_NAMES |= {"float8_e8m0fnu": "uint8", "float8_e4m3fn": "uint8"}  # bytes that only the library interprets
# DLPack's type codes: 0 int, 1 unsigned int, 2 float, 4 bfloat, 11 and 14 float8_e4m3fn and float8_e8m0fnu.
_DLPACK_NAMES = {
    (4, 16): "bf16",
    (1, 16): "bf16",
    (2, 32): "f32",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
    (1, 64): "uint64",
    (10, 8): "uint8",
    (14, 8): "uint8",
}
_DLPACK_HOST = (1, 3)  # CPU and pinned CPU memory
_DLPACK_CUDA = (2, 13)  # CUDA and CUDA managed memory
_LEGACY_STREAM = 1  # DLPack's name of CUDA's default stream

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Quantized(NamedTuple):
    """A matrix in MXFP4, MXFP8 or NVFP4.

    elements: uint8, [..., K / 2] with two E2M1 in a byte, the first in the low nibble, or [..., K] of MXFP8.
    scales: uint8, blocked as moxie/scales.h says. tensor_scale: float32 [1] that NVFP4's elements are multiplied by.
    """

    elements: Any
    scales: Any
    tensor_scale: Any = None


class DeviceArray:
    """A dense array in device memory of its own: DeviceArray(device, (4, 8), "bf16"), or DeviceArray.of(device, x).

    dtype: "bf16", "f32", "int32", "int64", "uint8" or "uint64". A new one holds zeros.
    """

    def __init__(self, device: Device, shape: Sequence[int], dtype: str, stream: int = 0) -> None:
        if dtype not in NUMPY:
            raise ValueError(f"dtype is one of {', '.join(NUMPY)}, and {dtype!r} is none of them")
        require_device(device)
        self.device = device
        self.shape = _sizes(shape)
        self.dtype = dtype
        self.nbytes = math.prod(self.shape) * NUMPY[dtype].itemsize
        self.memory: Memory = device.allocate(self.nbytes)
        if self.nbytes:
            device.fill(self.ptr, 0, self.nbytes, stream)

    @classmethod
    def of(cls, device: Device, array: Any, stream: int = 0) -> DeviceArray:
        """A copy of an array in host memory."""
        host = view(array, "array", stream)
        if host.numpy is None:
            raise TypeError("array is in device memory already")
        made = cls(device, host.shape, host.dtype, stream)
        if made.nbytes:
            device.upload(made.ptr, _bytes(np.ascontiguousarray(host.numpy)), stream)
        return made

    @property
    def ptr(self) -> int:
        """The address in device memory."""
        return self.memory.ptr

    def numpy(self, stream: int = 0) -> np.ndarray[Any, Any]:
        """A copy in host memory, when all work before it on the stream is done."""
        host = np.empty(self.shape, NUMPY[self.dtype])
        if self.nbytes:
            self.device.download(_bytes(host), self.ptr, stream)
        return host

    def __repr__(self) -> str:
        return f"moxie.DeviceArray({self.device!r}, {self.shape}, {self.dtype!r})"


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"shape is a sequence of integers, and {shape!r} is none") from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape is {list(sizes)}, and no size may be negative")
    return sizes


def _bytes(contiguous: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return contiguous.reshape(-1).view(np.uint8)


def to_bf16(values: Any) -> np.ndarray[Any, Any]:
    """Float32 values rounded to bf16, to nearest and ties to even."""
    values = np.ascontiguousarray(values, np.float32)
    if _bfloat16 is not np.uint16:
        return values.astype(_bfloat16)
    bits = values.view(np.uint32)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def from_bf16(values: Any) -> np.ndarray[Any, Any]:
    """bf16, or its bits in uint16, as float32. TypeError: values of another type, whose bits are no bf16."""
    dtype = np.asarray(values).dtype
    if _NAMES.get(str(dtype)) != "bf16":
        raise TypeError(f"values are bf16, or its bits in uint16, and {dtype} is neither")
    return (np.ascontiguousarray(values).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


@dataclass
class View:
    """What an array is: where it lies, and what is there. `numpy` for host memory alone, `address` for a device's.

    place: of device memory, its moxie.Device or the ordinal of its GPU.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # elements
    dtype: str
    address: int
    numpy: np.ndarray[Any, Any] | None
    owner: Any  # keeps the memory
    place: Device | int | None = None


def view(array: Any, name: str, stream: int) -> View:
    """What an array is. TypeError: it is none, or of a type that no argument has."""
    if isinstance(array, DeviceArray):
        strides = tuple(math.prod(array.shape[i + 1 :]) for i in range(len(array.shape)))
        return View(array.shape, strides, array.dtype, array.ptr, None, array, array.device)
    if not isinstance(array, np.ndarray) and hasattr(array, "__dlpack__") and hasattr(array, "__dlpack_device__"):
        return _dlpack_view(array, name, stream)
    if not isinstance(array, np.ndarray):
        if not hasattr(array, "__array_interface__"):
            raise TypeError(
                f"{name} is an array of numpy, of DLPack or a moxie.DeviceArray, and {type(array).__name__} is none"
            )
        array = np.asarray(array)
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost; give what its .filled() returns")
    dtype = _NAMES.get(str(array.dtype))
    if dtype is None or not array.dtype.isnative:
        raise TypeError(f"{name}: no argument has elements of type {array.dtype}")
    return View(array.shape, (), dtype, 0, array, array)


def _dlpack_view(array: Any, name: str, stream: int) -> View:
    try:
        kind, ordinal = array.__dlpack_device__()
        capsule: Any = None
        if kind in _DLPACK_HOST:
            capsule = array.__dlpack__()
        elif kind in _DLPACK_CUDA:
            capsule = array.__dlpack__(stream=stream or _LEGACY_STREAM)
        pointer = None if capsule is None else _capsule_pointer(capsule, b"dltensor")
    except (BufferError, ValueError) as error:  # such as a tensor that requires a gradient
        raise TypeError(f"{name} gives no memory by DLPack: {error}") from None
    if pointer is None:
        raise TypeError(f"{name} lies in memory of DLPack's device type {kind}; host and CUDA memory are known")
    tensor = ffi.cast("DLTensor*", pointer)
    dtype = _DLPACK_NAMES.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    if dtype is None:
        raise TypeError(f"{name}: no argument has elements of type {getattr(array, 'dtype', 'unknown')}")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    address = int(ffi.cast("uintptr_t", tensor.data)) + tensor.byte_offset
    if kind in _DLPACK_CUDA:
        return View(shape, strides, dtype, address, None, capsule, ordinal)
    itemsize = NUMPY[dtype].itemsize
    extent = 1 + sum((n - 1) * abs(stride) for n, stride in zip(shape, strides, strict=True))
    if 0 in shape or not address:
        return View(shape, (), dtype, 0, np.empty(shape, NUMPY[dtype]), capsule)
    if any(stride < 0 for stride in strides):
        raise ValueError(f"{name} has a negative stride; copy it first")
    flat = np.frombuffer(ffi.buffer(ffi.cast("char*", address), extent * itemsize), NUMPY[dtype])
    host = np.lib.stride_tricks.as_strided(flat, shape, tuple(itemsize * stride for stride in strides))
    return View(shape, (), dtype, 0, host, capsule)


def _pointer(memory: Any) -> int:
    """The address that an allocator's object stands for."""
    if hasattr(memory, "data_ptr"):
        return memory.data_ptr()
    return memory.ptr if hasattr(memory, "ptr") else int(memory)


Allocator = Callable[[int, int], Any]


class Workspaces(threading.local):
    """Device memory for calls that bring none: one for each thread and stream, since these may run at the same time."""

    def __init__(self) -> None:
        self._kept: dict[int, Memory] = {}

    def get(self, device: Device, nbytes: int, stream: int) -> tuple[int, int]:
        memory = self._kept.get(stream)
        if memory is None or memory.nbytes < nbytes:
            memory = self._kept[stream] = device.allocate(nbytes)
        return memory.ptr, memory.nbytes


class Call:
    """The arrays of one call: host memory is copied to the device before it and back after it.

    Every method names its argument in what it raises. Shapes are checked here, since the library sees addresses alone.
    """

    def __init__(self, device: Device, stream: int) -> None:
        require_device(device)
        if not hasattr(type(stream), "__index__"):
            raise TypeError(f"stream is an integer, 0 or the address of a cudaStream_t, and {stream!r} is none")
        self.device = device
        self.stream = stream
        self._kept: list[Any] = []
        self._back: list[tuple[np.ndarray[Any, Any], DeviceArray]] = []
        self._copies: list[DeviceArray] = []
        self.host = False  # whether an array was in host memory

    def matrix(self, name: str, array: Any, dtype: str, shape: Sequence[int]) -> tuple[int, int]:
        """Address and leading dimension of an array that is read, of matrices one behind the other."""
        seen = self._view(name, array, dtype, shape)
        if seen.numpy is not None:
            return self._uploaded(seen), 0
        return seen.address, _leading_dimension(name, seen)

    def dense(self, name: str, array: Any, dtype: str, shape: Sequence[int]) -> int:
        """Address of an array that is read and has no gaps; 0 for None."""
        if array is None:
            return 0
        address, ld = self.matrix(name, array, dtype, shape)
        if ld and len(shape) > 1 and shape[-2] > 1 and ld != shape[-1]:
            raise ValueError(f"{name} has a row stride of {ld} elements, and must have none but its width")
        return address

    def at_least(self, name: str, array: Any, dtype: str, elements: int) -> int:
        """Address of a dense array that is read, of so many elements or more, whatever its shape."""
        seen = self._view(name, array, dtype)
        if math.prod(seen.shape) < elements:
            raise ValueError(f"{name} has {math.prod(seen.shape)} elements, and must have {elements}")
        if seen.numpy is not None:
            return self._uploaded(seen)
        _require_dense(name, seen)
        return seen.address

    def output(self, name: str, array: Any, dtype: str, shape: Sequence[int]) -> tuple[Any, int, int]:
        """What the caller gets, and address and leading dimension of what is written.

        array None: a new array, of numpy where an array before it was in host memory, else a moxie.DeviceArray.
        """
        if array is None:
            made = DeviceArray(self.device, shape, dtype, self.stream)
            if not self.host:
                self._kept.append(made)
                return made, made.ptr, 0
            host = np.empty(shape, NUMPY[dtype])
            self._back.append((host, made))
            return host, made.ptr, 0
        seen = self._view(name, array, dtype, shape)
        if seen.numpy is not None:
            if not seen.numpy.flags.writeable:
                raise ValueError(f"{name} is read-only")
            # What the call leaves untouched keeps its values.
            there = DeviceArray.of(self.device, seen.numpy, self.stream)
            self._back.append((seen.numpy, there))
            self.host = True
            return array, there.ptr, 0
        return array, seen.address, _leading_dimension(name, seen)

    def workspace(
        self, nbytes: int, given: Any, allocator: Allocator | None, kept: Workspaces
    ) -> tuple[int, int]:
        """Address and size: of what the caller gave or its allocator gives, else of memory that `kept` keeps."""
        if given is not None:
            seen = self._view("workspace", given, "uint8")
            if seen.numpy is not None:
                raise TypeError("workspace is in host memory, and must be in device memory")
            _require_dense("workspace", seen)
            return seen.address, math.prod(seen.shape)
        if not nbytes:
            return 0, 0
        if allocator is None:
            return kept.get(self.device, nbytes, self.stream)
        memory = allocator(nbytes, self.stream)
        self._kept.append(memory)
        return _pointer(memory), nbytes

    def finish(self) -> None:
        """Copies results to host memory, where any goes there, when the stream has come so far."""
        for host, there in self._back:
            if not there.nbytes:
                continue
            if host.flags.c_contiguous:
                self.device.download(_bytes(host), there.ptr, self.stream)
            else:
                host[...] = there.numpy(self.stream).view(host.dtype)
        if self.host:
            self.device.synchronize(self.stream)  # before what was copied for the call is freed
        # Not left to destructors, in which Python would lose a KeyboardInterrupt.
        for copy in (*self._copies, *(there for _, there in self._back)):
            copy.memory.free()

    def _view(self, name: str, array: Any, dtype: str, shape: Sequence[int] | None = None) -> View:
        seen = view(array, name, self.stream)
        if seen.dtype != dtype:
            raise TypeError(f"{name} has elements of type {seen.dtype}, and must have {dtype}")
        if shape is not None and seen.shape != tuple(shape):
            raise ValueError(f"{name} has shape {list(seen.shape)}, and must have {list(shape)}")
        here = self.device
        if isinstance(seen.place, Device) and seen.place is not here:
            raise ValueError(f"{name} is in the memory of {seen.place!r}, and the call is for {here!r}")
        if isinstance(seen.place, int) and (here.info.simulated or seen.place != here.ordinal):
            raise ValueError(f"{name} is in the memory of CUDA device {seen.place}, and the call is for {here!r}")
        self._kept.append(seen.owner)
        return seen

    def _uploaded(self, seen: View) -> int:
        self.host = True
        copy = DeviceArray.of(self.device, seen.numpy, self.stream)
        self._copies.append(copy)
        return copy.ptr


def _require_dense(name: str, seen: View) -> None:
    dense = 1
    for size, stride in zip(reversed(seen.shape), reversed(seen.strides), strict=True):
        if size != 1 and stride != dense:
            raise ValueError(f"{name} has strides {list(seen.strides)}, and must be contiguous")
        dense *= size


def _leading_dimension(name: str, seen: View) -> int:
    shape, strides = seen.shape, seen.strides
    if 0 in shape or not shape:
        return 0
    if strides[-1] != 1 and shape[-1] != 1:
        raise ValueError(f"{name} has a stride of {strides[-1]} elements along its rows, and must have 1")
    if len(shape) < 2:
        return 0
    ld = strides[-2] if shape[-2] > 1 else shape[-1]
    if len(shape) == 3 and shape[0] > 1:
        if shape[-2] == 1:
            ld = strides[0]
        elif strides[0] != shape[1] * ld:
            raise ValueError(
                f"{name} has a stride of {strides[0]} elements between matrices, and must have {shape[1] * ld}: rows "
                "of all matrices lie at the same distance"
            )
    if ld < shape[-1]:
        raise ValueError(f"{name} has a row stride of {ld} elements, and its rows have {shape[-1]}")
    return ld
