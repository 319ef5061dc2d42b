// SPDX-License-Identifier: Apache-2.0
// The program's commands: each adds itself to the command line and returns what to run.
#pragma once
#include <functional>

#include <CLI/CLI.hpp>

namespace moxie::cli {

// A command returns its exit status, 0 for done and 1 for failed. Input that breaks a rule leaves as InputError.
using Run = std::function<int()>;

Run add_demo(CLI::App& command);
Run add_gemm(CLI::App& command);
Run add_layer(CLI::App& command);
Run add_quantize(CLI::App& command);
Run add_devices(CLI::App& command);
Run add_plan(CLI::App& command);
Run add_pack(CLI::App& command);
Run add_bench(CLI::App& command);
Run add_tune(CLI::App& command);

}  // namespace moxie::cli
