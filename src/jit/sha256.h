// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): names and checks the entries of the cache.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace moxie::jit {

class Sha256 {
 public:
  void add(std::string_view bytes);
  // Adds the length before the bytes, so that no two lists of fields give the same stream.
  void add_field(std::string_view bytes);
  std::string hex();  // 64 digits; nothing may be added after it

 private:
  void block(const uint8_t* bytes);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  uint64_t length_ = 0;
};

std::string sha256_hex(std::string_view bytes);

}  // namespace moxie::jit
