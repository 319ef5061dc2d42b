// SPDX-License-Identifier: Apache-2.0
// Modules and libraries: from images of every kind, whole and damaged, to functions and variables.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/sim/refusals.h"

namespace sim_test {
namespace {

struct LoadResult {
  CUresult code = CUDA_SUCCESS;
  std::string log;
};
LoadResult load_with_log(const void* image) {
  std::array<char, 512> log{};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  CUmodule module = nullptr;
  LoadResult result;
  result.code = CU(cuModuleLoadDataEx)(&module, image, 2, options, values);
  EXPECT_EQ(reinterpret_cast<size_t>(values[1]), std::strlen(log.data()));
  result.log = log.data();
  return result;
}

TEST_F(SimDriver, BadPtxIsNamedByLine) {
  const LoadResult syntax =
      load_with_log(".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n  mov.u32 ;\n}\n");
  EXPECT_EQ(syntax.code, CUDA_ERROR_INVALID_PTX);
  EXPECT_NE(syntax.log.find("line 6"), std::string::npos) << syntax.log;
  const LoadResult unknown = load_with_log(
      ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n  .reg .b32 %r<2>;\n  frobnicate.u32 "
      "%r1, 1;\n  ret;\n}\n");
  EXPECT_EQ(unknown.code, CUDA_ERROR_INVALID_PTX);
  EXPECT_NE(unknown.log.find("frobnicate"), std::string::npos) << unknown.log;
  EXPECT_NE(unknown.log.find("line 7"), std::string::npos) << unknown.log;
}

// A log ends with a zero byte within the room it was given, and its size does not count that byte.
TEST_F(SimDriver, ALogIsCutToItsRoom) {
  const char bad[] = ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n  mov.u32 ;\n}\n";
  const std::string whole = load_with_log(bad).log;
  ASSERT_FALSE(whole.empty());
  for (const size_t room : {size_t{0}, size_t{1}, size_t{8}, whole.size(), whole.size() + 1, whole.size() + 2}) {
    const size_t used = room == 0 ? 0 : std::min(whole.size(), room - 1);
    std::string log(whole.size() + 8, '#'), expected = log;
    if (room > 0) expected.replace(0, used + 1, whole.substr(0, used) + '\0');
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log.data(), reinterpret_cast<void*>(room)};
    CUmodule module = nullptr;
    FAILS(CUDA_ERROR_INVALID_PTX, CU(cuModuleLoadDataEx)(&module, bad, 2, options, values));
    EXPECT_EQ(log, expected) << room;
    EXPECT_EQ(reinterpret_cast<size_t>(values[1]), used) << room;
  }
}

// A kernel that cannot be simulated keeps nobody from the other kernels of its module.
TEST_F(SimDriver, AKernelThatCannotBeSimulatedFailsWhenLaunched) {
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, R"(.version 8.0
.target sm_90a
.address_size 64
.visible .entry bad()
{
  .reg .b32 %r<2>;
  frobnicate.u32 %r1, 1;
  ret;
}
.visible .entry good()
{
  ret;
})"));
  CUfunction good = nullptr, bad = nullptr;
  OK(CU(cuModuleGetFunction)(&good, module, "good"));
  OK(CU(cuModuleGetFunction)(&bad, module, "bad"));
  OK(CU(cuLaunchKernel)(good, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
  testing::internal::CaptureStderr();
  FAILS(CUDA_ERROR_NOT_SUPPORTED, CU(cuLaunchKernel)(bad, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr));
  const std::string sentence =
      "kernel 'bad' cannot be simulated: line 7, column 3: instruction 'frobnicate.u32' is not supported";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), sentence + "\n");
  const char* text = nullptr;
  OK(CU(cuGetErrorString)(CUDA_ERROR_NOT_SUPPORTED, &text));
  EXPECT_EQ(std::string(text).substr(std::string(text).find("kernel")), sentence);
  OK(CU(cuLaunchKernel)(good, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr)) << "the context is unharmed";
  OK(CU(cuCtxSynchronize)());
}

// A table of functions in global memory, as compilers write virtual ones.
TEST_F(SimDriver, FunctionsAreCalledThroughTablesInMemory) {
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, R"(.version 8.0
.target sm_90a
.address_size 64
.func (.reg .b32 r) twice(.reg .b32 a) { add.u32 r, a, a; ret; }
.func (.reg .b32 r) square(.reg .b32 a) { mul.lo.u32 r, a, a; ret; }
.global .align 8 .u64 table[2] = {twice, square};
.visible .entry k(.param .u64 p_out)
{
  .reg .b32 %r<4>; .reg .b64 %rd<6>;
  mov.u32 %r1, %tid.x;
  and.b32 %r2, %r1, 1;
  mov.u64 %rd1, table;
  mad.wide.u32 %rd1, %r2, 8, %rd1;
  ld.global.u64 %rd2, [%rd1];
  call (%r3), %rd2, (%r1), any;
  any: .callprototype (.reg .b32 _) _ (.reg .b32 _);
  ld.param.u64 %rd3, [p_out];
  mad.wide.u32 %rd3, %r1, 4, %rd3;
  st.global.u32 [%rd3], %r3;
  ret;
})"));
  CUfunction k = nullptr;
  OK(CU(cuModuleGetFunction)(&k, module, "k"));
  CUdeviceptr out = allocate(32 * 4);
  void* params[] = {&out};
  OK(CU(cuLaunchKernel)(k, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
  const std::vector<uint32_t> values = download(out, 32);
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(values[t], t % 2 == 0 ? 2 * t : t * t) << t;
}

TEST_F(SimDriver, ImagesThatAreNotForThisDevice) {
  std::string other = kPtx;
  other.replace(other.find("sm_90a"), 6, "sm_100a");
  EXPECT_EQ(load_with_log(other.c_str()).code, CUDA_ERROR_NO_BINARY_FOR_GPU);
  other.replace(other.find("sm_100a"), 7, "sm_80");
  EXPECT_EQ(load_with_log(other.c_str()).code, CUDA_SUCCESS);
  EXPECT_EQ(load_with_log("\x7f"
                          "ELF....")
                .code,
            CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(load_with_log("").code, CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(load_with_log("\x01\x02").code, CUDA_ERROR_INVALID_IMAGE);
}

template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// An entry of a fat binary.
std::string fatbin_entry(uint16_t kind, uint64_t flags, const std::string& payload, uint64_t unpacked,
                         uint32_t arch = 90) {
  std::string entry;
  put<uint16_t>(entry, kind);
  put<uint16_t>(entry, 0x101);
  put<uint32_t>(entry, 64);
  put<uint64_t>(entry, payload.size());
  put<uint32_t>(entry, static_cast<uint32_t>(unpacked ? payload.size() : 0));
  put<uint32_t>(entry, 0);
  put<uint32_t>(entry, 0);
  put<uint32_t>(entry, arch);
  put<uint64_t>(entry, 0);
  put<uint64_t>(entry, flags);
  put<uint64_t>(entry, 0);
  put<uint64_t>(entry, unpacked);
  return entry + payload;
}
std::string fatbin_of(const std::string& entries) {
  std::string bytes;
  put<uint32_t>(bytes, 0xba55ed50);
  put<uint16_t>(bytes, 1);
  put<uint16_t>(bytes, 16);
  put<uint64_t>(bytes, entries.size());
  bytes += entries;
  // The folder MOXIE_TEST_IMAGES, when it is set, gets each image as a seed for scripts/fuzz.
  if (const char* folder = std::getenv("MOXIE_TEST_IMAGES"))
    std::ofstream(folder + ("/" + std::to_string(std::hash<std::string>()(bytes)) + ".fatbin")) << bytes;
  return bytes;
}
// A fat binary with one entry.
std::string fatbin(uint16_t kind, uint64_t flags, const std::string& payload, uint64_t unpacked) {
  return fatbin_of(fatbin_entry(kind, flags, payload, unpacked));
}

// Appends what a length needs beyond its four bits of the token.
void put_length(std::string& out, size_t length) {
  if (length < 15) return;
  for (length -= 15; length >= 255; length -= 255) out.push_back('\xff');
  out.push_back(static_cast<char>(length));
}

// One LZ4 sequence of `text`, a run of spaces as an overlapping match, and the rest as literals.
std::string lz4(const std::string& head, size_t run, const std::string& tail) {
  const std::string literals = head + " ";
  const auto nibble = [](size_t length) { return std::min<size_t>(length, 15); };
  std::string out;
  out.push_back(static_cast<char>(nibble(literals.size()) << 4 | nibble(run - 4)));
  put_length(out, literals.size());
  out += literals;
  put<uint16_t>(out, 1);
  put_length(out, run - 4);
  out.push_back(static_cast<char>(nibble(tail.size()) << 4));
  put_length(out, tail.size());
  return out + tail;
}

// A Zstandard frame of a raw block, a run of spaces as a block of its own kind, and another raw block (RFC 8878).
std::string zstd(const std::string& head, uint32_t run, const std::string& tail) {
  std::string out;
  const auto block = [&](size_t size, uint32_t kind, bool last, const std::string& content) {
    const auto header = static_cast<uint32_t>(size << 3 | kind << 1 | (last ? 1 : 0));
    for (int byte = 0; byte < 3; ++byte) out.push_back(static_cast<char>(header >> (8 * byte)));
    out += content;
  };
  put<uint32_t>(out, 0xfd2fb528);
  out.push_back('\xa0');  // The frame is a single segment, with the size of its content in four bytes.
  put<uint32_t>(out, static_cast<uint32_t>(head.size() + run + tail.size()));
  block(head.size(), 0, false, head);
  block(run, 1, false, " ");
  block(tail.size(), 0, true, tail);
  return out;
}

TEST_F(SimDriver, FatBinariesCarryPtx) {
  const std::string plain = std::string(kPtx) + '\0';
  const std::string whole = fatbin(1, 0x11, plain, 0);
  EXPECT_EQ(load_with_log(whole.data()).code, CUDA_SUCCESS);

  struct {
    uint32_t magic = 0x466243b1, version = 1;
    const void* data = nullptr;
    const void* file = nullptr;
  } wrapper;
  wrapper.data = whole.data();
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadFatBinary)(&module, &wrapper));
  CUfunction f = nullptr;
  OK(CU(cuModuleGetFunction)(&f, module, "scale_add"));

  const std::string head = "// the beginning of the text\n", tail = std::string(kPtx) + '\0';
  const std::string packed = lz4(head, 300, tail);
  const size_t unpacked = head.size() + 1 + 300 + tail.size();
  const LoadResult compressed = load_with_log(fatbin(1, 0x2011, packed, unpacked).data());
  EXPECT_EQ(compressed.code, CUDA_SUCCESS) << compressed.log;
  EXPECT_EQ(load_with_log(fatbin(1, 0x2011, packed.substr(0, 200), unpacked).data()).code, CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(load_with_log(fatbin(1, 0x2011, packed, unpacked - 1).data()).code, CUDA_ERROR_INVALID_IMAGE);
  const std::string frame = zstd(head, 301, tail);
  const LoadResult framed = load_with_log(fatbin(1, 0x8011, frame, unpacked).data());
  const LoadResult damaged = load_with_log(fatbin(1, 0x8011, packed, unpacked).data());
  EXPECT_NE(damaged.log.find("Zstandard"), std::string::npos) << damaged.log;
  if (damaged.code != CUDA_ERROR_NO_BINARY_FOR_GPU) {  // That code says that this system has no libzstd.so.1.
    EXPECT_EQ(framed.code, CUDA_SUCCESS) << framed.log;
    EXPECT_EQ(damaged.code, CUDA_ERROR_INVALID_IMAGE);
    EXPECT_EQ(load_with_log(fatbin(1, 0x8011, frame, unpacked - 1).data()).code, CUDA_ERROR_INVALID_IMAGE);
  }
  EXPECT_EQ(load_with_log(fatbin(2, 0x11,
                                 "\x7f"
                                 "ELF",
                                 0)
                              .data())
                .code,
            CUDA_ERROR_NO_BINARY_FOR_GPU);
}

// Gives what cuModuleLoad answers for the file. cuLibraryLoadFromFile must answer the same.
CUresult load_path(const std::string& path) {
  CUmodule module = nullptr;
  const CUresult code = CU(cuModuleLoad)(&module, path.c_str());
  CUlibrary library = nullptr;
  EXPECT_EQ(code, CU(cuLibraryLoadFromFile)(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  EXPECT_EQ(module != nullptr, code == CUDA_SUCCESS);
  EXPECT_EQ(library != nullptr, code == CUDA_SUCCESS);
  if (module != nullptr) CU(cuModuleUnload)(module);
  if (library != nullptr) CU(cuLibraryUnload)(library);
  return code;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path(testing::TempDir() + "moxie_sim_" + name + "_" + std::to_string(getpid())) {}
  ~TemporaryFile() { std::remove(path.c_str()); }
  CUresult load(const std::string& content) const {
    std::ofstream(path, std::ios::binary) << content;
    return load_path(path);
  }
  const std::string path;
};

class SimImages : public SimRefusals {
 protected:
  // Loads what is handed over as text or bytes.
  void expect(CUresult code, const std::string& said, const std::string& image) {
    SCOPED_TRACE(said);
    CUmodule module = nullptr;
    if (code != CUDA_SUCCESS) return REFUSED(code, said, cuModuleLoadData, &module, image.c_str());
    EXPECT_EQ(CU(cuModuleLoadData)(&module, image.c_str()), CUDA_SUCCESS);
    EXPECT_EQ(CU(cuModuleUnload)(module), CUDA_SUCCESS);
  }
};

TEST_F(SimImages, AreRefusedInWords) {
  constexpr auto kInvalid = CUDA_ERROR_INVALID_IMAGE, kNotForIt = CUDA_ERROR_NO_BINARY_FOR_GPU,
                 kInvalidPtx = CUDA_ERROR_INVALID_PTX;
  const auto ptx = [](const std::string& target, const std::string& body = "", const std::string& version = "8.0") {
    return ".version " + version + "\n.target " + target + "\n.address_size 64\n" + body + ".entry k() { ret; }\n";
  };
  expect(kInvalid, "an empty image", "");
  expect(kNotForIt, "the image is machine code; the simulator runs PTX",
         "\x7f"
         "ELF");
  for (const char* text : {"\x01", "a\x1f", "\x0e"})
    expect(kInvalid, "the image is neither PTX nor a fat binary", text);
  for (const char* space : {"\n", "\r", "\t", "\f", "\v", " "}) expect(CUDA_SUCCESS, "", space + ptx("sm_90a"));
  expect(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX version 10.1", ptx("sm_90a", "", "10.1"));
  expect(kNotForIt, "the image is for sm_100a, the device is sm_90a", ptx("sm_100a"));
  expect(kNotForIt, "the image is for sm_100, the device is sm_90a", ptx("sm_100"));
  for (const char* target : {"sm_90a", "sm_90", "sm_80", "sm_20"}) expect(CUDA_SUCCESS, "", ptx(target));
  expect(kInvalidPtx, "the variable 'v' is extern and nothing defines it", ptx("sm_90a", ".extern .global .b32 v;"));
  expect(kInvalidPtx, ".const variables take more than 64 KB", ptx("sm_90a", ".const .b8 a[65530]; .const .b8 b[7];"));
  expect(CUDA_SUCCESS, "", ptx("sm_90a", ".const .b8 a[65530]; .const .b8 b[6];"));
  expect(kInvalidPtx, "the initializer of 'v' refers to 's', which has no address in memory",
         ptx("sm_90a", ".shared .b8 s[4]; .global .b64 v = s;"));

  const auto plain = [&](const std::string& text, uint32_t arch) {
    return fatbin_entry(1, 0x11, text + std::string(8 - text.size() % 8, '\0'), 0, arch);
  };
  const std::string machine = fatbin_entry(2, 0x11,
                                           "\x7f"
                                           "ELF....",
                                           0);
  const auto load = [&](CUresult code, const std::string& said, const std::string& bytes,
                        const char* kernel = nullptr) {
    SCOPED_TRACE(said);
    CUmodule module = nullptr;
    if (code != CUDA_SUCCESS) return REFUSED(code, said, cuModuleLoadData, &module, bytes.data());
    ASSERT_EQ(CU(cuModuleLoadData)(&module, bytes.data()), CUDA_SUCCESS);
    CUfunction function = nullptr;
    EXPECT_EQ(CU(cuModuleGetFunction)(&function, module, kernel), CUDA_SUCCESS) << kernel;
    OK(CU(cuModuleUnload)(module));
  };
  const auto named = [&](const char* target, const std::string& kernel) {
    return std::string(".version 8.0\n.target ") + target + "\n.address_size 64\n.entry " + kernel + "() { ret; }\n";
  };
  load(kNotForIt, "the fat binary has no PTX for sm_90a", fatbin_of(""));
  load(kNotForIt, "the fat binary has machine code but no PTX for sm_90a", fatbin_of(machine));
  load(kNotForIt, "the fat binary has machine code but no PTX for sm_90a",
       fatbin_of(plain(named("sm_100a", "a"), 100) + machine));
  load(kNotForIt, "the fat binary has no PTX for sm_90a", fatbin_of(plain(named("sm_100a", "a"), 100)));
  load(kNotForIt, "the fat binary has no PTX for sm_90a", fatbin_of(plain("text without a target", 80)));
  // Of those that fit the one for the latest architecture is taken, and of two for one the last.
  const std::string old = plain(named("sm_80", "of_80"), 80), now = plain(named("sm_90a", "of_90"), 90),
                    later = plain(named("sm_100", "of_100"), 100), again = plain(named("sm_90a", "again"), 90);
  load(CUDA_SUCCESS, "", fatbin_of(old + now + later + machine), "of_90");
  load(CUDA_SUCCESS, "", fatbin_of(now + old), "of_90");
  load(CUDA_SUCCESS, "", fatbin_of(machine + old), "of_80");
  load(CUDA_SUCCESS, "", fatbin_of(now + again), "again");

  const std::string whole = fatbin_of(now);
  const auto changed = [&](size_t at, uint64_t value, size_t bytes) {
    std::string image = whole;
    std::memcpy(image.data() + at, &value, bytes);
    return image;
  };
  const uint64_t entries = whole.size() - 16, payload = entries - 64;
  load(kInvalid, "a fat binary with a damaged header", changed(6, 15, 2));
  load(kInvalid, "a fat binary with a damaged header", changed(8, (uint64_t{1} << 40) + 1, 8));
  load(kInvalid, "a fat binary whose entries do not fit", changed(20, 63, 4));
  load(kInvalid, "a fat binary whose entries do not fit", changed(20, entries + 1, 4));
  load(kInvalid, "a fat binary whose entries do not fit", changed(24, payload + 1, 8));
  load(kInvalid, "a fat binary whose entries do not fit", changed(32, payload + 1, 4));
  load(kInvalid, "a fat binary whose entries do not fit", changed(72, (uint64_t{1} << 28) + 1, 8));

  const std::string head = "// text\n", tail = named("sm_90a", "packed") + '\0', packed = lz4(head, 300, tail);
  const size_t unpacked = head.size() + 1 + 300 + tail.size();
  const std::string damaged = "a damaged LZ4 block in the fat binary";
  load(CUDA_SUCCESS, "", fatbin(1, 0x2011, packed, unpacked), "packed");
  load(kInvalid, damaged, fatbin(1, 0x2011, packed, unpacked - 1));
  load(kInvalid, damaged, fatbin(1, 0x2011, packed, unpacked + 1));
  for (size_t n = 1; n < packed.size(); n += 7)
    load(kInvalid, damaged, fatbin(1, 0x2011, packed.substr(0, n), unpacked));
  load(kInvalid, "a fat binary whose entries do not fit", fatbin(1, 0x2011, packed, 255 * (packed.size() + 1)));
  load(kInvalid, damaged, fatbin(1, 0x2011, packed, 255 * packed.size() + 254));
  // A match whose length has a byte more, with which the block would be whole. The byte is behind the block.
  std::string match = named("sm_90a", "packed") + " ";
  const std::string literals = match;
  match.assign(1, '\xff');
  put_length(match, literals.size());
  match += literals;
  put<uint16_t>(match, 1);
  std::string image = fatbin(1, 0x2011, match + '\0', literals.size() + 19);
  load(CUDA_SUCCESS, "", image, "packed");
  const auto without_the_last = static_cast<uint32_t>(match.size());
  std::memcpy(image.data() + 16 + 16, &without_the_last, sizeof without_the_last);
  load(kInvalid, damaged, image);
  // A match before the text or of no distance.
  load(kInvalid, damaged,
       fatbin(1, 0x2011,
              std::string("\x10"
                          "a\x02\x00",
                          4),
              5));
  load(kInvalid, damaged,
       fatbin(1, 0x2011,
              std::string("\x10"
                          "a\x00\x00",
                          4),
              5));
  if (load_with_log(fatbin(1, 0x8011, packed, unpacked).data()).code == kInvalid)
    load(kInvalid, "a damaged Zstandard frame in the fat binary", fatbin(1, 0x8011, packed, unpacked));

  // Files, whose end is known.
  const TemporaryFile file("words");
  const auto from_file = [&](CUresult code, const std::string& said, const std::string& bytes) {
    std::ofstream(file.path, std::ios::binary) << bytes;
    CUmodule module = nullptr;
    if (code != CUDA_SUCCESS) return REFUSED(code, said, cuModuleLoad, &module, file.path.c_str());
    OK(CU(cuModuleLoad)(&module, file.path.c_str()));
    OK(CU(cuModuleUnload)(module));
  };
  const std::string cut = "a fat binary that is cut off";
  from_file(CUDA_SUCCESS, "", whole);
  from_file(kInvalid, cut, whole.substr(0, whole.size() - 1));
  from_file(kInvalid, cut, whole.substr(0, 15));
  from_file(kInvalid, cut, changed(6, whole.size() + 1, 2));
  from_file(kInvalid, "the image is a pointer to a fat binary in a file",
            std::string("\xb1\x43\x62\x46") + std::string(20, '\1'));
  CUmodule module = nullptr;
  const std::string missing = file.path + "_missing";
  REFUSED(CUDA_ERROR_FILE_NOT_FOUND, "'" + missing + "' is not a file", cuModuleLoad, &module, missing.c_str());
  REFUSED(kInvalidValue, "", cuModuleLoad, &module, nullptr);
  const TemporaryFile sparse("sparse_words");
  std::ofstream(sparse.path) << "";
  if (truncate(sparse.path.c_str(), (off_t{1} << 31) + 1) == 0)
    REFUSED(kInvalid, "'" + sparse.path + "' is larger than any image", cuModuleLoad, &module, sparse.path.c_str());
}

TEST_F(SimImages, PointersToFatBinaries) {
  struct {
    uint32_t magic = 0x466243b1, version = 1;
    const void* data = nullptr;
    const void* file = nullptr;
  } wrapper;
  CUmodule module = nullptr;
  REFUSED(CUDA_ERROR_INVALID_IMAGE, "a wrapper without a fat binary", cuModuleLoadFatBinary, &module, &wrapper);
  wrapper.data = &wrapper;
  REFUSED(CUDA_ERROR_INVALID_IMAGE, "a wrapper without a fat binary", cuModuleLoadFatBinary, &module, &wrapper);
}

// 5.4.4: addresses in initial values, whole, in part and byte by byte; what stands beside them stays.
TEST_F(SimImages, VariablesMayHoldAddresses) {
  const std::string text = R"(
.version 8.0
.target sm_90a
.address_size 64
.visible .global .align 8 .b8 target[32];
.visible .global .align 8 .b64 whole[3] = {target, target+5, 77};
.visible .global .align 4 .b32 low[3] = {target, 78, 79};
.visible .global .align 8 .b8 bytes[12] = {1, 0xff(target), 0xff00(target), 0xff0000(target+3),
  0xff00000000000000(target),
                                           6, 7, 8, 9, 10, 11, 12};
.visible .global .align 8 .b8 merged[12] = {0xff(target+9), 0xff00(target+9), 0xff0000(target+9), 0xff000000(target+9),
  0xff00000000(target+9), 0xff0000000000(target+9), 0xff000000000000(target+9), 0xff00000000000000(target+9),
  1, 2, 3, 4};
.entry k() { ret; }
)";
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, text.c_str()));
  const auto content = [&](const char* name, size_t bytes) {
    CUdeviceptr at = 0;
    size_t size = 0;
    EXPECT_EQ(CU(cuModuleGetGlobal)(&at, &size, module, name), CUDA_SUCCESS);
    EXPECT_EQ(size, bytes);
    std::vector<uint8_t> data(size);
    EXPECT_EQ(CU(cuMemcpyDtoH)(data.data(), at, size), CUDA_SUCCESS);
    return data;
  };
  CUdeviceptr target = 0;
  OK(CU(cuModuleGetGlobal)(&target, nullptr, module, "target"));
  const auto bytes_of = [](const auto& values) {
    std::vector<uint8_t> all(sizeof values);
    std::memcpy(all.data(), &values, sizeof values);
    return all;
  };
  EXPECT_EQ(content("whole", 24), bytes_of(std::array<uint64_t, 3>{target, target + 5, 77}));
  EXPECT_EQ(content("low", 12), bytes_of(std::array<uint32_t, 3>{static_cast<uint32_t>(target), 78, 79}));
  const auto byte = [](uint64_t value, int index) { return static_cast<uint8_t>(value >> 8 * index); };
  EXPECT_EQ(content("bytes", 12), (std::vector<uint8_t>{1, byte(target, 0), byte(target, 1), byte(target + 3, 2),
                                                        byte(target, 7), 6, 7, 8, 9, 10, 11, 12}));
  std::vector<uint8_t> merged = bytes_of(target + 9);
  merged.insert(merged.end(), {1, 2, 3, 4});
  EXPECT_EQ(content("merged", 12), merged);
  OK(CU(cuModuleUnload)(module));
}

TEST_F(SimImages, WhatAModuleLacksIsNamed) {
  CUmodule module = load();
  CUfunction f = nullptr;
  CUdeviceptr at = 0;
  REFUSED(CUDA_ERROR_NOT_FOUND, "no kernel 'absent'", cuModuleGetFunction, &f, module, "absent");
  REFUSED(CUDA_ERROR_NOT_FOUND, "no variable 'absent'", cuModuleGetGlobal, &at, nullptr, module, "absent");
  REFUSED(kInvalidValue, "", cuModuleGetGlobal, nullptr, nullptr, module, "counter");
  REFUSED(kInvalidValue, "", cuModuleGetGlobal, &at, nullptr, module, nullptr);
  size_t bytes = 0;
  OK(CU(cuModuleGetGlobal)(nullptr, &bytes, module, "counter"));
  EXPECT_EQ(bytes, 4u);
  OK(CU(cuModuleUnload)(module));
}

// Null pointers, wrappers that lead nowhere or to themselves, and variables larger than any memory.
TEST_F(SimDriver, ImagesThatPointNowhereAreErrors) {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuModuleLoadData)(nullptr, kPtx));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuModuleLoadData)(&module, nullptr));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuModuleLoadDataEx)(&module, kPtx, 1, nullptr, nullptr));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuModuleLoad)(&module, nullptr));
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuLibraryLoadData)(&library, nullptr, nullptr, nullptr, 0, nullptr, nullptr, 0));
  struct {
    uint32_t magic = 0x466243b1, version = 1;
    const void* data = nullptr;
    const void* file = nullptr;
  } wrapper;
  FAILS(CUDA_ERROR_INVALID_IMAGE, CU(cuModuleLoadFatBinary)(&module, &wrapper));
  wrapper.data = &wrapper;
  FAILS(CUDA_ERROR_INVALID_IMAGE, CU(cuModuleLoadFatBinary)(&module, &wrapper));
  const std::string header = ".version 8.0\n.target sm_90a\n.address_size 64\n";
  FAILS(CUDA_ERROR_OUT_OF_MEMORY, CU(cuModuleLoadData)(&module, (header + ".global .b8 x[1000000000000];").c_str()));
  FAILS(CUDA_ERROR_INVALID_PTX, CU(cuModuleLoadData)(&module, (header + ".global .b8 x[100000000000000];").c_str()));
  FAILS(CUDA_ERROR_INVALID_PTX, CU(cuModuleLoadData)(&module, (header + ".const .b8 x[100000];").c_str()));
}

constexpr char kSmallPtx[] =
    ".version 8.0\n.target sm_90a\n.address_size 64\n"
    ".visible .global .align 4 .u32 x[2] = {1, 2};\n"
    ".visible .entry k(.param .u64 p)\n"
    "{\n.reg .b64 %rd<2>;\nld.param.u64 %rd1, [p];\nst.global.u32 [%rd1+4], 3;\nret;\n}";

TEST_F(SimDriver, FilesCutOffAnywhereAreErrors) {
  const TemporaryFile file("cut");
  const std::string text = kSmallPtx;
  // Text that ends between two declarations is a whole module.
  const size_t target = text.find("sm_90a") + 6, variable = text.find(';') + 1, entry = text.find(".visible .entry");
  for (size_t n = 0; n <= text.size(); ++n) {
    const CUresult code = file.load(text.substr(0, n));
    const std::string at = "the first " + std::to_string(n) + " bytes";
    if (n == 0) {
      EXPECT_EQ(code, CUDA_ERROR_INVALID_IMAGE);
    } else if (n == text.size() || (n >= variable && n <= entry)) {
      EXPECT_EQ(code, CUDA_SUCCESS) << at;
    } else if (n + 1 < target || n > entry) {
      EXPECT_NE(code, CUDA_SUCCESS) << at;
    }
  }

  const std::string head = "// text\n", tail = text + '\0';
  const size_t unpacked = head.size() + 1 + 300 + tail.size();
  for (const std::string& image : {fatbin(1, 0x11, tail, 0), fatbin(1, 0x2011, lz4(head, 300, tail), unpacked)}) {
    for (size_t n = 0; n < image.size(); ++n) {
      const CUresult code = file.load(image.substr(0, n));
      // The magic number that is cut off is text.
      EXPECT_TRUE(code == CUDA_ERROR_INVALID_IMAGE || (n < 4 && code == CUDA_ERROR_INVALID_PTX))
          << code << " for the first " << n << " bytes";
    }
    EXPECT_EQ(file.load(image), CUDA_SUCCESS);
  }
  const std::string elf = std::string("\x7f") + "ELF" + std::string(60, '\0');
  for (size_t n = 1; n <= elf.size(); ++n) {
    EXPECT_EQ(file.load(elf.substr(0, n)), n < 4 ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_NO_BINARY_FOR_GPU) << n;
  }
}

// Every size in the headers of a fat binary is far too large once.
TEST_F(SimDriver, FilesWithHugeSizesAreErrors) {
  const TemporaryFile file("huge");
  const std::string packed = lz4("// text\n", 300, kSmallPtx);
  const std::string whole = fatbin(1, 0x2011, packed, std::strlen("// text\n") + 1 + 300 + std::strlen(kSmallPtx));
  ASSERT_EQ(file.load(whole), CUDA_SUCCESS);
  struct Field {
    size_t offset, bytes;
  };
  for (const auto& [offset, bytes] :
       {Field{6, 2}, Field{8, 8}, Field{20, 4}, Field{24, 8}, Field{32, 4}, Field{72, 8}}) {
    for (int unit = 0; unit < 2; ++unit) {  // The sizes are all ones and the largest that is not negative.
      std::string damaged = whole;
      for (size_t i = 0; i < bytes; ++i) damaged[offset + i] = '\xff';
      if (unit == 1) damaged[offset + bytes - 1] = '\x7f';
      EXPECT_EQ(file.load(damaged), CUDA_ERROR_INVALID_IMAGE) << "the field at " << offset;
    }
  }
  // A short text may ask for very many variables or labels.
  std::string names;
  for (int i = 0; i < 1000; ++i) names += (i > 0 ? ", n" : "n") + std::to_string(i) + "_<65536>";
  const std::string header = ".version 8.0\n.target sm_90a\n.address_size 64\n";
  EXPECT_EQ(file.load(header + ".global .b8 " + names + ";"), CUDA_ERROR_INVALID_PTX);
  EXPECT_EQ(file.load(header + ".entry k() {\nt: .branchtargets " + names + ";\nret;\n}"), CUDA_ERROR_INVALID_PTX);
}

TEST_F(SimDriver, WhatIsNotAFileIsNotFound) {
  const TemporaryFile pipe("pipe");
  ASSERT_EQ(mkfifo(pipe.path.c_str(), 0600), 0);
  for (const std::string& path : {pipe.path, testing::TempDir(), pipe.path + "_missing", std::string("/dev/zero")})
    EXPECT_EQ(load_path(path), CUDA_ERROR_FILE_NOT_FOUND) << path;
  const TemporaryFile sparse("sparse");
  EXPECT_EQ(sparse.load(""), CUDA_ERROR_INVALID_IMAGE);
  if (truncate(sparse.path.c_str(), off_t{1} << 40) == 0) {  // Not every file system has such files.
    EXPECT_EQ(load_path(sparse.path), CUDA_ERROR_INVALID_IMAGE);
  }
}

TEST_F(SimDriver, ModulesHaveFunctionsAndVariables) {
  CUmodule module = load();
  CUfunction f = nullptr;
  FAILS(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetFunction)(&f, module, "absent"));
  unsigned count = 0;
  OK(CU(cuModuleGetFunctionCount)(&count, module));
  EXPECT_EQ(count, 7u);
  OK(CU(cuModuleGetFunction)(&f, module, "count"));
  CUdeviceptr counter = 0;
  size_t bytes = 0;
  OK(CU(cuModuleGetGlobal)(&counter, &bytes, module, "counter"));
  EXPECT_EQ(bytes, 4u);
  FAILS(CUDA_ERROR_NOT_FOUND, CU(cuModuleGetGlobal)(&counter, &bytes, module, "absent"));
  EXPECT_EQ(download(counter, 1)[0], 7u);
  CUdeviceptr out = allocate(4);
  void* params[] = {&out};
  for (uint32_t expected : {7u, 8u}) {
    OK(CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    EXPECT_EQ(download(out, 1)[0], expected);
  }
  const uint32_t forty = 40;
  OK(CU(cuMemcpyHtoD)(counter, &forty, 4));
  OK(CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_EQ(download(out, 1)[0], 40u);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemFree)(counter));
  const char* name = nullptr;
  OK(CU(cuFuncGetName)(&name, f));
  EXPECT_STREQ(name, "count");
  size_t offset = 1, size = 0;
  OK(CU(cuModuleGetFunction)(&f, module, "scale_add"));
  OK(CU(cuFuncGetParamInfo)(f, 1, &offset, &size));
  EXPECT_EQ(offset, 8u);
  EXPECT_EQ(size, 4u);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuFuncGetParamInfo)(f, 2, &offset, &size));
  OK(CU(cuModuleUnload)(module));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuLaunchKernel)(f, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuModuleUnload)(module));
}

size_t free_memory() {
  size_t bytes = 0, total = 0;
  EXPECT_EQ(CUDA_SUCCESS, CU(cuMemGetInfo)(&bytes, &total));
  return bytes;
}

TEST_F(SimDriver, VariablesHaveTheirAlignmentAndLeaveWithTheirModule) {
  const size_t before = free_memory();
  const std::string header = ".version 8.0\n.target sm_90a\n.address_size 64\n";
  // The module has many small variables too, more than a process can have mappings for.
  CUmodule module = nullptr;
  OK(CU(cuModuleLoadData)(&module, (header +
                                    ".visible .global .align 1048576 .b8 x[12];\n"
                                    ".visible .global .align 4096 .u32 y = 5;\n"
                                    ".global .b8 n<65536>; .global .b8 m<65535>;\n" +
                                    std::string(".entry k() { ret; }"))
                                       .c_str()));
  CUdeviceptr x = 0, y = 0, n = 0;
  size_t bytes = 0;
  OK(CU(cuModuleGetGlobal)(&x, &bytes, module, "x"));
  EXPECT_EQ(x % 1048576, 0u);
  EXPECT_EQ(bytes, 12u);
  OK(CU(cuModuleGetGlobal)(&y, nullptr, module, "y"));
  EXPECT_EQ(y % 4096, 0u);
  EXPECT_EQ(download(y, 1)[0], 5u);
  OK(CU(cuModuleGetGlobal)(&n, nullptr, module, "n65535"));
  EXPECT_EQ(free_memory(), before - 12 - 4 - 65536 - 65535);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD8)(x, 1, 13));  // The variable is an allocation of its own.
  OK(CU(cuModuleUnload)(module));
  EXPECT_EQ(free_memory(), before);
  FAILS(CUDA_ERROR_INVALID_VALUE, CU(cuMemsetD8)(y, 1, 4));
  // A module that is refused leaves nothing either.
  FAILS(CUDA_ERROR_INVALID_PTX, CU(cuModuleLoadData)(&module, (header + ".global .b64 a[4];\n"
                                                                        ".global .b64 b = nowhere;")
                                                                  .c_str()));
  FAILS(CUDA_ERROR_INVALID_PTX,
        CU(cuModuleLoadData)(&module, (header + ".global .b64 a[4];\n.entry k() { cp.async.banana; ret; }").c_str()));
  EXPECT_EQ(free_memory(), before);
}

TEST_F(SimDriver, KernelsOfALibraryAreEnumeratedUpToTheRoomForThem) {
  CUlibrary library = nullptr;
  OK(CU(cuLibraryLoadData)(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  unsigned count = 0;
  OK(CU(cuLibraryGetKernelCount)(&count, library));
  ASSERT_EQ(count, 7u);
  std::set<CUkernel> all;
  for (const char* name : {"scale_add", "reverse", "count", "store", "wait_for_nobody", "bounded", "in_pairs"}) {
    CUkernel kernel = nullptr;
    OK(CU(cuLibraryGetKernel)(&kernel, library, name));
    all.insert(kernel);
  }
  ASSERT_EQ(all.size(), count);
  for (const unsigned room : {0u, 1u, count - 1, count, count + 1}) {
    std::vector<CUkernel> kernels(count + 2);
    OK(CU(cuLibraryEnumerateKernels)(kernels.data(), room, library));
    const unsigned given = std::min(room, count);
    const std::set<CUkernel> first(kernels.begin(), kernels.begin() + given);
    EXPECT_EQ(first.size(), given) << room;
    EXPECT_TRUE(std::includes(all.begin(), all.end(), first.begin(), first.end())) << room;
    EXPECT_EQ(std::count(kernels.begin(), kernels.end(), nullptr), count + 2 - given) << room;
  }
  OK(CU(cuLibraryUnload)(library));
}

TEST_F(SimDriver, LibrariesServeEveryContext) {
  CUlibrary lib = nullptr;
  OK(CU(cuLibraryLoadData)(&lib, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  OK(CU(cuLibraryGetKernel)(&kernel, lib, "scale_add"));
  FAILS(CUDA_ERROR_NOT_FOUND, CU(cuLibraryGetKernel)(&kernel, lib, "absent"));
  OK(CU(cuLibraryGetKernel)(&kernel, lib, "scale_add"));
  CUfunction f = nullptr;
  OK(CU(cuKernelGetFunction)(&f, kernel));
  CUdeviceptr data = upload(iota(10));
  uint32_t n = 10;
  void* params[] = {&data, &n};
  OK(CU(cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
  // A kernel of a library may stand where a function is asked for.
  OK(CU(cuLaunchKernel)(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
  EXPECT_EQ(download(data, 10)[9], (9u * 3 + 9) * 3 + 9);
  int threads = 0;
  OK(CU(cuKernelGetAttribute)(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0));
  EXPECT_EQ(threads, 1024);
  CUmodule module = nullptr;
  OK(CU(cuLibraryGetModule)(&module, lib));
  OK(CU(cuLibraryUnload)(lib));
  FAILS(CUDA_ERROR_INVALID_HANDLE, CU(cuLaunchKernel)(f, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
}

}  // namespace
}  // namespace sim_test
