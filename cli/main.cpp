// SPDX-License-Identifier: Apache-2.0
// The program `moxie`: picks the command, and turns every error into one line on stderr and an exit status.
#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/errors.h"
#include "moxie/error.h"
#include "moxie/version.h"

namespace {

enum ExitStatus { kDone = 0, kFailed = 1, kWrongUse = 2 };

// Names from files stand in messages: control characters become '?', so that one error stays one line.
std::string one_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  for (char& c : text) {
    if (c == '\n') c = ' ';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  constexpr size_t kMost = 600;
  if (text.size() > kMost) text = text.substr(0, kMost) + " ...";
  return text;
}

int complain(const std::string& text, int status) {
  fmt::print(stderr, "moxie: {}\n", one_line(text));
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  // A file limit or a closed pipe is then an error of the write call, which is reported.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);

  CLI::App app{"Grouped matrix products with a fused epilogue, on an NVIDIA Hopper GPU or on a simulated one."};
  app.name("moxie");
  app.set_version_flag("--version", MOXIE_VERSION);
  app.require_subcommand(0, 1);  // an unknown command is then named as what was not expected
  app.footer(
      "Environment: MOXIE_DEVICE=auto|cuda|sim, MOXIE_CACHE_DIR (compiled kernels), MOXIE_TUNED\n"
      "(a table of moxie tune), MOXIE_NVRTC, MOXIE_CUBLASLT, MOXIE_SIM_ARCH, MOXIE_SIM_SMS, "
      "MOXIE_SIM_ORDER=eager|lazy|random:SEED.\n"
      "Exit status: 0 done, 1 failed, 2 wrong usage or input.");

  using namespace moxie::cli;
  std::vector<std::pair<CLI::App*, Run>> commands;
  auto add = [&](const char* name, const char* what, Run (*adder)(CLI::App&)) {
    CLI::App* command = app.add_subcommand(name, what);
    commands.emplace_back(command, adder(*command));
  };
  add("demo", "A GPT-OSS-20B expert layer, checked against double precision", add_demo);
  add("gemm", "A grouped product of the tensors in a file", add_gemm);
  add("layer", "A whole expert layer of a checkpoint, from tokens to the combined result", add_layer);
  add("quantize", "Tensors of a file to MXFP4, MXFP8 or NVFP4 with their scales, and back", add_quantize);
  add("devices", "The devices that this machine has", add_devices);
  add("plan", "Which kernel a problem gets, and why", add_plan);
  add("pack", "Compiles the kernels of a list of problems, for machines without a compiler", add_pack);
  add("bench", "Times of products (GPU), of compilation and of the simulator", add_bench);
  add("tune", "Times the kernels for a list of problems on this GPU and writes a table of the fastest", add_tune);

  try {
    app.parse(argc, argv);
    for (auto& [command, run] : commands) {
      if (command->parsed()) return run();
    }
    return complain("no command was given; see moxie --help", kWrongUse);
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& error) {
    const std::vector<CLI::App*> given = app.get_subcommands();
    const std::string command = given.empty() ? "" : given.front()->get_name() + " ";
    return complain(fmt::format("{} (see moxie {}--help)", error.what(), command), kWrongUse);
  } catch (const InputError& error) {
    return complain(error.what(), kWrongUse);
  } catch (const moxie::Error& error) {
    const bool callers =
        error.code() == moxie::ErrorCode::InvalidArgument || error.code() == moxie::ErrorCode::Unsupported;
    return complain(error.what(), callers ? kWrongUse : kFailed);
  } catch (const std::bad_alloc&) {
    return complain("out of memory on the host", kFailed);
  } catch (const std::exception& error) {
    return complain(error.what(), kFailed);
  }
}
