# SPDX-License-Identifier: Apache-2.0
"""Moxie's products and layers as operators of PyTorch.

`moxie.grouped_mm` and `moxie.experts` are what users call. Behind each stands an operator of the same name in
`torch.ops.moxie`, with a schema and a fake kernel, so that torch.compile(fullgraph=True) and torch.export see one node.
A call that none of those sees goes straight to the operator's kernel. Outputs and workspaces come from torch's
allocator, and work goes to torch's current stream.

CUDA tensors are computed on their GPU. CPU tensors are computed by the simulator where the environment variable
MOXIE_DEVICE is "sim", and refused otherwise. There is neither a backward nor a forward-mode derivative yet, and
asking for one is an error.

Products are planned and compiled at their first call, for the range of rows that it falls into; do that before a CUDA
graph is captured.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from moxie import _gemm, _layer
from moxie._calls import Calls, Known, exchange_of
from moxie._describe import _PARAMETERS, Batched, KGroups, Offsets, arguments, require_integers
from moxie._device import Device
from moxie._gemm import GroupedGemm
from moxie._layer import ExpertLayer, Ranks
from moxie._library import check, enum_value, ffi, lib

__all__ = [
    "combine",
    "dequantize",
    "experts",
    "grouped_mm",
    "pack_weights",
    "quantize",
    "sort_by_expert",
    "unpack_weights",
]

_PLAIN = ("none", "relu", "relu2", "gelu", "gelu_erf", "silu")
_GATED = ("swiglu", "swiglu_oai", "geglu", "reglu", "swiglu_clamped", "situ")
_OUT_TYPES = {torch.bfloat16: "bf16", torch.float32: "f32"}
_ID_TYPES = {torch.int32: "int32", torch.int64: "int64"}

# Older versions have DLPack's exchange interface from packages that add it to torch, if at all.
_EXCHANGES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10) and exchange_of(Tensor) != 0

# What TorchInductor's programs allocate by, on the current GPU: half of what torch.empty costs the host.
_empty_here = getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cuda", None)

# ---- Where a call runs ----


class _Gpu:
    """The GPU of CUDA tensors, which are used where they lie."""

    _opened: dict[int, _Gpu] = {}

    def __init__(self, index: int) -> None:
        self.device = Device("cuda", index)
        self.calls: dict[tuple, Any] = {}
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._index = index

    @classmethod
    def of(cls, tensor: Tensor) -> _Gpu:
        return cls.at_index(tensor.get_device())

    @classmethod
    def at_index(cls, index: int) -> _Gpu:
        gpu = cls._opened.get(index)
        return gpu if gpu is not None else cls._opened.setdefault(index, cls(index))

    @staticmethod
    def at(tensor: Tensor | None) -> int:
        return 0 if tensor is None else tensor.data_ptr()

    def stream(self) -> int:
        if self._raw_stream is not None:
            return self._raw_stream(self._index)
        return torch.cuda.current_stream(self._index).cuda_stream

    def workspace(self, nbytes: int, like: Tensor, given: Tensor | None = None) -> tuple[int, Any]:
        """Its address, and what keeps it for as long as the call needs it. like: bf16. given: a caller's memory."""
        if nbytes == 0:
            return 0, None
        if given is not None and given.nbytes >= nbytes and given.data_ptr() % 256 == 0:
            return given.data_ptr(), given
        memory = like.new_empty((nbytes + 1) // 2)
        return memory.data_ptr(), memory


class _Simulator:
    """The simulator for one call on CPU tensors: what is used is copied into its memory, and outputs back."""

    calls: dict[tuple, Any] = {}

    def __init__(self) -> None:
        if os.environ.get("MOXIE_DEVICE") != "sim":
            raise RuntimeError(
                "the tensors are on the CPU, where Moxie computes on its simulator alone: move them to a GPU, or set "
                "the environment variable MOXIE_DEVICE to sim"
            )
        self.device = Device("sim")
        self._copies: list[tuple[Tensor, Any]] = []

    def at(self, tensor: Tensor | None) -> int:
        if tensor is None or tensor.numel() == 0:
            return 0
        memory = self.device.allocate(_span(tensor).nbytes)
        self.device.upload(memory.ptr, _bytes(tensor))
        self._copies.append((tensor, memory))
        return memory.ptr

    def stream(self) -> int:
        return 0

    def workspace(self, nbytes: int, like: Tensor, given: Tensor | None = None) -> tuple[int, Any]:
        memory = self.device.allocate(nbytes)
        return memory.ptr, memory

    def bring_back(self, *outputs: Tensor) -> None:
        for tensor, memory in self._copies:
            if any(tensor is output for output in outputs):
                self.device.download(_bytes(tensor), memory.ptr)


def _span(tensor: Tensor) -> Tensor:
    """All elements from the first to the last one, with those between rows."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((length,), (1,))


def _bytes(tensor: Tensor) -> Any:
    return _span(tensor).view(torch.uint8).numpy()


_lock = threading.Lock()
_made: dict[tuple, Any] = {}


def _prepared(key: tuple, make: Callable[[], Any]) -> Any:
    """The product or layer of a key, made by the first thread that asks for it."""
    found = _made.get(key)
    if found is None:
        with _lock:
            found = _made.get(key)
            if found is None:
                found = _made[key] = make()
    return found


def _signature(tensors: tuple[Tensor | None, ...]) -> tuple:
    """All that checks look at but addresses."""
    return tuple(
        [None if each is None else (each.shape, each.stride(), each.dtype, each.get_device()) for each in tensors]
    )


_MOST_CALLS = 4096


def _remember(calls: dict[tuple, Any], key: tuple, call: Any) -> None:
    """Calls like this one are checked no more. The oldest ones are forgotten where there are too many."""
    with _lock:
        while len(calls) >= _MOST_CALLS:
            del calls[next(iter(calls))]
        calls[key] = call


_TYPES = (Tensor, torch.nn.Parameter)
# Torch's own functions cost less than those in Python before them. How many dispatch modes there are, and whether one
# is under vmap, grad and the like:
_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
# Whether torch may fill new memory so that even rows that no product writes are repeatable. The result of a known call
# is not filled.
_fills = torch._C._get_deterministic_algorithms
_EAGER = ((torch.is_grad_enabled, False), (_modes, 0), (_transforms, False), (lambda: forward_ad._current_level, -1))

# By their options, the calls of products and of layers on GPUs that go straight to the library.
_known_products = Known(_TYPES, 5, (*_EAGER, (_fills, False)))
_known_layers = Known(_TYPES, 6, _EAGER)
for _each in (_known_products, _known_layers):
    os.register_at_fork(after_in_child=_each.clear)  # other calls are refused there with a sentence


def _make_known(
    where: Any,
    known_calls: Known,
    options: tuple,
    tensors: tuple[Tensor | None, ...],
    places: tuple[tuple[int, bool], ...],
    out_word: int,
    out: Tensor,
    operation: Any,
    arguments: dict[str, Any],
) -> None:
    """From now on calls of such tensors with the same options go straight to the library, where torch lets them.

    places: where each tensor's address goes in the library's structure, and whether it must be aligned.
    """
    if not isinstance(where, _Gpu) or not _EXCHANGES:
        return
    with _lock:
        known = known_calls.get(options)
        if known is None:
            words, aligned = zip(*places, strict=True)
            known = known_calls[options] = Calls(_TYPES, words, out_word, aligned)
    # A pattern without memory: to copy one costs a third of naming shape, type and device.
    pattern = torch.empty_like(out)
    pattern.untyped_storage().resize_(0)
    make_here = None if _empty_here is None else (_empty_here, (tuple(out.shape), out.stride(), out.dtype))
    with _lock:
        known.add(tensors, operation, arguments, functools.partial(torch.empty_like, pattern), make_here)


def _range_of(rows: int) -> int:
    """Ranges around 1, 4, 16, 64... rows: 0 for up to 2, 1 for up to 8, 2 for up to 32..."""
    return (rows - 1).bit_length() // 2 if rows > 0 else 0


# ---- What a call's tensors must be ----


def _tensors(required: int, **given: Any) -> None:
    """Whether arguments are tensors, as many of the first as are required, the others where they are given."""
    for index, (name, each) in enumerate(given.items()):
        if each is None and index >= required:
            continue
        if not isinstance(each, Tensor):
            raise TypeError(f"{name} is a torch.Tensor, and {type(each).__name__} is none")
        if each.layout != torch.strided or each.is_nested:
            raise ValueError(f"{name} is {'nested' if each.is_nested else each.layout}, but must be dense")


def _words(**given: Any) -> None:
    for name, each in given.items():
        if not isinstance(each, str):
            raise TypeError(f"{name} is the name of a value, and {each!r} is no str")


def _is(name: str, tensor: Tensor, dtypes: tuple[torch.dtype, ...], dims: tuple[int, ...], like: Tensor) -> None:
    if tensor.dtype not in dtypes:
        allowed = " or ".join(str(each) for each in dtypes)
        raise ValueError(f"{name} is {tensor.dtype}, but must be {allowed}")
    if tensor.dim() not in dims:
        allowed = " or ".join(str(each) for each in dims)
        raise ValueError(f"{name} has {tensor.dim()} dimensions, but must have {allowed}")
    if tensor.device != like.device:
        raise ValueError(f"{name} is on {tensor.device}, but the first argument on {like.device}")


def _shape(name: str, tensor: Tensor, *shape: int) -> None:
    if tensor.shape != shape:
        raise ValueError(f"{name} is {list(tensor.shape)}, but must be {list(shape)}")


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor dense and at a multiple of 16 bytes."""
    if tensor.is_contiguous() and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _matrices(tensor: Tensor) -> tuple[Tensor, int]:
    """Row-major matrices one behind the other, copied where they are not, and their leading dimension."""
    rows, columns = tensor.shape[-2:]
    ld = tensor.stride(-2) if rows > 1 else columns
    dense = tensor.stride(-1) == 1 or columns == 1
    in_place = dense and ld >= columns and ld * tensor.element_size() % 16 == 0 and tensor.data_ptr() % 16 == 0
    if in_place and tensor.dim() == 3 and tensor.shape[0] > 1:
        in_place = tensor.stride(0) == rows * ld
    if in_place:
        return tensor, ld
    return tensor.clone(memory_format=torch.contiguous_format), columns


def _parameter_list(activation: str, parameters: Mapping[str, float]) -> list[float]:
    """The parameters in the order of the activation's structure in C."""
    names = _PARAMETERS.get(activation, ())
    if not isinstance(parameters, Mapping):
        raise TypeError(f"activation_parameters is a mapping of names, and {type(parameters).__name__} is none")
    if set(parameters) != set(names):
        raise ValueError(
            f"activation_parameters has {', '.join(map(str, parameters)) or 'nothing'}, but {activation} has "
            f"{' and '.join(names) or 'none'}"
        )
    return [float(parameters[name]) for name in names]


def _parameter_dict(activation: str, parameters: tuple[float, ...] | None) -> dict[str, float] | None:
    return dict(zip(_PARAMETERS[activation], parameters, strict=True)) if parameters else None


def _no_gradient(name: str, *tensors: Tensor | None) -> None:
    """torch.no_grad() says nothing of tangents, which an operator without a rule for them would drop."""
    backward, forward = torch.is_grad_enabled(), forward_ad._current_level >= 0
    if not backward and not forward:
        return
    for tensor in tensors:
        if tensor is None:
            continue
        if backward and tensor.requires_grad:
            raise RuntimeError(
                f"{name} has no backward yet: call it under torch.no_grad(), or on tensors that require no gradient"
            )
        if forward and forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(f"{name} has no forward-mode derivative yet: call it on tensors without tangents")


_ORDINARY = frozenset((Tensor, torch.nn.Parameter, type(None)))


def _unobserved(first: Tensor) -> bool:
    """Whether neither a compiler nor a mode nor a transform of torch would see a call, nor a fake kernel take it."""
    return not (is_compiling() or _modes() or _transforms()) and (first.is_cuda or first.is_cpu)


# ---- Grouped products ----


def _width(activation: str, n: int) -> int:
    """Of the result of a product with n columns."""
    if activation in _GATED:
        return n // 2
    if activation not in _PLAIN:
        raise ValueError(f"activation is {activation!r}, but must be one of {', '.join(_PLAIN + _GATED)}")
    return n


def _grouped_mm_shape(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None,
    bias: Tensor | None,
    gather: Tensor | None,
    divisor: int,
    activation: str,
    out_dtype: torch.dtype | None,
) -> tuple[int, ...]:
    """Checks all but addresses, and returns the shape of the result."""
    _is("mat_a", mat_a, (torch.bfloat16,), (2, 3), mat_a)
    _is("mat_b", mat_b, (torch.bfloat16,), (2, 3), mat_a)
    if out_dtype is not None and out_dtype not in _OUT_TYPES:
        raise ValueError(f"out_dtype is {out_dtype}, but must be torch.bfloat16 or torch.float32")
    if not 1 <= divisor < 2**31:
        raise ValueError(f"divisor is {divisor}, but must be 1 or more, and less than 2**31")
    if mat_a.dim() == 3 and mat_b.dim() == 2:
        raise ValueError("mat_a has 3 dimensions and mat_b 2: groups along N are not supported")
    if mat_a.shape[-1] != mat_b.shape[-2]:
        raise ValueError(f"mat_a is {list(mat_a.shape)} and mat_b {list(mat_b.shape)}, whose K differ")
    n = mat_b.shape[-1]
    if mat_a.dim() == 3:
        if mat_a.shape[0] != mat_b.shape[0]:
            raise ValueError(f"mat_a has {mat_a.shape[0]} groups, but mat_b {mat_b.shape[0]}")
        if offs is not None:
            raise ValueError("offs is given, but both operands have 3 dimensions")
    else:
        if offs is None:
            raise ValueError("offs is missing, but mat_a has 2 dimensions")
        _is("offs", offs, (torch.int32,), (1,), mat_a)
        if mat_b.dim() == 3 and offs.shape[0] != mat_b.shape[0]:
            raise ValueError(f"offs has {offs.shape[0]} ends, but mat_b {mat_b.shape[0]} groups")
    if bias is not None:
        _is("bias", bias, (torch.bfloat16,), (2,), mat_a)
        _shape("bias", bias, offs.shape[0] if offs is not None else mat_a.shape[0], n)
    rows = mat_a.shape[-2]
    if gather is not None:
        _is("gather", gather, (torch.int32,), (1,), mat_a)
        if mat_a.dim() == 3 or mat_b.dim() == 2:
            raise ValueError("gather is given, but rows are not grouped by offs")
        rows = gather.shape[0]
    width = _width(activation, n)
    if mat_a.dim() == 2 and mat_b.dim() == 3:
        return rows, width
    return (mat_a.shape[0] if mat_a.dim() == 3 else offs.shape[0]), rows, width  # type: ignore[union-attr]


# Of mat_a, mat_b, offs, bias and gather: where its address goes, and whether it must be aligned.
_PRODUCT_PLACES = (
    (_gemm._A, True), (_gemm._B, True), (_gemm._ENDS, False), (_gemm._BIAS, True), (_gemm._GATHER, False),
)  # fmt: skip


class _Product(NamedTuple):
    """What a call of grouped_mm needs beside its tensors."""

    gemm: GroupedGemm | None  # None: there is nothing to compute
    shape: tuple[int, ...]
    dtype: torch.dtype
    total: int | None
    gathered: int  # rows of mat_a that are gathered from
    ld_a: int
    ld_b: int
    workspace_bytes: int


def _grouped_mm_prepared(
    where: _Gpu | _Simulator, key: tuple, tensors: tuple[Tensor | None, ...], out_dtype: torch.dtype | None
) -> tuple[tuple[Tensor | None, ...], _Product]:
    """Checks, plans and compiles, and copies what kernels cannot read where it lies."""
    _, divisor, activation, parameters, gate, _ = key
    mat_a, mat_b, offs, bias, gather = tensors
    assert mat_a is not None and mat_b is not None
    shape = _grouped_mm_shape(mat_a, mat_b, offs, bias, gather, divisor, activation, out_dtype)
    k, n = mat_b.shape[-2:]
    dtype = out_dtype or torch.bfloat16
    if math.prod(shape) == 0:
        return tensors, _Product(None, shape, dtype, None, 0, 0, 0, 0)
    a, ld_a = _matrices(mat_a)
    b, ld_b = _matrices(mat_b.transpose(-2, -1))
    # What the groups are, the rows that the product is planned for, and the total of this call.
    total: int | None = shape[-2]
    if mat_a.dim() == 3:
        kind, count, planned, total = "batched", shape[0], shape[1], None
    elif mat_b.dim() == 3:
        kind, count = "offsets", mat_b.shape[0]
        planned = _range_of(-(-shape[0] // count))
    else:
        kind, count, planned, total = "k_groups", shape[0], shape[1], k

    def make() -> GroupedGemm:
        if kind == "batched":
            groups: Any = Batched(count, planned)
        elif kind == "offsets":
            groups = Offsets(count, count << (2 * planned))
        else:
            groups = KGroups(count, planned)
        return GroupedGemm(
            where.device,
            groups,
            n=n,
            k=k,
            gather=gather is not None,
            bias=bias is not None,
            activation=activation,
            activation_parameters=_parameter_dict(activation, parameters),
            gate=gate,
            out=_OUT_TYPES[dtype],
            expected_rows=1 << (2 * planned) if kind == "offsets" else None,
        )

    gemm = _prepared(
        (kind, where.device, count, planned, n, k, gather is None, bias is None, activation, parameters, gate, dtype),
        make,
    )
    gathered = 0 if gather is None else mat_a.shape[0]
    call = _Product(gemm, shape, dtype, total, gathered, ld_a, ld_b, gemm.workspace_bytes(total))
    bias = None if bias is None else _aligned(bias)
    copied = (a, b, None if offs is None else offs.contiguous(), bias, None if gather is None else gather.contiguous())
    in_place = a is mat_a and b.data_ptr() == mat_b.data_ptr()
    if in_place and all(each is given for each, given in zip(copied[2:], tensors[2:], strict=True)):
        _remember(where.calls, key, call)
    return copied, call


def _grouped_mm(
    where: _Gpu | _Simulator,
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None,
    bias: Tensor | None,
    gather: Tensor | None,
    divisor: int,
    activation: str,
    parameters: list[float] | None,
    gate: str,
    out_dtype: torch.dtype | None,
) -> Tensor:
    parameters = None if parameters is None else tuple(parameters)
    options = (divisor, activation, parameters, gate, out_dtype)
    known = None if _fills() else _known_products.get(options)
    if known is not None and (result := known(mat_a, mat_b, offs, bias, gather)) is not None:
        return result
    given: tuple[Tensor | None, ...] = (mat_a, mat_b, offs, bias, gather)
    tensors = given
    key = (_signature(tensors), *options)
    call = where.calls.get(key)
    is_new = call is None
    if call is None:
        tensors, call = _grouped_mm_prepared(where, key, tensors, out_dtype)
    if call.gemm is None:
        return mat_a.new_empty(call.shape, dtype=call.dtype)
    at = where.at
    a, b, ends, its_bias, rows = [at(each) for each in tensors]
    if (a | b | its_bias) & 15:
        tensors, call = _grouped_mm_prepared(where, key, tensors, out_dtype)
        a, b, ends, its_bias, rows = [at(each) for each in tensors]
    out = mat_a.new_empty(call.shape, dtype=call.dtype)
    workspace, kept = where.workspace(call.workspace_bytes, mat_a)
    arguments = {
        "a": a,
        "b": b,
        "out": at(out),
        "bias": its_bias,
        "total": call.total,
        "ends": ends,
        "gather_rows": rows,
        "gather_count": call.gathered,
        "gather_divisor": divisor,
        "ld_a": call.ld_a,
        "ld_b": call.ld_b,
        "workspace": workspace,
        "workspace_bytes": call.workspace_bytes,
        "stream": where.stream(),
    }
    call.gemm.run(**arguments)
    if is_new and key in where.calls:
        _make_known(where, _known_products, options, given, _PRODUCT_PLACES, _gemm._OUT, out, call.gemm, arguments)
    del kept
    return out


def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    gather: Tensor | None = None,
    divisor: int = 1,
    activation: str = "none",
    activation_parameters: Mapping[str, float] | None = None,
    gate: str = "split",
) -> Tensor:
    """torch.nn.functional.grouped_mm with a bias, an activation, a gate and a gather.

    activation(mat_a @ mat_b + bias), accumulated in float32, for every group:

    - mat_a [M, K], mat_b [G, K, N], offs [G]: rows offs[g - 1] to offs[g] meet mat_b[g]. Returns [M, W]; rows past
      the last end are undefined. The GPU alone reads offs, and a call serves every division of the rows.
    - mat_a [G, M, K], mat_b [G, K, N], no offs: products of the same size. Returns [G, M, W].
    - mat_a [M, K], mat_b [K, N], offs [G]: K is divided, at multiples of 8 (sm_100a). Returns [G, M, W].

    W is N, or N / 2 where a gated activation halves it. K is a multiple of 8, N of 8 or with a gate of 16.

    mat_a, mat_b: bf16. mat_b is read as [N, K]: pass weights that are stored [G, N, K] as weight.transpose(-2, -1),
    which costs nothing. Weights that are stored [G, K, N] are copied to that order at every call, which reads and
    writes all of them. Rows that do not begin at multiples of 16 bytes are copied, too.
    offs: int32, the end of each group. The kernel brings any values into order.
    bias: bf16 [G, N], added before the activation.
    out_dtype: torch.bfloat16 (default) or torch.float32.
    gather: int32 [M]: row r of the product is computed from row gather[r] // divisor of mat_a; a row that mat_a does
    not have stands for zeros.
    activation: "none", "relu", "relu2", "gelu", "gelu_erf", "silu", and with a gate "swiglu", "swiglu_oai",
    "geglu", "reglu", "swiglu_clamped", "situ". activation_parameters: {"alpha": 1.702, "limit": 7.0} for swiglu_oai,
    {"gate_limit": ..., "up_limit": ...} for swiglu_clamped, {"beta": ..., "linear_beta": ...} for situ.
    gate: where gate and up lie in N: "split" (gate first), "split_up_first" or "interleaved".

    ValueError: an argument breaks a rule, or the device has no kernel for it. RuntimeError: a gradient is asked for,
    driver, compiler. Nothing was launched then.
    """
    if not is_compiling():
        result = _known_products.run(
            divisor, activation, activation_parameters, gate, out_dtype, mat_a, mat_b, offs, bias, gather
        )
        if result is not None:
            return result if type(result) is Tensor else check(result)
    _tensors(2, mat_a=mat_a, mat_b=mat_b, offs=offs, bias=bias, gather=gather)
    require_integers(divisor=divisor)
    _words(activation=activation, gate=gate)
    _no_gradient("moxie.grouped_mm", mat_a, mat_b, bias)
    parameters = None if activation_parameters is None else _parameter_list(activation, activation_parameters)
    if _unobserved(mat_a) and _ORDINARY.issuperset(map(type, (mat_a, mat_b, offs, bias, gather))):
        call = _on_gpu if mat_a.is_cuda else _on_cpu
        return call(_grouped_mm, mat_a, mat_b, offs, bias, gather, divisor, activation, parameters, gate, out_dtype)
    return torch.ops.moxie.grouped_mm(
        mat_a, mat_b, offs, bias, gather, divisor, activation, parameters, gate, out_dtype
    )


# ---- Layers ----


def _packed_rows(packed: Tensor, k: int) -> int:
    """Rows of a packed expert of k columns: codes, scales and one more byte a row."""
    return packed.shape[1] // (k // 2 + k // 32 + 1)


def _experts_width(w1: Tensor, hidden: int, activation: str) -> int:
    rows = _packed_rows(w1, hidden) if w1.dtype == torch.uint8 else w1.shape[1]
    return _width(activation, rows)


def _experts_shape(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    residual: Tensor | None,
    activation: str,
    out_dtype: torch.dtype | None,
) -> tuple[int, int]:
    """Checks all but addresses, and returns the shape of the result."""
    _is("x", x, (torch.bfloat16,), (2,), x)
    tokens, hidden = x.shape
    _is("topk_ids", topk_ids, (torch.int32, torch.int64), (2,), x)
    if topk_ids.shape[0] != tokens:
        raise ValueError(f"topk_ids has {topk_ids.shape[0]} tokens, but x {tokens}")
    if topk_weights is not None:
        _is("topk_weights", topk_weights, (torch.float32,), (2,), x)
        _shape("topk_weights", topk_weights, *topk_ids.shape)
    if out_dtype is not None and out_dtype not in _OUT_TYPES:
        raise ValueError(f"out_dtype is {out_dtype}, but must be torch.bfloat16 or torch.float32")
    experts = w1.shape[0] if w1.dim() else 0
    if w1.dtype == torch.uint8:
        _is("w1", w1, (torch.uint8,), (2,), x)
        _is("w2", w2, (torch.uint8,), (2,), x)
        if hidden % 32:
            raise ValueError(f"x has {hidden} columns, but packed weights want a multiple of 32")
        up = _packed_rows(w1, hidden)
        width = _width(activation, up)
        if width % 32 or w1.shape[1] != up * (hidden // 2 + hidden // 32 + 1):
            raise ValueError(f"w1 has {w1.shape[1]} bytes an expert, which are no packed weights of {hidden} columns")
        _shape("w2", w2, experts, _padded_rows(hidden) * (width // 2 + width // 32 + 1))
    else:
        _is("w1", w1, (torch.bfloat16,), (3,), x)
        _is("w2", w2, (torch.bfloat16,), (3,), x)
        up = w1.shape[1]
        width = _width(activation, up)
        _shape("w1", w1, experts, up, hidden)
        _shape("w2", w2, experts, hidden, width)
    if b1 is not None:
        _is("b1", b1, (torch.bfloat16,), (2,), x)
        _shape("b1", b1, experts, up)
    if b2 is not None:
        _is("b2", b2, (torch.bfloat16,), (2,), x)
        _shape("b2", b2, experts, hidden)
    if residual is not None:
        _is("residual", residual, (out_dtype or torch.bfloat16,), (2,), x)
        _shape("residual", residual, tokens, hidden)
    return tokens, hidden


def _padded_rows(hidden: int) -> int:
    """Rows of a packed matrix of so many, padded to 16."""
    return -(-hidden // 16) * 16


# Of x, topk_ids, topk_weights, w1, w2, b1, b2 and residual.
_LAYER_PLACES = (
    (_layer._X, True), (_layer._IDS, False), (_layer._WEIGHTS, False), (_layer._UP, True), (_layer._DOWN, True),
    (_layer._UP_BIAS, True), (_layer._DOWN_BIAS, True), (_layer._RESIDUAL, True),
)  # fmt: skip


class _Layer(NamedTuple):
    """What a call of experts needs beside its tensors."""

    layer: ExpertLayer | None  # None: there is no token
    tokens: int
    shape: tuple[int, int]
    dtype: torch.dtype
    ld_x: int
    ld_w1: int
    ld_w2: int
    ld_residual: int
    workspace_bytes: int


def _layer_of(
    where: _Gpu | _Simulator,
    tokens: int,
    experts: int,
    top_k: int,
    hidden: int,
    width: int,
    packed: bool,
    up_bias: bool,
    down_bias: bool,
    residual: bool,
    dtype: torch.dtype,
    id_type: torch.dtype,
    activation: str,
    parameters: tuple[float, ...] | None,
    gate: str,
    first_expert: int,
    all_experts: int | None,
) -> ExpertLayer:
    """The layer for calls of so many tokens, planned and compiled."""
    tokens_range = _range_of(tokens)

    def make() -> ExpertLayer:
        return ExpertLayer(
            where.device,
            experts=experts,
            top_k=top_k,
            hidden=hidden,
            width=width,
            max_tokens=min(2 << (2 * tokens_range), 1 << 20),
            expected_tokens=1 << (2 * tokens_range),
            weights="mxfp4" if packed else "bf16",
            activation=activation,
            activation_parameters=_parameter_dict(activation, parameters),
            gate=gate,
            up_bias=up_bias,
            down_bias=down_bias,
            residual=residual,
            out=_OUT_TYPES[dtype],
            id_type=_ID_TYPES[id_type],
            first_expert=first_expert,
            all_experts=all_experts,
        )

    return _prepared(
        (where.device, tokens_range, experts, top_k, hidden, width, packed, up_bias, down_bias, residual, dtype,
         id_type, activation, parameters, gate, first_expert, all_experts),
        make,
    )  # fmt: skip


def _experts_prepared(
    where: _Gpu | _Simulator, key: tuple, tensors: tuple[Tensor | None, ...]
) -> tuple[tuple[Tensor | None, ...], _Layer]:
    """Checks, plans and compiles, and copies what kernels cannot read where it lies."""
    _, activation, parameters, gate, first_expert, all_experts, out_dtype = key
    x, topk_ids, topk_weights, w1, w2, b1, b2, residual = tensors
    assert x is not None and topk_ids is not None and w1 is not None and w2 is not None
    shape = _experts_shape(x, topk_ids, topk_weights, w1, w2, b1, b2, residual, activation, out_dtype)
    tokens, hidden = shape
    dtype = out_dtype or torch.bfloat16
    if tokens == 0:
        return tensors, _Layer(None, 0, shape, dtype, 0, 0, 0, 0, 0)
    packed = w1.dtype == torch.uint8
    layer = _layer_of(
        where, tokens, w1.shape[0], topk_ids.shape[1], hidden, _experts_width(w1, hidden, activation), packed,
        b1 is not None, b2 is not None, residual is not None, dtype, topk_ids.dtype, *key[1:6],
    )  # fmt: skip
    a, ld_x = _matrices(x)
    if packed:
        up, down, ld_w1, ld_w2 = _aligned(w1), _aligned(w2), 0, 0
    else:
        up, ld_w1 = _matrices(w1)
        down, ld_w2 = _matrices(w2)
    ld_residual = 0
    if residual is not None:
        residual, ld_residual = _matrices(residual)
    copied = (
        a,
        topk_ids.contiguous(),
        None if topk_weights is None else topk_weights.contiguous(),
        up,
        down,
        None if b1 is None else _aligned(b1),
        None if b2 is None else _aligned(b2),
        residual,
    )
    call = _Layer(layer, tokens, shape, dtype, ld_x, ld_w1, ld_w2, ld_residual, layer.workspace_bytes(tokens))
    if all(each is given for each, given in zip(copied, tensors, strict=True)):
        _remember(where.calls, key, call)
    return copied, call


def _experts(
    where: _Gpu | _Simulator,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    residual: Tensor | None,
    activation: str,
    parameters: list[float] | None,
    gate: str,
    first_expert: int,
    all_experts: int | None,
    out_dtype: torch.dtype | None,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """out: where the result goes, dense and aligned. workspace: memory that is used where it is enough."""
    parameters = None if parameters is None else tuple(parameters)
    options = (activation, parameters, gate, first_expert, all_experts, out_dtype)
    known = _known_layers.get(options) if out is None else None
    if known is not None and (result := known(x, topk_ids, topk_weights, w1, w2, b1, b2, residual)) is not None:
        return result
    given: tuple[Tensor | None, ...] = (x, topk_ids, topk_weights, w1, w2, b1, b2, residual)
    tensors = given
    key = (_signature(tensors), *options)
    call = where.calls.get(key)
    is_new = call is None
    if call is None:
        tensors, call = _experts_prepared(where, key, tensors)
    into = out
    if into is not None:
        _is("out", into, (call.dtype,), (2,), x)
        _shape("out", into, *call.shape)
        if not into.is_contiguous() or into.data_ptr() % 16:
            raise ValueError("out is not contiguous, or does not begin at a multiple of 16 bytes")
    out = x.new_empty(call.shape, dtype=call.dtype) if into is None else into
    if call.layer is None:
        return out
    at = where.at
    a, ids, weights, up, down, up_bias, down_bias, added = [at(each) for each in tensors]
    if (a | up | down | up_bias | down_bias | added) & 15:
        tensors, call = _experts_prepared(where, key, tensors)
        a, ids, weights, up, down, up_bias, down_bias, added = [at(each) for each in tensors]
    memory, kept = where.workspace(call.workspace_bytes, x, workspace)
    arguments = {
        "tokens": call.tokens,
        "x": a,
        "up": up,
        "down": down,
        "out": at(out),
        "topk_ids": ids,
        "topk_weights": weights,
        "up_bias": up_bias,
        "down_bias": down_bias,
        "residual": added,
        "ld_x": call.ld_x,
        "ld_up": call.ld_w1,
        "ld_down": call.ld_w2,
        "ld_residual": call.ld_residual,
        "workspace": memory,
        "workspace_bytes": call.workspace_bytes,
        "stream": where.stream(),
    }
    call.layer.run(**arguments)
    if is_new and into is None and key in where.calls:
        _make_known(where, _known_layers, options, given, _LAYER_PLACES, _layer._OUT, out, call.layer, arguments)
    del kept
    return out


def experts(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    *,
    b1: Tensor | None = None,
    b2: Tensor | None = None,
    activation: str = "swiglu",
    activation_parameters: Mapping[str, float] | None = None,
    gate: str = "split",
    residual: Tensor | None = None,
    first_expert: int = 0,
    all_experts: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """A whole expert layer in one call:

        y[t] = residual[t] + sum over the k experts e of token t:
               topk_weights[t, e] * (act(x[t] w1[e]^T + b1[e]) w2[e]^T + b2[e])

    x: bf16 [T, H]. topk_ids: int32 or int64 [T, k], k at most 16; pairs with ids outside first_expert to first_expert +
    E - 1 are skipped, whatever they are. topk_weights: float32 or bf16 [T, k]; None: every weight is 1.
    w1: [E, 2 I, H] with a gated activation, else [E, I, H]; w2: [E, H, I]. Both bf16, or both packed MXFP4, uint8
    [E, bytes] as moxie.torch.pack_weights returns them. bf16 weights whose rows are not dense (a transposed view) are
    copied at every call.
    b1: bf16 [E, 2 I or I]. b2: bf16 [E, H]. residual: [T, H] of y's type.
    activation, activation_parameters, gate: as for moxie.grouped_mm; gate says where gate and up lie in the rows of w1.
    all_experts: of all GPUs, where experts are spread over several; it changes the plan alone.
    out_dtype: torch.bfloat16 (default) or torch.float32. Returns y [T, H].

    The host waits for nothing, and the call serves every routing when it is replayed from a CUDA graph. The result is
    the same bits in every run. ValueError: an argument breaks a rule, or the device has no kernel for it.
    RuntimeError: a gradient is asked for, driver, compiler. Nothing was launched then.
    """
    if not is_compiling():
        result = _known_layers.run(
            activation, activation_parameters, gate, first_expert, all_experts, out_dtype, x, topk_ids, topk_weights,
            w1, w2, b1, b2, residual,
        )  # fmt: skip
        if result is not None:
            return result if type(result) is Tensor else check(result)
    _tensors(2, x=x, topk_ids=topk_ids)
    _tensors(0, topk_weights=topk_weights)
    _tensors(2, w1=w1, w2=w2, b1=b1, b2=b2, residual=residual)
    require_integers(first_expert=first_expert, all_experts=0 if all_experts is None else all_experts)
    _words(activation=activation, gate=gate)
    _no_gradient("moxie.experts", x, topk_weights, w1, w2, b1, b2, residual)
    if topk_weights is not None and topk_weights.dtype == torch.bfloat16:
        topk_weights = topk_weights.float()
    parameters = None if activation_parameters is None else _parameter_list(activation, activation_parameters)
    if _unobserved(x) and _ORDINARY.issuperset(map(type, (x, topk_ids, topk_weights, w1, w2, b1, b2, residual))):
        call = _on_gpu if x.is_cuda else _on_cpu
        return call(
            _experts, x, topk_ids, topk_weights, w1, w2, b1, b2, residual, activation, parameters, gate, first_expert,
            all_experts, out_dtype,
        )  # fmt: skip
    return torch.ops.moxie.experts(
        x, topk_ids, topk_weights, w1, w2, b1, b2, residual, activation, parameters, gate, first_expert, all_experts,
        out_dtype,
    )  # fmt: skip


# ---- Layers over ranks ----


def _layer_over_ranks(
    device: Device,
    *,
    experts: int,
    all_experts: int,
    ranks: Ranks,
    top_k: int,
    hidden: int,
    width: int,
    max_tokens: int,
    packed: bool,
    activation: str,
    parameters: tuple[float, ...] | None,
    gate: str,
    up_bias: bool = False,
    down_bias: bool = False,
    residual: bool = False,
    id_type: str = "int64",
) -> ExpertLayer:
    """The layer of these, made by the first call that asks for it."""
    options = {
        "experts": experts,
        "all_experts": all_experts,
        "ranks": ranks,
        "top_k": top_k,
        "hidden": hidden,
        "width": width,
        "max_tokens": max_tokens,
        "weights": "mxfp4" if packed else "bf16",
        "activation": activation,
        "gate": gate,
        "up_bias": up_bias,
        "down_bias": down_bias,
        "residual": residual,
        "id_type": id_type,
    }
    its = _parameter_dict(activation, parameters)
    return _prepared(
        ("ranks", device, parameters, *options.values()),
        lambda: ExpertLayer(device, activation_parameters=its, **options),
    )


def _experts_over_ranks_shape(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    residual: Tensor | None,
    window: Tensor,
    places: Tensor | None,
    windows: list[int],
    max_tokens: int,
    activation: str,
) -> tuple[int, int]:
    """Checks all but addresses, and returns the shape of the result."""
    shape = _experts_shape(x, topk_ids, topk_weights, w1, w2, b1, b2, residual, activation, None)
    _is("window", window, (torch.uint8,), (1,), x)
    if places is not None:
        _is("places", places, (torch.int32,), (1,), x)
    if shape[0] > max_tokens:
        raise ValueError(f"x has {shape[0]} tokens, but windows were made for {max_tokens}")
    return shape


def _experts_over_ranks(
    where: Any,
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor | None,
    w1: Tensor,
    w2: Tensor,
    b1: Tensor | None,
    b2: Tensor | None,
    residual: Tensor | None,
    window: Tensor,
    places: Tensor | None,
    windows: list[int],
    rank: int,
    all_experts: int,
    max_tokens: int,
    max_rows: int | None,
    time_limit: float,
    row_format: str,
    results: str | None,
    activation: str,
    parameters: list[float] | None,
    gate: str,
    meanwhile: Callable[[], Callable[[], Tensor]] | None = None,
) -> Tensor:
    """meanwhile: called when the tokens are sent. What it returns is called before the sum, and gives the residual."""
    shape = _experts_over_ranks_shape(
        x, topk_ids, topk_weights, w1, w2, b1, b2, residual, window, places, windows, max_tokens, activation
    )
    if len(windows) > 1 and not isinstance(where, _Gpu):
        raise ValueError("windows of several ranks are for tensors on GPUs")
    tokens, hidden = shape
    packed = w1.dtype == torch.uint8
    layer = _layer_over_ranks(
        where.device,
        experts=w1.shape[0],
        all_experts=all_experts,
        ranks=Ranks(max(len(windows), 1), rank, max_rows, time_limit, row_format, results),
        top_k=topk_ids.shape[1],
        hidden=hidden,
        width=_experts_width(w1, hidden, activation),
        max_tokens=max_tokens,
        packed=packed,
        activation=activation,
        parameters=None if parameters is None else tuple(parameters),
        gate=gate,
        up_bias=b1 is not None,
        down_bias=b2 is not None,
        residual=residual is not None or meanwhile is not None,
        id_type=_ID_TYPES[topk_ids.dtype],
    )
    if window.numel() < layer.window_bytes():
        raise ValueError(f"window has {window.numel()} bytes, but must have {layer.window_bytes()}")
    x, ld_x = _matrices(x)
    up, ld_up = (_aligned(w1), 0) if packed else _matrices(w1)
    down, ld_down = (_aligned(w2), 0) if packed else _matrices(w2)
    up_bias, down_bias = (None if each is None else _aligned(each) for each in (b1, b2))
    ids, weights, its_places = (
        None if each is None else each.contiguous() for each in (topk_ids, topk_weights, places)
    )
    out = x.new_empty(shape)
    at = where.at
    nbytes = layer.workspace_bytes(tokens)
    workspace, kept = where.workspace(nbytes, x)
    # On the simulator the only window is the copy in its memory.
    own = at(window)
    run = functools.partial(
        layer.run,
        tokens=tokens,
        x=at(x),
        up=at(up),
        down=at(down),
        out=at(out),
        topk_ids=at(ids),
        topk_weights=at(weights),
        up_bias=at(up_bias),
        down_bias=at(down_bias),
        ld_x=ld_x,
        ld_up=ld_up,
        ld_down=ld_down,
        windows=windows if isinstance(where, _Gpu) and windows else [own],
        places=at(its_places),
        workspace=workspace,
        workspace_bytes=nbytes,
        stream=where.stream(),
    )
    part = "all"
    if meanwhile is not None:
        run(part="send")
        ready = meanwhile()
        run(part="multiply")
        residual, part = ready(), "sum"
    ld_residual = 0
    if residual is not None:
        residual, ld_residual = _matrices(residual)
    run(residual=at(residual), ld_residual=ld_residual, part=part)
    if isinstance(where, _Simulator):
        where.bring_back(window)
    del kept
    return out


def _over_ranks_meanwhile(meanwhile: Callable[[], Callable[[], Tensor]], x: Tensor, *rest: Any) -> Tensor:
    """The operator experts_over_ranks, beside which the residual is made."""
    call = _on_gpu if x.is_cuda else _on_cpu
    return call(functools.partial(_experts_over_ranks, meanwhile=meanwhile), x, *rest)


def _prepare_window(layer: ExpertLayer, window: Tensor) -> None:
    if window.is_cuda:
        layer.prepare_window(window.data_ptr(), _Gpu.of(window).stream())


def _check_ranks(layer: ExpertLayer, window: Tensor) -> None:
    """Waits for the current stream. RuntimeError: what went wrong between ranks."""
    where = _Gpu.of(window) if window.is_cuda else _Simulator()
    try:
        layer.check_ranks(where.at(window), where.stream())
    finally:
        if isinstance(where, _Simulator):
            where.bring_back(window)


# ---- Around the products ----


def _sorted_shapes(ids: Tensor, experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Checks, and makes room for ends, order and inverse."""
    _is("ids", ids, (torch.int32, torch.int64), (2,), ids)
    if not 1 <= experts <= 1024:
        raise ValueError(f"experts is {experts}, but must be 1 to 1,024")
    make = functools.partial(ids.new_empty, dtype=torch.int32)
    return make((experts,)), make((ids.numel(),)), make(ids.shape)


def _sort_by_expert(where: Any, ids: Tensor, experts: int, first_expert: int) -> tuple[Tensor, Tensor, Tensor]:
    ends, order, inverse = _sorted_shapes(ids, experts)
    if ids.numel() == 0:
        return ends.zero_(), order, inverse
    tokens, top_k = ids.shape
    nbytes = ffi.new("size_t*")
    check(lib.moxie_sort_workspace_bytes(tokens, top_k, experts, nbytes))
    workspace, kept = where.workspace(nbytes[0], ends.view(torch.bfloat16))
    ids = ids.contiguous()
    sort = arguments(
        "moxie_expert_sort",
        tokens=tokens,
        experts=experts,
        ids=where.at(ids),
        ends=where.at(ends),
        order=where.at(order),
        inverse=where.at(inverse),
        top_k=top_k,
        id_type=enum_value("id_type", _ID_TYPES[ids.dtype]),
        first_expert=first_expert,
    )
    options = arguments("moxie_launch_options", stream=where.stream())
    check(lib.moxie_sort_by_expert(where.device.handle, sort, ffi.cast("void*", workspace), nbytes[0], options))
    del kept
    return ends, order, inverse


def sort_by_expert(ids: Tensor, experts: int, *, first_expert: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of token and choice by expert: ends int32 [E], order int32 [T k] and inverse int32 [T, k].

    ids: int32 or int64 [T, k]; those outside first_expert to first_expert + experts - 1 are skipped. Row r of the
    sorted rows is a row of token order[r] // k; inverse holds each pair's row, or -1. What order holds past the last
    end is undefined.
    """
    _tensors(1, ids=ids)
    require_integers(experts=experts, first_expert=first_expert)
    return torch.ops.moxie.sort_by_expert(ids, experts, first_expert)


def _combined_shape(
    rows: Tensor, inverse: Tensor, weights: Tensor | None, residual: Tensor | None, out_dtype: torch.dtype | None
) -> tuple[int, int]:
    """Checks, and returns the shape of the result."""
    _is("rows", rows, tuple(_OUT_TYPES), (2,), rows)
    _is("inverse", inverse, (torch.int32,), (2,), rows)
    shape = inverse.shape[0], rows.shape[1]
    if out_dtype is not None and out_dtype not in _OUT_TYPES:
        raise ValueError(f"out_dtype is {out_dtype}, but must be torch.bfloat16 or torch.float32")
    if weights is not None:
        _is("weights", weights, (torch.float32,), (2,), rows)
        _shape("weights", weights, *inverse.shape)
    if residual is not None:
        _is("residual", residual, (out_dtype or torch.bfloat16,), (2,), rows)
        _shape("residual", residual, *shape)
    return shape


def _combine(
    where: Any,
    rows: Tensor,
    inverse: Tensor,
    weights: Tensor | None,
    residual: Tensor | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    shape = _combined_shape(rows, inverse, weights, residual, out_dtype)
    out = rows.new_empty(shape, dtype=out_dtype or torch.bfloat16)
    if out.numel() == 0 or rows.shape[0] == 0:
        return out.zero_() if residual is None else out.copy_(residual)
    rows, ld_rows = _matrices(rows)
    ld_residual = 0
    if residual is not None:
        residual, ld_residual = _matrices(residual)
    inverse = inverse.contiguous()
    weights = None if weights is None else weights.contiguous()
    combination = arguments(
        "moxie_expert_combination",
        tokens=shape[0],
        width=shape[1],
        row_count=rows.shape[0],
        rows=where.at(rows),
        inverse=where.at(inverse),
        out=where.at(out),
        top_k=inverse.shape[1],
        rows_type=enum_value("data_type", _OUT_TYPES[rows.dtype]),
        out_type=enum_value("data_type", _OUT_TYPES[out.dtype]),
        ld_rows=ld_rows,
        weights=where.at(weights),
        residual=where.at(residual),
        ld_residual=ld_residual,
        ld_out=shape[1],
    )
    check(
        lib.moxie_combine(
            where.device.handle, combination, arguments("moxie_launch_options", stream=where.stream())
        )
    )
    return out


def combine(
    rows: Tensor,
    inverse: Tensor,
    weights: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """y[t] = residual[t] + sum over j of weights[t, j] * rows[inverse[t, j]], in float32 and in the order of j.

    rows: bf16 or float32 [R, H]. inverse: int32 [T, k]; what is not 0 to R - 1 is skipped. weights: float32 [T, k];
    None: 1. residual: [T, H] of y's type. out_dtype: torch.bfloat16 (default) or torch.float32. Returns y [T, H].
    """
    _tensors(2, rows=rows, inverse=inverse, weights=weights, residual=residual)
    _no_gradient("moxie.torch.combine", rows, weights, residual)
    return torch.ops.moxie.combine(rows, inverse, weights, residual, out_dtype)


# ---- For servers, which bring memory ----


def token_ranges(tokens: int) -> list[int]:
    """The most tokens of each range that calls of up to so many fall into; every range has a layer of its own."""
    return [min(2 << (2 * each), tokens) for each in range(_range_of(tokens) + 1)]


def experts_workspace_bytes(where: _Gpu | _Simulator, tokens: int, *layer: Any) -> int:
    """Of a call of experts_into with so many tokens. The layer is planned and compiled if it is not yet."""
    return _layer_of(where, tokens, *layer).workspace_bytes(tokens)


def experts_into(out: Tensor, workspace: Tensor, x: Tensor, *rest: Any) -> None:
    """moxie.experts with the operator's arguments, whose result goes to `out`. workspace: memory for the call, at a
    multiple of 256 bytes; where it is too small, torch's allocator brings it."""
    (_on_gpu if x.is_cuda else _on_cpu)(functools.partial(_experts, out=out, workspace=workspace), x, *rest)


# ---- Formats ----


# Elements in a byte, the type of the elements' tensor, and elements of a scale.
_FORMATS = {
    "mxfp4": (2, torch.uint8, 32),
    "mxfp8": (1, torch.float8_e4m3fn, 32),
    "nvfp4": (2, torch.uint8, 16),
}


def _quantized_shapes(
    shape: torch.Size, format: str, layout: str
) -> tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]:
    """Of the elements and of the scales of values of a shape."""
    if format not in _FORMATS:
        raise ValueError(f"format is {format!r}, but must be 'mxfp4', 'mxfp8' or 'nvfp4'")
    if layout not in ("row_major", "blocked"):
        raise ValueError(f"layout is {layout!r}, but must be 'row_major' or 'blocked'")
    if len(shape) not in (2, 3):
        raise ValueError(f"values have {len(shape)} dimensions, but must have 2 or 3")
    per_byte, dtype, block = _FORMATS[format]
    *outer, rows, k = shape
    if k % 32 and (format != "nvfp4" or k % 16):
        raise ValueError(f"values have {k} columns, but {format} wants a multiple of {block}")
    if layout == "row_major":
        scales: tuple[int, ...] = (*outer, rows, k // block)
    else:
        # Tiles of 128 rows by 4 scales (moxie/scales.h).
        scales = (*outer, -(-rows // 128) * -(-k // (4 * block)) * 512)
    return (*outer, rows, k // per_byte), dtype, scales


def _quantization(where: Any, tensor_type: torch.dtype, format: str, layout: str, shape: Any, **more: Any) -> Any:
    return {
        "format": enum_value("data_type", format),
        "type": enum_value("data_type", _OUT_TYPES[tensor_type]),
        "rows": shape[-2],
        "k": shape[-1],
        "groups": shape[0] if len(shape) == 3 else 1,
        "layout": enum_value("scale_layout", layout),
        "stream": where.stream(),
        **more,
    }


def _tensor_scale_of(where: Any, values: Tensor) -> Tensor:
    _is("values", values, tuple(_OUT_TYPES), (2, 3), values)
    if values.shape[0] == 0:
        values = values.flatten(0, -2)  # 0 groups would stand for 1 in C
    values, ld = _matrices(values)
    scale = torch.empty(1, dtype=torch.float32, device=values.device)
    members = _quantization(
        where, values.dtype, "nvfp4", "row_major", values.shape, values=where.at(values), ld_values=ld
    )
    to = ffi.cast("float*", where.at(scale))
    check(lib.moxie_find_tensor_scale(where.device.handle, arguments("moxie_quantization", **members), to))
    return scale


def _quantize(
    where: Any, values: Tensor, format: str, layout: str, tensor_scale: Tensor | None
) -> tuple[Tensor, Tensor]:
    _is("values", values, tuple(_OUT_TYPES), (2, 3), values)
    shape, dtype, scale_shape = _quantized_shapes(values.shape, format, layout)
    elements = torch.empty(shape, dtype=dtype, device=values.device)
    scales = torch.empty(scale_shape, dtype=torch.uint8, device=values.device)
    if values.numel() == 0:
        return elements, scales
    values, ld = _matrices(values)
    members = _quantization(
        where,
        values.dtype,
        format,
        layout,
        values.shape,
        values=where.at(values),
        ld_values=ld,
        elements=where.at(elements),
        scales=where.at(scales),
        tensor_scale=where.at(tensor_scale),
    )
    check(lib.moxie_quantize(where.device.handle, arguments("moxie_quantization", **members)))
    return elements, scales


def _dequantize(
    where: Any,
    elements: Tensor,
    scales: Tensor,
    format: str,
    layout: str,
    tensor_scale: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    values = _dequantized(elements, scales, format, layout, tensor_scale, dtype)
    if values.numel() == 0:
        return values
    elements, scales = _aligned(elements), _aligned(scales)
    members = _quantization(
        where,
        dtype,
        format,
        layout,
        values.shape,
        elements=where.at(elements),
        scales=where.at(scales),
        values=where.at(values),
        tensor_scale=where.at(tensor_scale),
    )
    check(lib.moxie_dequantize(where.device.handle, arguments("moxie_dequantization", **members)))
    return values


def _dequantized(
    elements: Tensor,
    scales: Tensor,
    format: str,
    layout: str,
    tensor_scale: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Checks, and makes room for the values."""
    if format not in _FORMATS:
        raise ValueError(f"format is {format!r}, but must be 'mxfp4', 'mxfp8' or 'nvfp4'")
    if dtype not in _OUT_TYPES:
        raise ValueError(f"dtype is {dtype}, but must be torch.bfloat16 or torch.float32")
    per_byte, element_type, _ = _FORMATS[format]
    _is("elements", elements, (element_type,), (2, 3), elements)
    shape = torch.Size((*elements.shape[:-1], elements.shape[-1] * per_byte))
    _is("scales", scales, (torch.uint8,), (1, 2, 3), elements)
    _shape("scales", scales, *_quantized_shapes(shape, format, layout)[2])
    return torch.empty(shape, dtype=dtype, device=elements.device)


def _check_tensor_scale(format: str, tensor_scale: Tensor | None, like: Tensor) -> None:
    if (tensor_scale is not None) != (format == "nvfp4"):
        raise ValueError(f"tensor_scale is {'missing' if tensor_scale is None else 'given'}, but format is {format}")
    if tensor_scale is not None:
        _is("tensor_scale", tensor_scale, (torch.float32,), (0, 1), like)


def quantize(
    values: Tensor, format: str = "mxfp4", *, layout: str = "row_major", tensor_scale: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Rows of bf16 or float32 values [R, K] or [G, R, K] to MXFP4, MXFP8 or NVFP4, as moxie/quantize.h says.

    Returns (elements, scales), for "nvfp4" (elements, scales, tensor_scale). Elements are uint8 [.., R, K / 2] with two
    E2M1 in a byte, or float8_e4m3fn [.., R, K]; scales uint8 [.., R, K / 32] (NVFP4: K / 16), or with layout="blocked"
    [.., bytes] as products of those formats read them. tensor_scale: float32 [1] of NVFP4; None: the one that uses the
    range of both formats.
    """
    _tensors(1, values=values, tensor_scale=tensor_scale)
    _words(format=format, layout=layout)
    _no_gradient("moxie.torch.quantize", values)
    if format == "nvfp4" and tensor_scale is None:
        tensor_scale = torch.ops.moxie.find_tensor_scale(values)
    _check_tensor_scale(format, tensor_scale, values)
    elements, scales = torch.ops.moxie.quantize(values, format, layout, tensor_scale)
    return (elements, scales) if tensor_scale is None else (elements, scales, tensor_scale)


def dequantize(
    elements: Tensor,
    scales: Tensor,
    format: str = "mxfp4",
    *,
    layout: str = "row_major",
    tensor_scale: Tensor | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """The way back from what quantize returned, to torch.bfloat16 or torch.float32."""
    _tensors(2, elements=elements, scales=scales, tensor_scale=tensor_scale)
    _words(format=format, layout=layout)
    _check_tensor_scale(format, tensor_scale, elements)
    return torch.ops.moxie.dequantize(elements, scales, format, layout, tensor_scale, dtype)


def _packed_shape(codes: Tensor, scales: Tensor) -> tuple[int, int]:
    _is("codes", codes, (torch.uint8,), (3,), codes)
    _is("scales", scales, (torch.uint8,), (3,), codes)
    groups, n, half = codes.shape
    if half % 16 or n % 8:
        raise ValueError(f"codes are {list(codes.shape)}, but must be [G, N, K / 2], N a multiple of 8, K of 32")
    _shape("scales", scales, groups, n, half // 16)
    return groups, _padded_rows(n) * (half + half // 16 + 1)


def _pack_weights(where: Any, codes: Tensor, scales: Tensor, gate: str) -> tuple[Tensor, Tensor]:
    packed = torch.empty(_packed_shape(codes, scales), dtype=torch.uint8, device=codes.device)
    refused = torch.full((1,), -1, dtype=torch.int64, device=codes.device)
    if codes.numel() == 0:
        return packed, refused
    codes, scales = _aligned(codes), _aligned(scales)
    packing = arguments(
        "moxie_weight_packing",
        n=codes.shape[1],
        k=2 * codes.shape[2],
        groups=codes.shape[0],
        codes=where.at(codes),
        scales=where.at(scales),
        packed=where.at(packed),
        refused=where.at(refused),
        stream=where.stream(),
        gated=gate != "none",
        gate=enum_value("gate_layout", "interleaved" if gate == "none" else gate),
    )
    check(lib.moxie_pack_weights(where.device.handle, packing))
    return packed, refused


def _unpacked(packed: Tensor, n: int, k: int) -> tuple[Tensor, Tensor]:
    """Checks, and makes room for codes and scales."""
    _is("packed", packed, (torch.uint8,), (2,), packed)
    if n % 8 or k % 32:
        raise ValueError(f"n is {n} and k {k}, but must be multiples of 8 and 32")
    _shape("packed", packed, packed.shape[0], _padded_rows(n) * (k // 2 + k // 32 + 1))
    codes = torch.empty((packed.shape[0], n, k // 2), dtype=torch.uint8, device=packed.device)
    return codes, torch.empty((packed.shape[0], n, k // 32), dtype=torch.uint8, device=packed.device)


def _unpack_weights(where: Any, packed: Tensor, n: int, k: int, gate: str) -> tuple[Tensor, Tensor]:
    codes, scales = _unpacked(packed, n, k)
    if packed.numel() == 0:
        return codes, scales
    packed = _aligned(packed)
    packing = arguments(
        "moxie_weight_unpacking",
        n=n,
        k=k,
        groups=packed.shape[0],
        packed=where.at(packed),
        codes=where.at(codes),
        scales=where.at(scales),
        stream=where.stream(),
        gated=gate != "none",
        gate=enum_value("gate_layout", "interleaved" if gate == "none" else gate),
    )
    check(lib.moxie_unpack_weights(where.device.handle, packing))
    return codes, scales


def pack_weights(codes: Tensor, scales: Tensor, *, gate: str | None = None) -> Tensor:
    """MXFP4 weights from a checkpoint's order to the one in which kernels read them (docs/weights.md of the project).

    codes: uint8 [E, N, K / 2], two E2M1 in a byte, the first in the low nibble, or [E, N, K / 32, 16] as GPT-OSS's
    checkpoints have them. scales: uint8 [E, N, K / 32], E8M0. gate: where gate and up lie in N, for a first product
    with a gated activation ("interleaved", "split", "split_up_first"); None for others.
    Returns uint8 [E, bytes], less than 1% more than came in: w1 or w2 of moxie.experts. Waits for the result.
    ValueError: an argument breaks a rule, or the scales of a row lie too far apart to be exact.
    """
    _tensors(2, codes=codes, scales=scales)
    _words(gate=gate or "none")
    if codes.dim() == 4:
        codes = codes.flatten(2)
    packed, refused = torch.ops.moxie.pack_weights(codes, scales, gate or "none")
    row = -1 if packed.is_meta else int(refused.item())
    if row != -1:
        raise ValueError(
            f"scales of row {row % codes.shape[1]} of expert {row // codes.shape[1]} lie too far apart: the largest "
            "may be above 128 only where it is at most 133 above the smallest"
        )
    return packed


def unpack_weights(packed: Tensor, n: int, k: int, *, gate: str | None = None) -> tuple[Tensor, Tensor]:
    """The way back from what pack_weights returned: codes [E, N, K / 2] and scales [E, N, K / 32], to the last bit."""
    _tensors(1, packed=packed)
    require_integers(n=n, k=k)
    _words(gate=gate or "none")
    return torch.ops.moxie.unpack_weights(packed, n, k, gate or "none")


# ---- Operators ----


def _on_gpu(implementation: Callable[..., Any], first: Tensor, *rest: Any) -> Any:
    return implementation(_Gpu.of(first), first, *rest)


def _on_cpu(implementation: Callable[..., Any], *arguments: Any) -> Any:
    simulator = _Simulator()
    if not all(each.is_cpu for each in arguments if isinstance(each, Tensor)):
        simulator.calls = {}  # signatures do not tell the CPU from what is no GPU either; checks do
    result = implementation(simulator, *arguments)
    simulator.bring_back(*(result if isinstance(result, tuple) else (result,)))
    return result


def _register(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema[: schema.index("(")]
    _library.define(schema)

    _library.impl(name, functools.partial(_on_gpu, implementation), "CUDA")
    _library.impl(name, functools.partial(_on_cpu, implementation), "CPU")
    torch.library.register_fake(f"moxie::{name}", fake, lib=_library)


def _grouped_mm_fake(mat_a, mat_b, offs, bias, gather, divisor, activation, parameters, gate, out_dtype):
    shape = _grouped_mm_shape(mat_a, mat_b, offs, bias, gather, divisor, activation, out_dtype)
    return mat_a.new_empty(shape, dtype=out_dtype or torch.bfloat16)


def _experts_fake(
    x, topk_ids, topk_weights, w1, w2, b1, b2, residual, activation, parameters, gate, first, of, out_dtype
):
    shape = _experts_shape(x, topk_ids, topk_weights, w1, w2, b1, b2, residual, activation, out_dtype)
    return x.new_empty(shape, dtype=out_dtype or torch.bfloat16)


def _experts_over_ranks_fake(
    x, topk_ids, topk_weights, w1, w2, b1, b2, residual, window, places, windows, rank, all_experts, max_tokens,
    max_rows, time_limit, row_format, results, activation, parameters, gate
):  # fmt: skip
    return x.new_empty(
        _experts_over_ranks_shape(
            x, topk_ids, topk_weights, w1, w2, b1, b2, residual, window, places, windows, max_tokens, activation
        )
    )


def _quantize_fake(values, format, layout, tensor_scale):
    shape, dtype, scales = _quantized_shapes(values.shape, format, layout)
    return values.new_empty(shape, dtype=dtype), values.new_empty(scales, dtype=torch.uint8)


def _pack_weights_fake(codes, scales, gate):
    return codes.new_empty(_packed_shape(codes, scales)), codes.new_empty((1,), dtype=torch.int64)


_library = torch.library.Library("moxie", "DEF")
_register(
    "grouped_mm(Tensor mat_a, Tensor mat_b, Tensor? offs, Tensor? bias, Tensor? gather, int divisor, str activation, "
    "float[]? parameters, str gate, ScalarType? out_dtype) -> Tensor",
    _grouped_mm,
    _grouped_mm_fake,
)
_register(
    "experts(Tensor x, Tensor topk_ids, Tensor? topk_weights, Tensor w1, Tensor w2, Tensor? b1, Tensor? b2, "
    "Tensor? residual, str activation, float[]? parameters, str gate, int first_expert, int? all_experts, "
    "ScalarType? out_dtype) -> Tensor",
    _experts,
    _experts_fake,
)
_register(
    "experts_over_ranks(Tensor x, Tensor topk_ids, Tensor? topk_weights, Tensor w1, Tensor w2, Tensor? b1, Tensor? b2, "
    "Tensor? residual, Tensor(a!) window, Tensor? places, int[] windows, int rank, int all_experts, int max_tokens, "
    "int? max_rows, float time_limit, str row_format, str? results, str activation, float[]? parameters, str gate) "
    "-> Tensor",
    _experts_over_ranks,
    _experts_over_ranks_fake,
)
_register(
    "sort_by_expert(Tensor ids, int experts, int first_expert) -> (Tensor, Tensor, Tensor)",
    _sort_by_expert,
    lambda ids, experts, first_expert: _sorted_shapes(ids, experts),
)
_register(
    "combine(Tensor rows, Tensor inverse, Tensor? weights, Tensor? residual, ScalarType? out_dtype) -> Tensor",
    _combine,
    lambda rows, inverse, weights, residual, out_dtype: rows.new_empty(
        _combined_shape(rows, inverse, weights, residual, out_dtype), dtype=out_dtype or torch.bfloat16
    ),
)
_register(
    "find_tensor_scale(Tensor values) -> Tensor",
    _tensor_scale_of,
    lambda values: values.new_empty((1,), dtype=torch.float32),
)
_register(
    "quantize(Tensor values, str format, str layout, Tensor? tensor_scale) -> (Tensor, Tensor)",
    _quantize,
    _quantize_fake,
)
_register(
    "dequantize(Tensor elements, Tensor scales, str format, str layout, Tensor? tensor_scale, ScalarType dtype) -> "
    "Tensor",
    _dequantize,
    _dequantized,
)
_register(
    "pack_weights(Tensor codes, Tensor scales, str gate) -> (Tensor, Tensor)", _pack_weights, _pack_weights_fake
)
_register(
    "unpack_weights(Tensor packed, int n, int k, str gate) -> (Tensor, Tensor)",
    _unpack_weights,
    lambda packed, n, k, gate: _unpacked(packed, n, k),
)
