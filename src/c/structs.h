// SPDX-License-Identifier: Apache-2.0
// Structures whose first member is their size: those that callers fill are copied with defaults for what their header
// lacked, those that the library fills are written as far as their header knows them.
#pragma once
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "c/status.h"
#include "moxie/names.h"

namespace moxie::c {

template <class Struct, class Member>
constexpr size_t bytes_of(Member Struct::*) {
  return sizeof(Member);  // NOLINT(bugprone-sizeof-expression): of a pointer, its own size is wanted
}
#define MOXIE_END(Struct, member) (offsetof(Struct, member) + bytes_of(&Struct::member))

// kName: what sentences call a structure. kRequired: the bytes up to the end of its last required member, which any
// caller's structure has.
template <class Struct>
struct Sized;

// No structure has bytes behind its last member: one that is added later may not lie where older callers have padding.
#define MOXIE_SIZED(Struct, last_required, last)                                                              \
  template <>                                                                                                 \
  struct Sized<Struct> {                                                                                      \
    static constexpr const char* kName = #Struct;                                                             \
    static constexpr size_t kRequired = MOXIE_END(Struct, last_required);                                     \
  };                                                                                                          \
  static_assert(std::is_trivially_copyable_v<Struct> && offsetof(Struct, size) == 0 && alignof(Struct) == 8); \
  static_assert(MOXIE_END(Struct, last) == sizeof(Struct), "bytes behind the last member of " #Struct);
MOXIE_SIZED(moxie_device_info, size, clock)
MOXIE_SIZED(moxie_hopper_tuning, size, reserved)
MOXIE_SIZED(moxie_blackwell_tuning, size, reserved)
MOXIE_SIZED(moxie_custom_sink, param_bytes, needs)
MOXIE_SIZED(moxie_gemm_description, k, reserved)
MOXIE_SIZED(moxie_device_figures, size, clock)
MOXIE_SIZED(moxie_plan_info, size, reserved)
MOXIE_SIZED(moxie_plan_candidate, size, reserved)
MOXIE_SIZED(moxie_ranked_layer, top_k, reserved)
MOXIE_SIZED(moxie_rank_costs, size, in_halves)
MOXIE_SIZED(moxie_gemm_tensors, out, gather)
MOXIE_SIZED(moxie_group_pointers, sizes, sink_count)
MOXIE_SIZED(moxie_launch_options, stream, weights_ready)
MOXIE_SIZED(moxie_scale_blocking, k, stream)
MOXIE_SIZED(moxie_quantization, k, reserved)
MOXIE_SIZED(moxie_dequantization, k, reserved)
MOXIE_SIZED(moxie_weight_packing, k, gate)
MOXIE_SIZED(moxie_weight_unpacking, k, gate)
MOXIE_SIZED(moxie_expert_routing, logits_type, reserved)
MOXIE_SIZED(moxie_expert_sort, id_type, token_count)
MOXIE_SIZED(moxie_expert_permutation, type, token_count)
MOXIE_SIZED(moxie_expert_combination, reserved, token_count)
MOXIE_SIZED(moxie_router_description, logits_type, reserved)
MOXIE_SIZED(moxie_rank_description, rank, reserved)
MOXIE_SIZED(moxie_expert_layer_description, top_k, ranks)
MOXIE_SIZED(moxie_expert_layer_tensors, out, places)
MOXIE_SIZED(moxie_pack_options, size, clock)
MOXIE_SIZED(moxie_pack_result, size, compiled)
MOXIE_SIZED(moxie_tuned_hopper, size, multicast)
#undef MOXIE_SIZED
#undef MOXIE_END

// The size that a caller gave its structure, once it is known to be one. `name` stands for the argument.
template <class Struct>
size_t checked_size(const Struct* given, const char* name) {
  constexpr size_t kMost = 65536;  // more than any version will have; a size that was never set is often larger
  using Info = Sized<Struct>;
  const size_t size = not_null(given, name).size;
  if (size == 0) reject("{}.size is 0, but must be sizeof({}), here {}", name, Info::kName, sizeof(Struct));
  if (size < Info::kRequired || size % 8 != 0 || size > kMost)
    reject("{}.size is {}, but must be sizeof({}): here {}, in no version below {}, and a multiple of 8", name, size,
           Info::kName, sizeof(Struct), Info::kRequired);
  return size;
}

// What the caller gave, with zeros for the members that its header lacked. Members that this version does not know must
// be 0.
template <class Struct>
Struct read(const Struct* given, const char* name) {
  const size_t size = checked_size(given, name);
  Struct copy{};
  std::memcpy(&copy, given, std::min(size, sizeof(Struct)));
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  for (size_t i = sizeof(Struct); i < size; ++i) {
    if (bytes[i] != 0)
      throw Error(
          ErrorCode::Unsupported,
          fmt::format("{} has a member at byte {} that is not 0, but this version of the library, {}, knows only "
                      "the first {} bytes of {}",
                      name, i, MOXIE_VERSION, sizeof(Struct), Sized<Struct>::kName));
  }
  return copy;
}

// As read(), but null stands for a structure of zeros.
template <class Struct>
Struct read_optional(const Struct* given, const char* name) {
  return given ? read(given, name) : Struct{};
}

// Fills the caller's structure as far as its header knows it, and with zeros what this version does not know. `size` is
// that of checked_size, and stays.
template <class Struct>
void write(Struct* to, size_t size, Struct from) {
  from.size = size;
  std::memset(to, 0, size);
  std::memcpy(to, &from, std::min(size, sizeof(Struct)));
}

// Members of C as values of C++. `name` is the member's.
template <class Enum>
Enum enum_of(const char* name, int32_t value) {
  if (!is_enumerator(static_cast<Enum>(value)))
    reject("{} is {}, but only 0 to {} have a meaning", name, value, names<Enum>().size() - 1);
  return static_cast<Enum>(value);
}

inline bool flag(const char* name, int32_t value) {
  if (value != 0 && value != 1) reject("{} is {}, but must be 0 or 1", name, value);
  return value == 1;
}

inline void check_reserved(const char* name, int32_t value) {
  if (value != 0)
    throw Error(ErrorCode::Unsupported,
                fmt::format("{} is {}, but this version of the library, {}, knows only 0", name, value, MOXIE_VERSION));
}

// A member that is present where has_... is 1.
template <class Value>
std::optional<Value> optional_of(const char* has_name, int32_t has, const char* name, Value value) {
  if (flag(has_name, has)) return value;
  if (value != Value{}) reject("{} is {}, but {} is 0", name, value, has_name);
  return std::nullopt;
}

template <class Enum>
std::optional<Enum> optional_enum(const char* has_name, int32_t has, const char* name, int32_t value) {
  if (!optional_of(has_name, has, name, value)) return std::nullopt;
  return enum_of<Enum>(name, value);
}

// Where 0 stands for absence.
inline std::optional<int> unless_zero(int32_t value) {
  if (value == 0) return std::nullopt;
  return value;
}

// The total of a function's argument.
inline std::optional<int64_t> total_of(int64_t total) {
  if (total == MOXIE_NO_TOTAL) return std::nullopt;
  return total;
}

}  // namespace moxie::c
