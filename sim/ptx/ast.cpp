// SPDX-License-Identifier: Apache-2.0
// Names and sizes of the fundamental types (PTX ISA 5.2.1).
#include "sim/ptx/ast.h"

namespace sim::ptx {
namespace {
struct Row {
  std::string_view name;
  Type type;
  int bytes;
};
constexpr Row kTypes[] = {
    {"b8", Type::B8, 1},         {"b16", Type::B16, 2}, {"b32", Type::B32, 4},     {"b64", Type::B64, 8},
    {"b128", Type::B128, 16},    {"u8", Type::U8, 1},   {"u16", Type::U16, 2},     {"u32", Type::U32, 4},
    {"u64", Type::U64, 8},       {"s8", Type::S8, 1},   {"s16", Type::S16, 2},     {"s32", Type::S32, 4},
    {"s64", Type::S64, 8},       {"f16", Type::F16, 2}, {"f16x2", Type::F16x2, 4}, {"bf16", Type::BF16, 2},
    {"bf16x2", Type::BF16x2, 4}, {"f32", Type::F32, 4}, {"f64", Type::F64, 8},     {"pred", Type::Pred, 0},
};
}  // namespace

int bytes_of(Type t) {
  for (const Row& row : kTypes)
    if (row.type == t) return row.bytes;
  return 0;
}

Type type_from_name(std::string_view name) {
  for (const Row& row : kTypes)
    if (row.name == name) return row.type;
  return Type::Other;
}

}  // namespace sim::ptx
