// SPDX-License-Identifier: Apache-2.0
// moxie bench: on a GPU it prints times of products, taken by CUDA graphs, beside two ceilings of the same run: the
// best cuBLASLt product of the same multiply-adds, and a copy. On the simulator it prints how fast that is, and whether
// it is right. On any machine it prints how long kernels take to compile and to load.
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <memory>

#include <fmt/format.h>

#include "bench/timing/benchmark_case.h"
#include "bench/timing/buffer.h"
#include "bench/timing/cublaslt.h"
#include "bench/timing/data.h"
#include "bench/timing/gpu_clock.h"
#include "bench/timing/host_clock.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "moxie/moxie.h"
#include "reference/comparison.h"
#include "reference/formats.h"
#include "reference/product.h"

namespace moxie::cli {

namespace {

using timing::BenchmarkCase;
using timing::Buffer;
using timing::Contender;
using timing::CublasLt;
using timing::GpuClock;
using timing::Launch;

struct BenchOptions : ProductOptions {
  int64_t groups = 8, m = 1024, n = 4096, k = 2048;
  std::string list, arch, format = "bf16";
  bool shape_given = false, gather = false;
};

struct NamedShape {
  std::string name;
  GemmDescription description;
};

GemmDescription describe(int64_t groups, int64_t rows, int64_t n, int64_t k, const BenchOptions& options, int arch) {
  GemmDescription d;
  options.apply(d);
  options.choices().apply(d, arch);
  set_format(d, options.format, arch);
  d.groups = Offsets{groups, groups * rows};
  d.n = n;
  d.k = k;
  d.bias = true;
  d.gather = options.gather;
  d.expected_rows = rows;
  return d;
}

// While it lives, the cache of kernels is an empty folder of its own, which is removed at the end.
class PrivateCache {
 public:
  PrivateCache() {
    std::string name = (std::filesystem::temp_directory_path() / "moxie-bench-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw OutputError(name + ": cannot be made");
    folder_ = name;
    const char* old = getenv("MOXIE_CACHE_DIR");
    if (old != nullptr) old_ = old;
    setenv("MOXIE_CACHE_DIR", name.c_str(), 1);
  }
  ~PrivateCache() {
    old_.empty() ? unsetenv("MOXIE_CACHE_DIR") : setenv("MOXIE_CACHE_DIR", old_.c_str(), 1);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  PrivateCache(const PrivateCache&) = delete;
  PrivateCache& operator=(const PrivateCache&) = delete;

 private:
  std::filesystem::path folder_;
  std::string old_;
};

// Kernels live as long as a Device that uses them, so this must run before another Device is opened.
void print_compile_times(const GemmDescription& description) {
  const PrivateCache cache;
  auto first_use = [&] {
    const Device device = Device::open();
    return timing::seconds_of([&] { const GroupedGemm gemm(device, description); });
  };
  const double cold = first_use();
  const double warm = first_use();
  fmt::print("first use of a kernel: {:.2f} s compiled, {:.1f} ms from the cache\n\n", cold, warm * 1e3);
  fflush(stdout);
}

std::vector<NamedShape> shapes_of(const BenchOptions& options, const DeviceInfo& device) {
  if (!options.list.empty()) {
    std::vector<std::string> names;
    std::vector<GemmDescription> products = read_products(options.list, device.arch, &names);
    std::vector<NamedShape> shapes;
    for (size_t i = 0; i < products.size(); ++i) shapes.push_back({names[i], products[i]});
    return shapes;
  }
  const auto shape = [&](const char* name, int64_t groups, int64_t rows, int64_t n, int64_t k) {
    return NamedShape{name, describe(groups, rows, n, k, options, device.arch)};
  };
  if (options.shape_given) return {shape("given", options.groups, options.m, options.n, options.k)};
  if (device.simulated) return {shape("4 groups", 4, 128, 512, 512)};
  return {shape("8 groups", 8, 1024, 4096, 2048), shape("gpt-oss-20b, 4096 tokens", 32, 512, 5760, 2880),
          shape("gpt-oss-20b, 128 tokens", 32, 16, 5760, 2880)};
}

std::string extents(const GemmDescription& d) {
  const int64_t groups = timing::timed_groups(d).count;
  return fmt::format("{} x ({} x {} x {})", groups, (timing::rows_of(d) + groups - 1) / groups, d.n, d.k);
}

// Returns the first rows of A or B in bf16. Elements of four bits times their scales are exact in it.
std::vector<uint16_t> download_rows(const Device& device, const GemmDescription& p, const Buffer& elements,
                                    const Buffer& scales, int64_t rows) {
  std::vector<uint16_t> values(static_cast<size_t>(rows * p.k));
  if (!has_scales(p.format)) {
    device.download(values.data(), elements.as(), values.size() * 2);
    return values;
  }
  const int64_t block = scale_block(p.format);
  const DataType type = p.format == OperandFormat::Nvfp4 ? DataType::Nvfp4 : DataType::Mxfp4;
  std::vector<uint8_t> pairs(values.size() / 2), blocked(static_cast<size_t>(blocked_scale_bytes(rows, p.k, block)));
  device.download(pairs.data(), elements.as(), pairs.size());
  device.download(blocked.data(), scales.as(), blocked.size());
  std::vector<uint8_t> row_scales(static_cast<size_t>(p.k / block));
  std::vector<float> row(static_cast<size_t>(p.k));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < p.k / block; ++c)
      row_scales[static_cast<size_t>(c)] = blocked[static_cast<size_t>(blocked_scale_index(r, c, p.k, block))];
    reference::dequantize_row(type, pairs.data() + r * p.k / 2, row_scales.data(), p.k, 1, row.data());
    for (int64_t i = 0; i < p.k; ++i)
      values[static_cast<size_t>(r * p.k + i)] = reference::float_to_bf16(row[static_cast<size_t>(i)]);
  }
  return values;
}

// Compares the first group's results with the product in double precision.
reference::Comparison compare(const Device& device, const BenchmarkCase& work) {
  const GemmDescription& p = work.gemm.description();
  int32_t rows = 0;
  device.download(&rows, work.ends[0].as(), sizeof(rows));
  std::vector<uint16_t> a = download_rows(device, p, work.a[0], work.a_scales, p.gather ? timing::rows_of_a(p) : rows);
  if (p.gather) {
    const std::vector<uint16_t> stored = std::move(a);
    a.clear();
    for (int32_t row = 0; row < rows; ++row) {
      const auto first = stored.begin() + work.row_of_a(row) * p.k;
      a.insert(a.end(), first, first + p.k);
    }
  }
  const auto b = p.b_format ? timing::download_packed(device, p, work.b[0].as<uint8_t>(), 0, p.n)
                            : download_rows(device, p, work.b[0], work.b_scales, p.n);
  std::vector<uint16_t> bias(static_cast<size_t>(p.n));
  if (p.bias) device.download(bias.data(), work.bias.as(), bias.size() * 2);
  std::vector<double> expected = reference::product(
      {a.data(), p.k, b.data(), p.k, p.bias ? bias.data() : nullptr, rows, p.n, p.k}, timing::worker_threads());
  if (p.out) expected = reference::activate_all(p.activation, p.gate, expected, rows, p.n);
  const DataType type = p.out ? *p.out : *p.pre;
  const int64_t columns = rows > 0 ? static_cast<int64_t>(expected.size()) / rows : 0;
  std::vector<uint8_t> got(expected.size() * static_cast<size_t>(size_of(type)));
  device.download(got.data(), (p.out ? work.out : work.pre)[0].as(), got.size());
  reference::Comparison comparison(type == DataType::Bf16 ? reference::kBf16Bound : reference::Bound{1e-4, 1, 1e-4});
  comparison.add(expected, got.data(), type, rows, columns, columns);
  return comparison;
}

int simulate(const Device& device, const std::vector<NamedShape>& shapes) {
  fmt::print("{:<24} {:<24} {:>12} {:>8} {:>9}  {}\n", "shape", "groups x (M x N x K)", "simulated in", "GFLOP/s",
             "error", "kernel");
  bool pass = true;
  for (const NamedShape& shape : shapes) {
    const BenchmarkCase work(GroupedGemm(device, shape.description));
    const double seconds = timing::seconds_of([&] {
      work.launch(0, nullptr);
      device.synchronize();
    });
    const reference::Comparison comparison = compare(device, work);
    fmt::print("{:<24} {:<24} {:>10.2f} s {:>8.1f} {:>9.1e}  {}\n", shape.name, extents(shape.description), seconds,
               timing::flops_of(shape.description) / seconds * 1e-9, comparison.relative_error(),
               work.gemm.plan().kernel);
    if (comparison.pass()) continue;
    fmt::print("WRONG: {}\n", comparison.failure());
    pass = false;
  }
  return pass ? 0 : 1;
}

// cuBLASLt multiplies all rows with one group's weights, which takes as many multiply-adds as the grouped product. The
// fastest of its algorithms is chosen.
struct DenseProduct {
  DenseProduct(const CublasLt& library, const BenchmarkCase& of, const GpuClock& clock)
      : work(of), workspace(of.gemm.device(), CublasLt::kWorkspaceBytes) {
    const GemmDescription& description = of.gemm.description();
    const int64_t rows = timing::rows_of(description);
    product = library.product(rows, description.n, description.k);
    const auto bytes = static_cast<size_t>(rows * description.n * 2);
    for (int i = 0; i < work.turns(); ++i) d.emplace_back(of.gemm.device(), bytes);
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < product->algorithms(); ++i) {
      algorithm = i;
      const double seconds = clock.seconds({{launch()}}, work.turns(), 3, 5e-4)[0];
      if (seconds < best) best = seconds, chosen = i;
    }
    algorithm = chosen;
  }
  Launch launch() {
    return [this](int turn, Stream stream) {
      const size_t i = static_cast<size_t>(turn) % d.size();
      product->run(algorithm, work.a[i].as(), work.b[i % work.b.size()].as(), d[i].as(), workspace.as(), stream);
    };
  }
  const BenchmarkCase& work;
  std::unique_ptr<CublasLt::Product> product;
  std::vector<Buffer> d;
  Buffer workspace;
  int algorithm = 0, chosen = 0;
};

void time_on_gpu(const Device& device, const std::vector<NamedShape>& shapes) {
  const GpuClock clock(device);
  std::string why;
  const std::unique_ptr<CublasLt> cublaslt = CublasLt::find(&why);
  if (cublaslt == nullptr) fmt::print("cuBLASLt: {}\n", why);
  constexpr size_t kCopyBytes = 512 << 20;
  const Buffer from(device, kCopyBytes), to(device, kCopyBytes);
  device.fill(from.as(), 0x5a, kCopyBytes);

  fmt::print("{:<36} {:<24} {:>10} {:>8} {:>6} {:>8} {:>8} {:>8}  {}\n", "shape", "groups x (M x N x K)", "time",
             "TFLOP/s", "GB/s", "/cublas", "/copy", "host", "kernel");
  for (const NamedShape& shape : shapes) {
    const BenchmarkCase work(GroupedGemm(device, shape.description));
    const Launch ours = [&](int turn, Stream stream) { work.launch(turn, stream); };
    const Launch copies = [&](int, Stream stream) { clock.copy(to.as(), from.as(), kCopyBytes, stream); };
    std::vector<Contender> contenders = {{ours}, {.launch = copies, .graph = false, .turns = 1}};
    std::unique_ptr<DenseProduct> dense;
    // CublasLt multiplies bf16 alone, in order.
    if (cublaslt != nullptr && !shape.description.b_format && !has_scales(shape.description.format) &&
        !shape.description.gather) {
      dense = std::make_unique<DenseProduct>(*cublaslt, work, clock);
      contenders.push_back({dense->launch()});
    }
    const std::vector<double> seconds = clock.seconds(contenders, work.turns());
    const double host = clock.host_seconds(ours, work.turns());
    const double bytes = timing::compulsory_bytes(shape.description) / seconds[0],
                 copied = 2.0 * kCopyBytes / seconds[1];
    fmt::print("{:<36} {:<24} {:>7.4f} ms {:>8.1f} {:>6.0f} {:>8} {:>8.3f} {:>5.1f} us  {}\n", shape.name,
               extents(shape.description), seconds[0] * 1e3, timing::flops_of(shape.description) / seconds[0] * 1e-12,
               bytes * 1e-9, dense != nullptr ? fmt::format("{:.3f}", seconds[2] / seconds[0]) : "-", bytes / copied,
               host * 1e6, work.gemm.plan().kernel);
    fflush(stdout);
  }
}

int run_bench(const BenchOptions& options) {
  if (!options.arch.empty()) setenv("MOXIE_SIM_ARCH", options.arch.c_str(), 1);
  const DeviceInfo info = Device::open().info();
  const std::vector<NamedShape> shapes = shapes_of(options, info);
  // A shape that has no kernel is refused before another is timed.
  for (const NamedShape& shape : shapes) plan_gemm(shape.description, figures_of(info));
  fmt::print("{}{}\n", info.name, info.simulated ? " (simulated)" : "");
  print_compile_times(shapes.front().description);

  const Device device = Device::open();
  if (info.simulated) return simulate(device, shapes);
  time_on_gpu(device, shapes);
  return 0;
}

}  // namespace

Run add_bench(CLI::App& command) {
  auto options = std::make_shared<BenchOptions>();
  options->activation = "swiglu-oai";
  auto* groups = command.add_option("--groups", options->groups, "Groups")->capture_default_str();
  auto* m = command.add_option("--m", options->m, "Rows of each group")->capture_default_str();
  auto* n = command.add_option("--n", options->n, "Columns, before a gate halves them")->capture_default_str();
  auto* k = command.add_option("--k", options->k, "Length of the sums")->capture_default_str();
  command.add_option("--list", options->list,
                     "Text file of problems with groups by offsets, one a line in the words of `moxie plan`");
  command.add_option("--format", options->format, format_help())->capture_default_str();
  command.add_option("--arch", options->arch, "What the simulator is: sm_90a or sm_100a");
  add_gather(command, options->gather);
  options->add_to(command);
  return [=] {
    if (!options->arch.empty()) choose("--arch", options->arch, {"sm_90a", "sm_100a"});
    options->shape_given = groups->count() + m->count() + n->count() + k->count() > 0;
    for (const int64_t extent : {options->groups, options->m, options->n, options->k}) {
      if (extent < 1 || extent > 1 << 20)
        throw InputError(fmt::format("--groups, --m, --n, --k: {} is not 1 to {}", extent, 1 << 20));
    }
    return run_bench(*options);
  };
}

}  // namespace moxie::cli
