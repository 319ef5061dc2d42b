# SPDX-License-Identifier: Apache-2.0
"""Descriptions: from Python's words to the structures of the interface in C."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Union, get_args

from moxie._library import enum_value, ffi


@dataclass(frozen=True)
class Dense:
    """One product. a [m, K], b [N, K], outputs [m, W]."""

    grouping: ClassVar[str] = "dense"
    m: int


@dataclass(frozen=True)
class Batched:
    """`count` products of the same size. a [G, m, K], b [G, N, K], outputs [G, m, W]."""

    grouping: ClassVar[str] = "batched"
    count: int
    m: int


@dataclass(frozen=True)
class Offsets:
    """Rows sorted by group. a [T, K], b [G, N, K], outputs [T, W].

    A call's `ends` [G] int32 holds the end of each group's rows; the first group begins at row 0. Groups may be empty
    and need no alignment; rows past the last end are left untouched.
    total: T, when all calls have about as many rows. Then one kernel is planned and compiled, else one for every range
    of rows. A call may have any number of rows in both cases.
    """

    grouping: ClassVar[str] = "offsets"
    count: int
    total: int | None = None


@dataclass(frozen=True)
class RowGroups:
    """Every row names its group. a [T, K], b [G, N, K], outputs [T, W].

    A call's `group_of_row` [T] int32 holds the group of each row, or -1. Groups begin at multiples of
    GroupedGemm.row_alignment. Rows marked -1 that share a tile with valid rows may be overwritten.
    """

    grouping: ClassVar[str] = "row_groups"
    count: int


@dataclass(frozen=True)
class Masked:
    """Room for max_m rows in each group. a [G, max_m, K], b [G, N, K], outputs [G, max_m, W].

    A call's `counts` [G] int32 holds the number of valid rows of each group; rows past them are left untouched.
    """

    grouping: ClassVar[str] = "masked"
    count: int
    max_m: int


@dataclass(frozen=True)
class Pointers:
    """Each group has pointers, leading dimensions and sizes of its own (GroupedGemm.run_pointers).

    max_m, and the description's n and k, are the most that any group has.
    """

    grouping: ClassVar[str] = "pointers"
    count: int
    max_m: int


@dataclass(frozen=True)
class KGroups:
    """K is divided, not the rows (sm_100a): out[g] = a[:, group g] b[:, group g]^T. a [m, K], b [N, K], outputs
    [G, m, W]. A call's `ends` [G] int32 holds the end of each group along K, a multiple of 8 (bf16) or 32.
    """

    grouping: ClassVar[str] = "k_groups"
    count: int
    m: int


Groups = Union[Dense, Batched, Offsets, RowGroups, Masked, Pointers, KGroups]

# What the comments of moxie_activation_spec in moxie/c.h say.
_PARAMETERS = {
    "swiglu_oai": ("alpha", "limit"),
    "swiglu_clamped": ("gate_limit", "up_limit"),
    "situ": ("beta", "linear_beta"),
}


if TYPE_CHECKING:
    from typing_extensions import Required, TypedDict

    class Words(TypedDict, total=False):
        """What a product is described by beside its groups: the arguments of `describe`."""

        n: Required[int]
        k: Required[int]
        format: str
        b_format: str | None
        gather: bool
        bias: bool
        activation: str
        activation_parameters: Mapping[str, float] | None
        gate: str
        pre: str | None
        out: str | None
        expected_rows: int | None
        known_rows: Sequence[int] | None
        hopper: Mapping[str, Any] | None
        blackwell: Mapping[str, Any] | None


def activation_members(name: str, parameters: Mapping[str, float] | None) -> dict[str, Any]:
    """Members of a moxie_activation_spec."""
    members: dict[str, Any] = {"function": enum_value("activation", name)}
    if parameters is not None:
        wanted = _PARAMETERS.get(name.replace("-", "_"), ())
        if set(parameters) != set(wanted):
            allowed = " and ".join(wanted) or "none"
            raise ValueError(f"activation_parameters: {name} has {allowed}, and {', '.join(parameters)} were given")
        members.update(parameters, has_parameters=1)
    return members


class Description:
    """A structure of the interface in C, filled by members' names, with what it points to."""

    def __init__(self, struct: str, members: Mapping[str, Any]) -> None:
        self._kept: list[Any] = []
        self.pointer = self.fill(struct, members)

    def fill(self, struct: str, members: Mapping[str, Any]) -> Any:
        return self.keep(arguments(struct, **members))

    def keep(self, value: Any) -> Any:
        self._kept.append(value)
        return value


def require_integers(**given: Any) -> None:
    """None would leave a member out, and so stand for 0."""
    for name, value in given.items():
        if not hasattr(type(value), "__index__"):
            raise TypeError(f"{name} is an integer, and {value!r} is none")


def arguments(struct: str, **members: Any) -> Any:
    """A structure of the interface in C with its size. None leaves a member out; addresses may be integers.

    TypeError, OverflowError: a value is no such member's, which is named.
    """
    filled = ffi.new(f"{struct}*")
    filled.size = ffi.sizeof(struct)
    types = _types(struct)
    for name, value in members.items():
        if value is None:
            continue
        if isinstance(value, int) and types[name].kind == "pointer":
            value = ffi.cast(types[name], value)
        try:
            setattr(filled, name, value)
        except (TypeError, OverflowError) as error:
            raise type(error)(f"{name} is {value!r}: {error}") from None
    return filled


@cache
def _types(struct: str) -> dict[str, Any]:
    return {name: field.type for name, field in ffi.typeof(struct).fields}


def groups_members(groups: Groups) -> dict[str, Any]:
    """Members of a moxie_groups."""
    kinds = get_args(Groups)
    if not isinstance(groups, kinds):
        names = ", ".join(each.__name__ for each in kinds)
        raise TypeError(f"groups is one of {names}, and {groups!r} is none of them")
    members: dict[str, Any] = {"grouping": enum_value("grouping", groups.grouping)}
    for name, value in vars(groups).items():
        if value is not None:
            members[name] = value
            if name == "total":
                members["has_total"] = 1
    return members


def describe(
    groups: Groups,
    *,
    n: int,
    k: int,
    format: str = "bf16",
    b_format: str | None = None,
    gather: bool = False,
    bias: bool = False,
    activation: str = "none",
    activation_parameters: Mapping[str, float] | None = None,
    gate: str = "interleaved",
    pre: str | None = None,
    out: str | None = "bf16",
    expected_rows: int | None = None,
    known_rows: Sequence[int] | None = None,
    hopper: Mapping[str, Any] | None = None,
    blackwell: Mapping[str, Any] | None = None,
) -> Description:
    """A moxie_gemm_description of a product's words (GroupedGemm says what they mean)."""
    require_integers(n=n, k=k)
    description = Description(
        "moxie_gemm_description",
        {
            "groups": groups_members(groups),
            "n": n,
            "k": k,
            "format": enum_value("operand_format", format),
            "bias": bias,
            "activation": activation_members(activation, activation_parameters),
            "gate": enum_value("gate_layout", gate),
            "has_pre": pre is not None,
            "pre": None if pre is None else enum_value("data_type", pre),
            "no_out": out is None,
            "out": None if out is None else enum_value("data_type", out),
            "has_expected_rows": expected_rows is not None,
            "expected_rows": expected_rows,
            "has_b_format": b_format is not None,
            "b_format": None if b_format is None else enum_value("operand_format", b_format),
            "gather": gather,
        },
    )
    filled = description.pointer
    if known_rows is not None:
        try:
            filled.known_rows = description.keep(ffi.new("int64_t[]", list(known_rows)))
        except TypeError:
            raise TypeError(f"known_rows is a sequence of integers, and {known_rows!r} is none") from None
        filled.known_row_count = len(known_rows)
    if hopper is not None:
        filled.hopper = description.fill("moxie_hopper_tuning", _tuning_members("hopper", hopper))
    if blackwell is not None:
        filled.blackwell = description.fill("moxie_blackwell_tuning", _tuning_members("blackwell", blackwell))
    return description


TUNING_ENUMS = {"schedule": "warp_schedule", "multicast": "multicast", "tile_source": "tile_source"}


def _tuning_members(of: str, tuning: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(tuning, Mapping):
        raise TypeError(f"{of} is a mapping of names, and {tuning!r} is none")
    known = [name for name in _types(f"moxie_{of}_tuning") if name not in ("size", "reserved") and name[:4] != "has_"]
    members: dict[str, Any] = {}
    for name, value in tuning.items():
        if name not in known:
            raise ValueError(f"{of} has no {name!r}, but {', '.join(known)}")
        if value is None:
            continue
        if name in TUNING_ENUMS:
            value = enum_value(TUNING_ENUMS[name], value)
        members[name] = value
        if name in (*TUNING_ENUMS, "swap_ab"):
            members[f"has_{name}"] = 1
    return members
