// SPDX-License-Identifier: Apache-2.0
// Device-side printf, assert, malloc and free as the CUDA headers call them.
#include "sim/isa/external.h"
#include "sim/hazards/global_access.h"
#include "sim/hazards/shared_access.h"
#include "sim/machine/launch.h"
#include "sim/machine/operands.h"
#include "sim/memory/address_space.h"

#include <bit>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace sim {
namespace {

uint8_t* local_of(Warp& warp, int lane) {
  return warp.local.get() + static_cast<size_t>(lane) * warp.cta->cluster->launch->local_bytes();
}

// An argument or result stands in a row, at a fixed place of local memory, or in a frame on the stack.
uint8_t* place_of(Warp& warp, const Kernel::CallCopy& copy, int lane) {
  if (copy.from_row) return warp.registers.get() + copy.from + static_cast<uint32_t>(lane) * copy.from_step;
  uint8_t* const fixed = local_of(warp, lane) + copy.from;
  if (copy.from_base == UINT32_MAX) return fixed;
  return fixed + warp.cta->cluster->launch->kernel->stack_base + warp.row<uint64_t>(copy.from_base)[lane];
}

uint64_t argument(Warp& warp, const Kernel::CallCopy& copy, int lane) {
  uint64_t value = 0;
  std::memcpy(&value, place_of(warp, copy, lane), std::min<uint32_t>(copy.from_row ? copy.from_step : 8, copy.bytes));
  return value;
}

// Reads bytes at a generic address of the lane.
void read_bytes(Warp& warp, uint64_t address, void* to, uint32_t size, int lane) {
  const uint64_t inside = address & ~kWindowMask;
  if ((address & kWindowMask) == kLocalWindow) {
    if (inside + size > warp.cta->cluster->launch->local_bytes())
      fault(Hazard::Memory, warp, lane, "an argument passes the thread's local memory");
    std::memcpy(to, local_of(warp, lane) + inside, size);
  } else if ((address & kWindowMask) == kSharedWindow) {
    const SharedPlace from = shared_place(warp, inside, false, lane);
    shared_generic_read(warp, *from.cta, from.offset, size, lane);
    std::memcpy(to, from.cta->shared.bytes + from.offset, size);
  } else {
    std::memcpy(to, global_pointer(warp, address, size, lane), size);
  }
}

std::string read_string(Warp& warp, uint64_t address, int lane) {
  std::string text;
  for (char c;; text += c) {
    read_bytes(warp, address + text.size(), &c, 1, lane);
    if (c == 0) return text;
  }
}

// Arguments of vprintf lie in the buffer as in a struct: 4 bytes for int, 8 for long, double and pointers.
std::string formatted(Warp& warp, uint64_t format_at, uint64_t arguments, int lane, uint32_t* taken) {
  const std::string format = read_string(warp, format_at, lane);
  std::string out;
  uint64_t at = 0;
  const auto take = [&](uint32_t size) {
    at = (at + size - 1) / size * size;
    uint64_t value = 0;
    read_bytes(warp, arguments + at, &value, size, lane);
    at += size;
    ++*taken;
    return value;
  };
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    if (i + 1 < format.size() && format[i + 1] == '%') {
      out += '%';
      ++i;
      continue;
    }
    std::string spec = "%";
    bool is_long = false;
    for (++i; i < format.size() && std::strchr("diouxXcsfFeEgGaAp", format[i]) == nullptr; ++i) {
      if (format[i] == 'l' || format[i] == 'z' || format[i] == 'j' || format[i] == 't')
        is_long = true;
      else if (format[i] == '*')
        spec += std::to_string(static_cast<int32_t>(take(4)));
      else if (format[i] != 'h')
        spec += format[i];
    }
    if (i >= format.size()) break;
    const char kind = format[i];
    std::string piece(512, 0);
    int written = 0;
    if (kind == 's') {
      out += read_string(warp, take(8), lane);
      continue;
    }
    if (std::strchr("fFeEgGaA", kind) != nullptr) {
      const uint64_t bits = take(8);
      double value;
      std::memcpy(&value, &bits, 8);
      written = std::snprintf(piece.data(), piece.size(), (spec + kind).c_str(), value);
    } else if (kind == 'p') {
      written = std::snprintf(piece.data(), piece.size(), "0x%llx", static_cast<unsigned long long>(take(8)));
    } else if (kind == 'c') {
      written = std::snprintf(piece.data(), piece.size(), (spec + kind).c_str(), static_cast<int>(take(4)));
    } else {
      const uint64_t raw = take(is_long ? 8 : 4);
      const bool is_signed = kind == 'd' || kind == 'i';
      const auto value =
          is_long || !is_signed ? static_cast<long long>(raw) : static_cast<long long>(static_cast<int32_t>(raw));
      written = std::snprintf(piece.data(), piece.size(), (spec + "ll" + kind).c_str(), value);
    }
    if (written > 0) out.append(piece, 0, std::min<size_t>(static_cast<size_t>(written), piece.size() - 1));
  }
  return out;
}

// malloc() gives a null address where the heap is full (CUDA programming guide, dynamic global memory allocation).
void call_malloc(Warp& warp, const Kernel::Call& call, int lane) {
  const Launch& launch = *warp.cta->cluster->launch;
  const uint64_t bytes = argument(warp, call.arguments.at(0), lane);
  const uint64_t address = launch.heap != nullptr ? launch.heap->allocate(bytes, launch.heap_bytes) : 0;
  for (const Kernel::CallCopy& result : call.results) std::memcpy(place_of(warp, result, lane), &address, 8);
}

void call_free(Warp& warp, const Kernel::Call& call, int lane) {
  DeviceHeap* const heap = warp.cta->cluster->launch->heap;
  const uint64_t address = argument(warp, call.arguments.at(0), lane);
  if (address == 0 || (heap != nullptr && heap->free(address))) return;
  char place[19];
  std::snprintf(place, sizeof place, "0x%llx", static_cast<unsigned long long>(address));
  fault(Hazard::Memory, warp, lane,
        std::string("free() of ") + place + ", which malloc() has not given or is free already");
}

}  // namespace

bool is_external_function(const std::string& name) {
  return name == "vprintf" || name == "__assertfail" || name == "malloc" || name == "free";
}

void call_external(Warp& warp, const Kernel::Call& call, uint32_t mask) {
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (call.external == "malloc") {
      call_malloc(warp, call, lane);
      continue;
    }
    if (call.external == "free") {
      call_free(warp, call, lane);
      continue;
    }
    if (call.external == "__assertfail") {
      // The arguments are message, file, line, function and the size of a character.
      const std::string message = read_string(warp, argument(warp, call.arguments.at(0), lane), lane);
      const std::string file = read_string(warp, argument(warp, call.arguments.at(1), lane), lane);
      const uint64_t line = argument(warp, call.arguments.at(2), lane);
      const std::string function = read_string(warp, argument(warp, call.arguments.at(3), lane), lane);
      fault(Hazard::Assertion, warp, lane,
            "'" + message + "' of " + file + ":" + std::to_string(line) + " does not hold, in " + function);
    }
    uint32_t taken = 0;
    const std::string text = formatted(warp, argument(warp, call.arguments.at(0), lane),
                                       argument(warp, call.arguments.at(1), lane), lane, &taken);
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
    // CUDA's printf returns the number of arguments, unlike that of C (CUDA programming guide, formatted output).
    for (const Kernel::CallCopy& result : call.results) std::memcpy(place_of(warp, result, lane), &taken, 4);
  }
}

}  // namespace sim
