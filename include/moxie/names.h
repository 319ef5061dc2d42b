// SPDX-License-Identifier: Apache-2.0
// The names of every enumerator: as text (command line, messages, tables) and as C++ identifiers (generated sources).
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "moxie/types.h"

namespace moxie {

template <class Enum>
struct EnumName {
  Enum value;
  std::string_view identifier;  // "RowGroups"
  std::string_view text;        // "row-groups"
};

// One table for each enum: the enum's own identifier and its enumerators in the order of their values, from 0 without a
// gap.
template <class Enum>
struct EnumTable;

template <>
struct EnumTable<Grouping> {
  static constexpr std::string_view kType = "Grouping";
  static constexpr EnumName<Grouping> kNames[] = {
      {Grouping::Dense, "Dense", "dense"},        {Grouping::Batched, "Batched", "batched"},
      {Grouping::Offsets, "Offsets", "offsets"},  {Grouping::RowGroups, "RowGroups", "row-groups"},
      {Grouping::Masked, "Masked", "masked"},     {Grouping::Pointers, "Pointers", "pointers"},
      {Grouping::KGroups, "KGroups", "k-groups"},
  };
};
template <>
struct EnumTable<Activation> {
  static constexpr std::string_view kType = "Activation";
  static constexpr EnumName<Activation> kNames[] = {
      {Activation::None, "None", "none"},
      {Activation::Relu, "Relu", "relu"},
      {Activation::Relu2, "Relu2", "relu2"},
      {Activation::GeluTanh, "GeluTanh", "gelu"},
      {Activation::GeluErf, "GeluErf", "gelu-erf"},
      {Activation::Silu, "Silu", "silu"},
      {Activation::Swiglu, "Swiglu", "swiglu"},
      {Activation::SwigluOai, "SwigluOai", "swiglu-oai"},
      {Activation::Geglu, "Geglu", "geglu"},
      {Activation::Reglu, "Reglu", "reglu"},
      {Activation::SwigluClamped, "SwigluClamped", "swiglu-clamped"},
      {Activation::Situ, "Situ", "situ"},
  };
};
template <>
struct EnumTable<GateLayout> {
  static constexpr std::string_view kType = "GateLayout";
  static constexpr EnumName<GateLayout> kNames[] = {
      {GateLayout::Interleaved, "Interleaved", "interleaved"},
      {GateLayout::Split, "Split", "split"},
      {GateLayout::SplitUpFirst, "SplitUpFirst", "split-up-first"},
  };
};
template <>
struct EnumTable<DataType> {
  static constexpr std::string_view kType = "DataType";
  static constexpr EnumName<DataType> kNames[] = {
      {DataType::Bf16, "Bf16", "bf16"},    {DataType::F32, "F32", "f32"},       {DataType::Mxfp4, "Mxfp4", "mxfp4"},
      {DataType::Mxfp8, "Mxfp8", "mxfp8"}, {DataType::Nvfp4, "Nvfp4", "nvfp4"},
  };
};
template <>
struct EnumTable<OperandFormat> {
  static constexpr std::string_view kType = "OperandFormat";
  static constexpr EnumName<OperandFormat> kNames[] = {
      {OperandFormat::Bf16, "Bf16", "bf16"},
      {OperandFormat::Mxfp4, "Mxfp4", "mxfp4"},
      {OperandFormat::Nvfp4, "Nvfp4", "nvfp4"},
  };
};
template <>
struct EnumTable<WarpSchedule> {
  static constexpr std::string_view kType = "WarpSchedule";
  static constexpr EnumName<WarpSchedule> kNames[] = {
      {WarpSchedule::Cooperative, "Cooperative", "cooperative"},
      {WarpSchedule::PingPong, "PingPong", "pingpong"},
  };
};
template <>
struct EnumTable<TileSource> {
  static constexpr std::string_view kType = "TileSource";
  static constexpr EnumName<TileSource> kNames[] = {
      {TileSource::Static, "Static", "static"},
      {TileSource::LaunchControl, "LaunchControl", "launch-control"},
  };
};
template <>
struct EnumTable<Multicast> {
  static constexpr std::string_view kType = "Multicast";
  static constexpr EnumName<Multicast> kNames[] = {
      {Multicast::None, "None", "none"},
      {Multicast::A, "A", "a"},
      {Multicast::B, "B", "b"},
      {Multicast::Either, "Either", "either"},
  };
};
template <>
struct EnumTable<RouterScore> {
  static constexpr std::string_view kType = "RouterScore";
  static constexpr EnumName<RouterScore> kNames[] = {
      {RouterScore::Softmax, "Softmax", "softmax"},
      {RouterScore::Sigmoid, "Sigmoid", "sigmoid"},
  };
};
template <>
struct EnumTable<RowFormat> {
  static constexpr std::string_view kType = "RowFormat";
  static constexpr EnumName<RowFormat> kNames[] = {
      {RowFormat::Bf16, "Bf16", "bf16"},
      {RowFormat::Fp8, "Fp8", "fp8"},
      {RowFormat::Mxfp8, "Mxfp8", "mxfp8"},
  };
};
template <>
struct EnumTable<ResultFormat> {
  static constexpr std::string_view kType = "ResultFormat";
  static constexpr EnumName<ResultFormat> kNames[] = {
      {ResultFormat::Rows, "Rows", "rows"},
      {ResultFormat::Sums, "Sums", "sums"},
      {ResultFormat::Bf16Sums, "Bf16Sums", "bf16-sums"},
  };
};
template <>
struct EnumTable<LayerPart> {
  static constexpr std::string_view kType = "LayerPart";
  static constexpr EnumName<LayerPart> kNames[] = {
      {LayerPart::All, "All", "all"},
      {LayerPart::Send, "Send", "send"},
      {LayerPart::Multiply, "Multiply", "multiply"},
      {LayerPart::Sum, "Sum", "sum"},
  };
};

// Every enumerator with its names.
template <class Enum>
constexpr std::span<const EnumName<Enum>> names() {
  return EnumTable<Enum>::kNames;
}

// Whether `value` is one of the enumerators, which an enum that came through C need not be.
template <class Enum>
constexpr bool is_enumerator(Enum value) {
  return static_cast<long long>(value) >= 0 && static_cast<size_t>(value) < names<Enum>().size();
}

// "row-groups"; "?" for a value that is no enumerator.
template <class Enum>
constexpr std::string_view to_string(Enum value) {
  return is_enumerator(value) ? names<Enum>()[static_cast<size_t>(value)].text : "?";
}

// The enumerator whose text this is; nothing for any other text. parse<Grouping>("row-groups").
template <class Enum>
constexpr std::optional<Enum> parse(std::string_view text) {
  for (const EnumName<Enum>& name : names<Enum>()) {
    if (name.text == text) return name.value;
  }
  return std::nullopt;
}

}  // namespace moxie
