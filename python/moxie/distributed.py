# SPDX-License-Identifier: Apache-2.0
"""Experts over the ranks of a process group of torch.distributed."""

from __future__ import annotations

import functools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import moxie
from moxie import nn
from moxie import torch as ops
from moxie._device import Device
from moxie._layer import ExpertLayer, Ranks
from moxie._ranks import Exchange, Watch, Windows, host

__all__ = ["Experts", "Placement"]

_MOST_TOP_K = 16
# Of windows.
_MOST_RANKS, _MOST_PLACES = 72, 1024
# Of the cost model.
_MOST_PLANNED_RANKS = 1024


@dataclass(frozen=True)
class Placement:
    """Where each expert is: expert e in slot slots[e] of rank ranks[e]. The slots of a rank are 0, 1, 2..."""

    ranks: tuple[int, ...]
    slots: tuple[int, ...]

    @classmethod
    def contiguous(cls, experts: int, ranks: int) -> Placement:
        """Neighbors together: each rank has experts // ranks, and the first experts % ranks ranks one more."""
        counts = [experts // ranks + (rank < experts % ranks) for rank in range(ranks)]
        return cls.of([rank for rank, count in enumerate(counts) for _ in range(count)], experts, ranks)

    @classmethod
    def of(cls, given: Placement | Sequence[Any] | Tensor | None, experts: int, ranks: int) -> Placement:
        """From the rank of each expert, whose slots are then in the order of the experts, or from pairs (rank, slot).

        None: contiguous.
        """
        if given is None:
            return cls.contiguous(experts, ranks)
        if isinstance(given, Placement):
            pairs = list(zip(given.ranks, given.slots, strict=True))
        else:
            pairs = given.tolist() if isinstance(given, Tensor) else list(given)
        if len(pairs) != experts:
            raise ValueError(f"placement has {len(pairs)} experts, but must have {experts}")
        next_slots: dict[int, int] = {}
        for expert, each in enumerate(pairs):
            if isinstance(each, int):
                pairs[expert] = each, next_slots.get(each, 0)
                next_slots[each] = pairs[expert][1] + 1
            rank = pairs[expert][0]
            if not 0 <= rank < ranks:
                raise ValueError(f"placement puts expert {expert} on rank {rank}, but ranks are 0 to {ranks - 1}")
        taken: dict[tuple[int, int], int] = {}
        for expert, (rank, slot) in enumerate(pairs):
            if (rank, slot) in taken:
                raise ValueError(
                    f"placement puts experts {taken[rank, slot]} and {expert} into slot {slot} of rank {rank}"
                )
            taken[rank, slot] = expert
        for expert, (rank, slot) in enumerate(pairs):
            count = sum(each == rank for each, _ in pairs)
            if not 0 <= slot < count:
                raise ValueError(
                    f"placement puts expert {expert} into slot {slot} of rank {rank}, which has {count} experts and so "
                    f"slots 0 to {count - 1}"
                )
        return cls(tuple(rank for rank, _ in pairs), tuple(slot for _, slot in pairs))

    def experts_of(self, rank: int) -> list[int]:
        """The experts of a rank in the order of its slots."""
        own = [(slot, e) for e, (at, slot) in enumerate(zip(self.ranks, self.slots, strict=True)) if at == rank]
        return [e for _, e in sorted(own)]


@dataclass
class _Sizes:
    """Tokens and pairs that go to each rank, and that come from each."""

    sent_tokens: list[int]
    sent_pairs: list[int]
    came_tokens: list[int]
    came_pairs: list[int]

    def __add__(self, other: _Sizes) -> _Sizes:
        return _Sizes(
            *([a + b for a, b in zip(x, y, strict=True)] for x, y in zip(_values(self), _values(other), strict=True))
        )


def _values(sizes: _Sizes) -> list[list[int]]:
    return [sizes.sent_tokens, sizes.sent_pairs, sizes.came_tokens, sizes.came_pairs]


@functools.lru_cache(maxsize=4096)
def _halves_pay(tokens: int, layer: tuple[tuple[str, Any], ...]) -> bool:
    return moxie.rank_costs(tokens=tokens, **dict(layer)).halves_pay


class Experts(nn.Experts):
    """moxie.nn.Experts whose experts are divided among the ranks of a process group.

    Each rank has tokens of its own, any number of them, and gets their results: y [T, H] of x [T, H], topk_ids [T, k]
    and topk_weights [T, k], as one rank with all experts would compute it. All ranks call in the same order.

    group: a process group, a DeviceMesh of one dimension, or None: the default group. experts: of all ranks together.
    hidden, width, layout, weights, activation, activation_parameters, gate, bias, device: as for moxie.nn.Experts; the
    parameters hold this rank's experts in the order of its slots, under the same names. A state dict or a checkpoint
    with all experts loads as well: each rank takes its own.
    top_k: 1 to 16; calls bring as many ids. Ids that are no experts are skipped.
    placement: the rank of each expert, or pairs of rank and slot; None: neighbors together. `move` changes it.
    shared: a module that every rank has, computed on its own tokens and added; its tokens are on their way meanwhile.
    halves: over all_to_all tokens travel in two halves, so that the second is on its way while the first is multiplied.
    None: in calls in which that pays by the cost model that `moxie plan --ranks` prints (moxie.rank_costs), for the
    mean tokens of all ranks, rank 0's GPU, and NVLink between the ranks of a host alone.
    transport: "windows": kernels that reach the other ranks' memory, on GPUs of one NVLink domain; the host waits for
    nothing. "all_to_all": the group's own backend. None: windows where max_tokens is given and all ranks are on GPUs of
    one host that can have them, else all_to_all; `transport` says which.
    max_tokens: with windows, the most tokens of a rank in a call. max_rows: with windows, the most rows (pairs of token
    and expert) that a rank's experts get in a call; None: room for all. A call that would bring more is an error of all
    ranks. max_experts: with windows, the most experts of a rank after a move; None: those of placement. row_format:
    with windows, of tokens on their way, "bf16", "fp8" or "mxfp8". results: with windows, what travels back: "rows", a
    row for each pair, or "sums" or "bf16_sums", of each token and rank the sum of its rows in float32 or bf16; None:
    "rows", or "sums" where many choices and narrow experts make those faster.
    timeout: seconds after which a rank that has not come is an error on the others.

    Ranks that disagree on any of these are found when the object is made: ValueError, on all of them.
    RuntimeError of a call: a rank has ended, hangs or is late, which the sentence names, within `timeout` seconds.
    Neither this object nor others of the same group can be used then.
    """

    def __init__(
        self,
        group: Any,
        experts: int,
        hidden: int,
        width: int,
        *,
        top_k: int,
        placement: Placement | Sequence[Any] | Tensor | None = None,
        shared: torch.nn.Module | None = None,
        halves: bool | None = None,
        transport: str | None = None,
        max_tokens: int | None = None,
        max_rows: int | None = None,
        max_experts: int | None = None,
        row_format: str = "bf16",
        results: str | None = None,
        timeout: float = 300.0,
        layout: str = "qwen3",
        weights: str = "bf16",
        activation: str | None = None,
        activation_parameters: Mapping[str, float] | None = None,
        gate: str | None = None,
        bias: bool | None = None,
        device: Any = None,
    ) -> None:
        group = _group_of(group)
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout}, but must be more than 0 seconds")
        watch = Watch.of(group, timeout)
        watch.check()
        watch.objects += 1
        key = f"object/{watch.objects}"
        # A rank whose own arguments are wrong says so to the others, which otherwise would wait for it.
        wrong: ValueError | None = None
        try:
            if not 1 <= top_k <= _MOST_TOP_K:
                raise ValueError(f"top_k is {top_k}, but must be 1 to {_MOST_TOP_K}")
            if transport not in (None, "all_to_all", "windows"):
                raise ValueError(f"transport is {transport!r}, but must be 'all_to_all', 'windows' or None")
            if transport == "windows" and max_tokens is None:
                raise ValueError("max_tokens is missing, but windows are made for so many tokens")
            if transport == "windows" and halves:
                raise ValueError("halves is True, but tokens travel in halves by all_to_all alone")
            if row_format not in ("bf16", "fp8", "mxfp8"):
                raise ValueError(f"row_format is {row_format!r}, but must be 'bf16', 'fp8' or 'mxfp8'")
            if results not in (None, "rows", "sums", "bf16_sums"):
                raise ValueError(f"results is {results!r}, but must be 'rows', 'sums', 'bf16_sums' or None")
            if row_format == "mxfp8" and hidden % 32:
                raise ValueError(f"hidden is {hidden}, but must be a multiple of 32 where tokens travel in mxfp8")
            multiple = 32 if weights == "mxfp4" else 8
            for name, value in (("experts", experts), ("hidden", hidden), ("width", width)):
                if value < 1 or (name != "experts" and value % multiple):
                    raise ValueError(f"{name} is {value}, but must be a positive multiple of {multiple}")
            table = Placement.of(placement, experts, watch.size)
            most = max(len(table.experts_of(rank)) for rank in range(watch.size))
            if max_experts is not None and max_experts < most:
                raise ValueError(f"max_experts is {max_experts}, but placement gives a rank {most} experts")
            super().__init__(
                len(table.experts_of(watch.rank)),
                hidden,
                width,
                layout=layout,
                weights=weights,
                activation=activation,
                activation_parameters=activation_parameters,
                gate=gate,
                bias=bias,
                device=device,
            )
        except ValueError as error:
            wrong = error
        if wrong is not None:
            watch.agree(key, {"refused": str(wrong)}, timeout)
            raise wrong
        self.all_experts, self.top_k, self.timeout = experts, top_k, timeout
        self.halves, self.shared = halves, shared
        self.max_tokens, self.max_rows, self.row_format, self.results = max_tokens, max_rows, row_format, results
        self.max_experts = most if max_experts is None else max_experts
        self.transport = transport or "any"
        self.group = group
        self._watch, self._number, self._moves = watch, watch.objects, 0
        self._windows: Windows | None = None
        self._places: Tensor | None = None
        self._place(table)
        watch.agree(key, self._description(), timeout)
        self.transport = "all_to_all"
        if transport == "windows" or (transport is None and max_tokens is not None and not halves):
            self._open_windows(f"{key}/windows", transport == "windows")

    def _description(self) -> dict[str, Any]:
        """All that must be the same on all ranks."""
        return {
            "refused": None,
            "version": moxie.__version__,
            "experts": self.all_experts,
            "hidden": self.hidden,
            "width": self.width,
            "top_k": self.top_k,
            "layout": self.layout,
            "weights": self.weights,
            "activation": self.activation,
            "activation_parameters": self.activation_parameters,
            "gate": self.gate,
            "bias": self.has_bias,
            "placement": list(zip(self.placement.ranks, self.placement.slots, strict=True)),
            "shared": self.shared is not None,
            "halves": self.halves,
            "transport": self.transport,
            "max_tokens": self.max_tokens,
            "max_rows": self.max_rows,
            "max_experts": self.max_experts,
            "row_format": self.row_format,
            "results": self.results,
            "timeout": self.timeout,
        }

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("moxie.distributed.Experts cannot be copied, since every rank would have to make the copy")

    def extra_repr(self) -> str:
        return (
            f"{self.num_experts} of {self.all_experts} experts, rank {self._watch.rank} of {self._watch.size}, "
            f"hidden {self.hidden}, width {self.width}, {self.weights}, {self.layout}, {self.activation}, "
            f"{self.transport}"
        )

    # ---- Windows ----

    def _device(self) -> torch.device:
        return next(self.parameters(recurse=False)).device

    def _open_windows(self, key: str, named: bool) -> None:
        """Uses windows from now on, where all ranks can have them. ValueError: not, but the caller has named them."""
        watch, device = self._watch, self._device()
        said = watch.gather(key, {"host": host(), "missing": Windows.missing(watch, device)}, self.timeout)
        why = next((f"{watch.name(r)}: {each['missing']}" for r, each in enumerate(said) if each["missing"]), None)
        elsewhere = next((r for r, each in enumerate(said) if each["host"] != said[0]["host"]), None)
        if why is None and elsewhere is not None and not named:
            why = f"{watch.name(elsewhere)} is on another host than rank 0"
        places = watch.size * self.max_experts
        if why is None and (watch.size > _MOST_RANKS or places > _MOST_PLACES):
            why = (
                f"{watch.size} ranks of {self.max_experts} experts, but at most {_MOST_RANKS} and {_MOST_PLACES} in all"
            )
        if why is None:
            try:
                self._windows = self._make_windows(key)
            except RuntimeError as error:
                watch.check()
                why = str(error)
        if why is None:
            self.transport = "windows"
            self._place(self.placement)
            self._make_room()
        elif named:
            raise ValueError(f"transport is 'windows', which the ranks cannot have: {why}")

    def _make_windows(self, key: str) -> Windows:
        device = self._device()
        where = Device("cuda", device.index) if device.type == "cuda" else Device("sim")
        parameters = self.activation_parameters
        self._layer: ExpertLayer = ops._layer_over_ranks(
            where,
            experts=self.max_experts,
            all_experts=self.all_experts,
            ranks=Ranks(
                self._watch.size, self._watch.rank, self.max_rows, self.timeout, self.row_format, self.results
            ),
            top_k=self.top_k,
            hidden=self.hidden,
            width=self.width,
            max_tokens=self.max_tokens or 0,
            packed=self.weights == "mxfp4",
            activation=self.activation,
            parameters=None if parameters is None else tuple(ops._parameter_list(self.activation, parameters)),
            gate=self.gate,
            up_bias=self.has_bias,
            down_bias=self.has_bias,
        )
        return Windows.of(
            self._watch,
            device,
            self._layer.window_bytes(),
            key,
            lambda window: ops._prepare_window(self._layer, window),
            self.timeout,
        )

    def _make_room(self) -> None:
        """Puts weights where there is memory for max_experts, as many as the kernels take for there."""
        for owner, name, tensor in self._stored():
            inner = self._inner(name, tensor)
            if _has_room(inner, self.max_experts):
                continue
            roomy = inner.new_zeros((self.max_experts, *inner.shape[1:]))
            roomy[: inner.shape[0]] = inner
            placed = self._inner(name, roomy[: inner.shape[0]])
            if isinstance(tensor, torch.nn.Parameter):
                tensor.data = placed
            else:
                setattr(owner, name, placed)

    def _inner(self, name: str, tensor: Tensor) -> Tensor:
        """A weight as it lies in memory, or the way back from there."""
        return tensor.transpose(1, 2) if self.transposed and name in ("gate_up_proj", "down_proj") else tensor

    def _through_windows(
        self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor | None, residual: Tensor | None
    ) -> Tensor:
        windows = self._windows
        assert windows is not None
        # Compilers see the operator and nothing of what the host keeps.
        eager = not torch.compiler.is_compiling()
        if eager:
            self._watch.check()
            if windows.failed():
                self._find_failure()
            self._check_call(x, topk_ids, topk_weights, residual)
            if x.shape[0] > (self.max_tokens or 0):
                raise ValueError(f"x has {x.shape[0]} tokens, but max_tokens is {self.max_tokens}")
            self._make_room()
            self._watch.step += 1
        meanwhile = None
        if self.shared is not None and eager:
            meanwhile = windows.beside(functools.partial(self._told_residual, x, residual))
            residual = None
        elif self.shared is not None:
            # A compiler makes the streams of its graphs itself.
            residual = self._own_residual(x, residual)
        w1, w2 = (_roomy(each, self.max_experts) for each in self._operands())
        b1, b2 = (
            (_roomy(each, self.max_experts) for each in (self.gate_up_proj_bias, self.down_proj_bias))
            if self.has_bias
            else (None, None)
        )
        parameters = self.activation_parameters
        arguments = (
            x,
            topk_ids,
            None if topk_weights is None else topk_weights.float(),
            w1,
            w2,
            b1,
            b2,
            residual,
            windows.memory,
            self._places,
            windows.addresses,
            self._watch.rank,
            self.all_experts,
            self.max_tokens,
            self.max_rows,
            self.timeout,
            self.row_format,
            self.results,
            self.activation,
            None if parameters is None else ops._parameter_list(self.activation, parameters),
            self.gate,
        )
        if meanwhile is None:
            y = torch.ops.moxie.experts_over_ranks(*arguments)
        else:
            y = ops._over_ranks_meanwhile(meanwhile, *arguments)
        if eager:
            windows.note()
        return y

    def _own_residual(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """What the shared experts make of a rank's own tokens, and what is added to it."""
        assert self.shared is not None
        own: Tensor = self.shared(x)
        ops._is("what shared returns", own, (torch.bfloat16,), (2,), x)
        ops._shape("what shared returns", own, *x.shape)
        return own if residual is None else residual + own

    def _told_residual(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """The same in the middle of a call."""
        try:
            return self._own_residual(x, residual)
        except BaseException as error:
            self._tell(error)
            raise

    def _tell(self, error: BaseException) -> None:
        """Tells the other ranks, which wait for what this one was to send."""
        watch = self._watch
        if watch.failure is None:
            reason = (str(error) or type(error).__name__).splitlines()[0][:200]
            watch.fail(f"{watch.name(watch.rank)} has failed in step {watch.step}: {reason}")

    def _find_failure(self) -> None:
        """RuntimeError: what went wrong between ranks in the calls so far."""
        windows = self._windows
        assert windows is not None
        try:
            ops._check_ranks(self._layer, windows.memory)
        except RuntimeError as error:
            # Too many rows are the fault of one call, which all ranks refuse alike.
            if "max_rows" not in str(error):
                self._watch.fail(str(error))
                self._watch.check(error)
            raise
        finally:
            windows.note()

    # ---- Which experts are where ----

    def _own(self) -> Sequence[int]:
        return self.placement.experts_of(self._watch.rank)

    def _place(self, placement: Placement) -> None:
        self.placement = placement
        self.num_experts = len(self._own())
        # One row more, for ids that are no experts: no rank, no slot.
        self._table = torch.tensor([[*placement.ranks, -1], [*placement.slots, -1]], dtype=torch.int32)
        if self._windows is not None:
            places = self._table[0, :-1] * self.max_experts + self._table[1, :-1]
            # In place, so that captured calls see it.
            self._places = places.to(self._device()) if self._places is None else self._places.copy_(places)

    def _table_on(self, device: torch.device) -> Tensor:
        if self._table.device != device:
            self._table = self._table.to(device)
        return self._table

    def move(self, placement: Placement | Sequence[Any] | Tensor) -> None:
        """Experts to other ranks and slots: all ranks call it with the same table, and their weights follow.

        ValueError, on all ranks: the tables differ. RuntimeError: as for a call.
        """
        watch = self._watch
        watch.check()
        table = Placement.of(placement, self.all_experts, watch.size)
        most = max(len(table.experts_of(rank)) for rank in range(watch.size))
        if self._windows is not None and most > self.max_experts:
            raise ValueError(f"placement gives a rank {most} experts, but max_experts is {self.max_experts}")
        self._moves += 1
        key = f"object/{self._number}/move/{self._moves}"
        watch.agree(key, {"placement": list(zip(table.ranks, table.slots, strict=True))}, self.timeout)
        own, next_own = self._own(), table.experts_of(watch.rank)
        # Sent in the order of their new ranks and slots, so they come from each rank in the order of the new slots.
        given = sorted(range(len(own)), key=lambda slot: (table.ranks[own[slot]], table.slots[own[slot]]))
        given_rows = [sum(table.ranks[e] == rank for e in own) for rank in range(watch.size)]
        out_rows = [sum(self.placement.ranks[e] == rank for e in next_own) for rank in range(watch.size)]
        came = sorted(range(len(next_own)), key=lambda slot: (self.placement.ranks[next_own[slot]], slot))
        watch.step += 1
        for owner, name, tensor in self._stored():
            weight = self._inner(name, tensor)
            exchange = Exchange.of(watch, weight.device)
            width = math.prod(weight.shape[1:]) * weight.element_size()
            rows = weight.detach()[given].contiguous().view(torch.uint8).reshape(len(given), width)
            out = rows.new_empty((len(next_own), width))
            exchange.start(out, rows, out_rows, given_rows, self.timeout, f"the experts' {name}").finish()
            placed = torch.empty_like(out)
            placed[came] = out
            placed = self._inner(name, placed.view(weight.dtype).view(len(next_own), *weight.shape[1:]))
            if placed.shape == tensor.shape:
                # In place, so that captured calls see it.
                tensor.detach().copy_(placed)
            elif isinstance(tensor, torch.nn.Parameter):
                setattr(owner, name, torch.nn.Parameter(placed, requires_grad=False))
            else:
                setattr(owner, name, placed)
        if self._windows is not None:
            self._make_room()
        self._place(table)

    def _stored(self) -> list[tuple[torch.nn.Module, str, Tensor]]:
        own = [(self, name, each) for name, each in self.named_parameters(recurse=False)]
        own += [(self, name, each) for name, each in self.named_buffers(recurse=False) if each is not None]
        for _, name, each in own:
            if type(each) not in (Tensor, torch.nn.Parameter):
                raise RuntimeError(f"{name} is a {type(each).__name__}, whose experts cannot be moved")
        return own

    # ---- State dicts and checkpoints ----

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *more: Any) -> None:
        own = self._own()
        for name in self._names():
            value = state_dict.get(f"{prefix}{name}")
            if value is not None and value.dim() and value.shape[0] == self.all_experts != len(own):
                state_dict[f"{prefix}{name}"] = value[list(own)]
        # Other ranks' experts are none too many.
        for foreign in set(range(self.all_experts)) - set(own):
            for single in nn._SINGLE:
                for name in single:
                    state_dict.pop(f"{prefix}{foreign}.{name}.weight", None)
        super()._load_from_state_dict(state_dict, prefix, *more)

    def _names(self) -> list[str]:
        """Of the tensors that a checkpoint has of fused experts."""
        parts = ("_blocks", "_scales") if self.weights == "mxfp4" else ("",)
        names = [f"{product}{part}" for product in ("gate_up_proj", "down_proj") for part in parts]
        return names + (["gate_up_proj_bias", "down_proj_bias"] if self.has_bias else [])

    def load_checkpoint(self, folder: Any, prefix: str) -> None:
        """This rank's experts from safetensors files, of which nothing else is read.

        folder: holds model.safetensors, or model.safetensors.index.json with the files that it names. prefix: of the
        tensors' names, such as "model.layers.3.mlp.experts.". All layouts that load_state_dict takes.
        ValueError: a tensor is missing or has another shape.
        """
        try:
            from safetensors import safe_open
        except ImportError as error:
            raise RuntimeError("load_checkpoint needs the package safetensors") from error
        folder = pathlib.Path(folder)
        index = folder / "model.safetensors.index.json"
        files = json.loads(index.read_text())["weight_map"] if index.exists() else None
        opened: dict[str, Any] = {}

        def file_of(name: str) -> Any:
            file = "model.safetensors" if files is None else files.get(name)
            if file is None:
                return None
            if file not in opened:
                opened[file] = safe_open(folder / file, framework="pt")
                opened[file, "names"] = set(opened[file].keys())
            return opened[file] if name in opened[file, "names"] else None

        def whole(name: str) -> Tensor:
            file = file_of(name)
            if file is None:
                raise ValueError(f"{folder} has no tensor {name}")
            return file.get_tensor(name)

        own = self._own()
        state: dict[str, Tensor] = {}
        single = next(
            (s for s in nn._SINGLE if own and file_of(f"{prefix}{own[0]}.{s[2]}.weight") is not None), None
        )
        if single is not None and not self.transposed:
            for e in own:
                for name in single:
                    state[f"{e}.{name}.weight"] = whole(f"{prefix}{e}.{name}.weight")
        else:
            for name in self._names() if own else ():
                file = file_of(prefix + name)
                if file is None:
                    raise ValueError(f"{folder} has no tensor {prefix}{name}")
                part = file.get_slice(prefix + name)
                if part.get_shape()[0] != self.all_experts:
                    raise ValueError(
                        f"{prefix}{name} has {part.get_shape()[0]} experts, but must have {self.all_experts}"
                    )
                state[name] = torch.cat([part[begin:end] for begin, end in _runs(own)])
        if not own:
            return
        missing, unexpected = self.load_state_dict(state, strict=False)
        missing = [name for name in missing if not name.startswith("shared.")]
        if missing or unexpected:
            raise ValueError(f"{folder} lacks {', '.join(prefix + name for name in missing)}")

    # ---- A call ----

    def _check_call(self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor | None, residual: Tensor | None) -> None:
        ops._is("x", x, (torch.bfloat16,), (2,), x)
        ops._shape("x", x, x.shape[0], self.hidden)
        ops._is("topk_ids", topk_ids, (torch.int32, torch.int64), (2,), x)
        ops._shape("topk_ids", topk_ids, x.shape[0], self.top_k)
        if topk_weights is not None:
            ops._is("topk_weights", topk_weights, (torch.float32, torch.bfloat16), (2,), x)
            ops._shape("topk_weights", topk_weights, x.shape[0], self.top_k)
        if residual is not None:
            ops._is("residual", residual, (torch.bfloat16,), (2,), x)
            ops._shape("residual", residual, *x.shape)
        if torch.is_grad_enabled():
            ops._no_gradient("moxie.distributed.Experts", x, topk_weights, residual)

    def forward(
        self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """y [T, H] of x [T, H], topk_ids [T, k], topk_weights [T, k] or None, and a residual [T, H]; T may be 0."""
        if self._windows is not None:
            return self._through_windows(x, topk_ids, topk_weights, residual)
        if torch.compiler.is_compiling():
            # The host reads sizes, which is no part of a graph.
            return torch.compiler.disable(self._exchanged)(x, topk_ids, topk_weights, residual)
        return self._exchanged(x, topk_ids, topk_weights, residual)

    def synchronize(self) -> None:
        """Waits for what was called so far in the current stream. RuntimeError: a rank has failed meanwhile."""
        self._watch.synchronize(self._device(), self.timeout, "results")
        self._watch.check()
        if self._windows is not None:
            self._find_failure()

    def _exchanged(
        self, x: Tensor, topk_ids: Tensor, topk_weights: Tensor | None, residual: Tensor | None
    ) -> Tensor:
        watch = self._watch
        watch.check()
        self._check_call(x, topk_ids, topk_weights, residual)
        exchange = Exchange.of(watch, x.device)
        watch.step += 1
        try:
            return self._step(exchange, x, topk_ids, topk_weights, residual)
        except BaseException as error:
            self._tell(error)
            raise

    def _step(
        self,
        exchange: Exchange,
        x: Tensor,
        topk_ids: Tensor,
        topk_weights: Tensor | None,
        residual: Tensor | None,
    ) -> Tensor:
        tokens, half, ranks = x.shape[0], (x.shape[0] + 1) // 2, self._watch.size
        table = self._table_on(x.device)
        ids = torch.where((topk_ids >= 0) & (topk_ids < self.all_experts), topk_ids, self.all_experts)
        rank, slot = table[0][ids], table[1][ids]
        # [ranks, T]: the pairs of a token there.
        pairs = (rank.unsqueeze(0) == torch.arange(ranks, device=x.device, dtype=rank.dtype).view(-1, 1, 1)).sum(-1)
        bounds = [(0, half), (half, tokens)]
        # How tokens travel is chosen when all ranks know how many there are.
        tokens_of_all, sizes = self._exchange_sizes(exchange, tokens, [pairs[:, begin:end] for begin, end in bounds])
        if not self._in_halves(tokens_of_all, x.device):
            bounds, sizes = [(0, tokens)], [sizes[0] + sizes[1]]

        arriving, inverses = [], []
        for (begin, end), each in zip(bounds, sizes, strict=True):
            part = slice(begin, end)
            given, inverse = self._pack(x[part], rank[part], slot[part], pairs[:, part] > 0, sum(each.sent_tokens))
            came = given.new_empty((sum(each.came_tokens), given.shape[1]))
            arriving.append(exchange.start(came, given, each.came_tokens, each.sent_tokens, self.timeout, "tokens"))
            inverses.append(inverse)
        if self.shared is not None:
            residual = self._own_residual(x, residual)

        returning = []
        for transfer, each in zip(arriving, sizes, strict=True):
            rows = self._multiply(transfer.finish(), sum(each.came_pairs)).view(torch.uint8)
            back = rows.new_empty((sum(each.sent_pairs), rows.shape[1]))
            returning.append(exchange.start(back, rows, each.sent_pairs, each.came_pairs, self.timeout, "results"))

        weights = None if topk_weights is None else topk_weights.float()
        results = []
        for transfer, inverse, (begin, end) in zip(returning, inverses, bounds, strict=True):
            rows = transfer.finish().view(torch.bfloat16)
            results.append(
                ops.combine(
                    rows,
                    inverse,
                    None if weights is None else weights[begin:end],
                    residual=None if residual is None else residual[begin:end],
                )
            )
        return torch.cat(results) if len(results) > 1 else results[0]

    def _in_halves(self, tokens_of_all: Sequence[int], device: torch.device) -> bool:
        """The same on all ranks, since all know these numbers and what rank 0 has said of its device."""
        if self.halves is not None:
            return self.halves
        size = self._watch.size
        mean = -(-sum(tokens_of_all) // size)
        if mean < 2 or not 1 < size <= _MOST_PLANNED_RANKS:
            return False
        said = self._watch.devices(device, self.timeout)
        hosts = [each["host"] for each in said]
        layer = {
            "experts": max(self.all_experts, size),
            "ranks": size,
            "top_k": min(self.top_k, self.all_experts),
            "domain": min(hosts.count(each) for each in hosts),
            "n": self.up_rows,
            "k": self.hidden,
            "b_format": "mxfp4" if self.weights == "mxfp4" else None,
            "bias": self.has_bias,
            "activation": self.activation,
            "gate": self.gate if self.activation in ops._GATED else "interleaved",
            **said[0]["figures"],
        }
        return _halves_pay(mean, tuple(layer.items()))

    def _pack(self, x: Tensor, rank: Tensor, slot: Tensor, goes: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Tokens in the order of the ranks that they go to, once for each, with the slots of their experts there; and
        of each pair its row among what comes back, or -1.

        rank, slot: [T, k] of each pair. goes: [ranks, T]: which token goes where, `count` in all.
        """
        tokens, ranks, device = x.shape[0], self._watch.size, x.device
        _, _, inverse = ops.sort_by_expert(rank, ranks)
        goes = goes.flatten()
        # What goes nowhere shares a place behind all others.
        at = torch.where(goes, goes.cumsum(0) - 1, count)
        source = torch.zeros(count + 1, dtype=torch.int64, device=device)
        source[at] = torch.arange(ranks * tokens, device=device)
        source = source[:count]
        token, to = source % max(tokens, 1), source // max(tokens, 1)
        slots = torch.where(rank[token] == to.unsqueeze(1), slot[token], -1)
        return torch.cat([x[token].view(torch.uint8), slots.view(torch.uint8)], dim=1), inverse

    def _exchange_sizes(
        self, exchange: Exchange, tokens: int, pairs: Sequence[Tensor]
    ) -> tuple[list[int], list[_Sizes]]:
        """The tokens of each rank, and the sizes of both halves. pairs: of each half, [ranks, T]."""
        own = torch.tensor([self._number, self._watch.step, tokens], device=pairs[0].device)
        columns = list(own.expand(exchange.size, 3).T)
        for half in pairs:
            columns += [(half > 0).sum(1), half.sum(1)]
        given = torch.stack(columns, dim=1)
        came = torch.empty_like(given)
        ones = [1] * exchange.size
        exchange.start(came, given, ones, ones, self.timeout, "sizes").finish()
        sent, received = exchange.to_host(torch.stack([given, came]), self.timeout, "sizes")
        for rank, (number, step, *_) in enumerate(received):
            if (number, step) != (self._number, self._watch.step):
                self._watch.fail(
                    f"{self._watch.name(rank)} calls object {number} of the group in step {step}, but "
                    f"{self._watch.name(self._watch.rank)} object {self._number} in step {self._watch.step}: all ranks "
                    "must call in the same order"
                )
                self._watch.check()
        out, back = ([list(each) for each in zip(*rows, strict=True)] for rows in (sent, received))
        return back[2], [_Sizes(out[i], out[i + 1], back[i], back[i + 1]) for i in (3, 5)]

    def _multiply(self, came: Tensor, pairs: int) -> Tensor:
        """A row for each pair of what came, in its order."""
        tokens, k, hidden = came.shape[0], self.top_k, self.hidden
        if pairs == 0:
            return came.new_empty((0, 2 * hidden)).view(torch.bfloat16)
        slots = came[:, 2 * hidden :].contiguous().view(torch.int32).flatten()
        is_pair = slots >= 0
        at = torch.where(is_pair, is_pair.cumsum(0) - 1, pairs)
        pair = torch.zeros(pairs + 1, dtype=torch.int64, device=came.device)
        pair[at] = torch.arange(tokens * k, device=came.device)
        pair = pair[:pairs]
        x = came.view(torch.bfloat16)[:, :hidden].index_select(0, pair // k)
        w1, w2 = self._operands()
        return ops.experts(
            x,
            slots[pair].unsqueeze(1),
            None,
            w1,
            w2,
            b1=self.gate_up_proj_bias if self.has_bias else None,
            b2=self.down_proj_bias if self.has_bias else None,
            activation=self.activation,
            activation_parameters=self.activation_parameters,
            gate=self.gate,
        )


def _group_of(group: Any) -> dist.ProcessGroup:
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError("torch.distributed is not initialized: call torch.distributed.init_process_group first")
    if group is None:
        return dist.group.WORLD
    if hasattr(group, "get_group"):
        if group.ndim != 1:
            raise ValueError(f"group is a DeviceMesh of {group.ndim} dimensions, but must have one: slice it by name")
        return group.get_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER or dist.get_rank(group) < 0:
        raise ValueError("group is one that this rank is no member of")
    return group


def _has_room(tensor: Tensor, experts: int) -> bool:
    """Whether there is memory for so many experts where a weight lies."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return elements >= experts * math.prod(tensor.shape[1:])


def _roomy(tensor: Tensor, experts: int) -> Tensor:
    """A weight with the memory behind it, which no kernel reads: experts that no id leads to."""
    return tensor if tensor.shape[0] == experts else tensor.as_strided((experts, *tensor.shape[1:]), tensor.stride())


def _runs(own: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbors among experts, as (begin, end)."""
    runs: list[tuple[int, int]] = []
    for e in own:
        if runs and runs[-1][1] == e:
            runs[-1] = runs[-1][0], e + 1
        else:
            runs.append((e, e + 1))
    return runs
