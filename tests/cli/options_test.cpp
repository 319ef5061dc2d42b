// SPDX-License-Identifier: Apache-2.0
// The options of every command with their defaults, the whole sentence of each that is refused, and what plan, pack and
// devices print of what was asked.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace moxie::test {
namespace {

using Strings = std::vector<std::string>;
using testing::HasSubstr;

Strings lines_of(const std::string& text) {
  Strings lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The options and positionals that --help lists: name and default, such as "--cluster" or "--swap=auto". Each must have
// a description, on its line or on the next. CLI11 writes defaults so up to 2.1, and as " [auto]" since.
std::set<std::string> options_of(const std::string& help) {
  std::set<std::string> options;
  const Strings lines = lines_of(help);
  bool listing = false;
  const std::regex option(R"(^  (-h,)?(\S+)( (TEXT|INT|UINT|FLOAT)(:.*?in \[.*?\])?(=(\S+)| \[(\S+)\])?)"
                          R"(( REQUIRED)?( \.\.\.)?( REQUIRED)?)?(.*)$)");
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    if (line == "Positionals:" || line == "Options:") {
      listing = true;
      continue;
    }
    if (line.empty()) listing = false;
    if (!listing || line.starts_with("   ")) continue;
    std::smatch parts;
    if (!std::regex_match(line, parts, option)) {
      ADD_FAILURE() << line;
      continue;
    }
    const std::string what = parts[12].str();
    const bool below = i + 1 < lines.size() && lines[i + 1].starts_with("          ") &&
                       lines[i + 1].find_first_not_of(' ') != std::string::npos;
    EXPECT_TRUE(what.find_first_not_of(' ') != std::string::npos || below) << line << " says nothing";
    options.insert(parts[2].str() + (parts[6].matched ? "=" + parts[7].str() + parts[8].str() : ""));
  }
  return options;
}

TEST(Help, EveryOptionIsListedWithItsDefaultAndDescribed) {
  const std::set<std::string> product = {"--activation=none", "--gate",           "--outputs=out", "--out-dtype=bf16",
                                         "--pre-dtype",       "--schedule=auto",  "--tile",        "--cluster",
                                         "--multicast=auto",  "--scheduler=auto", "--swap=auto"};
  const std::set<std::string> target = {"--device", "--arch", "--sms"};
  const auto joined = [](std::set<std::string> a, const std::set<std::string>& b, const std::set<std::string>& c = {}) {
    a.insert("--help");
    a.insert(b.begin(), b.end());
    a.insert(c.begin(), c.end());
    return a;
  };
  std::set<std::string> bench = joined(product, {"--groups=8", "--m=1024", "--n=4096", "--k=2048", "--list",
                                                 "--format=bf16", "--arch", "--activation=swiglu-oai", "--gather"});
  bench.erase("--activation=none");
  const std::map<std::string, std::set<std::string>> commands = {
      {"demo", joined({}, {"--tokens", "--arch", "--format"})},
      {"gemm", joined(product, {"IN", "OUT", "--alpha=1.702", "--limit=7", "--gate-limit=10", "--up-limit=10",
                                "--beta=4", "--linear-beta=25", "--format=auto", "--grouping=auto",
                                "--scales=row-major", "--sizes=device"})},
      {"layer",
       joined({}, {"CHECKPOINT", "X", "OUT", "--layer", "--logits=f32", "--out-dtype=f32", "--weights=stored"})},
      {"quantize", joined({}, {"IN", "OUT", "--dtype=bf16", "--format", "--gate=none", "--layout=rows", "--on=host",
                               "--reverse", "--scales=row-major", "--tensors"})},
      {"devices", joined({}, {})},
      {"plan",
       joined(product, target,
              {"M", "N", "K", "--groups=1", "--grouping", "--format=bf16", "--rows", "--expected-rows", "--bias",
               "--gather", "--all", "--ranks", "--top-k=1", "--row-format=bf16", "--domain", "--network=50"})},
      {"pack", joined({}, target, {"LIST", "FOLDER", "--image=code", "--threads=0"})},
      {"bench", bench},
      {"tune", joined({}, {"LIST", "--exhaustive", "--include", "--limit", "--out=moxie-tuned.txt", "--sample",
                           "--scattered", "--seed=1", "--set=drawn", "--slack=0.01", "--times", "--top=12"})},
  };
  const Finished all = run_moxie({"--help"});
  EXPECT_EQ(all.status, 0);
  for (const char* words : {"MOXIE_DEVICE=auto|cuda|sim", "MOXIE_CACHE_DIR (compiled kernels)", "a table of moxie tune",
                            "MOXIE_NVRTC", "MOXIE_CUBLASLT", "MOXIE_SIM_ORDER=eager|lazy|random:SEED",
                            "Exit status: 0 done, 1 failed, 2 wrong usage or input.", "Grouped matrix products"})
    EXPECT_THAT(all.out, HasSubstr(words));
  for (const auto& [command, options] : commands) {
    const Finished help = run_moxie({command, "--help"});
    EXPECT_EQ(help.status, 0) << command;
    EXPECT_EQ(help.err, "");
    EXPECT_EQ(options_of(help.out), options) << command;
    EXPECT_TRUE(std::regex_search(all.out, std::regex("\n  " + command + " +\\S+ \\S+"))) << command;
    if (command == "plan") {
      EXPECT_THAT(help.out,
                  HasSubstr("What a layer costs whose experts are divided among so many ranks (docs/scale.md): M "
                            "are the tokens of a rank, N and K those of its first product, --groups the "
                            "experts of all ranks"));
    }
    EXPECT_GT(lines_of(help.out).at(0).size(), 20u) << command << " says what it does";
    if (!options.contains("--gate")) continue;
    for (const char* activation : {"none", "relu", "relu2", "gelu", "gelu-erf", "silu", "swiglu", "swiglu-oai", "geglu",
                                   "reglu", "swiglu-clamped", "situ"})
      EXPECT_TRUE(std::regex_search(help.out, std::regex("\n  " + std::string(activation) + "  +\\S"))) << activation;
    for (const char* layout : {"interleaved (columns 2i", "split (g in the first half", "split-up-first (the other"})
      EXPECT_THAT(help.out, HasSubstr(layout));
  }
  const Finished version = run_moxie({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(std::regex_match(version.out, std::regex(R"(\d+\.\d+\.\d+\n)"))) << version.out;
}

// The whole line that stands on stderr.
TEST(Options, RefusalsAreWholeSentences) {
  const Folder folder;
  write_file(folder / "empty.txt", "# nothing\n\n   # here\n");
  write_file(folder / "wrong.txt", "# one\n8 64 64 # named\n8 64 64 --grouping tree\n");
  write_file(folder / "words.txt", "8 64\n");
  write_file(folder / "more.txt", "\n8 64 64 64\n");
  const Strings shape = {"8", "64", "64"};
  const std::string gated = "has no gated form; silu, gelu, relu and the gated ones have";
  struct Case {
    std::string command;
    Strings words;
    std::string said;
  };
  const Case cases[] = {
      {"", {}, "no command was given; see moxie --help"},
      {"plan",
       {"--activation", "tanh"},
       "--activation: 'tanh' is none of none, relu, relu2, gelu, gelu-erf, silu, swiglu, swiglu-oai, geglu, reglu, "
       "swiglu-clamped, situ"},
      {"plan",
       {"--activation", "swiglu", "--gate", "none"},
       "--gate: 'none' is none of interleaved, split, split-up-first"},
      {"plan", {"--gate", "split"}, "--gate: --activation none " + gated},
      {"plan", {"--ranks", "0"}, "--ranks: 0, but must be 1 to 1024"},
      {"plan", {"--ranks", "2"}, "--groups: 1 experts of all ranks, but 2 ranks have 2 to 2048"},
      {"plan", {"--ranks", "2", "--groups", "2049"}, "--groups: 2049 experts of all ranks, but 2 ranks have 2 to 2048"},
      {"plan", {"--ranks", "2", "--groups", "8", "--top-k", "9"}, "--top-k: 9, but must be 1 to 8"},
      {"plan", {"--ranks", "2", "--groups", "8", "--domain", "4"}, "--domain: 4, but must be 1 to the 2 ranks"},
      {"plan", {"--ranks", "2", "--groups", "8", "--network", "0"}, "--network: 0, but must be more than 0"},
      {"plan",
       {"--ranks", "2", "--groups", "8", "--row-format", "mxfp4"},
       "--row-format: 'mxfp4' is none of bf16, fp8, mxfp8"},
      {"plan",
       {"--ranks", "2", "--groups", "8", "--grouping", "masked"},
       "--grouping: masked, but a layer's groups are offsets"},
      {"plan",
       {"--ranks", "2", "--groups", "2", "--rows", "4,4"},
       "--rows: given, but with --ranks the rows of experts are even"},
      {"plan",
       {"--ranks", "2", "--groups", "2", "--expected-rows", "4"},
       "--expected-rows: given, but with --ranks they follow from the tokens"},
      {"plan", {"--gate", "split", "--activation", "relu2"}, "--gate: --activation relu2 " + gated},
      {"plan", {"--gate", "split", "--activation", "gelu-erf"}, "--gate: --activation gelu-erf " + gated},
      {"plan", {"--outputs", "out,pre,out"}, "--outputs: 'out,pre,out' is none of pre, out, pre,out"},
      {"plan", {"--outputs", "pre,pre"}, "--outputs: 'pre,pre' is none of pre, out, pre,out"},
      {"plan", {"--outputs", "none"}, "--outputs: 'none' is none of pre, out, pre,out"},
      {"plan", {"--out-dtype", "f16"}, "--out-dtype: 'f16' is none of bf16, f32, mxfp4, mxfp8, nvfp4"},
      {"plan", {"--pre-dtype", "f16"}, "--pre-dtype: 'f16' is none of bf16, f32, mxfp4, mxfp8, nvfp4"},
      {"plan", {"--schedule", "any"}, "--schedule: 'any' is none of auto, cooperative, pingpong"},
      {"plan", {"--multicast", "c"}, "--multicast: 'c' is none of auto, none, a, b, either"},
      {"plan", {"--scheduler", "dynamic"}, "--scheduler: 'dynamic' is none of auto, static, launch-control"},
      {"plan", {"--swap", "yes"}, "--swap: 'yes' is none of auto, on, off"},
      {"plan", {"--cluster", "3"}, "--cluster: 3 is neither 1 nor 2"},
      {"plan", {"--cluster=-1"}, "--cluster: -1 is neither 1 nor 2"},
      {"plan", {"--tile", "128"}, "--tile: '128' is not ROWSxCOLUMNS, such as 128x256"},
      {"plan", {"--tile", "x128"}, "--tile: 'x128' is not ROWSxCOLUMNS, such as 128x256"},
      {"plan", {"--tile", "128x"}, "--tile: '128x' is not ROWSxCOLUMNS, such as 128x256"},
      {"plan", {"--tile", "128y64"}, "--tile: '128y64' is not ROWSxCOLUMNS, such as 128x256"},
      {"plan", {"--tile", "128x64 "}, "--tile: '128x64 ' is not ROWSxCOLUMNS, such as 128x256"},
      {"plan", {"--tile", "0x64"}, "--tile: '0x64' is not ROWSxCOLUMNS, such as 128x256"},
      {"plan", {"--tile", "64x0"}, "--tile: '64x0' is not ROWSxCOLUMNS, such as 128x256"},
      {"plan", {"--tile", "1x1"}, "tile_m is 1, but only 8, 64, 128 and 256 are possible"},
      {"plan", {"--tile", "99999999999x64"}, "--tile: '99999999999x64' is not ROWSxCOLUMNS, such as 128x256"},
      {"plan",
       {"--grouping", "tree"},
       "--grouping: 'tree' is none of dense, batched, offsets, row-groups, masked, pointers, k-groups"},
      {"plan", {"--grouping", "dense", "--groups", "2"}, "--groups: 2, but a dense product has 1"},
      {"plan", {"--format", "fp8"}, "--format: 'fp8' is none of bf16, mxfp4, nvfp4"},
      {"plan", {"--arch", "sm_90"}, "--arch: 'sm_90' is none of sm_90a, sm_100a, 90, 100"},
      {"plan", {"--device", "a100"}, "--device: 'a100' is none of h100-sxm, h100-pcie, h200, h20, gh200, b200"},
      {"plan", {"--device", "b200", "--arch", "90"}, "--arch: 90, but --device b200 is sm_100a"},
      {"plan", {"--device", "h200", "--arch", "sm_100a"}, "--arch: sm_100a, but --device h200 is sm_90a"},
      {"plan",
       {"--arch", "100", "--schedule", "pingpong"},
       "--schedule: the kernels of sm_100a have only one schedule"},
      {"plan", {"--arch", "100", "--multicast", "a"}, "--multicast: the kernels of sm_100a have no multicast"},
      {"plan",
       {"--scheduler", "launch-control"},
       "--scheduler: launch-control is for sm_100a, the kernels of sm_90a have static scheduling"},
      {"plan", {"--swap", "on"}, "--swap: the kernels of sm_90a do not swap their operands"},
      {"bench", {"--k", "1048577"}, "--groups, --m, --n, --k: 1048577 is not 1 to 1048576"},
      {"bench", {"--groups", "0"}, "--groups, --m, --n, --k: 0 is not 1 to 1048576"},
      {"demo", {"--tokens", "0"}, "--tokens: 0 is not 1 to 1048576"},
      {"demo", {"--tokens", "1048577"}, "--tokens: 1048577 is not 1 to 1048576"},
      {"demo", {"--format", "nvfp4"}, "--format: 'nvfp4' is none of bf16, mxfp4"},
      {"demo", {"--arch", "80"}, "--arch: '80' is none of sm_90a, sm_100a"},
      {"bench", {"--arch", "80"}, "--arch: '80' is none of sm_90a, sm_100a"},
      {"tune", {}, "tune needs a GPU: times in the simulator say nothing about one"},
      {"pack", {folder / "empty.txt", folder / "kernels"}, folder / "empty.txt" + ": lists no problem"},
      {"pack", {folder / "absent.txt", folder / "kernels"}, folder / "absent.txt" + ": cannot be opened"},
      {"pack",
       {folder / "wrong.txt", folder / "kernels"},
       folder / "wrong.txt" +
           ": line 3: --grouping: 'tree' is none of dense, batched, offsets, row-groups, masked, pointers, k-groups"},
      {"pack", {folder / "words.txt", folder / "kernels"}, folder / "words.txt" + ": line 1: K is required"},
      {"pack", {folder / "empty.txt", folder / "kernels", "--image", "cubin"}, "--image: 'cubin' is none of code, ptx"},
  };
  for (const auto& [command, words, said] : cases) {
    Strings arguments;
    if (!command.empty()) arguments.push_back(command);
    if (command == "plan") arguments.insert(arguments.end(), shape.begin(), shape.end());
    arguments.insert(arguments.end(), words.begin(), words.end());
    Setting setting;
    setting.environment["MOXIE_DEVICE"] = "sim";
    const Finished finished = run_moxie(arguments, setting);
    EXPECT_EQ(finished.status, 2) << said;
    EXPECT_EQ(finished.out, "");
    EXPECT_EQ(finished.err, "moxie: " + said + "\n");
  }
  const Finished more = run_moxie({"pack", folder / "more.txt", folder / "kernels"});
  EXPECT_THAT(more.err, HasSubstr("more.txt: line 2: "));
  EXPECT_FALSE(std::filesystem::exists(folder / "kernels"));
}

// The first two lines of a plan tell what was asked, and that what the caller chose was taken.
TEST(Plan, TellsWhatWasAskedAndChosen) {
  struct Case {
    std::string words, product;
    Strings choice;
  };
  const Case cases[] = {
      {"8 64 72", "dense, 1 group of about 8 rows (rows given by m), n 64, k 72, 132 SMs", {"chosen by model: "}},
      {"30 64 72 --groups 3", " rows (rows known to the device only), n 64, k 72, 132 SMs", {}},
      {"300 64 72 --groups 2 --rows 100,200", "offsets, 2 groups of about 150 rows (rows known to the host)", {}},
      {"64 64 72 --groups 2 --expected-rows 7", "offsets, 2 groups of about 7 rows (expected rows given)", {}},
      {"64 64 72 --groups 2 --expected-rows 0", "offsets, 2 groups of about 0 rows (expected rows given)", {}},
      {"24 64 72 --groups 2 --grouping batched", "batched, 2 groups of about 24 rows (rows given by m)", {}},
      {"24 64 72 --grouping batched", "batched, 1 group of about 24 rows (rows given by m)", {}},
      {"24 64 72 --grouping offsets", "offsets, 1 group of about ", {}},
      {"640 64 72 --groups 5 --grouping row-groups", "row groups, 5 groups of about ", {}},
      {"640 64 72 --groups 5 --grouping masked", "masked, 5 groups of about ", {}},
      {"640 64 72 --groups 5 --grouping pointers", "pointers, 5 groups of about ", {}},
      {"8 64 72 --device h20", "n 64, k 72, 78 SMs", {}},
      {"8 64 72 --device h100-pcie", "n 64, k 72, 114 SMs", {}},
      {"8 64 72 --sms 17", "n 64, k 72, 17 SMs", {}},
      {"8 64 72 --arch 90", "132 SMs", {}},
      {"8 64 72 --arch sm_100a", "148 SMs", {" columns of tensor memory, ", "predicted for "}},
      {"8 64 72 --device b200 --sms 100", "100 SMs", {"predicted for "}},
      {"512 512 512 --schedule cooperative --tile 128x192 --cluster 1",
       "dense",
       {"chosen by caller's choice: cooperative 128x192x64", " stages, "}},
      {"512 512 512 --schedule pingpong --tile 64x96 --cluster 2 --multicast b",
       "dense",
       {"chosen by caller's choice: ping-pong 64x96x64", "cluster 2 (B multicast)"}},
      {"512 512 512 --cluster 2 --multicast a", "dense", {"caller's choice", "(A multicast)"}},
      {"512 512 512 --groups 2 --cluster 2 --multicast either",
       "offsets, 2 groups",
       {"caller's choice", "(A or B multicast)"}},
      {"8 512 512 --arch 100 --swap on", "dense", {"caller's choice", "swapped"}},
      {"4096 512 512 --arch 100 --scheduler launch-control", "dense", {"caller's choice", "launch control"}},
  };
  for (const auto& [words, product, choice] : cases) {
    Strings arguments = {"plan"};
    std::istringstream stream(words);
    for (std::string word; stream >> word;) arguments.push_back(word);
    const Finished finished = run_moxie(arguments);
    ASSERT_EQ(finished.status, 0) << words << finished.err;
    const Strings lines = lines_of(finished.out);
    EXPECT_THAT(lines[0], HasSubstr(product)) << words;
    const bool blackwell =
        words.find("100a") + 1 != 0 || words.find("b200") + 1 != 0 || words.find("arch 100") + 1 != 0;
    const std::string chosen = lines[1] + "\n" + (blackwell ? lines[2] : "");
    for (const std::string& text : choice) EXPECT_THAT(chosen, HasSubstr(text)) << words;
    EXPECT_TRUE(std::regex_search(chosen, std::regex(R"(, \d+ store buffers?, \d+ bytes of shared memory, )")))
        << chosen;
    EXPECT_TRUE(std::regex_search(chosen, std::regex(R"( \d+ tiles? at most, panels of \d+)"))) << chosen;
    EXPECT_EQ(chosen.find("predicted") != std::string::npos, blackwell) << words;
    EXPECT_EQ(chosen.find("tensor memory") != std::string::npos, blackwell) << words;
    EXPECT_EQ(chosen.find("1 tiles") + chosen.find(" 1 store buffers"), 2 * std::string::npos) << chosen;
  }
}

TEST(Plan, TakesAsMuchAsALayerOfRanksMayHave) {
  const Finished finished =
      run_moxie({"plan", "1048576", "64", "64", "--ranks", "2", "--groups", "2048", "--top-k", "16"});
  EXPECT_EQ(finished.status, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("2048 experts on 2 ranks, top 16, "));
}

// 2 m n k operations in the time that is predicted.
TEST(Plan, PredictsARateThatFitsItsTime) {
  const Finished finished = run_moxie({"plan", "4096", "2048", "1024", "--arch", "sm_100a"});
  std::smatch found;
  const std::regex prediction(R"(predicted for (\S+) GHz: (\S+) us, (\S+) TFLOP/s)");
  ASSERT_TRUE(std::regex_search(finished.out, found, prediction)) << finished.out;
  const double us = std::stod(found[2]), rate = std::stod(found[3]);
  EXPECT_NEAR(rate, 2.0 * 4096 * 2048 * 1024 / us * 1e-6, 0.01 * rate + 1);
  EXPECT_GT(std::stod(found[1]), 1.0);
  EXPECT_LT(std::stod(found[1]), 2.5);
}

TEST(Plan, ListsTheBestCandidatesFirstAndAllOnDemand) {
  const auto candidates = [](bool all, std::string* rest) {
    Strings arguments = {"plan", "4096", "2048", "1024"};
    if (all) arguments.push_back("--all");
    const Finished finished = run_moxie(arguments);
    std::vector<double> cycles;
    bool possible = true;
    const Strings lines = lines_of(finished.out);
    EXPECT_TRUE(std::regex_match(lines.at(2), std::regex(R"( +cycles  candidate +limited by)"))) << lines.at(2);
    for (size_t i = 3; i < lines.size(); ++i) {
      if (lines[i].starts_with("...")) {
        *rest = lines[i];
        continue;
      }
      EXPECT_EQ(lines[i].substr(12, 2), "  ") << lines[i];
      const std::string first = lines[i].substr(0, 12);
      if (first.find('-') != std::string::npos) {
        possible = false;
        cycles.push_back(INFINITY);
      } else {
        EXPECT_TRUE(possible) << "possible ones stand before the others";
        cycles.push_back(std::stod(first));
      }
    }
    EXPECT_TRUE(std::is_sorted(cycles.begin(), cycles.end()));
    return cycles.size();
  };
  std::string rest, none;
  const size_t some = candidates(false, &rest), all = candidates(true, &none);
  EXPECT_EQ(some, 11u);
  EXPECT_EQ(rest, "... and " + std::to_string(all - some) + " more (--all shows them)");
  EXPECT_EQ(none, "");
}

// A line of devices tells what the driver does.
TEST(Devices, TellWhatTheDriverDoes) {
  for (const auto& [arch, sms, expected] : {std::tuple{"sm_90a", "", R"(sm_90a +132 )"},
                                            {"sm_90a", "7", R"(sm_90a +7 )"},
                                            {"sm_100a", "", R"(sm_100a +148 )"}}) {
    Setting setting;
    setting.environment = {{"MOXIE_DEVICE", "sim"}, {"MOXIE_SIM_ARCH", arch}, {"MOXIE_SIM_SMS", sms}};
    const Finished finished = run_moxie({"devices"}, setting);
    EXPECT_EQ(finished.status, 0);
    const Strings lines = lines_of(finished.out);
    ASSERT_GE(lines.size(), 2u) << finished.out;  // the machine's GPUs stand before the simulator
    EXPECT_TRUE(std::regex_match(lines[0], std::regex("device +arch +SMs shared/block +memory +driver  served by")))
        << lines[0];
    const std::regex line("Moxie simulator \\(" + std::string(arch) + "\\) +" + expected +
                          R"( +227 KiB +\d+ GiB +13\.0  .*libcuda\.so\.1 \(simulated\))");
    EXPECT_TRUE(std::regex_match(lines.back(), line)) << lines.back();
  }
}

}  // namespace
}  // namespace moxie::test
