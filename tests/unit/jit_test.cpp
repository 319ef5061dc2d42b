// SPDX-License-Identifier: Apache-2.0
// From source text to machine code: NVRTC, its messages, and the way through the cache.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <thread>

#include "jit/jit.h"
#include "jit/search.h"
#include "jit/source.h"
#include "jit/source_text.h"
#include "moxie/error.h"
#include "scratch.h"

namespace moxie::jit {
namespace {

using test::ScopedVariable;
using test::ScratchFolder;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

constexpr const char* kSource = R"(#include "moxie/config.h"
#include "own.cuh"
#include <cuda/ptx>
#include <cuda_bf16.h>
extern "C" __global__ void scale(float* p, moxie::SinkNeeds needs) {
  p[threadIdx.x] *= kFactor + needs.staging_bytes;
}
)";

Request small_request(ImageKind kind) {
  Request request;
  request.source = kSource;
  request.headers["own.cuh"] = "constexpr float kFactor = 0x1.8p1f;\n";
  request.kind = kind;
  return request;
}

std::string message_of(const Request& request) {
  try {
    Compiler::get().compile(request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Compile);
    return error.what();
  }
  return "no error";
}

TEST(Headers, EmbedTheKernelSourcesAsTheyAre) {
  const auto& headers = kernel_headers();
  ASSERT_TRUE(headers.contains("moxie/config.h"));
  const fs::path root = MOXIE_SOURCE_DIR;
  for (const auto& [name, text] : headers) {
    const fs::path file = fs::exists(root / "kernels" / name) ? root / "kernels" / name : root / "include" / name;
    EXPECT_EQ(text, test::read_file(file)) << name;
  }
  for (const auto& entry : fs::recursive_directory_iterator(root / "kernels" / "moxie")) {
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || (extension != ".cuh" && extension != ".h")) continue;
    EXPECT_TRUE(headers.contains(entry.path().lexically_relative(root / "kernels").string())) << entry.path();
  }
}

TEST(Headers, AreFollowedFromTheSource) {
  const std::map<std::string, std::string> given = {{"sink.cuh", "#  include <cuda_fp8.h>  // for it\n"},
                                                    {"unused.cuh", "#include \"moxie/scaling/quantize.cuh\"\n"}};
  std::vector<std::string> names;
  for (const IncludedHeader& header : included_headers("#include \"sink.cuh\"\n//#include <cuda_fp6.h>\n", given)) {
    names.emplace_back(header.name);
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"sink.cuh", "cuda_fp8.h", "cuda_fp8.hpp", "cuda_fp16.h"}));
  EXPECT_THAT(names, Not(::testing::Contains("unused.cuh")));
  EXPECT_THAT(names, Not(::testing::Contains("moxie/scaling/quantize.cuh")));
  EXPECT_THAT(names, Not(::testing::Contains("cuda_fp6.h")));
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_TRUE(included_headers("#include <cuda_fp5.h>\n", given).empty()) << "no header has this name";
}

TEST(SourceText, CommentsBecomeBlanksAndLinesStay) {
  EXPECT_EQ(without_comments("a/*b*/c // d\ne"), "a c  \ne");
  EXPECT_EQ(without_comments("a /* b\nc\n*/ d\n"), "a  \n\n d\n");
  EXPECT_EQ(without_comments("a // b \\\nc\nd\n"), "a  \n\nd\n");
  EXPECT_EQ(without_comments("a // b \\\r\nc\r\nd\n"), "a  \n\nd\n");
  EXPECT_EQ(without_comments("\"/* no */\" '\"' // yes '\n"), "\"/* no */\" '\"'  \n");
  EXPECT_EQ(without_comments("\"\\\"//\" 1'000 // yes\n"), "\"\\\"//\" 1'000  \n");
  EXPECT_EQ(without_comments("R\"x(\")\" // no )x\" // yes\n"), "R\"x(\")\" // no )x\"  \n");
  EXPECT_EQ(without_comments("#error don't\n// yes\n"), "#error don't\n \n");
  EXPECT_EQ(without_comments("\"open\\"), "\"open\\");
  EXPECT_EQ(without_comments("/* open"), " ");
  EXPECT_EQ(without_comments("// open"), " ");
  for (const auto& [name, text] : kernel_headers()) {
    const std::string code = without_comments(text);
    EXPECT_EQ(std::count(code.begin(), code.end(), '\n'), std::count(text.begin(), text.end(), '\n')) << name;
  }
}

TEST(SourceText, LayoutIsNormalized) {
  EXPECT_EQ(normalized("\n  a  \t b // c\n\n\n\td\r\n"), "a b\nd\n");
  EXPECT_EQ(normalized("a\n"), normalized("/* x\n y */ a"));
  EXPECT_EQ(normalized("f(\"a  b\")\n"), "f(\"a  b\")\n");
  EXPECT_EQ(normalized("R\"(\n\n  a)\"\n"), "R\"(\n\n  a)\"\n");
  EXPECT_NE(normalized("a b\n"), normalized("ab\n"));
  EXPECT_NE(normalized("#define a\nb\n"), normalized("#define a b\n"));
}

TEST(SourceText, IncludesAreNamed) {
  EXPECT_THAT(includes_of("#include \"a.h\"\n # include<b> // c\n/*#include <d>*/\n#if 0\n#include <e/f>\n#endif\n"),
              ::testing::ElementsAre("a.h", "b", "e/f"));
  EXPECT_THAT(includes_of("#include MACRO\n#included <a>\n#include <open\n"), ::testing::IsEmpty());
}

TEST(Compiler, MakesMachineCodeAndReportsRegisters) {
  std::string log;
  const std::string cubin = Compiler::get().compile(small_request(ImageKind::Cubin), &log);
  EXPECT_EQ(cubin.substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_THAT(log, HasSubstr("0 bytes spill stores"));
  EXPECT_THAT(log, HasSubstr("registers"));
}

TEST(Compiler, MakesPtxWithLines) {
  const std::string ptx = Compiler::get().compile(small_request(ImageKind::Ptx));
  EXPECT_THAT(ptx, HasSubstr(".target sm_90a"));
  EXPECT_THAT(ptx, HasSubstr(".entry scale("));
  EXPECT_THAT(ptx, HasSubstr(".loc"));
  EXPECT_EQ(ptx.find('\0'), std::string::npos);
}

TEST(Compiler, CompilesForBlackwell) {
  Request request = small_request(ImageKind::Ptx);
  request.arch = 100;
  EXPECT_THAT(Compiler::get().compile(request), HasSubstr(".target sm_100a"));
}

TEST(Compiler, ErrorsNameTheFileAndTheLine) {
  Request request = small_request(ImageKind::Cubin);
  request.headers["own.cuh"] = "constexpr float kFactor = 3;\n\nint broken = missing_name;\n";
  EXPECT_THAT(message_of(request), HasSubstr("own.cuh(3): error: identifier \"missing_name\" is undefined"));
  request.headers.clear();
  EXPECT_THAT(message_of(request), HasSubstr("own.cuh"));
  request.source = "#include <no/such/header>\n";
  EXPECT_THAT(message_of(request), HasSubstr("those of the CUDA Toolkit that the library carries"));
}

TEST(Compiler, WorksInSeveralThreads) {
  std::vector<std::string> images(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < images.size(); ++i) {
    threads.emplace_back([&images, i] {
      Request request = small_request(ImageKind::Ptx);
      request.source += "extern \"C\" __global__ void extra" + std::to_string(i) + "() {}\n";
      images[i] = Compiler::get().compile(request);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < images.size(); ++i) {
    EXPECT_THAT(images[i], HasSubstr(".entry extra" + std::to_string(i) + "("));
  }
}

TEST(CompilerChild, DISABLED_PrintsTheImageOrTheError) {
  Request request;
  request.kind = std::getenv("MOXIE_TEST_CUBIN") != nullptr ? ImageKind::Cubin : ImageKind::Ptx;
  try {
    std::printf("(%s)\n", Compiler::get().compile(request).c_str());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Compile);
    std::printf("(%s)\n", error.what());
  }
}

TEST(Compiler, VersionsAndFailuresOfNvrtc) {
  const std::string file = fs::canonical(fs::path(MOXIE_SIM_LIBRARY).parent_path() / "../../libmoxie_idle_nvrtc.so");
  const ScratchFolder scratch;
  const fs::path log = scratch.path() / "log";
  const std::string head = "(-std=c++20\n--gpu-architecture=",
                    tail = "_90a\n-default-device\n-lineinfo\n--ptxas-options=-v\n";
  const std::string prelude = "--pre-include=moxie/nvrtc12.cuh\n", no_cache = "--no-cache\n";
  struct Case {
    const char* version;
    bool cubin;
    const char* failing;
    std::string said;
    const char* log = "said\n";
  };
  for (const Case& c : {
           Case{"1207", false, "",
                "(NVRTC, the CUDA run-time compiler, was not found: " + file +
                    " is NVRTC 12.7, 12.8 or newer is needed)\n"},
           Case{"1208", false, "", head + "compute" + tail + prelude + ")\n"},
           Case{"1299", true, "", head + "sm" + tail + prelude + ")\n"},
           Case{"1300", false, "", head + "compute" + tail + no_cache + ")\n"},
           Case{"1300", true, "", head + "sm" + tail + no_cache + ")\n"},
           Case{"1300", true, "nvrtcCreateProgram", "(NVRTC: nvrtcCreateProgram: failed)\n"},
           Case{"1300", true, "nvrtcCompileProgram",
                "(NVRTC 13.0 (failed) rejects a kernel: no reason given\nsaid\n)\n"},
           Case{"1300", true, "nvrtcCompileProgram",
                "(NVRTC 13.0 (failed) rejects a kernel: error: wrong\n\nerror: wrong\nerror: too\n)\n",
                "\nerror: wrong\nerror: too\n"},
           Case{"1300", true, "nvrtcGetProgramLogSize", "(NVRTC: nvrtcGetProgramLogSize: failed)\n"},
           Case{"1300", true, "nvrtcGetProgramLog", "(NVRTC: nvrtcGetProgramLog: failed)\n"},
           Case{"1300", true, "nvrtcGetCUBINSize", "(NVRTC: nvrtcGetCUBINSize: failed)\n"},
           Case{"1300", true, "nvrtcGetCUBIN", "(NVRTC: nvrtcGetCUBIN: failed)\n"},
           Case{"1300", false, "nvrtcGetPTXSize", "(NVRTC: nvrtcGetPTXSize: failed)\n"},
           Case{"1300", false, "nvrtcGetPTX", "(NVRTC: nvrtcGetPTX: failed)\n"},
       }) {
    const ScopedVariable named("MOXIE_NVRTC", file), version("MOXIE_IDLE_VERSION", c.version);
    const ScopedVariable failing("MOXIE_IDLE_FAILURE", c.failing), said("MOXIE_IDLE_LOG", c.log);
    const ScopedVariable cubin("MOXIE_TEST_CUBIN", c.cubin ? std::optional<std::string>("1") : std::nullopt);
    test::write_file(log, "");
    EXPECT_EQ(test::wait_for(test::start_test("CompilerChild.DISABLED_PrintsTheImageOrTheError", log)), 0);
    EXPECT_THAT(test::read_file(log), HasSubstr(c.said)) << c.version << ' ' << c.failing;
  }
}

TEST(CompilerChild, DISABLED_PrintsWhatItLoads) {
  std::printf("library %s\n", Compiler::get().path().c_str());
  const std::string maps = test::read_file("/proc/self/maps");
  for (const char* folder : {"link", "real"}) {
    if (maps.find(std::string("/") + folder + "/libnvrtc-builtins.so.13.0") != std::string::npos)
      std::printf("builtins of %s\n", folder);
  }
}

// NVRTC does not find its builtins by itself: they lie beside the name that was given or beside the file behind it.
TEST(Compiler, BuiltinsLieBesideTheLibraryOrItsLink) {
  const fs::path idle = fs::canonical(fs::path(MOXIE_SIM_LIBRARY).parent_path() / "../../libmoxie_idle_nvrtc.so");
  const ScratchFolder scratch;
  const fs::path link = scratch.path() / "link", real = scratch.path() / "real", log = scratch.path() / "log";
  fs::create_directory(link);
  fs::create_directory(real);
  fs::copy_file(idle, real / "libnvrtc.so.13");
  fs::create_symlink(real / "libnvrtc.so.13", link / "libnvrtc.so.13");
  const ScopedVariable named("MOXIE_NVRTC", link.string()), version("MOXIE_IDLE_VERSION", "1300");
  const auto loaded = [&] {
    test::write_file(log, "");
    EXPECT_EQ(test::wait_for(test::start_test("CompilerChild.DISABLED_PrintsWhatItLoads", log)), 0);
    return test::read_file(log);
  };
  EXPECT_THAT(loaded(), Not(HasSubstr("builtins")));
  fs::copy_file(idle, real / "libnvrtc-builtins.so.13.0");
  EXPECT_THAT(loaded(), HasSubstr("builtins of real\n"));
  fs::copy_file(idle, link / "libnvrtc-builtins.so.13.0");
  EXPECT_THAT(loaded(), ::testing::AllOf(HasSubstr("builtins of link\n"), Not(HasSubstr("of real"))));
}

// Runs a copy of this program where /usr/local is empty and no variable names a toolkit.
TEST(Compiler, WhatNoFolderHasTheLinkerMayFind) {
  const ScratchFolder scratch;
  const fs::path log = scratch.path() / "log", program = scratch.path() / "program",
                 libraries = scratch.path() / "elsewhere";
  fs::copy_file("/proc/self/exe", program);
  const std::optional<std::string> unset;
  const ScopedVariable named("MOXIE_NVRTC", unset), environment("VIRTUAL_ENV", unset), conda("CONDA_PREFIX", unset);
  const ScopedVariable home("CUDA_HOME", unset), path("CUDA_PATH", unset), version("MOXIE_IDLE_VERSION", "1300");
  // The linker takes a semicolon for the end of a folder's name, too.
  const ScopedVariable search("LD_LIBRARY_PATH", test::library_path("/none;" + libraries.string()));
  const auto run = [&](const char* name) {
    const pid_t child = ::fork();
    if (child == 0) {
      const bool hidden = ::unshare(CLONE_NEWNS) == 0 &&
                          ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                          ::mount("none", "/usr/local", "tmpfs", 0, nullptr) == 0;
      ::_exit(hidden ? test::wait_for(test::start_test(name, log, program)) : 77);
    }
    return test::wait_for(child);
  };
  const int status = run("CompilerChild.DISABLED_PrintsTheImageOrTheError");
  if (status == 77) GTEST_SKIP() << "this user cannot hide a folder";
  if (status == 98 || status == 127) GTEST_SKIP() << "this program needs a library of /usr/local";
  EXPECT_EQ(status, 0);
  if (test::read_file(log).find("was not found") == std::string::npos) GTEST_SKIP() << "this system has one elsewhere";
  EXPECT_THAT(test::read_file(log),
              ::testing::ContainsRegex("was not found: libnvrtc.so.13 cannot be loaded [^;]*; libnvrtc.so.12 cannot be "
                                       "loaded [^;]*; libnvrtc.so cannot be loaded [^;]*; looked beside the library, "
                                       "in the Python environment, in CUDA_HOME, CUDA_PATH, LD_LIBRARY_PATH, "
                                       "/usr/local/cuda and the dynamic linker's search path .MOXIE_NVRTC names "
                                       "another; `pip install nvidia-cuda-nvrtc` brings one.\\)\n"));
  fs::create_directory(libraries);
  fs::copy_file(fs::canonical(fs::path(MOXIE_SIM_LIBRARY).parent_path() / "../../libmoxie_idle_nvrtc.so"),
                libraries / "libnvrtc.so.13");
  EXPECT_EQ(run("CompilerChild.DISABLED_PrintsWhatItLoads"), 0);
  EXPECT_THAT(test::read_file(log), HasSubstr("library " + (libraries / "libnvrtc.so.13").string() + "\n"));
}

TEST(Source, AHeaderOfSeveralSinksIsIncludedOnce) {
  const std::vector<SinkSource> sinks = {{"A", "own.cuh"}, {"B", "own.cuh"}, {"C", ""}, {"D", "other.cuh"}};
  for (const std::string& source : {hopper_source({}, sinks), blackwell_source({}, sinks)}) {
    std::vector<std::string> own;
    for (const std::string& name : includes_of(source)) {
      if (!name.starts_with("moxie/")) own.push_back(name);
    }
    EXPECT_EQ(own, (std::vector<std::string>{"own.cuh", "other.cuh"}));
    for (const char* sink : {"Sink0 = A", "Sink1 = B", "Sink2 = C", "Sink3 = D"}) {
      EXPECT_THAT(source, HasSubstr("\nusing " + std::string(sink) + ";\n"));
    }
  }
}

// A warp has 32 lanes, each with 1, 2, 4, ... experts.
TEST(Source, OfRoutersDiffersByTheExpertsOfALane) {
  for (const auto& [experts, size] :
       {std::pair{1, 0}, {32, 0}, {33, 1}, {64, 1}, {65, 2}, {128, 2}, {129, 3}, {992, 5}}) {
    EXPECT_EQ(route_size(experts), size) << experts;
    EXPECT_GE(32 << route_size(experts), experts);
  }
  EXPECT_EQ(route_size(kMaxRoutedExperts), 5);
  EXPECT_EQ(kRouteSizes, 6);
  EXPECT_THAT(route_source(DataType::F32, RouterScore::Softmax, 5), HasSubstr("Softmax, 32>"));
}

// Without bounds a kernel computes the same, with as many registers as ptxas likes.
TEST(Source, EveryKernelHasBounds) {
  std::vector<std::string> sources = {block_scales_source(), pack_weights_source(false), pack_weights_source(true),
                                      permute_source(),      exchange_source(),          meet_source()};
  for (int kernel = 0; kernel < kSortKernels; ++kernel) {
    sources.push_back(sort_source(SortKernel(kernel), IdType::Int32, false));
  }
  for (int kernel = 0; kernel < kQuantizeKernels; ++kernel) {
    sources.push_back(quantize_source(QuantizeKernel(kernel), DataType::Mxfp8, DataType::Bf16));
  }
  sources.push_back(route_source(DataType::F32, RouterScore::Softmax, 0));
  sources.push_back(combine_source(DataType::Bf16, DataType::F32));
  sources.push_back(dispatch_source(IdType::Int32, RowFormat::Bf16));
  sources.push_back(send_few_source(IdType::Int32, RowFormat::Bf16));
  sources.push_back(gather_rows_source(RowFormat::Bf16));
  for (const bool meets : {false, true}) sources.push_back(combine_ranks_source(DataType::F32, meets));
  sources.push_back(combine_sums_source(DataType::F32, ResultFormat::Sums));
  sources.push_back(hopper_source({}, {}));
  sources.push_back(blackwell_source({}, {}));
  for (const std::string& source : sources) {
    EXPECT_THAT(source,
                testing::ContainsRegex("__global__ void (__launch_bounds__|__maxnreg__)\\(moxie::kernel::[a-z]"))
        << source;
  }
}

TEST(CacheKey, DependsOnAllThatMatters) {
  const Request base = small_request(ImageKind::Cubin);
  std::vector<std::string> keys = {cache_key(base, "13.0"), cache_key(base, "13.1")};
  Request other = base;
  other.kind = ImageKind::Ptx;
  keys.push_back(cache_key(other, "13.0"));
  other = base;
  other.arch = 100;
  keys.push_back(cache_key(other, "13.0"));
  other = base;
  other.source += " ";
  keys.push_back(cache_key(other, "13.0"));
  other = base;
  other.headers["own.cuh"] += "constexpr int kMore = 1;\n";
  keys.push_back(cache_key(other, "13.0"));
  other = base;
  other.headers["own.cuh"] = "#include \"another.cuh\"\n" + other.headers["own.cuh"];
  keys.push_back(cache_key(other, "13.0"));
  other.headers["another.cuh"] = "constexpr int kMore = 1;\n";
  keys.push_back(cache_key(other, "13.0"));
  // The same text under another name.
  for (const char* name : {"a.cuh", "b.cuh"}) {
    other.source = "#include \"a.cuh\"\n#include \"b.cuh\"\n";
    other.headers = {{name, "constexpr int kMore = 1;\n"}};
    keys.push_back(cache_key(other, "13.0"));
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]) << i << " and " << j;
  }
  EXPECT_EQ(cache_key(base, "13.0"), keys[0]);
  EXPECT_THAT(keys[0], ::testing::EndsWith(".cubin"));
  EXPECT_THAT(keys[2], ::testing::EndsWith(".ptx"));
}

// A header of the request takes the place of the embedded one of its name, as if the kernel's file had been changed.
std::string key_with(const std::string& name, const std::string& text) {
  Request request;
  request.source = "#include \"moxie/hopper/grouped_gemm.cuh\"\n";
  if (!name.empty()) request.headers[name] = text;
  return cache_key(request, "13.0");
}

TEST(CacheKey, CommentsAndLayoutOfAKernelHeaderDoNotCount) {
  const std::string key = key_with("", "");
  for (const char* name : {"moxie/hopper/grouped_gemm.cuh", "moxie/scheduler.cuh", "moxie/isa.cuh"}) {
    const std::string& text = kernel_headers().at(name);
    EXPECT_EQ(key_with(name, text), key) << name;
    EXPECT_EQ(key_with(name, "/* A comment\n of two lines. */ // And one more.\n\n" + text), key) << name;
    EXPECT_EQ(key_with(name, without_comments(text)), key) << name;
    EXPECT_EQ(key_with(name, normalized(text)), key) << name;
  }
}

TEST(CacheKey, CodeOfAnIncludedHeaderCountsAndThatOfOthersDoesNot) {
  const std::string key = key_with("", "");
  for (const char* name : {"moxie/hopper/grouped_gemm.cuh", "moxie/scheduler.cuh", "moxie/isa.cuh",
                           "cuda/__ptx/instructions/mbarrier_init.h"}) {
    EXPECT_NE(key_with(name, kernel_headers().contains(name) ? kernel_headers().at(name) + "struct Extra;\n" : ""), key)
        << name;
  }
  for (const char* name : {"moxie/scaling/quantize.cuh", "moxie/blackwell/grouped_gemm.cuh", "cuda/ptx",
                           "cuda/std/limits", "of_nobody.cuh"}) {
    EXPECT_EQ(key_with(name, "struct Extra;\n"), key) << name;
  }
}

bool nvrtc_is_loaded() { return test::read_file("/proc/self/maps").find("libnvrtc") != std::string::npos; }

class ObtainTest : public ::testing::Test {
 protected:
  std::string entry() const { return cache_key(small_request(ImageKind::Cubin), Compiler::get().version()); }
  int run(const char* name) { return test::wait_for(test::start_test(name, log_)); }
  std::string log() const { return test::read_file(log_); }

  ScratchFolder scratch_;
  fs::path log_ = scratch_.path() / "log";
  fs::path folder_ = scratch_.path() / "cache";
  ScopedVariable variable_{"MOXIE_CACHE_DIR", folder_.string()};
};

TEST_F(ObtainTest, CompilesOnceAndRepairsDamage) {
  const Request request = small_request(ImageKind::Cubin);
  const Image first = obtain(request);
  EXPECT_FALSE(first.from_cache);
  EXPECT_EQ(first.warning, "");
  const Image second = obtain(request);
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(second.bytes, first.bytes);

  const std::string good = test::read_file(folder_ / entry());
  test::write_file(folder_ / entry(), good.substr(0, good.size() / 2));
  EXPECT_FALSE(obtain(request).from_cache);
  EXPECT_TRUE(obtain(request).from_cache);
}

TEST_F(ObtainTest, WithoutACacheItStillCompiles) {
  test::write_file(scratch_.path() / "file", "x");
  const ScopedVariable unusable("MOXIE_CACHE_DIR", (scratch_.path() / "file" / "cache").string());
  const Image image = obtain(small_request(ImageKind::Cubin));
  EXPECT_FALSE(image.from_cache);
  EXPECT_FALSE(image.bytes.empty());
  EXPECT_THAT(image.warning, HasSubstr("cannot be kept in"));
}

// The disabled tests are what the child processes of the others run.
TEST(ObtainChild, DISABLED_Obtains) { EXPECT_FALSE(obtain(small_request(ImageKind::Cubin)).bytes.empty()); }
TEST(ObtainChild, DISABLED_HitsWithoutNvrtc) {
  EXPECT_TRUE(obtain(small_request(ImageKind::Cubin)).from_cache);
  EXPECT_FALSE(nvrtc_is_loaded());
}
TEST(ObtainChild, DISABLED_HitsWithNvrtc) {
  EXPECT_TRUE(obtain(small_request(ImageKind::Cubin)).from_cache);
  EXPECT_TRUE(nvrtc_is_loaded());
}
TEST(ObtainChild, DISABLED_PrintsTheError) {
  EXPECT_EQ(Compiler::find(), nullptr);
  try {
    obtain(small_request(ImageKind::Cubin));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    std::printf("%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
  }
}

TEST_F(ObtainTest, AHitDoesNotLoadNvrtc) {
  obtain(small_request(ImageKind::Cubin));
  EXPECT_EQ(run("ObtainChild.DISABLED_HitsWithoutNvrtc"), 0) << log();
}

// Another compiler at the same place is told by its size, time or inode. It is asked for its version then, once.
TEST_F(ObtainTest, AReplacedCompilerIsAskedAgain) {
  obtain(small_request(ImageKind::Cubin));
  const fs::path file = scratch_.path() / "libnvrtc.so.13", other = scratch_.path() / "libnvrtc.so.14";
  fs::copy_file(Compiler::get().path(), file);
  const auto expect_asked_once = [&](const fs::path& named, const char* what) {
    SCOPED_TRACE(what);
    const ScopedVariable variable("MOXIE_NVRTC", named.string());
    EXPECT_EQ(run("ObtainChild.DISABLED_HitsWithNvrtc"), 0) << log();
    EXPECT_EQ(run("ObtainChild.DISABLED_HitsWithoutNvrtc"), 0) << log();
  };
  expect_asked_once(file, "first of all");
  const auto status_of = [](const fs::path& path) {
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    return status;
  };
  const auto set_time = [](const fs::path& path, timespec time) {
    const timespec times[] = {time, time};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  };
  timespec time = status_of(file).st_mtim;
  time.tv_nsec = (time.tv_nsec + 1) % 1'000'000'000;
  set_time(file, time);
  expect_asked_once(file, "another nanosecond");
  time.tv_sec -= 1;
  set_time(file, time);
  expect_asked_once(file, "another second");
  fs::resize_file(file, fs::file_size(file) + 1);
  set_time(file, time);
  expect_asked_once(file, "another size");
  fs::copy_file(file, other);
  set_time(other, time);
  ASSERT_NE(status_of(other).st_ino, status_of(file).st_ino);
  fs::rename(other, file);
  expect_asked_once(file, "another inode");
  fs::rename(file, other);
  expect_asked_once(other, "another path");
}

TEST_F(ObtainTest, EightProcessesAtOnceOnAnEmptyCache) {
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    children.push_back(test::start_test("ObtainChild.DISABLED_Obtains", scratch_.path() / ("log" + std::to_string(i))));
  }
  for (size_t i = 0; i < children.size(); ++i) {
    EXPECT_EQ(test::wait_for(children[i]), 0) << test::read_file(scratch_.path() / ("log" + std::to_string(i)));
  }
  for (const auto& file : fs::directory_iterator(folder_)) {
    EXPECT_THAT(file.path().filename().string(), Not(::testing::StartsWith(".tmp-")));
  }
  EXPECT_TRUE(obtain(small_request(ImageKind::Cubin)).from_cache);
}

TEST_F(ObtainTest, AProcessKilledWhileCompilingLeavesAUsableCache) {
  for (const int milliseconds : {20, 60, 100, 140, 180}) {
    const pid_t child = test::start_test("ObtainChild.DISABLED_Obtains", log_);
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    ::kill(child, SIGKILL);
    test::wait_for(child);
  }
  const Image image = obtain(small_request(ImageKind::Cubin));
  EXPECT_EQ(image.bytes, obtain(small_request(ImageKind::Cubin)).bytes);
  EXPECT_EQ(image.warning, "");
}

TEST_F(ObtainTest, WithoutNvrtcItSaysWhereItLooked) {
  const ScopedVariable missing("MOXIE_NVRTC", "/no/such/libnvrtc.so");
  EXPECT_EQ(run("ObtainChild.DISABLED_PrintsTheError"), 0) << log();
  EXPECT_THAT(log(), HasSubstr("Compile: NVRTC, the CUDA run-time compiler, was not found: MOXIE_NVRTC names "
                               "/no/such/libnvrtc.so, where there is none\n"));
}

TEST_F(ObtainTest, AFileThatIsNoNvrtcIsNamed) {
  const fs::path file = scratch_.path() / "libnvrtc.so";
  test::write_file(file, "not a library");
  const ScopedVariable wrong("MOXIE_NVRTC", file.string());
  EXPECT_EQ(run("ObtainChild.DISABLED_PrintsTheError"), 0) << log();
  EXPECT_THAT(log(), HasSubstr(file.string() + " cannot be loaded"));
  const ScopedVariable another("MOXIE_NVRTC", MOXIE_SIM_LIBRARY);
  EXPECT_EQ(run("ObtainChild.DISABLED_PrintsTheError"), 0) << log();
  EXPECT_THAT(log(), HasSubstr(std::string(MOXIE_SIM_LIBRARY) + " is no NVRTC: it has no nvrtcVersion"));
}

// The version is kept under the file that was loaded, so not under a better candidate that could not be. A copy of this
// program looks for the compiler, since this one has it beside itself.
TEST_F(ObtainTest, ABrokenCandidateHasNoVersion) {
  const fs::path root = fs::canonical(scratch_.path()), program = root / "program/test",
                 broken = root / "environment/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
                 good = root / "toolkit/lib64/libnvrtc.so.13";
  for (const fs::path& file : {program, broken, good}) fs::create_directories(file.parent_path());
  fs::copy_file("/proc/self/exe", program);
  fs::create_symlink(Compiler::get().path(), good);
  const ScopedVariable unnamed("MOXIE_NVRTC", std::optional<std::string>()), home("CUDA_HOME", root / "toolkit");
  const ScopedVariable environment("VIRTUAL_ENV", root / "environment");
  const auto versions = [&] {
    int count = 0;
    fs::remove_all(folder_);
    EXPECT_EQ(test::wait_for(test::start_test("ObtainChild.DISABLED_Obtains", log_, program)), 0) << log();
    for (const auto& file : fs::directory_iterator(folder_)) count += file.path().extension() == ".nvrtc";
    return count;
  };
  EXPECT_EQ(versions(), 1);
  test::write_file(broken, "not a library");
  EXPECT_EQ(versions(), 0);
}

TEST_F(ObtainTest, APackServesAMachineWithoutCompiler) {
  const Image image = obtain(small_request(ImageKind::Cubin));
  const ScopedVariable missing("MOXIE_NVRTC", "/no/such/libnvrtc.so");
  EXPECT_EQ(run("ObtainChild.DISABLED_PrintsTheError"), 0) << log();
  test::write_file(folder_ / "VERSION", Compiler::get().version() + "\n");
  EXPECT_EQ(run("ObtainChild.DISABLED_HitsWithoutNvrtc"), 0) << log();
  EXPECT_TRUE(obtain(small_request(ImageKind::Cubin)).from_cache);
}

}  // namespace
}  // namespace moxie::jit
