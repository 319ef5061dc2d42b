// SPDX-License-Identifier: Apache-2.0
#include "sim/async/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "sim/arithmetic/panel_product.h"

namespace sim {

std::optional<Reduction> reduction_from_name(std::string_view name) {
  constexpr std::string_view kNames[] = {"", "add", "min", "max", "inc", "dec", "and", "or", "xor"};
  for (int i = 1; i < 9; ++i) {
    if (kNames[i] == name) return static_cast<Reduction>(i);
  }
  return std::nullopt;
}

bool reduction_supports(Reduction op, TensorElement e, bool to_shared) {
  const bool word = e == TensorElement::U32 || e == TensorElement::S32;
  const bool half = e == TensorElement::F16 || e == TensorElement::BF16;
  switch (op) {
    case Reduction::None:
      return true;
    case Reduction::Add:
      return word || e == TensorElement::U64 ||
             (!to_shared && (half || e == TensorElement::F32 || e == TensorElement::F32Ftz || e == TensorElement::F64));
    case Reduction::Min:
    case Reduction::Max:
      return word || (!to_shared && (half || e == TensorElement::U64 || e == TensorElement::S64));
    case Reduction::Inc:
    case Reduction::Dec:
      return e == TensorElement::U32;
    case Reduction::And:
    case Reduction::Or:
    case Reduction::Xor:
      return word || (!to_shared && e == TensorElement::U64);  // maps of s64: an illegal instruction on an H200
  }
  return false;
}

namespace {

template <class T>
T integer(Reduction op, T a, T b) {
  using U = std::make_unsigned_t<T>;
  switch (op) {
    case Reduction::Add:
      return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
    case Reduction::Min:
      return std::min(a, b);
    case Reduction::Max:
      return std::max(a, b);
    case Reduction::Inc:
      return a >= b ? T{0} : static_cast<T>(a + 1);
    case Reduction::Dec:
      return a == 0 || a > b ? b : static_cast<T>(a - 1);
    case Reduction::And:
      return a & b;
    case Reduction::Or:
      return a | b;
    case Reduction::Xor:
      return a ^ b;
    case Reduction::None:
      return b;
  }
  return b;
}

// One of the operands is returned unless both are NaN; -0 is less than +0.
template <class T>
T floating(Reduction op, T a, T b) {
  if (op == Reduction::Add) return a + b;
  if (std::isnan(a)) return b;
  if (std::isnan(b)) return a;
  if (a == b) return std::signbit(a) == (op == Reduction::Min) ? a : b;
  return (a < b) == (op == Reduction::Min) ? a : b;
}

float flush(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

template <class Word, class F>
void update(uint8_t* destination, const uint8_t* source, F f) {
  Word* const word = reinterpret_cast<Word*>(destination);
  Word operand;
  std::memcpy(&operand, source, sizeof operand);
  Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(word, &old, f(old, operand), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

void reduce_one(Reduction op, TensorElement element, uint8_t* destination, const uint8_t* source) {
  switch (element) {
    case TensorElement::S32:
      return update<uint32_t>(destination, source, [op](uint32_t a, uint32_t b) {
        return static_cast<uint32_t>(integer(op, static_cast<int32_t>(a), static_cast<int32_t>(b)));
      });
    case TensorElement::U32:
      return update<uint32_t>(destination, source, [op](uint32_t a, uint32_t b) { return integer(op, a, b); });
    case TensorElement::S64:
      return update<uint64_t>(destination, source, [op](uint64_t a, uint64_t b) {
        return static_cast<uint64_t>(integer(op, static_cast<int64_t>(a), static_cast<int64_t>(b)));
      });
    case TensorElement::U64:
      return update<uint64_t>(destination, source, [op](uint64_t a, uint64_t b) { return integer(op, a, b); });
    case TensorElement::F16:
      return update<uint16_t>(destination, source, [op](uint16_t a, uint16_t b) {
        return f32_to_f16(floating(op, f16_to_f32(a), f16_to_f32(b)));
      });
    case TensorElement::BF16:
      return update<uint16_t>(destination, source, [op](uint16_t a, uint16_t b) {
        return f32_to_bf16(floating(op, bf16_to_f32(a), bf16_to_f32(b)));
      });
    case TensorElement::F32:  // 9.7.9.25.4.2 says that subnormals are flushed; an H200 keeps them
      return update<uint32_t>(destination, source, [op](uint32_t a, uint32_t b) {
        return std::bit_cast<uint32_t>(floating(op, std::bit_cast<float>(a), std::bit_cast<float>(b)));
      });
    case TensorElement::F32Ftz:
      return update<uint32_t>(destination, source, [op](uint32_t a, uint32_t b) {
        return std::bit_cast<uint32_t>(
            flush(floating(op, flush(std::bit_cast<float>(a)), flush(std::bit_cast<float>(b)))));
      });
    case TensorElement::F64:
      return update<uint64_t>(destination, source, [op](uint64_t a, uint64_t b) {
        return std::bit_cast<uint64_t>(floating(op, std::bit_cast<double>(a), std::bit_cast<double>(b)));
      });
    default:
      return;
  }
}

}  // namespace

void reduce_elements(Reduction op, TensorElement element, uint8_t* destination, const uint8_t* source, uint32_t bytes) {
  if (op == Reduction::None) {
    std::memcpy(destination, source, bytes);
    return;
  }
  const uint32_t step = static_cast<uint32_t>(bytes_of(element));
  for (uint32_t i = 0; i + step <= bytes; i += step) reduce_one(op, element, destination + i, source + i);
}

}  // namespace sim
