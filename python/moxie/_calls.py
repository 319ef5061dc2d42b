# SPDX-License-Identifier: Apache-2.0
"""Calls with tensors that look as tensors of an earlier call did (python/native/calls.c)."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from moxie._library import FOLDER, check, ffi

# What the C code needs of Python, in its order.
_FUNCTIONS = (
    "PyTuple_GetItem", "PyObject_CallObject", "PyLong_FromLong", "Py_IncRef", "Py_DecRef", "PyErr_Clear",
    "PyEval_SaveThread", "PyEval_RestoreThread", "PyCapsule_New", "PyCapsule_GetPointer", "PyCFunction_NewEx",
    "PyObject_Type", "PyObject_RichCompareBool",
)  # fmt: skip
_CAPSULE = b"dlpack_exchange_api"
# What it needs of torch for GPUs, in its order.
_GPU_FUNCTIONS = (
    "aoti_torch_get_current_device_index", "aoti_torch_cuda_caching_allocator_raw_alloc",
    "aoti_torch_cuda_caching_allocator_raw_delete",
)  # fmt: skip


@cache
def _loaded() -> Any:
    """The C library. Its calls keep the interpreter lock; they give it up while the library's own call runs."""
    library = ctypes.PyDLL(str(FOLDER / "libmoxie_calls.so"))
    pointer = ctypes.c_void_p
    library.moxie_calls_create.restype = pointer
    library.moxie_calls_create.argtypes = [pointer, pointer, ctypes.c_int32]
    library.moxie_calls_add.argtypes = [
        pointer, ctypes.py_object, pointer, pointer, ctypes.c_char_p, ctypes.c_size_t,
        ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_int32, ctypes.py_object, pointer, pointer,
        ctypes.c_size_t,
    ]  # fmt: skip
    library.moxie_front_create.restype = pointer
    library.moxie_front_create.argtypes = [
        pointer, ctypes.c_int32, ctypes.py_object, ctypes.py_object, ctypes.c_int32
    ]  # fmt: skip
    library.moxie_front_add.argtypes = [pointer, ctypes.py_object, pointer]
    library.moxie_front_clear.restype, library.moxie_front_clear.argtypes = None, [pointer]
    for function in (library.moxie_calls_function, library.moxie_front_function):
        function.restype, function.argtypes = ctypes.py_object, [pointer]
    return library


@cache
def exchange_of(tensor_type: type) -> int:
    """The address of DLPack's exchange interface of a type of tensors; 0: it has none, or threads share no lock."""
    capsule = getattr(tensor_type, "__dlpack_c_exchange_api__", None)
    if capsule is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return 0
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return pointer_of(capsule, _CAPSULE) or 0


@cache
def _python(types: tuple[type, type]) -> Any:
    addresses = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in _FUNCTIONS]
    addresses += [id(None), *map(id, types), exchange_of(types[0])]
    return (ctypes.c_void_p * len(addresses))(*addresses)


@cache
def _gpu() -> Any:
    """Addresses of torch's C functions for GPUs; zeros: this torch lacks one, or is told to keep no freed memory."""
    addresses: list[Any] = []
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libtorch_cuda.so", mode=os.RTLD_NOLOAD)
            addresses = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in _GPU_FUNCTIONS]
    return (ctypes.c_void_p * len(_GPU_FUNCTIONS))(*addresses)


def structure_of(operation: Any, arguments: dict[str, Any]) -> bytes:
    """The structure that operation.run(**arguments) hands to the library."""
    seen: list[bytes] = []
    recorder = copy.copy(operation)
    recorder._run = lambda handle, tensors, *rest: seen.append(bytes(ffi.buffer(tensors))) or 0
    recorder.run(**arguments)
    return seen[0]


class Calls:
    """Known calls of one operation that differ in their tensors alone. types: the type of tensors and a subclass that
    is as good; tensors of any other type are not known. words: where their addresses go in the structure of the
    library. aligned: which must lie at multiples of 16 bytes."""

    def __init__(self, types: tuple[type, type], words: Sequence[int], out_word: int, aligned: Sequence[bool]) -> None:
        self._words = (ctypes.c_int32 * len(words))(*words)
        self._out_word = out_word
        self._aligned = sum(1 << i for i, each in enumerate(aligned) if each)
        self._kept: list[Any] = []
        self.table = _loaded().moxie_calls_create(_python(types), _gpu(), len(words))
        # The result of a call of some tensors; None: it is not known; an int: the library's status.
        self.run: Callable[..., Any] = lambda *tensors: None
        if self.table is not None:
            self.run = _loaded().moxie_calls_function(self.table)

    def add(
        self,
        tensors: tuple,
        operation: Any,
        arguments: dict[str, Any],
        make_out: Callable[[], Any],
        make_here: tuple[Callable[..., Any], tuple] | None = None,
        run: int = 0,
    ) -> None:
        """Makes operation.run(**arguments) known as the call of these tensors. make_out: makes the result. make_here: a
        function and its arguments that do so on the current GPU, which are called where the tensors lie there. run: the
        library's function, which is the operation's own unless a test gives another one."""
        structure = structure_of(operation, arguments)
        run = run or int(ffi.cast("uintptr_t", operation._run))
        handle = int(ffi.cast("uintptr_t", operation.handle))
        added = self.table is not None and _loaded().moxie_calls_add(
            self.table, tensors, run, handle, structure, len(structure), self._words, self._out_word, self._aligned,
            make_out, *(map(id, make_here) if make_here else (None, None)), arguments["workspace_bytes"],
        )  # fmt: skip
        if added:
            self._kept.append((operation, make_out, make_here))

    def __call__(self, *tensors: Any) -> Any:
        """The result, or None: no such call is known, and nothing has happened. ValueError, RuntimeError: as the
        operation's run."""
        result = self.run(*tensors)
        if type(result) is int:
            check(result)
        return result


class Known(dict[tuple, Calls]):
    """Known calls by their options, which `run` is given before the tensors.

    checks: functions and the very objects that they must return, such as (torch.is_grad_enabled, False); otherwise no
    call is known to run. More options than it has room for are known to the dictionary alone."""

    def __init__(self, types: tuple[type, type], options: int, checks: Sequence[tuple[Callable[[], Any], Any]]) -> None:
        super().__init__()
        self._checks = tuple(zip(*checks, strict=True)) or ((), ())
        self._kept: list[tuple] = []
        self._front = _loaded().moxie_front_create(_python(types), options, *self._checks, len(checks))
        # As that of Calls, whose status it returns as well.
        self.run: Callable[..., Any] = lambda *given: None
        if self._front is not None:
            self.run = _loaded().moxie_front_function(self._front)

    def __setitem__(self, options: tuple, calls: Calls) -> None:
        super().__setitem__(options, calls)
        if self._front is not None and _loaded().moxie_front_add(self._front, options, calls.table):
            self._kept.append((options, calls))

    def clear(self) -> None:
        super().clear()
        if self._front is not None:
            _loaded().moxie_front_clear(self._front)
