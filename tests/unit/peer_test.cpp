// SPDX-License-Identifier: Apache-2.0
// The library behind the interface of bench/peer.h, which bench/peers.py loads, gives the library's own results.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "bench/peer.h"
#include "bench/timing/buffer.h"
#include "bench/timing/data.h"
#include "moxie/moxie.h"

namespace moxie::test {
namespace {

class Peer : public testing::Test {
 protected:
  void SetUp() override {
    const auto folder = std::filesystem::path(MOXIE_SIM_LIBRARY).parent_path();
    const std::string path = (folder / "../../libmoxie_peer.so").string();
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  template <class F>
  F* find(const char* name) {
    return reinterpret_cast<F*>(dlsym(library_, name));
  }
  void* library_ = nullptr;
};
#define MOXIE_PEER(name) find<decltype(::name)>(#name)

PeerProblem problem() {
  PeerProblem p{};
  p.groups = 3, p.rows = 70, p.n = 128, p.k = 64;
  p.activation = PEER_SWIGLU_OAI;
  p.bias = p.pre = p.out = 1;
  p.schedule = p.multicast = -1;
  return p;
}

TEST_F(Peer, GivesTheLibrarysResults) {
  const Device device = Device::open();
  const PeerProblem p = problem();
  const timing::Buffer a(device, timing::random_bf16(1, p.rows * p.k, 1)),
      b(device, timing::random_bf16(2, 3 * p.n * p.k, 1)), bias(device, timing::random_bf16(3, 3 * p.n, 1)),
      ends(device, std::vector<int32_t>{20, 20, 70});
  const size_t pre_bytes = size_t(p.rows * p.n) * 2, out_bytes = pre_bytes / 2;
  const timing::Buffer pre(device, pre_bytes), out(device, out_bytes);
  const auto fetch = [&] {
    std::vector<uint16_t> values((pre_bytes + out_bytes) / 2);
    device.download(values.data(), pre.as(), pre_bytes);
    device.download(values.data() + pre_bytes / 2, out.as(), out_bytes);
    pre.clear(device), out.clear(device);
    return values;
  };

  GemmDescription same;
  same.groups = Offsets{p.groups, p.rows};
  same.n = p.n, same.k = p.k;
  same.bias = true;
  same.activation = swiglu_oai({1.5f, 6.0f});
  same.pre = DataType::Bf16;
  const GroupedGemm gemm(device, same);
  const timing::Buffer workspace(device, gemm.workspace_bytes());
  GemmTensors by_us;
  by_us.a.data = a.as(), by_us.b.data = b.as(), by_us.bias = bias.as();
  by_us.pre.data = pre.as(), by_us.out.data = out.as();
  by_us.rows.ends = ends.as<int32_t>();
  gemm.run(by_us, {workspace.as(), workspace.bytes()});
  device.synchronize();
  const std::vector<uint16_t> expected = fetch();

  void* created = MOXIE_PEER(peer_create)(&p);
  ASSERT_NE(created, nullptr) << MOXIE_PEER(peer_error)();
  EXPECT_THAT(MOXIE_PEER(peer_describe)(created), testing::HasSubstr("stages"));
  EXPECT_EQ(MOXIE_PEER(peer_workspace_bytes)(created), static_cast<int64_t>(gemm.workspace_bytes()));
  PeerTensors tensors{a.as(),         b.as(), bias.as(), ends.as<int32_t>(), nullptr, pre.as(), out.as(),
                      workspace.as(), 1.5f,   6.0f};
  void* bound = MOXIE_PEER(peer_bind)(created, &tensors);
  ASSERT_NE(bound, nullptr);
  EXPECT_EQ(MOXIE_PEER(peer_launch)(bound, nullptr), 0) << MOXIE_PEER(peer_error)();
  device.synchronize();
  EXPECT_EQ(fetch(), expected);

  tensors.out = const_cast<void*>(tensors.pre);
  void* wrong = MOXIE_PEER(peer_bind)(created, &tensors);
  EXPECT_NE(MOXIE_PEER(peer_launch)(wrong, nullptr), 0);
  EXPECT_THAT(MOXIE_PEER(peer_error)(), testing::HasSubstr("out"));
  MOXIE_PEER(peer_unbind)(wrong);
  MOXIE_PEER(peer_unbind)(bound);
  MOXIE_PEER(peer_destroy)(created);
}

TEST_F(Peer, PacksWeightsAsTheLibraryDoes) {
  const Device device = Device::open();
  PeerProblem p = problem();
  p.weights = PEER_MXFP4;
  p.pre = 0;
  const size_t codes_bytes = size_t(3 * p.n * p.k) / 2, out_bytes = size_t(p.rows * p.n);
  std::vector<uint8_t> host(codes_bytes), host_scales(codes_bytes / 16);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<uint8_t>(i * 37 + i / 256);
  for (size_t i = 0; i < host_scales.size(); ++i) host_scales[i] = static_cast<uint8_t>(119 + i % 9);
  const timing::Buffer a(device, timing::random_bf16(1, p.rows * p.k, 1)), codes(device, host),
      scales(device, host_scales), bias(device, timing::random_bf16(3, 3 * p.n, 1)),
      ends(device, std::vector<int32_t>{20, 20, 70});
  const timing::Buffer out(device, out_bytes);
  const auto fetch = [&] {
    std::vector<uint16_t> values(out_bytes / 2);
    device.download(values.data(), out.as(), out_bytes);
    out.clear(device);
    return values;
  };

  const WeightShape weights{.groups = 3, .n = p.n, .k = p.k, .gated = true};
  const timing::Buffer packed(device, packed_weight_bytes(weights)), by_peer(device, packed_weight_bytes(weights));
  WeightPacking packing{weights};
  packing.codes = codes.as(), packing.scales = scales.as(), packing.packed = packed.as();
  pack_weights(device, packing);
  GemmDescription same;
  same.groups = Offsets{p.groups, p.rows};
  same.n = p.n, same.k = p.k;
  same.b_format = OperandFormat::Mxfp4;
  same.bias = true;
  same.activation = swiglu_oai({1.5f, 6.0f});
  const GroupedGemm gemm(device, same);
  const timing::Buffer workspace(device, gemm.workspace_bytes());
  GemmTensors by_us;
  by_us.a.data = a.as(), by_us.b.data = packed.as(), by_us.bias = bias.as();
  by_us.out.data = out.as();
  by_us.rows.ends = ends.as<int32_t>();
  gemm.run(by_us, {workspace.as(), workspace.bytes()});
  device.synchronize();
  const std::vector<uint16_t> expected = fetch();

  void* created = MOXIE_PEER(peer_create)(&p);
  ASSERT_NE(created, nullptr) << MOXIE_PEER(peer_error)();
  EXPECT_EQ(MOXIE_PEER(peer_weight_bytes)(created), static_cast<int64_t>(packed.bytes()));
  EXPECT_EQ(MOXIE_PEER(peer_prepare_weights)(created, codes.as(), scales.as(), by_peer.as()), 0);
  PeerTensors tensors{a.as(),         by_peer.as(), bias.as(), ends.as<int32_t>(), nullptr, nullptr, out.as(),
                      workspace.as(), 1.5f,         6.0f};
  void* bound = MOXIE_PEER(peer_bind)(created, &tensors);
  ASSERT_NE(bound, nullptr);
  EXPECT_EQ(MOXIE_PEER(peer_launch)(bound, nullptr), 0) << MOXIE_PEER(peer_error)();
  device.synchronize();
  EXPECT_EQ(fetch(), expected);
  EXPECT_NE(MOXIE_PEER(peer_prepare_weights)(created, nullptr, scales.as(), by_peer.as()), 0);
  EXPECT_THAT(MOXIE_PEER(peer_error)(), testing::HasSubstr("codes"));
  MOXIE_PEER(peer_unbind)(bound);
  MOXIE_PEER(peer_destroy)(created);
}

TEST_F(Peer, RefusesWithASentence) {
  PeerProblem p = problem();
  p.n = 12;
  EXPECT_EQ(MOXIE_PEER(peer_create)(&p), nullptr);
  EXPECT_THAT(MOXIE_PEER(peer_error)(), testing::HasSubstr("n"));
}

}  // namespace
}  // namespace moxie::test
