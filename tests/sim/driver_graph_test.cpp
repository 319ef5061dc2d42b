// SPDX-License-Identifier: Apache-2.0
// Graphs: nodes and edges as lists, what becomes of parameters, which updates are refused and leave everything as it
// was, and every refusal of their functions, by the documentation in cuda.h.
#include <array>
#include <cstring>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/sim/refusals.h"

namespace sim_test {
namespace {

class SimGraphs : public SimRefusals {
 protected:
  void SetUp() override {
    SimRefusals::SetUp();
    graph = make();
    data = upload(iota(64));
  }
  static CUgraph make() {
    CUgraph made = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphCreate)(&made, 0));
    return made;
  }
  CUDA_MEMSET_NODE_PARAMS fill(uint32_t value, size_t words = 16) const {
    CUDA_MEMSET_NODE_PARAMS p{};
    p.dst = data;
    p.value = value;
    p.elementSize = 4;
    p.width = words;
    p.height = 1;
    return p;
  }
  CUgraphNode add_fill(CUgraph to, uint32_t value, const std::vector<CUgraphNode>& after = {}) {
    const CUDA_MEMSET_NODE_PARAMS p = fill(value);
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphAddMemsetNode)(&node, to, after.data(), after.size(), &p, context));
    return node;
  }
  static CUgraphNode add_empty(CUgraph to, const std::vector<CUgraphNode>& after = {}) {
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphAddEmptyNode)(&node, to, after.data(), after.size()));
    return node;
  }
  CUDA_KERNEL_NODE_PARAMS kernel(const char* name, void** params, unsigned grid = 1) {
    CUDA_KERNEL_NODE_PARAMS p{};
    p.func = function(name);
    p.gridDimX = grid;
    p.gridDimY = p.gridDimZ = 1;
    p.blockDimX = 64;
    p.blockDimY = p.blockDimZ = 1;
    p.kernelParams = params;
    return p;
  }
  static CUgraphExec instantiate(CUgraph of) {
    CUgraphExec exec = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphInstantiate)(&exec, of, 0));
    return exec;
  }
  uint32_t first_word(CUgraphExec exec) {
    EXPECT_EQ(CUDA_SUCCESS, CU(cuMemsetD32)(data, 0, 64));
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphLaunch)(exec, nullptr));
    return download(data, 1)[0];
  }
  static std::set<std::pair<CUgraphNode, CUgraphNode>> edges(CUgraph of) {
    size_t count = 0;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphGetEdges)(of, nullptr, nullptr, nullptr, &count));
    std::vector<CUgraphNode> from(count + 1), to(count + 1);
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphGetEdges)(of, from.data(), to.data(), nullptr, &count));
    std::set<std::pair<CUgraphNode, CUgraphNode>> all;
    for (size_t i = 0; i < count; ++i) all.emplace(from[i], to[i]);
    return all;
  }

  CUgraph graph = nullptr;
  CUdeviceptr data = 0;
};

constexpr const char* kNoGraph = "not a live graph";
constexpr const char* kNoNode = "not a node of a live graph";
constexpr const char* kNoExec = "not a live executable graph";

// A diamond a -> b, c -> d, and e that nothing follows or comes before.
TEST_F(SimGraphs, NodesAndEdgesAreListed) {
  const CUgraphNode a = add_empty(graph), b = add_fill(graph, 1, {a}), c = add_empty(graph, {a}),
                    d = add_empty(graph, {b, c}), e = add_empty(graph);
  EXPECT_EQ(edges(graph), (std::set<std::pair<CUgraphNode, CUgraphNode>>{{a, b}, {a, c}, {b, d}, {c, d}}));
  const auto list = [](auto function, auto of) {
    size_t count = 99;
    EXPECT_EQ(CUDA_SUCCESS, function(of, nullptr, &count));
    // One more than there are: the rest becomes null, and the count is true.
    std::vector<CUgraphNode> nodes(count + 1, reinterpret_cast<CUgraphNode>(&count));
    size_t room = nodes.size();
    EXPECT_EQ(CUDA_SUCCESS, function(of, nodes.data(), &room));
    EXPECT_EQ(room, count);
    EXPECT_EQ(nodes.back(), nullptr);
    nodes.pop_back();
    if (count > 1) {  // One fewer.
      room = count - 1;
      std::vector<CUgraphNode> some(count, reinterpret_cast<CUgraphNode>(&count));
      EXPECT_EQ(CUDA_SUCCESS, function(of, some.data(), &room));
      EXPECT_EQ(room, count - 1);
      EXPECT_EQ(some.back(), reinterpret_cast<CUgraphNode>(&count));
    }
    return std::set<CUgraphNode>(nodes.begin(), nodes.end());
  };
  using Nodes = std::set<CUgraphNode>;
  EXPECT_EQ(list(CU(cuGraphGetNodes), graph), (Nodes{a, b, c, d, e}));
  EXPECT_EQ(list(CU(cuGraphGetRootNodes), graph), (Nodes{a, e}));
  const auto before = [](CUgraphNode n, CUgraphNode* nodes, size_t* count) {
    return CU(cuGraphNodeGetDependencies)(n, nodes, nullptr, count);
  };
  const auto after = [](CUgraphNode n, CUgraphNode* nodes, size_t* count) {
    return CU(cuGraphNodeGetDependentNodes)(n, nodes, nullptr, count);
  };
  const auto first_before = symbol<CUresult (*)(CUgraphNode, CUgraphNode*, size_t*)>("cuGraphNodeGetDependencies");
  const auto first_after = symbol<CUresult (*)(CUgraphNode, CUgraphNode*, size_t*)>("cuGraphNodeGetDependentNodes");
  for (const auto& [node, befores, afters] : {std::tuple{a, Nodes{}, Nodes{b, c}},
                                              {b, Nodes{a}, Nodes{d}},
                                              {d, Nodes{b, c}, Nodes{}},
                                              {e, Nodes{}, Nodes{}}}) {
    EXPECT_EQ(list(before, node), befores);
    EXPECT_EQ(list(after, node), afters);
    EXPECT_EQ(list(first_before, node), befores);
    EXPECT_EQ(list(first_after, node), afters);
  }
  // Every edge is a plain one.
  CUgraphEdgeData plain{}, said[4];
  size_t count = 4;
  std::array<CUgraphNode, 4> from{}, to{};
  const auto all_plain = [&](size_t n) {
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(std::memcmp(&said[i], &plain, sizeof plain), 0);
  };
  std::memset(said, 0xff, sizeof said);
  OK(CU(cuGraphGetEdges)(graph, from.data(), to.data(), said, &count));
  EXPECT_EQ(count, 4u);
  all_plain(4);
  std::memset(said, 0xff, sizeof said);
  count = 2;
  OK(CU(cuGraphNodeGetDependencies)(d, from.data(), said, &count));
  all_plain(2);
  std::memset(said, 0xff, sizeof said);
  OK(CU(cuGraphNodeGetDependentNodes)(a, from.data(), said, &count));
  all_plain(2);
  EXPECT_NE(std::memcmp(&said[2], &plain, sizeof plain), 0) << "the count is respected";
  CUgraphNodeType type{};
  OK(CU(cuGraphNodeGetType)(b, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEMSET);
  OK(CU(cuGraphNodeGetType)(a, &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_EMPTY);

  // A clone has the same shape and nodes of its own.
  CUgraph clone = nullptr;
  OK(CU(cuGraphClone)(&clone, graph));
  EXPECT_EQ(edges(clone).size(), 4u);
  for (const auto& [tail, head] : edges(clone)) EXPECT_FALSE(edges(graph).contains({tail, head}));
  OK(CU(cuGraphDestroyNode)(b));
  EXPECT_EQ(edges(graph), (std::set<std::pair<CUgraphNode, CUgraphNode>>{{a, c}, {c, d}}));
  EXPECT_EQ(list(CU(cuGraphGetNodes), graph), (Nodes{a, c, d, e}));
  EXPECT_EQ(edges(clone).size(), 4u);
  EXPECT_EQ(list(CU(cuGraphGetNodes), clone).size(), 5u);
  REFUSED(kInvalidValue, kNoNode, cuGraphDestroyNode, b);
  OK(CU(cuGraphDestroy)(graph));
  REFUSED(kInvalidValue, kNoNode, cuGraphNodeGetType, a, &type);
  EXPECT_EQ(first_word(instantiate(clone)), 1u);
}

TEST_F(SimGraphs, EdgesAreAddedAndRemovedAllOrNone) {
  const CUgraphNode a = add_empty(graph), b = add_empty(graph), c = add_empty(graph);
  const CUgraphNode stranger = add_empty(make());
  using Edges = std::set<std::pair<CUgraphNode, CUgraphNode>>;
  const auto add = [&](const std::vector<CUgraphNode>& from, const std::vector<CUgraphNode>& to) {
    return CU(cuGraphAddDependencies)(graph, from.data(), to.data(), nullptr, from.size());
  };
  OK(add({a, b}, {b, c}));
  const Edges line{{a, b}, {b, c}};
  EXPECT_EQ(edges(graph), line);
  using Plain = CUresult (*)(CUgraph, const CUgraphNode*, const CUgraphNode*, size_t);
  for (const char* name : {"cuGraphAddDependencies", "cuGraphAddDependencies_v2", "cuGraphRemoveDependencies",
                           "cuGraphRemoveDependencies_v2"}) {
    const std::string text = name;
    const bool adds = text.find("Add") != std::string::npos, second = text.ends_with("_v2");
    struct {
      std::array<CUgraphNode, 2> from, to;
      const char* said;
    } const wrong[] = {
        {{a, a}, {c, b}, adds ? "the edge is there already" : "there is no such edge"},
        {{a, a}, {adds ? c : b, adds ? c : b}, adds ? "the edge is there already" : "there is no such edge"},
        {{a, c}, {adds ? c : b, a}, adds ? "the edges would close a cycle" : "there is no such edge"},
        {{a, stranger}, {adds ? c : b, b}, "a node of another graph"},
        {{a, b}, {adds ? c : b, stranger}, "a node of another graph"},
        {{a, nullptr}, {adds ? c : b, b}, kNoNode},
    };
    for (const auto& [from, to, said] : wrong) {
      if (second) {
        refused(kInvalidValue, said, name, symbol<decltype(CU(cuGraphAddDependencies))>(name), graph, from.data(),
                to.data(), nullptr, size_t{2});
      } else {
        refused(kInvalidValue, said, name, symbol<Plain>(name), graph, from.data(), to.data(), size_t{2});
      }
      EXPECT_EQ(edges(graph), line) << name << ": " << said;
    }
    const std::array<CUgraphNode, 1> one{a};
    if (second) {
      const auto f = symbol<decltype(CU(cuGraphAddDependencies))>(name);
      refused(kInvalidValue, kNoGraph, name, f, stale<CUgraph>(), one.data(), one.data(), nullptr, size_t{1});
      refused(kInvalidValue, "", name, f, graph, nullptr, one.data(), nullptr, size_t{1});
      refused(kInvalidValue, "", name, f, graph, one.data(), nullptr, nullptr, size_t{1});
      OK(f(graph, nullptr, nullptr, nullptr, 0));
    } else {
      const auto f = symbol<Plain>(name);
      refused(kInvalidValue, kNoGraph, name, f, stale<CUgraph>(), one.data(), one.data(), size_t{1});
      OK(f(graph, nullptr, nullptr, 0));
    }
  }
  OK(add({a}, {c}));
  const std::array<CUgraphNode, 2> from{a, b}, to{b, c};
  OK(CU(cuGraphRemoveDependencies)(graph, from.data(), to.data(), nullptr, 2));
  EXPECT_EQ(edges(graph), (Edges{{a, c}}));
  OK(symbol<Plain>("cuGraphRemoveDependencies")(graph, &a, &c, 1));
  EXPECT_TRUE(edges(graph).empty());
  OK(symbol<Plain>("cuGraphAddDependencies")(graph, &c, &a, 1));
  EXPECT_EQ(edges(graph), (Edges{{c, a}}));
}

// The documentation names each difference that an update refuses, and the nodes that are told.
TEST_F(SimGraphs, UpdatesThatChangeMoreThanParametersAreRefused) {
  uint32_t n = 16;
  void* params[] = {&data, &n};
  const CUDA_KERNEL_NODE_PARAMS scale = kernel("scale_add", params);
  const auto add_kernel = [&](CUgraph to, const CUDA_KERNEL_NODE_PARAMS& p, const std::vector<CUgraphNode>& after) {
    CUgraphNode node = nullptr;
    EXPECT_EQ(CUDA_SUCCESS, CU(cuGraphAddKernelNode)(&node, to, after.data(), after.size(), &p));
    return node;
  };
  const CUgraphNode a = add_fill(graph, 5), b = add_kernel(graph, scale, {a});
  add_empty(graph, {a, b});
  CUgraphExec exec = instantiate(graph);
  EXPECT_EQ(first_word(exec), 15u);

  CUgraph other = make();
  const auto check = [&](CUgraphExecUpdateResult result, CUgraphNode node, CUgraphNode from) {
    CUgraphExecUpdateResultInfo info{};
    info.errorNode = info.errorFromNode = a;
    REFUSED(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "", cuGraphExecUpdate, exec, other, &info);
    EXPECT_EQ(info.result, result);
    EXPECT_EQ(info.errorNode, node);
    EXPECT_EQ(info.errorFromNode, from);
    CUgraphNode told = a;
    CUgraphExecUpdateResult first_result{};
    const auto first =
        symbol<CUresult (*)(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*)>("cuGraphExecUpdate");
    refused(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "", "cuGraphExecUpdate", first, exec, other, &told, &first_result);
    EXPECT_EQ(first_result, result);
    EXPECT_EQ(told, node);
    EXPECT_EQ(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, first(exec, other, nullptr, &first_result));
    EXPECT_EQ(first_word(exec), 15u) << "what it ran before";
    other = make();
  };
  // Another count of nodes, fewer or more.
  check(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr, nullptr);
  for (int i = 0; i < 4; ++i) add_empty(other);
  check(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr, nullptr);
  // A node with another number of dependencies.
  CUgraphNode x = add_fill(other, 6), y = add_kernel(other, scale, {x}), z = add_empty(other, {y});
  check(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, z, nullptr);
  // A dependency on another node.
  x = add_fill(other, 6), y = add_kernel(other, scale, {x}), z = add_empty(other, {y, x});
  check(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, z, y);
  // Another type.
  x = add_fill(other, 6), y = add_fill(other, 7, {x}), z = add_empty(other, {x, y});
  check(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, y, nullptr);
  // A cluster where there was none.
  CUDA_KERNEL_NODE_PARAMS pairs = kernel("in_pairs", nullptr, 2);
  x = add_fill(other, 6), y = add_kernel(other, pairs, {x}), z = add_empty(other, {x, y});
  check(CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED, y, nullptr);

  // Other parameters alone are taken.
  n = 0;
  x = add_fill(other, 6), y = add_kernel(other, scale, {x}), z = add_empty(other, {x, y});
  CUgraphExecUpdateResultInfo info{};
  info.errorNode = info.errorFromNode = a;
  OK(CU(cuGraphExecUpdate)(exec, other, &info));
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  EXPECT_EQ(info.errorNode, nullptr);
  EXPECT_EQ(info.errorFromNode, nullptr);
  EXPECT_EQ(first_word(exec), 6u);
  CUgraphExecUpdateResult result{};
  CUgraphNode told = a;
  OK(symbol<CUresult (*)(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*)>("cuGraphExecUpdate")(
      exec, graph, &told, &result));
  EXPECT_EQ(result, CU_GRAPH_EXEC_UPDATE_SUCCESS);
  EXPECT_EQ(told, nullptr);
  EXPECT_EQ(first_word(exec), 15u);
  refused(kInvalidValue, "", "cuGraphExecUpdate",
          symbol<CUresult (*)(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*)>("cuGraphExecUpdate"), exec,
          graph, &told, nullptr);
  REFUSED(kInvalidValue, "", cuGraphExecUpdate, exec, graph, nullptr);
  REFUSED(kInvalidValue, kNoExec, cuGraphExecUpdate, stale<CUgraphExec>(), graph, &info);
  REFUSED(kInvalidValue, kNoGraph, cuGraphExecUpdate, exec, stale<CUgraph>(), &info);
}

TEST_F(SimGraphs, ParametersOfKernelNodes) {
  uint32_t n = 16;
  void* params[] = {&data, &n};
  CUDA_KERNEL_NODE_PARAMS scale = kernel("scale_add", params, 2);
  scale.sharedMemBytes = 12;
  CUgraphNode node = nullptr;
  const CUgraphNode fill_node = add_fill(graph, 5);
  OK(CU(cuGraphAddKernelNode)(&node, graph, &fill_node, 1, &scale));
  CUDA_KERNEL_NODE_PARAMS got;
  std::memset(&got, 0xff, sizeof got);
  OK(CU(cuGraphKernelNodeGetParams)(node, &got));
  EXPECT_EQ(got.func, scale.func);
  EXPECT_EQ((std::array{got.gridDimX, got.gridDimY, got.gridDimZ, got.blockDimX, got.blockDimY, got.blockDimZ}),
            (std::array{2u, 1u, 1u, 64u, 1u, 1u}));
  EXPECT_EQ(got.sharedMemBytes, 12u);
  EXPECT_EQ(got.extra, nullptr);
  EXPECT_EQ(got.kern, nullptr);
  EXPECT_EQ(got.ctx, nullptr);
  EXPECT_EQ(*static_cast<CUdeviceptr*>(got.kernelParams[0]), data);
  EXPECT_EQ(*static_cast<uint32_t*>(got.kernelParams[1]), 16u);
  // The first form of the structure ends before `kern`.
  const auto first_get = symbol<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v1*)>("cuGraphKernelNodeGetParams");
  const auto first_set =
      symbol<CUresult (*)(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v1*)>("cuGraphKernelNodeSetParams");
  CUDA_KERNEL_NODE_PARAMS_v1 old{};
  OK(first_get(node, &old));
  EXPECT_EQ(old.func, scale.func);
  EXPECT_EQ(old.gridDimX, 2u);
  refused(kInvalidValue, "", "cuGraphKernelNodeGetParams", first_get, node, nullptr);
  REFUSED(kInvalidValue, "", cuGraphKernelNodeGetParams, node, nullptr);
  REFUSED(kInvalidValue, "", cuGraphKernelNodeGetParams, fill_node, &got);
  REFUSED(kInvalidValue, kNoNode, cuGraphKernelNodeGetParams, nullptr, &got);
  REFUSED(kInvalidValue, "", cuGraphKernelNodeSetParams, node, nullptr);
  REFUSED(kInvalidValue, "", cuGraphKernelNodeSetParams, fill_node, &scale);
  REFUSED(kInvalidValue, kNoNode, cuGraphKernelNodeSetParams, nullptr, &scale);
  refused(kInvalidValue, "", "cuGraphKernelNodeSetParams", first_set, node, nullptr);

  CUgraphExec before = instantiate(graph);
  n = 0;
  old.kernelParams = params;
  OK(first_set(node, &old));
  CUgraphExec after = instantiate(graph);
  EXPECT_EQ(first_word(before), 15u) << "an executable graph keeps its parameters";
  EXPECT_EQ(first_word(after), 5u);
  n = 16;
  OK(CU(cuGraphKernelNodeSetParams)(node, &scale));
  EXPECT_EQ(first_word(instantiate(graph)), 15u);
  OK(CU(cuGraphExecKernelNodeSetParams)(after, node, &scale));
  EXPECT_EQ(first_word(after), 15u);
  const auto first_exec_set = symbol<CUresult (*)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v1*)>(
      "cuGraphExecKernelNodeSetParams");
  n = 0;
  OK(first_exec_set(after, node, &old));
  EXPECT_EQ(first_word(after), 5u);
  const char* kNoTwin = "the node has no counterpart in the executable graph";
  refused(kInvalidValue, "", "cuGraphExecKernelNodeSetParams", first_exec_set, after, node, nullptr);
  REFUSED(kInvalidValue, "", cuGraphExecKernelNodeSetParams, after, fill_node, &scale);
  REFUSED(kInvalidValue, kNoTwin, cuGraphExecKernelNodeSetParams, after, nullptr, &scale);
  REFUSED(kInvalidValue, kNoExec, cuGraphExecKernelNodeSetParams, stale<CUgraphExec>(), node, &scale);

  // A kernel of a library stands in `kern` as well as in `func`.
  CUlibrary library = nullptr;
  CUkernel of_library = nullptr;
  OK(CU(cuLibraryLoadData)(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0));
  OK(CU(cuLibraryGetKernel)(&of_library, library, "scale_add"));
  n = 16;
  scale.func = nullptr;
  scale.kern = of_library;
  OK(CU(cuGraphExecKernelNodeSetParams)(after, node, &scale));
  EXPECT_EQ(first_word(after), 15u);
  CUgraph second = make();
  OK(CU(cuGraphAddKernelNode)(&node, second, nullptr, 0, &scale));
  CUgraphExec from_library = instantiate(second);
  OK(CU(cuMemsetD32)(data, 7, 1));
  OK(CU(cuGraphLaunch)(from_library, nullptr));
  EXPECT_EQ(download(data, 1)[0], 21u);
  CUDA_KERNEL_NODE_PARAMS nothing = scale;
  nothing.kern = nullptr;
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "not a live function", cuGraphAddKernelNode, &node, second, nullptr, size_t{0},
          &nothing);
  // A kernel without parameters has none to show, and one with a fixed cluster keeps it.
  CUDA_KERNEL_NODE_PARAMS pairs = kernel("in_pairs", nullptr, 4);
  OK(CU(cuGraphAddKernelNode)(&node, second, nullptr, 0, &pairs));
  OK(CU(cuGraphKernelNodeGetParams)(node, &got));
  EXPECT_EQ(got.kernelParams, nullptr);
  pairs.gridDimX = 3;
  REFUSED(kInvalidValue, "clusters of (2, 1, 1) do not divide the grid of (3, 1, 1)", cuGraphKernelNodeSetParams, node,
          &pairs);
  const auto first_add =
      symbol<CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const CUDA_KERNEL_NODE_PARAMS_v1*)>(
          "cuGraphAddKernelNode");
  refused(kInvalidValue, "", "cuGraphAddKernelNode", first_add, &node, second, nullptr, size_t{0}, nullptr);
  OK(first_add(&node, second, nullptr, 0, &old));
}

TEST_F(SimGraphs, NodesOfEveryKind) {
  static std::vector<int> order;
  order.clear();
  CUDA_HOST_NODE_PARAMS host{[](void* value) { order.push_back(*static_cast<int*>(value)); }, nullptr};
  std::array<int, 3> values{1, 2, 3};
  std::vector<CUgraphNode> nodes;
  CUgraph child = make();
  for (int& v : values) {
    host.userData = &v;
    CUgraphNode node = nullptr;
    OK(CU(cuGraphAddHostNode)(&node, child, nodes.data(), nodes.size(), &host));
    nodes = {node};
  }
  // A child is copied when it is added, and runs between what comes before and after.
  const CUgraphNode first = add_fill(graph, 9);
  CUgraphNode inner = nullptr, copy = nullptr, record = nullptr, wait = nullptr;
  OK(CU(cuGraphAddChildGraphNode)(&inner, graph, &first, 1, child));
  OK(CU(cuGraphDestroy)(child));
  std::array<uint32_t, 16> out{};
  CUDA_MEMCPY3D move{};
  move.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  move.srcDevice = data;
  move.dstMemoryType = CU_MEMORYTYPE_HOST;
  move.dstHost = out.data();
  move.WidthInBytes = 64;
  move.Height = move.Depth = 1;
  OK(CU(cuGraphAddMemcpyNode)(&copy, graph, &inner, 1, &move, context));
  CUevent event = nullptr;
  OK(CU(cuEventCreate)(&event, CU_EVENT_DEFAULT));
  OK(CU(cuGraphAddEventRecordNode)(&record, graph, &copy, 1, event));
  OK(CU(cuGraphAddEventWaitNode)(&wait, graph, &record, 1, event));
  const CUgraphNodeType types[] = {CU_GRAPH_NODE_TYPE_MEMSET,     CU_GRAPH_NODE_TYPE_GRAPH,
                                   CU_GRAPH_NODE_TYPE_MEMCPY,     CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                                   CU_GRAPH_NODE_TYPE_WAIT_EVENT, CU_GRAPH_NODE_TYPE_HOST};
  CUgraphNode last = nullptr;
  host.userData = values.data();
  OK(CU(cuGraphAddHostNode)(&last, graph, &wait, 1, &host));
  int i = 0;
  for (CUgraphNode node : {first, inner, copy, record, wait, last}) {
    CUgraphNodeType type{};
    OK(CU(cuGraphNodeGetType)(node, &type));
    EXPECT_EQ(type, types[i++]);
  }
  CUgraphExec exec = instantiate(graph);
  OK(CU(cuGraphUpload)(exec, nullptr));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 1}));
  EXPECT_EQ(out[15], 9u);
  float ms = -1;
  OK(CU(cuEventElapsedTime)(&ms, event, event));
  EXPECT_EQ(ms, 0.0f);

  // Kernels, fills and copies can be switched off, nothing else.
  unsigned enabled = 9;
  for (CUgraphNode node : {first, copy}) {
    OK(CU(cuGraphNodeGetEnabled)(exec, node, &enabled));
    EXPECT_EQ(enabled, 1u);
    OK(CU(cuGraphNodeSetEnabled)(exec, node, 0));
    OK(CU(cuGraphNodeGetEnabled)(exec, node, &enabled));
    EXPECT_EQ(enabled, 0u);
  }
  out.fill(0);
  OK(CU(cuGraphLaunch)(exec, nullptr));
  EXPECT_EQ(out[0], 0u) << "the copy is off";
  OK(CU(cuGraphNodeSetEnabled)(exec, copy, 1));
  OK(CU(cuMemsetD32)(data, 3, 16));
  OK(CU(cuGraphLaunch)(exec, nullptr));
  EXPECT_EQ(out[0], 3u) << "the fill is off";
  for (CUgraphNode node : {inner, record, wait, last})
    REFUSED(kInvalidValue, "", cuGraphNodeSetEnabled, exec, node, 0u);
  REFUSED(kInvalidValue, kNoExec, cuGraphNodeSetEnabled, stale<CUgraphExec>(), copy, 0u);
  REFUSED(kInvalidValue, kNoExec, cuGraphNodeGetEnabled, stale<CUgraphExec>(), copy, &enabled);
  REFUSED(kInvalidValue, "", cuGraphNodeGetEnabled, exec, copy, nullptr);
  REFUSED(kInvalidValue, "the node has no counterpart in the executable graph", cuGraphNodeGetEnabled, exec, nullptr,
          &enabled);
}

TEST_F(SimGraphs, BadArguments) {
  CUgraphNode node = nullptr;
  size_t count = 0;
  CUgraph made = nullptr;
  CUgraphExec exec = nullptr;
  const CUgraphNode a = add_empty(graph), stranger = add_empty(make());
  REFUSED(kInvalidValue, "", cuGraphCreate, nullptr, 0u);
  REFUSED(kInvalidValue, "", cuGraphCreate, &made, 1u);
  REFUSED(kInvalidValue, kNoGraph, cuGraphDestroy, stale<CUgraph>());
  REFUSED(kInvalidValue, "", cuGraphClone, nullptr, graph);
  REFUSED(kInvalidValue, kNoGraph, cuGraphClone, &made, stale<CUgraph>());
  REFUSED(kInvalidValue, kNoGraph, cuGraphGetNodes, stale<CUgraph>(), nullptr, &count);
  REFUSED(kInvalidValue, "", cuGraphGetNodes, graph, nullptr, nullptr);
  REFUSED(kInvalidValue, kNoGraph, cuGraphGetRootNodes, stale<CUgraph>(), nullptr, &count);
  REFUSED(kInvalidValue, "", cuGraphGetRootNodes, graph, nullptr, nullptr);
  REFUSED(kInvalidValue, kNoGraph, cuGraphGetEdges, stale<CUgraph>(), nullptr, nullptr, nullptr, &count);
  REFUSED(kInvalidValue, "", cuGraphGetEdges, graph, nullptr, nullptr, nullptr, nullptr);
  REFUSED(kInvalidValue, "", cuGraphGetEdges, graph, &node, nullptr, nullptr, &count);
  REFUSED(kInvalidValue, "", cuGraphGetEdges, graph, nullptr, &node, nullptr, &count);
  using FirstEdges = CUresult (*)(CUgraph, CUgraphNode*, CUgraphNode*, size_t*);
  refused(kInvalidValue, "", "cuGraphGetEdges", symbol<FirstEdges>("cuGraphGetEdges"), graph, nullptr, nullptr,
          nullptr);
  REFUSED(kInvalidValue, "", cuGraphNodeGetType, a, nullptr);
  REFUSED(kInvalidValue, kNoNode, cuGraphNodeGetDependencies, nullptr, nullptr, nullptr, &count);
  REFUSED(kInvalidValue, kNoNode, cuGraphNodeGetDependentNodes, nullptr, nullptr, nullptr, &count);
  REFUSED(kInvalidValue, "", cuGraphNodeGetDependencies, a, nullptr, nullptr, nullptr);
  REFUSED(kInvalidValue, "", cuGraphNodeGetDependentNodes, a, nullptr, nullptr, nullptr);

  // What all that add a node refuse.
  REFUSED(kInvalidValue, "", cuGraphAddEmptyNode, nullptr, graph, nullptr, size_t{0});
  REFUSED(kInvalidValue, kNoGraph, cuGraphAddEmptyNode, &node, stale<CUgraph>(), nullptr, size_t{0});
  REFUSED(kInvalidValue, "", cuGraphAddEmptyNode, &node, graph, nullptr, size_t{1});
  REFUSED(kInvalidValue, "a node of another graph", cuGraphAddEmptyNode, &node, graph, &stranger, size_t{1});
  REFUSED(kInvalidValue, kNoNode, cuGraphAddEmptyNode, &node, graph, &node, size_t{1});
  // What each refuses of its own.
  CUDA_MEMSET_NODE_PARAMS set = fill(1);
  for (unsigned size : {0u, 3u, 5u, 8u}) {
    set.elementSize = size;
    REFUSED(kInvalidValue, "", cuGraphAddMemsetNode, &node, graph, nullptr, size_t{0}, &set, context);
  }
  set = fill(1, 65);
  REFUSED(kInvalidValue, "260 bytes at offset 0 of an allocation of 256 bytes", cuGraphAddMemsetNode, &node, graph,
          nullptr, size_t{0}, &set, context);
  REFUSED(kInvalidValue, "", cuGraphAddMemsetNode, &node, graph, nullptr, size_t{0}, nullptr, context);
  REFUSED(kInvalidValue, "", cuGraphAddMemcpyNode, &node, graph, nullptr, size_t{0}, nullptr, context);
  CUDA_HOST_NODE_PARAMS host{};
  REFUSED(kInvalidValue, "", cuGraphAddHostNode, &node, graph, nullptr, size_t{0}, nullptr);
  REFUSED(kInvalidValue, "", cuGraphAddHostNode, &node, graph, nullptr, size_t{0}, &host);
  REFUSED(kInvalidValue, kNoGraph, cuGraphAddChildGraphNode, &node, graph, nullptr, size_t{0}, stale<CUgraph>());
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuGraphAddEventRecordNode, &node, graph, nullptr, size_t{0}, stale<CUevent>());
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuGraphAddEventWaitNode, &node, graph, nullptr, size_t{0}, stale<CUevent>());
  REFUSED(kInvalidValue, "", cuGraphAddKernelNode, &node, graph, nullptr, size_t{0}, nullptr);
  OK(CU(cuGraphGetNodes)(graph, nullptr, &count));
  EXPECT_EQ(count, 1u) << "what was refused is not in the graph";

  REFUSED(kInvalidValue, "", cuGraphInstantiate, nullptr, graph, 0ull);
  REFUSED(kInvalidValue, kNoGraph, cuGraphInstantiate, &exec, stale<CUgraph>(), 0ull);
  REFUSED(kInvalidValue, "", cuGraphInstantiate, &exec, graph, 16ull);
  REFUSED(CUDA_ERROR_NOT_SUPPORTED, "graph launch from the device", cuGraphInstantiate, &exec, graph,
          static_cast<unsigned long long>(CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
  constexpr unsigned long long kFlags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                        CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                        CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  OK(CU(cuGraphInstantiate)(&exec, graph, kFlags));
  cuuint64_t flags = 0;
  OK(CU(cuGraphExecGetFlags)(exec, &flags));
  EXPECT_EQ(flags, kFlags);
  REFUSED(kInvalidValue, "", cuGraphExecGetFlags, exec, nullptr);
  REFUSED(kInvalidValue, kNoExec, cuGraphExecGetFlags, stale<CUgraphExec>(), &flags);
  REFUSED(kInvalidValue, kNoExec, cuGraphUpload, stale<CUgraphExec>(), nullptr);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuGraphUpload, exec, stale<CUstream>());
  REFUSED(kInvalidValue, kNoExec, cuGraphLaunch, stale<CUgraphExec>(), nullptr);
  REFUSED(CUDA_ERROR_INVALID_HANDLE, "", cuGraphLaunch, exec, stale<CUstream>());
  OK(CU(cuGraphExecDestroy)(exec));
  REFUSED(kInvalidValue, kNoExec, cuGraphExecDestroy, exec);

  CUDA_GRAPH_INSTANTIATE_PARAMS params{};
  params.hErrNode_out = a;
  params.flags = 16;
  REFUSED(kInvalidValue, "the parameters are null", cuGraphInstantiateWithParams, &exec, graph, nullptr);
  REFUSED(kInvalidValue, "", cuGraphInstantiateWithParams, &exec, graph, &params);
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_ERROR);
  EXPECT_EQ(params.hErrNode_out, nullptr);
  params.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  params.hErrNode_out = a;
  OK(CU(cuGraphInstantiateWithParams)(&exec, graph, &params));
  EXPECT_EQ(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
  EXPECT_EQ(params.hErrNode_out, nullptr);
  OK(CU(cuGraphExecGetFlags)(exec, &flags));
  EXPECT_EQ(flags, cuuint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD});
  // The forms before CUDA 12 have a log, which stays empty.
  using First = CUresult (*)(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t);
  for (const char* name : {"cuGraphInstantiate", "cuGraphInstantiate_v2"}) {
    char log[2] = {'x', 'y'};
    node = a;
    OK(symbol<First>(name)(&exec, graph, &node, log, 2));
    EXPECT_EQ(node, nullptr);
    EXPECT_EQ(log[0], 0);
    EXPECT_EQ(log[1], 'y');
    log[0] = 'x';
    OK(symbol<First>(name)(&exec, graph, nullptr, log, 0));
    EXPECT_EQ(log[0], 'x');
    OK(symbol<First>(name)(&exec, graph, nullptr, nullptr, 2));
    refused(kInvalidValue, "", name, symbol<First>(name), nullptr, graph, &node, log, size_t{2});
  }
}

}  // namespace
}  // namespace sim_test
