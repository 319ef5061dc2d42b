# SPDX-License-Identifier: Apache-2.0
"""Calls that are known by what their tensors look like (python/native/calls.c), with a function in the library's place.
No GPU has part in this; test_cuda.py has calls of the library itself."""

import contextlib
import ctypes
import functools
import gc
import threading
import time
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import moxie
import moxie.torch
from moxie import _calls, _layer
from moxie._calls import Calls, Known, exchange_of
from moxie._device import Device
from moxie._library import ffi, lib, word_of
from moxie.torch import _LAYER_PLACES

pytestmark = pytest.mark.skipif(not exchange_of(torch.Tensor), reason="this torch has no exchange interface")

TOKENS, HIDDEN, EXPERTS, WORKSPACE = 5, 32, 3, 4096
NAMES = ("x", "topk_ids", "topk_weights", "up", "down", "up_bias", "down_bias", "residual")
Run = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
)


class Operation(_layer.ExpertLayer):
    def __init__(self, handle=0x1230):
        self.handle, self._run = ffi.cast("moxie_expert_layer*", handle), lib.moxie_expert_layer_run


class Library:
    """Notes how it is called, and answers with `status`."""

    def __init__(self):
        self.status, self.seen = 0, []
        self.function = Run(self.run)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value

    def run(self, handle, tensors, workspace, nbytes, options):
        of = ffi.cast("moxie_expert_layer_tensors*", tensors)
        copied = ffi.new("moxie_expert_layer_tensors*", of[0])
        self.seen.append((handle, copied, workspace, nbytes, ffi.cast("moxie_launch_options*", options).stream))
        return self.status


def tensors_of(tokens=TOKENS, **changes):
    made = {
        "x": torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16),
        "topk_ids": torch.zeros(tokens, 2, dtype=torch.int32),
        "topk_weights": torch.zeros(tokens, 2),
        "up": torch.nn.Parameter(torch.zeros(EXPERTS, 64, HIDDEN, dtype=torch.bfloat16)),
        "down": torch.zeros(EXPERTS, HIDDEN, 32, dtype=torch.bfloat16),
        "up_bias": None,
        "down_bias": torch.zeros(EXPERTS, HIDDEN, dtype=torch.bfloat16),
        "residual": None,
    }
    return tuple((made | changes)[name] for name in NAMES)


def new_out(tokens=TOKENS):
    return torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16)


def new_calls():
    words, aligned = zip(*_LAYER_PLACES, strict=True)
    return Calls((torch.Tensor, torch.nn.Parameter), words, _layer._OUT, aligned)


def add(calls, library, tensors, tokens=TOKENS, out=new_out, handle=0x1230, run=None, here=None):
    arguments = {name: 16 if each is not None else 0 for name, each in zip(NAMES, tensors, strict=True)}
    arguments |= {"tokens": tokens, "out": 16, "ld_up": 40, "workspace": 128, "workspace_bytes": WORKSPACE}
    calls.add(tensors, Operation(handle), arguments, functools.partial(out), here, run or library.address)


class Managed(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h."""

    _fields_ = [
        ("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("release", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2),
        ("dimensions", ctypes.c_int32), ("type", ctypes.c_uint8 * 4), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Memory:
    """Stands in the place of torch's allocator behind DLPack's exchange interface, and knows what it has given."""

    def __init__(self, monkeypatch):
        self.given, self.held, self.is_empty = [], {}, False
        self.functions = (
            ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(self.allocate),
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.release),
        )
        functions = _calls._python((torch.Tensor, torch.nn.Parameter))
        self.exchange = (ctypes.c_void_p * 7).from_buffer_copy(ctypes.string_at(functions[-1], 7 * 8))
        self.exchange[2] = ctypes.cast(self.functions[0], ctypes.c_void_p).value
        mine = type(functions)(*functions[:-1], ctypes.addressof(self.exchange))
        monkeypatch.setattr(_calls, "_python", lambda types: mine)

    def allocate(self, prototype, made, context, report):
        if self.is_empty:
            return -1
        nbytes = ctypes.c_int64.from_address(ctypes.c_void_p.from_address(prototype + 24).value).value
        memory = ctypes.create_string_buffer(nbytes + 48)
        one = Managed(data=ctypes.addressof(memory), byte_offset=48)
        one.release = ctypes.cast(self.functions[1], ctypes.c_void_p).value
        self.held[ctypes.addressof(one)] = one, memory
        self.given.append((nbytes, one.data + 48))
        ctypes.c_void_p.from_address(made).value = ctypes.addressof(one)
        return 0

    def release(self, one):
        del self.held[one]


class Gpu(Memory):
    """Tensors on the CPU seem to lie on the first GPU, whose memory comes from here by torch's own functions."""

    def __init__(self, monkeypatch):
        super().__init__(monkeypatch)
        self.current, self.status, self.direct, self.direct_held = 0, 0, [], {}
        see = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(self.exchange[5])
        void, number = ctypes.c_void_p, ctypes.c_int32

        def view(tensor, to):
            status = see(tensor, to)
            number.from_address(to + 8).value = 2
            return status

        def stream(kind, index, to):
            void.from_address(to).value = 0x5550
            return 0

        def device(to):
            number.from_address(to).value = self.current
            return self.status

        def take(nbytes, to):
            if self.is_empty:
                return 1
            memory = ctypes.create_string_buffer(nbytes)
            self.direct.append((nbytes, ctypes.addressof(memory)))
            self.direct_held[ctypes.addressof(memory)] = memory
            void.from_address(to).value = ctypes.addressof(memory)
            return 0

        def give(memory):
            del self.direct_held[memory]
            return 0

        self.its = (
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, void)(view),
            ctypes.CFUNCTYPE(ctypes.c_int, number, number, void)(stream),
            ctypes.CFUNCTYPE(number, void)(device),
            ctypes.CFUNCTYPE(number, ctypes.c_uint64, void)(take),
            ctypes.CFUNCTYPE(number, void)(give),
        )
        self.exchange[5], self.exchange[6], *functions = (ctypes.cast(each, void).value for each in self.its)
        functions = (void * 3)(*functions)
        monkeypatch.setattr(_calls, "_gpu", lambda: functions)


@pytest.fixture
def known():
    calls, library = new_calls(), Library()
    add(calls, library, tensors_of())
    return calls, library


def test_a_known_call_has_its_own_addresses(known):
    calls, library = known
    tensors = tensors_of()
    y = calls(*tensors)
    ((handle, seen, workspace, nbytes, stream),) = library.seen
    assert (handle, nbytes, stream) == (0x1230, WORKSPACE, ffi.NULL) and workspace % 16 == 0
    assert y.shape == (TOKENS, HIDDEN) and y.dtype == torch.bfloat16
    got = {"x": seen.x.data, "up": seen.up.data, "down": seen.down.data, "residual": seen.residual.data}
    got |= {name: getattr(seen, name) for name in ("topk_ids", "topk_weights", "up_bias", "down_bias")}
    for name, tensor in zip(NAMES, tensors, strict=True):
        assert int(ffi.cast("uintptr_t", got[name])) == (0 if tensor is None else tensor.data_ptr()), name
    assert int(ffi.cast("uintptr_t", seen.out.data)) == y.data_ptr()
    assert (seen.tokens, seen.up.ld, seen.x.ld) == (TOKENS, 40, 0)


class Subclass(torch.Tensor):
    """Torch's functions see it, as they see tensors that are distributed or quantized."""


def other_looks():
    yield "another shape", tensors_of(TOKENS + 1)
    yield "another type", tensors_of(topk_ids=torch.zeros(TOKENS, 2, dtype=torch.int64))
    yield "other strides", tensors_of(x=torch.zeros(TOKENS, 2 * HIDDEN, dtype=torch.bfloat16)[:, :HIDDEN])
    yield "one more tensor", tensors_of(residual=new_out())
    yield "one tensor less", tensors_of(down_bias=None)
    yield "more dimensions", tensors_of(x=torch.zeros(1, TOKENS, HIDDEN, dtype=torch.bfloat16))
    yield "too many dimensions", tensors_of(x=torch.zeros(1, 1, 1, TOKENS, HIDDEN, dtype=torch.bfloat16))
    yield "no dimension", tensors_of(topk_weights=torch.zeros(()))
    yield "a misaligned address", tensors_of(x=torch.zeros(TOKENS * HIDDEN + 1, dtype=torch.bfloat16)[1:].view(5, 32))
    yield "a sparse tensor", tensors_of(topk_weights=torch.zeros(TOKENS, 2).to_sparse())
    yield "a subclass of tensors", tensors_of(x=tensors_of()[0].as_subclass(Subclass))
    yield "a tensor without memory", tensors_of(topk_weights=torch.zeros(TOKENS, 2, device="meta"))


@pytest.mark.parametrize("what, tensors", [pytest.param(*each, id=each[0]) for each in other_looks()])
def test_other_tensors_are_not_known(known, what, tensors):
    calls, library = known
    assert calls(*tensors) is None
    assert library.seen == []
    assert calls(*tensors_of()) is not None


def test_an_unaligned_address_that_may_be(known):
    calls, library = known
    ids = torch.zeros(2 * TOKENS + 1, dtype=torch.int32)[1:].view(TOKENS, 2)
    assert calls(*tensors_of(topk_ids=ids)) is not None
    assert int(ffi.cast("uintptr_t", library.seen[0][1].topk_ids)) == ids.data_ptr()


def test_a_status_is_raised(known):
    calls, library = known
    library.status = lib.MOXIE_ERROR_INVALID_ARGUMENT
    with pytest.raises(ValueError):
        calls(*tensors_of())
    library.status = lib.MOXIE_ERROR_DRIVER
    with pytest.raises(RuntimeError):
        calls(*tensors_of())
    library.status = 0
    assert calls(*tensors_of()) is not None


def test_what_the_allocator_of_the_result_raises_arrives():
    def fails():
        raise MemoryError("no room")

    calls, library = new_calls(), Library()
    add(calls, library, tensors_of(), out=fails)
    with pytest.raises(MemoryError, match="no room"):
        calls(*tensors_of())
    assert library.seen == []


def test_the_workspace_is_allocated_and_given_back(monkeypatch):
    memory = Memory(monkeypatch)
    calls, library = new_calls(), Library()
    add(calls, library, tensors_of())
    for library.status in (0, lib.MOXIE_ERROR_DRIVER):
        with contextlib.suppress(RuntimeError):
            calls(*tensors_of())
        nbytes, address = memory.given[-1]
        assert nbytes == WORKSPACE and library.seen[-1][2:4] == (address, WORKSPACE)
    assert len(memory.given) == 2 and memory.held == {}


def test_a_call_without_a_workspace_is_left_to_python(monkeypatch):
    memory = Memory(monkeypatch)
    calls, library = new_calls(), Library()
    add(calls, library, tensors_of())
    memory.is_empty = True
    assert calls(*tensors_of()) is None
    memory.is_empty = False
    assert library.seen == [] and calls(*tensors_of()) is not None


def new_here(tokens, hidden):
    return torch.ones(tokens, hidden, dtype=torch.bfloat16)


def test_memory_of_the_current_gpu_comes_from_its_own_functions(monkeypatch):
    gpu = Gpu(monkeypatch)
    calls, library = new_calls(), Library()
    add(calls, library, tensors_of(), here=(new_here, (TOKENS, HIDDEN)))
    for library.status in (0, lib.MOXIE_ERROR_DRIVER):
        with contextlib.suppress(RuntimeError):
            assert calls(*tensors_of()).eq(1).all()
        assert library.seen[-1][2:] == (gpu.direct[-1][1], WORKSPACE, ffi.cast("void*", 0x5550))
    assert [nbytes for nbytes, _ in gpu.direct] == [WORKSPACE] * 2 and gpu.direct_held == {} and gpu.given == []


@pytest.mark.parametrize("current, status", [(1, 0), (0, 1)])
def test_memory_of_another_gpu_comes_from_the_exchange_interface(monkeypatch, current, status):
    gpu = Gpu(monkeypatch)
    calls, library = new_calls(), Library()
    add(calls, library, tensors_of(), here=(new_here, (TOKENS, HIDDEN)))
    gpu.current, gpu.status = current, status
    assert calls(*tensors_of()).eq(0).all()
    assert library.seen[-1][2] == gpu.given[-1][1] and gpu.held == {} and gpu.direct == []


def test_a_gpu_without_memory_is_left_to_python(monkeypatch):
    gpu = Gpu(monkeypatch)
    calls, library = new_calls(), Library()
    add(calls, library, tensors_of(), here=(new_here, (TOKENS, HIDDEN)))
    gpu.is_empty = True
    assert calls(*tensors_of()) is None and library.seen == [] and gpu.given == []
    add(calls, library, tensors_of(1), here=(new_here, (1,)))
    with pytest.raises(TypeError, match="hidden"):
        calls(*tensors_of(1))


def test_torch_has_the_functions_of_gpus():
    has = torch.version.cuda is not None and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
    functions = _calls._gpu()
    assert len(functions) == 3 and (all(functions) if has else not any(functions))
    assert moxie.torch._empty_here is torch._C._dynamo.guards._empty_strided_cuda


class Front:
    """Two tables behind three options, and a check whose answer can be changed."""

    def __init__(self):
        self.answer, self.library = None, Library()
        self.known = Known(moxie.torch._TYPES, 3, [(lambda: True, True), (lambda: self.answer, None)])
        for options, handle in (self.options("a"), 0x1230), (self.options("b"), 0x4560):
            self.known[options] = new_calls()
            add(self.known[options], self.library, tensors_of(), handle=handle)

    @staticmethod
    def options(name):
        return "option " + name, 1234 * len(name), None

    def __call__(self, *given):
        """The handle of the call that is found."""
        y = self.known.run(*given, *tensors_of())
        assert (y is None) == (self.library.seen == [])
        return None if y is None else self.library.seen.pop()[0]


def test_options_lead_to_their_table():
    front = Front()
    assert front(*front.options("a")) == 0x1230 and front(*front.options("b")) == 0x4560
    assert front("option a", 1234.0, None) == 0x1230  # as in a dictionary
    for other in (("option c", 1234, None), ("option a", 1235, None), ("option a", 1234, 0), (None, None, None)):
        assert front(*other) is None
    assert front("option a", torch.zeros(2), None) is None  # which cannot be compared
    assert front.known.run() is None and front.known.run("option a", 1234) is None
    assert front.known.run(*front.options("a"), *tensors_of()[:-1]) is None
    front.answer = False
    assert front(*front.options("a")) is None
    front.answer = None
    assert front(*front.options("a")) == 0x1230
    front.known.clear()
    assert front(*front.options("a")) is None and len(front.known) == 0


def test_a_check_that_raises_is_not_passed():
    front = Front()
    known = Known(moxie.torch._TYPES, 3, [(lambda: 1 // 0, 0)])
    known[front.options("a")] = front.known[front.options("a")]
    assert known.run(*front.options("a"), *tensors_of()) is None and front.library.seen == []


def test_options_beyond_those_that_there_is_room_for_are_in_the_dictionary():
    library, known = Library(), Known(moxie.torch._TYPES, 1, [])
    calls = new_calls()
    add(calls, library, tensors_of())
    for i in range(40):
        known[(i,)] = calls
    found = [known.run(i, *tensors_of()) is not None for i in range(40)]
    assert found == [True] * 32 + [False] * 8 and known[(39,)](*tensors_of()) is not None


def test_nothing_is_kept():
    made = []

    def noted():
        made.append(weakref.ref(tensor := new_out()))
        return tensor

    calls, library = new_calls(), Library()
    add(calls, library, tensors_of(), out=noted)
    tensors = tensors_of()
    given = [weakref.ref(each) for each in tensors if each is not None]
    y = calls(*tensors)
    assert made[0]() is y
    library.status = lib.MOXIE_ERROR_DRIVER
    with pytest.raises(RuntimeError):
        calls(*tensors)
    del y, tensors
    gc.collect()
    assert len(made) == 2 and not any(each() is not None for each in [*made, *given])


def test_another_number_of_tensors_is_not_known(known):
    calls, library = known
    assert calls(*tensors_of()[:-1]) is None and calls(*tensors_of(), None) is None and calls() is None
    assert library.seen == []


def test_many_calls_share_a_table_until_it_is_full():
    calls, library = new_calls(), Library()
    most = 8192
    looks = {tokens: tensors_of(tokens) for tokens in range(1, 41)}
    for tokens, tensors in looks.items():
        add(calls, library, tensors, tokens, functools.partial(new_out, tokens))
        add(calls, library, tensors, 0, functools.partial(new_out, 1))  # the first one counts
    for tokens, tensors in looks.items():
        assert calls(*tensors).shape[0] == tokens == library.seen[-1][1].tokens
    base = torch.zeros(most + 1, 2)
    for tokens in range(41, most + 2):
        add(calls, library, tensors_of(1, topk_weights=base[:tokens]), 1)
    assert calls(*tensors_of(1, topk_weights=base[:most])) is not None
    assert calls(*tensors_of(1, topk_weights=base[: most + 1])) is None


def test_the_interpreter_goes_on_while_the_library_is_called():
    usleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p).value  # whose argument is the handle
    calls = new_calls()
    add(calls, None, tensors_of(), handle=400_000, run=usleep)
    caller = threading.Thread(target=calls, args=tensors_of())
    begin = time.perf_counter()
    caller.start()
    time.sleep(0.01)
    assert time.perf_counter() - begin < 0.3 and caller.is_alive()
    caller.join()


def test_eight_threads(known):
    calls, library = known
    results: list = []

    def work():
        for _ in range(50):
            tensors = tensors_of()
            results.append((tensors[0].data_ptr(), calls(*tensors)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(library.seen) == 400 and all(y.shape == (TOKENS, HIDDEN) for _, y in results)


class Noted:
    """Stands in a GPU's place: operations are made for the simulator, and their calls are noted and not made."""

    def __init__(self, monkeypatch):
        gpu = object.__new__(moxie.torch._Gpu)
        gpu.device, gpu.calls, gpu.stream = Device("sim"), {}, lambda: 0
        self.known = []
        for name, options, checks in (
            ("_known_products", 5, [(moxie.torch._fills, False)]), ("_known_layers", 6, []),
        ):  # fmt: skip
            self.known.append(Known(moxie.torch._TYPES, options, [*moxie.torch._EAGER, *checks]))
            monkeypatch.setattr(moxie.torch, name, self.known[-1])
        self.gpu, self.calls, self.status = gpu, [], 0
        self.function = Run(self.run)
        address = ctypes.cast(self.function, ctypes.c_void_p).value
        for name, function, struct in (
            ("ExpertLayer", lib.moxie_expert_layer_run, "moxie_expert_layer_tensors*"),
            ("GroupedGemm", lib.moxie_grouped_gemm_run, "moxie_gemm_tensors*"),
        ):
            made = getattr(moxie.torch, name)

            def make(*args, made=made, function=function, struct=struct, **options):
                operation = made(*args, **options)
                operation._run = ffi.cast(ffi.typeof(function), address)
                self.struct = struct
                return operation

            monkeypatch.setattr(moxie.torch, name, make)
        monkeypatch.setattr(moxie.torch, "_made", {})

    @property
    def tables(self):
        return [table for known in self.known for table in known.values()]

    def run(self, handle, tensors, workspace, nbytes, options):
        self.calls.append((handle, bytes(ffi.buffer(ffi.cast(self.struct, tensors))), nbytes))
        return self.status


def bf16(*shape):
    return torch.zeros(*shape, dtype=torch.bfloat16)


LAYER = (bf16(7, 64), torch.zeros(7, 2, dtype=torch.int64), torch.zeros(7, 2), bf16(4, 192, 64), bf16(4, 64, 96))
PRODUCT = (bf16(9, 64), bf16(3, 48, 64).mT, torch.tensor([2, 5, 9], dtype=torch.int32))
WHOLE_CALLS = {
    "a layer": ("_experts", (*LAYER, None, None, None, "swiglu", None, "split", 0, None, None)),
    "a layer with all tensors": (
        "_experts",
        (*LAYER, bf16(4, 192), bf16(4, 64), torch.zeros(7, 64), "swiglu_oai", [1.5, 6.0], "interleaved", 4, 16,
         torch.float32),
    ),
    "a layer without weights of its experts": (
        "_experts", (*LAYER[:2], None, *LAYER[3:], None, None, None, "swiglu", None, "split", 0, None, None)
    ),
    "a product": ("_grouped_mm", (*PRODUCT, None, None, 1, "none", None, "split", None)),
    "a product that gathers": (
        "_grouped_mm",
        (*PRODUCT, bf16(3, 48), torch.zeros(9, dtype=torch.int32), 2, "swiglu", None, "split", torch.float32),
    ),
    "a batched product": (
        "_grouped_mm", (bf16(3, 5, 64), PRODUCT[1], None, None, None, 1, "gelu", None, "split", None)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE_CALLS)
def test_a_repeated_call_is_the_same_call(name, monkeypatch):
    noted = Noted(monkeypatch)
    function, arguments = WHOLE_CALLS[name]
    call = getattr(moxie.torch, function)
    with torch.no_grad():
        first = call(noted.gpu, *arguments)
        (known,) = noted.tables
        found = []  # by way of the table

        def run(*tensors, run=known.run):
            found.append(run(*tensors))
            return found[-1]

        monkeypatch.setattr(known, "run", run)
        second = call(noted.gpu, *arguments)
    assert len(found) == 1 and found[0] is second and len(noted.calls) == 2
    assert (first.shape, first.dtype) == (second.shape, second.dtype)
    (handle, before, nbytes), (handle_again, after, nbytes_again) = noted.calls
    assert (handle, nbytes) == (handle_again, nbytes_again) and len(before) == len(after)
    out = word_of(noted.struct.rstrip("*"), "out", "data") * 8
    for start in range(0, len(before), 8):
        same = before[start : start + 8] == after[start : start + 8]
        assert same or start == out, f"byte {start}"
    assert int.from_bytes(after[out : out + 8], "little") == second.data_ptr()


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        raise AssertionError(f"saw {function}")


@pytest.mark.parametrize(
    "name, public",
    [
        ("a layer", lambda: moxie.experts(*LAYER)),
        ("a product", lambda: moxie.grouped_mm(*PRODUCT[:2], offs=PRODUCT[2])),
    ],
)
def test_what_users_call_finds_known_calls(name, public, monkeypatch):
    noted = Noted(monkeypatch)
    monkeypatch.delenv("MOXIE_DEVICE")  # calls that are not known are refused then, since the tensors are on the CPU
    function, arguments = WHOLE_CALLS[name]
    with torch.no_grad():
        first = getattr(moxie.torch, function)(noted.gpu, *arguments)
        second = public()
        assert len(noted.calls) == 2 and (second.shape, second.dtype) == (first.shape, first.dtype)
        with pytest.raises(AssertionError, match="saw moxie"), Watching():
            public()
        assert len(noted.calls) == 2
        for transform in (torch.func.functionalize, torch.vmap):
            with pytest.raises(RuntimeError, match="MOXIE_DEVICE"):
                transform(lambda x: (public(), x)[1])(torch.zeros(2))
        assert len(noted.calls) == 2
        with pytest.raises(RuntimeError, match="MOXIE_DEVICE"), torch.autograd.forward_ad.dual_level():
            public()  # tensors might have tangents
    with pytest.raises(RuntimeError, match="MOXIE_DEVICE"):
        public()  # gradients might be asked for


def test_rows_that_no_product_writes_are_torchs_where_programs_repeat(monkeypatch):
    noted = Noted(monkeypatch)
    function, arguments = WHOLE_CALLS["a product"]
    call = functools.partial(getattr(moxie.torch, function), noted.gpu, *arguments)
    monkeypatch.delenv("MOXIE_DEVICE")
    with torch.no_grad():
        call(), call()
        (known,) = noted.tables
        monkeypatch.setattr(known, "run", lambda *tensors: pytest.fail("the table was asked"))
        torch.use_deterministic_algorithms(True)
        try:
            assert call().isnan().all()
            with pytest.raises(RuntimeError, match="MOXIE_DEVICE"):
                moxie.grouped_mm(*PRODUCT[:2], offs=PRODUCT[2])
        finally:
            torch.use_deterministic_algorithms(False)


def test_a_status_reaches_what_users_call(monkeypatch):
    noted = Noted(monkeypatch)
    function, arguments = WHOLE_CALLS["a layer"]
    with torch.no_grad():
        getattr(moxie.torch, function)(noted.gpu, *arguments)
        noted.status = lib.MOXIE_ERROR_INVALID_ARGUMENT
        with pytest.raises(ValueError):
            moxie.experts(*LAYER)
