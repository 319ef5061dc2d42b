# SPDX-License-Identifier: Apache-2.0
"""Runs Triton's own kernels, compiler and launcher on the simulator: what triton_kernels.py needs for that.

Triton's driver for NVIDIA loads machine code, which the simulator does not take. The hook that Triton offers for the
stages of its compiler replaces the last of them, ptxas, so that the driver loads the PTX. All else is Triton's: the
choice of specializations, tensor maps, scratch memory, attributes of the launch.

    tutorial()      a file of Triton's tutorials as a module, of which only what is asked for is executed
    Tensor          memory of the device, with as much of PyTorch's tensor as the tutorials' host functions use
    torch           a module of that name for the tutorials to import
"""

from __future__ import annotations

import ast
import ctypes
import math
import os
import symtable
import sys
import types
from collections.abc import Sequence
from pathlib import Path

# Before Triton is imported: where it keeps what it has compiled, and that it goes on contracting products and sums.
os.environ.setdefault("TRITON_CACHE_DIR", str(Path.cwd() / "triton-cache"))
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
# Few multiprocessors, so that a persistent block has several tiles.
os.environ.setdefault("MOXIE_SIM_SMS", "4")

import ml_dtypes  # noqa: E402
import numpy  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402, F401
from triton import knobs  # noqa: E402
from triton.backends.nvidia.driver import CudaDriver  # noqa: E402
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon.language.nvidia import blackwell, hopper  # noqa: E402


def stages(backend=None, found=None, options=None, language=None, capability=None):
    """Without arguments a key for Triton's cache; else replaces the last stage, from PTX to what the driver loads."""
    if found is None:
        return "ptx", "ptx"
    found["cubin"] = lambda ptx, metadata: ptx.encode()
    return None


knobs.runtime.add_stages_inspection_hook = stages
# Triton asks PyTorch for the device where that is imported, so the driver comes before the module of that name below.
CUDA = ctypes.CDLL("libcuda.so.1")
CUDA.cuInit(0)
DRIVER = CudaDriver()
triton.runtime.driver.set_active(DRIVER)
DRIVER.get_current_device()

# What tutorials of 3.8 call and Triton 3.9 has changed: a name, and an argument, which is true where they leave it out.
hopper.tma.async_copy_shared_to_global = hopper.tma.async_store
blackwell.tma.async_copy_shared_to_global = blackwell.tma.async_store
NEW_BARRIER_COUNT = blackwell.tcgen05_mma_barrier_count


@gluon.constexpr_function
def barrier_count(smems, multicast, two_ctas=True):
    return NEW_BARRIER_COUNT(smems, multicast, two_ctas)


blackwell.tcgen05_mma_barrier_count = barrier_count


def call(function: str, *arguments) -> None:
    status = getattr(CUDA, function)(*arguments)
    if status != 0:
        text = ctypes.c_char_p()
        CUDA.cuGetErrorString(status, ctypes.byref(text))
        sys.exit(f"{function}: {(text.value or b'').decode(errors='replace')}")


class Type:
    """An element type: PyTorch's name for it and NumPy's."""

    def __init__(self, name: str, array, is_floating_point: bool):
        self.name, self.array, self.is_floating_point = name, numpy.dtype(array), is_floating_point
        self.itemsize = self.array.itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


TYPES = {
    each.name: each
    for each in (
        Type("float64", numpy.float64, True),
        Type("float32", numpy.float32, True),
        Type("float16", numpy.float16, True),
        Type("bfloat16", ml_dtypes.bfloat16, True),
        Type("float8_e4m3fn", ml_dtypes.float8_e4m3fn, True),
        Type("float8_e5m2", ml_dtypes.float8_e5m2, True),
        Type("int64", numpy.int64, False),
        Type("int32", numpy.int32, False),
        Type("int16", numpy.int16, False),
        Type("int8", numpy.int8, False),
        Type("uint8", numpy.uint8, False),
        Type("bool", numpy.bool_, False),
    )
}


class Tensor:
    """Elements in the device's memory: an address, a shape and strides."""

    def __init__(self, owner, address: int, shape: Sequence[int], strides: Sequence[int], dtype: Type):
        self.owner, self.address, self.dtype = owner, address, dtype
        self.shape, self.strides = tuple(shape), tuple(strides)
        self.device, self.requires_grad, self.ndim = DEVICE, False, len(self.shape)

    def data_ptr(self) -> int:
        return self.address

    def stride(self, dimension: int | None = None):
        return self.strides if dimension is None else self.strides[dimension]

    def size(self, dimension: int | None = None):
        return self.shape if dimension is None else self.shape[dimension]

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        return self.strides == contiguous(self.shape)

    def permute(self, *order: int) -> Tensor:
        shape, strides = [self.shape[i] for i in order], [self.strides[i] for i in order]
        return Tensor(self.owner, self.address, shape, strides, self.dtype)

    @property
    def T(self) -> Tensor:
        return self.permute(*reversed(range(self.ndim)))

    def reshape(self, *shape) -> Tensor:
        shape = list(shape[0] if isinstance(shape[0], Sequence) else shape)
        assert self.is_contiguous()
        if -1 in shape:
            shape[shape.index(-1)] = self.numel() // -math.prod(shape)
        assert math.prod(shape) == self.numel()
        return Tensor(self.owner, self.address, shape, contiguous(shape), self.dtype)

    view = reshape

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else on_device(self.numpy(), self.dtype)

    def to(self, dtype) -> Tensor:
        return on_device(self.numpy().astype(dtype.array), dtype)

    def __mul__(self, factor: float) -> Tensor:
        return on_device((self.numpy().astype(numpy.float32) * numpy.float32(factor)).astype(self.dtype.array))

    def zero_(self) -> Tensor:
        assert self.is_contiguous()
        call("cuMemsetD8_v2", ctypes.c_uint64(self.address), 0, ctypes.c_size_t(self.numel() * self.dtype.itemsize))
        return self

    def numpy(self) -> numpy.ndarray:
        """The elements, once all kernels have ended."""
        call("cuCtxSynchronize")
        span = 1 + sum((n - 1) * stride for n, stride in zip(self.shape, self.strides, strict=True))
        flat = numpy.zeros(span, self.dtype.array)
        call("cuMemcpyDtoH_v2", flat.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(self.address), size(flat))
        strides = [stride * self.dtype.itemsize for stride in self.strides]
        return numpy.lib.stride_tricks.as_strided(flat, self.shape, strides).copy()


class Memory:
    """An allocation, which lasts as long as a tensor in it."""

    def __init__(self, bytes_: int):
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(bytes_, 1)))
        self.address = address.value

    def __del__(self):
        CUDA.cuMemFree_v2(ctypes.c_uint64(self.address))


class Device:
    type, index = "cuda", 0


DEVICE = Device()


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def size(array: numpy.ndarray) -> ctypes.c_size_t:
    return ctypes.c_size_t(array.nbytes)


def empty(*shape, dtype: Type = TYPES["float32"], device=None) -> Tensor:
    """Memory of which every byte is 0xff: NaN in float formats, so that an element nobody wrote is found."""
    shape = shape[0] if shape and isinstance(shape[0], Sequence) else shape
    memory = Memory(math.prod(shape) * dtype.itemsize)
    count = ctypes.c_size_t(math.prod(shape) * dtype.itemsize)
    call("cuMemsetD8_v2", ctypes.c_uint64(memory.address), ctypes.c_ubyte(0xFF), count)
    return Tensor(memory, memory.address, shape, contiguous(shape), dtype)


def on_device(array: numpy.ndarray, dtype: Type | None = None) -> Tensor:
    array = numpy.ascontiguousarray(array)
    dtype = dtype or next(each for each in TYPES.values() if each.array == array.dtype)
    tensor = empty(*array.shape, dtype=dtype)
    call("cuMemcpyHtoD_v2", ctypes.c_uint64(tensor.address), array.ctypes.data_as(ctypes.c_void_p), size(array))
    return tensor


def torch_for_tutorials() -> types.ModuleType:
    """As much of PyTorch as the host functions of the tutorials call."""
    torch = types.ModuleType("torch")
    torch.__dict__.update(TYPES)
    torch.Tensor, torch.dtype = Tensor, Type
    torch.empty = empty
    torch.empty_like = lambda like, **options: empty(like.shape, dtype=options.get("dtype", like.dtype))
    torch.zeros = lambda *shape, **options: empty(*shape, **options).zero_()
    torch.zeros_like = lambda like: torch.empty_like(like).zero_()

    def tensor(values, dtype=TYPES["int64"], device=None):
        return on_device(numpy.array(values, dtype.array), dtype)

    torch.tensor = tensor
    torch.device = lambda *arguments: DEVICE
    torch.version = types.SimpleNamespace(hip=None, cuda="13.0")
    torch.autograd = types.SimpleNamespace(Function=object)
    properties = DRIVER.utils.get_device_properties(0)
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 0,
        get_device_capability=lambda *arguments: DRIVER.utils.get_device_capability(0),
        get_device_properties=lambda *arguments: types.SimpleNamespace(
            multi_processor_count=properties["multiprocessor_count"]
        ),
    )
    return torch


sys.modules["torch"] = torch = torch_for_tutorials()
triton.set_allocator(lambda bytes_, alignment, stream: empty(bytes_, dtype=TYPES["int8"]))


def lazy_module(path: Path) -> types.ModuleType:
    """A file of which a definition is executed when it is asked for, with those that it mentions, in their order.

    The tutorials run comparisons and measurements when they are imported; those are statements that nobody asks for.
    """
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    statements = ast.parse(path.read_text(), str(path)).body
    definitions: dict[str, list[int]] = {}
    for i, statement in enumerate(statements):
        if not (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)):
            for name in bound(statement):
                definitions.setdefault(name, []).append(i)
    done: set[int] = set()

    def find(name: str):
        if name not in definitions:
            raise AttributeError(f"{path} defines no {name}")
        needed, open_names = set(), [name]
        while open_names:
            for i in definitions.get(open_names.pop(), ()):
                if i not in needed | done:
                    needed.add(i)
                    open_names += names(statements[i])
        done.update(needed)
        for i in sorted(needed):
            # The numbers of its lines are the file's.
            exec(compile(ast.Module([statements[i]], []), str(path), "exec"), module.__dict__)
        return module.__dict__[name]

    module.__getattr__ = find
    return module


def names(statement: ast.stmt) -> set[str]:
    """The names of its module that it mentions, and not those that are local to a function in it."""

    def within(table: symtable.SymbolTable) -> set[str]:
        module = table.get_type() == "module"
        here = {each.get_name() for each in table.get_symbols() if module or each.is_global()}
        return here.union(*(within(each) for each in table.get_children()))

    return within(symtable.symtable(ast.unparse(statement), "", "exec"))


def bound(statement: ast.stmt) -> set[str]:
    """What it defines in its module."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(each.asname or each.name).split(".")[0] for each in statement.names}
    if isinstance(statement, (ast.If, ast.Try, ast.With, ast.For)):
        inner = [each for each in ast.iter_child_nodes(statement) if isinstance(each, (ast.stmt, ast.ExceptHandler))]
        return set().union(*(bound(each) if isinstance(each, ast.stmt) else set() for each in inner))
    stores = (each for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
    return {each.id for each in stores} if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) else set()


def tutorial(checkout: Path, name: str) -> types.ModuleType:
    """python/tutorials/NAME.py, or python/examples/...; files of a folder import each other, and get such modules."""
    path = checkout / "python" / ("" if name.startswith("examples/") else "tutorials") / f"{name}.py"
    for each in sorted(path.parent.glob("[0-9]*.py")):
        sys.modules.setdefault(each.stem, lazy_module(each))
    return sys.modules[path.stem]
