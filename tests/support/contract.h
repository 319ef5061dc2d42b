// SPDX-License-Identifier: Apache-2.0
// What each argument of each operation means, as data: where it is required, where it may be absent, where nothing is
// read of it, and where it is refused. tests/hopper/contract_test.cpp makes its tests of these tables, for the C++ and
// the C interface.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "moxie/moxie.h"

namespace moxie::test {

enum class Use {
  Required,  // null is refused
  Optional,  // null or 0 stands for something
  Ignored,   // nothing is read of it: whatever stands there changes no bit
  Refused,   // anything but null is refused
};

// The call that an argument is part of.
struct ProductSituation {
  Grouping grouping = Grouping::Dense;
  OperandFormat format = OperandFormat::Bf16;
  bool bias = false;
  std::optional<DataType> pre, out;
  bool no_depth = false;   // K is 0
  bool workspace = false;  // the plan needs some
};

struct ProductRule {
  std::string_view field;  // as GemmTensors or GroupPointers names it
  bool (*where)(const ProductSituation&);
  Use use;
  std::string_view says;  // of the sentence that refuses it
};
// The first rule of a field that holds counts.
std::span<const ProductRule> product_rules();
const ProductRule& product_rule(std::string_view field, const ProductSituation& situation);

enum class Conversion { Quantize, Dequantize, FindTensorScale, BlockScales, UnblockScales };
struct ConversionSituation {
  Conversion conversion = Conversion::Quantize;
  DataType format = DataType::Mxfp4;
  bool offsets = false;  // the call has them
  bool along_k = false;
};
struct ConversionRule {
  std::string_view field;
  bool (*where)(const ConversionSituation&);
  Use use;
  std::string_view says;
};
std::span<const ConversionRule> conversion_rules();
const ConversionRule& conversion_rule(std::string_view field, const ConversionSituation& situation);

}  // namespace moxie::test
