// SPDX-License-Identifier: Apache-2.0
// Images: PTX text, fat binaries with PTX inside (plain or packed), and what is not PTX and cannot be run.
// The layout of a fat binary is not documented; these are the fields that the CUDA Toolkit 13 writes.
#include "sim/driver/image.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "sim/driver/error.h"
#include "sim/driver/state.h"

namespace sim::driver {
namespace {

constexpr uint16_t kPtxEntry = 1;
constexpr uint64_t kPackedByLz4 = 0x2000;
constexpr uint64_t kPackedByZstd = 0x8000;

struct Wrapper {
  uint32_t magic, version;
  const void* data;
};
struct FatbinHeader {
  uint32_t magic;
  uint16_t version, header_bytes;
  uint64_t entries_bytes;
};
struct Entry {
  uint16_t kind, version;
  uint32_t header_bytes;
  uint64_t padded_payload_bytes;
  uint32_t packed_bytes;
  uint32_t unknown;
  uint32_t ptx_version;
  uint32_t arch;
  uint64_t unknown2;
  uint64_t flags;
  uint64_t unknown3;
  uint64_t unpacked_bytes;
};

template <class T>
T read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The block format of LZ4: sequences of literals and matches, without a frame.
std::string unpack_lz4(const uint8_t* in, size_t size, size_t unpacked) {
  const uint8_t* const end = in + size;
  std::string out;
  out.reserve(unpacked);
  auto broken = []() { fail(CUDA_ERROR_INVALID_IMAGE, "a damaged LZ4 block in the fat binary"); };
  auto extended = [&](size_t length) {
    if (length != 15) return length;
    for (;;) {
      if (in == end) broken();
      const uint8_t more = *in++;
      length += more;
      if (more != 255) return length;
    }
  };
  while (in < end) {
    const uint8_t token = *in++;
    const size_t literals = extended(token >> 4);
    if (literals > static_cast<size_t>(end - in) || out.size() + literals > unpacked) broken();
    out.append(reinterpret_cast<const char*>(in), literals);
    in += literals;
    if (in == end) break;  // The last sequence has no match.
    if (end - in < 2) broken();
    const size_t offset = read<uint16_t>(in);
    in += 2;
    const size_t length = extended(token & 15) + 4;
    if (offset == 0 || offset > out.size() || out.size() + length > unpacked) broken();
    for (size_t i = 0; i < length; ++i) out.push_back(out[out.size() - offset]);
  }
  if (out.size() != unpacked) broken();
  return out;
}

// Nvcc 13 packs by Zstandard unless told otherwise. The system's library unpacks it and is opened only then, so that
// programs without such images need not have it. The function has kept its form since version 1.0.
std::string unpack_zstd(const uint8_t* in, size_t size, size_t unpacked) {
  static void* const library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
  using Decompress = size_t (*)(void*, size_t, const void*, size_t);
  static const auto decompress =
      library != nullptr ? reinterpret_cast<Decompress>(dlsym(library, "ZSTD_decompress")) : nullptr;
  if (decompress == nullptr) {
    fail(CUDA_ERROR_NO_BINARY_FOR_GPU,
         "the PTX in the fat binary is packed by Zstandard, and there is no libzstd.so.1 to unpack it; install it, or "
         "compile with --compress-mode=speed or none");
  }
  std::string out(unpacked, 0);
  // The function reports an error as a size that no buffer has.
  if (decompress(out.data(), unpacked, in, size) != unpacked)
    fail(CUDA_ERROR_INVALID_IMAGE, "a damaged Zstandard frame in the fat binary");
  return out;
}

std::string until_nul(const std::string& text) { return text.substr(0, text.find('\0')); }

std::string target_in(const std::string& ptx) {
  const size_t at = ptx.find(".target");
  if (at == std::string::npos) return {};
  const size_t begin = ptx.find_first_not_of(" \t", at + 7);
  if (begin == std::string::npos) return {};
  return ptx.substr(begin, ptx.find_first_of(" \t\r\n,", begin) - begin);
}

std::string ptx_of_fatbin(const uint8_t* data, size_t bytes) {
  constexpr uint64_t kLargestImage = uint64_t{1} << 40;
  constexpr const char* kCut = "a fat binary that is cut off";
  require(bytes >= sizeof(FatbinHeader), CUDA_ERROR_INVALID_IMAGE, kCut);
  const auto header = read<FatbinHeader>(data);
  require(header.header_bytes >= sizeof header && header.entries_bytes <= kLargestImage, CUDA_ERROR_INVALID_IMAGE,
          "a fat binary with a damaged header");
  require(header.header_bytes <= bytes && header.entries_bytes <= bytes - header.header_bytes, CUDA_ERROR_INVALID_IMAGE,
          kCut);
  const uint8_t* at = data + header.header_bytes;
  const uint8_t* const end = at + header.entries_bytes;
  std::string best;
  uint32_t best_arch = 0;
  bool other = false;
  while (static_cast<size_t>(end - at) >= sizeof(Entry)) {
    const auto entry = read<Entry>(at);
    const auto room = static_cast<uint64_t>(end - at);
    require(entry.header_bytes >= sizeof(Entry) && entry.header_bytes <= room &&
                entry.padded_payload_bytes <= room - entry.header_bytes &&
                entry.packed_bytes <= entry.padded_payload_bytes,
            CUDA_ERROR_INVALID_IMAGE, "a fat binary whose entries do not fit");
    const uint8_t* payload = at + entry.header_bytes;
    at = payload + entry.padded_payload_bytes;
    if (entry.kind != kPtxEntry) {
      other = true;
      continue;
    }
    // A packed byte of LZ4 stands for at most 255 unpacked ones.
    constexpr uint64_t kLargest = uint64_t{1} << 28;
    const bool lz4 = (entry.flags & kPackedByLz4) != 0 && (entry.flags & kPackedByZstd) == 0;
    require(entry.unpacked_bytes <= kLargest && (!lz4 || entry.unpacked_bytes / 255 <= entry.packed_bytes),
            CUDA_ERROR_INVALID_IMAGE, "a fat binary whose entries do not fit");
    std::string text = (entry.flags & kPackedByZstd) ? unpack_zstd(payload, entry.packed_bytes, entry.unpacked_bytes)
                       : (entry.flags & kPackedByLz4)
                           ? unpack_lz4(payload, entry.packed_bytes, entry.unpacked_bytes)
                           : std::string(reinterpret_cast<const char*>(payload), entry.padded_payload_bytes);
    text = until_nul(text);
    if (entry.arch >= best_arch && target_fits(target_in(text), state().device.arch)) {
      best = std::move(text);
      best_arch = entry.arch;
    }
  }
  if (!best.empty()) return best;
  fail(CUDA_ERROR_NO_BINARY_FOR_GPU, other ? "the fat binary has machine code but no PTX for " + state().device.target
                                           : "the fat binary has no PTX for " + state().device.target);
}

}  // namespace

// "sm_90a" runs on sm_90a alone, "sm_80" on sm_80 and everything later, "sm_100f" on the family of sm_100.
bool target_fits(const std::string& target, int arch) {
  if (target.size() < 4 || target.rfind("sm_", 0) != 0) return false;
  size_t at = 3;
  int number = 0;
  while (at < target.size() && at < 7 && target[at] >= '0' && target[at] <= '9')
    number = number * 10 + (target[at++] - '0');
  const std::string suffix = target.substr(at);
  if (suffix == "a") return number == arch;
  if (suffix == "f") return number / 10 == arch / 10 && number <= arch;
  return suffix.empty() && number <= arch;
}

std::string ptx_of(const void* image, size_t length) {
  const auto* bytes = static_cast<const uint8_t*>(image);
  // The comparison goes byte by byte, since text may be shorter than the magic numbers.
  auto starts_with = [&](std::initializer_list<uint8_t> magic) {
    size_t i = 0;
    for (uint8_t m : magic) {
      if (bytes[i++] != m) return false;
    }
    return true;
  };
  require(bytes[0] != 0, CUDA_ERROR_INVALID_IMAGE, "an empty image");
  if (starts_with({0x7f, 'E', 'L', 'F'})) {
    fail(CUDA_ERROR_NO_BINARY_FOR_GPU, "the image is machine code; the simulator runs PTX");
  }
  const auto is_fatbin = [&] { return starts_with({0x50, 0xed, 0x55, 0xba}); };
  if (starts_with({0xb1, 0x43, 0x62, 0x46})) {
    // The wrapper holds a pointer to the fat binary, which means nothing in a file.
    require(length == kLengthUnknown, CUDA_ERROR_INVALID_IMAGE, "the image is a pointer to a fat binary in a file");
    bytes = static_cast<const uint8_t*>(read<Wrapper>(bytes).data);
    require(bytes != nullptr && is_fatbin(), CUDA_ERROR_INVALID_IMAGE, "a wrapper without a fat binary");
  }
  if (is_fatbin()) return ptx_of_fatbin(bytes, length);
  const auto* text = reinterpret_cast<const char*>(bytes);
  for (const char* t = text; *t != 0; ++t) {
    const auto ch = static_cast<unsigned char>(*t);
    if (ch >= 32 || ch == '\n' || ch == '\r' || ch == '\t' || ch == '\f' || ch == '\v') continue;
    fail(CUDA_ERROR_INVALID_IMAGE, "the image is neither PTX nor a fat binary");
  }
  return text;
}

std::string read_image_file(const char* path) {
  require(path != nullptr);
  const std::string name = std::string("'") + path + "'";
  // A directory cannot be read, and a pipe or a device may never end.
  std::error_code error;
  require(std::filesystem::is_regular_file(path, error), CUDA_ERROR_FILE_NOT_FOUND, name + " is not a file");
  constexpr uint64_t kLargestFile = uint64_t{1} << 31;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  require(!error && bytes <= kLargestFile, CUDA_ERROR_INVALID_IMAGE, name + " is larger than any image");
  std::ifstream file(path, std::ios::binary);
  require(file.good(), CUDA_ERROR_FILE_NOT_FOUND, "cannot read " + name);
  std::string image(bytes, 0);
  file.read(image.data(), static_cast<std::streamsize>(bytes));
  image.resize(static_cast<size_t>(file.gcount()));
  return image;
}

}  // namespace sim::driver
