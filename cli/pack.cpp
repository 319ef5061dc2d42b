// SPDX-License-Identifier: Apache-2.0
// moxie pack: the kernels of a list of problems, compiled into a folder that serves as cache where there is no
// compiler.
#include <memory>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "moxie/pack.h"

namespace moxie::cli {

namespace {

struct PackOptions {
  std::string list, folder, image = "code";
  int threads = 0;
  TargetOptions target;
};

}  // namespace

Run add_pack(CLI::App& command) {
  auto options = std::make_shared<PackOptions>();
  command
      .add_option("LIST", options->list, "Text file, a problem a line in the words of `moxie plan`; # begins a comment")
      ->required();
  command.add_option("FOLDER", options->folder, "Where the kernels go; MOXIE_CACHE_DIR names it where they are used")
      ->required();
  options->target.add_to(command);
  command.add_option("--image", options->image, "code: machine code for GPUs; ptx: for the simulator")
      ->capture_default_str();
  command.add_option("--threads", options->threads, "Compilers at once; 0: as many as there are cores")
      ->capture_default_str();
  return [options] {
    const PackImage image =
        choose("--image", options->image, {"code", "ptx"}) == 1 ? PackImage::Ptx : PackImage::MachineCode;
    const DeviceFigures device = options->target.figures();
    const PackResult result =
        pack(read_products(options->list, device.arch), options->folder, device, image, options->threads);
    fmt::print("{}: {} kernel{}, {} compiled now, {} bytes\n", options->folder, result.kernels,
               result.kernels == 1 ? "" : "s", result.compiled, result.bytes);
    return 0;
  };
}

}  // namespace moxie::cli
