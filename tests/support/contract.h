// SPDX-License-Identifier: Apache-2.0
// What each argument of each operation means, as data: where it is required, where it may be absent, where nothing is
// read of it, where it is refused, and which values of it are possible. tests/hopper/contract_test.cpp makes its tests
// of these tables, for the C++ and the C interface.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/c.h"
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
  bool packed = false;     // b is packed weights
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

// The bytes that the pointer `field` must be aligned to; 1 for what is no pointer to device memory.
size_t product_alignment(std::string_view field, Grouping grouping);

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

// The five conversions, of which a call takes one. `to` is that of FindTensorScale.
struct ConversionArguments {
  Quantization quantize;
  Dequantization dequantize;
  ScaleBlocking blocking;
  float* to = nullptr;
};
// A change to a sound call that makes it wrong, and the whole sentence. In the sentence {0} stands for the changed
// pointer.
struct ConversionFault {
  std::string_view name;
  bool (*where)(const ConversionSituation&);
  const void* (*change)(ConversionArguments&);
  std::string_view says;
  std::string_view says_in_c = {};  // where it is another one; "accepted" where C has a meaning for the value
};
std::span<const ConversionFault> conversion_faults();

// A GemmDescription as C has it, which points into the one that it is made of.
struct CDescription {
  explicit CDescription(const GemmDescription& description);
  CDescription(const CDescription&) = delete;
  CDescription& operator=(const CDescription&) = delete;
  void set_sinks(std::vector<moxie_custom_sink> given);

  moxie_gemm_description d{};
  moxie_hopper_tuning hopper{};
  moxie_blackwell_tuning blackwell{};
  std::vector<moxie_custom_sink> sinks;
  std::vector<const moxie_custom_sink*> sink_list;
};

// A change to a sound description of two groups (Dense: one) of 40 rows with an n and a k of 64, and what every
// operation that takes a description says of it.
struct DescriptionRule {
  std::string_view name;
  bool (*where)(Grouping grouping, int arch);
  void (*change)(GemmDescription&);    // null: C++ cannot express it
  void (*change_in_c)(CDescription&);  // null: what C makes of the changed description
  std::string_view says;               // the whole sentence, {} for the grouping's name; empty: it is accepted
  std::string_view says_in_c = {};     // where it is another one
  // Unsupported with a change in C++: sizes alone are not refused.
  ErrorCode code = ErrorCode::InvalidArgument;
};
std::span<const DescriptionRule> description_rules();

}  // namespace moxie::test
