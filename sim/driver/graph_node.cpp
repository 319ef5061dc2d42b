// SPDX-License-Identifier: Apache-2.0
// Nodes that a program adds to a graph by hand, and the parameters of their work.
#include "sim/driver/graph_node.h"

#include <cstring>
#include <unordered_map>
#include <utility>

#include "sim/driver/graph.h"
#include "sim/driver/launch.h"
#include "sim/driver/memory.h"

namespace sim::driver {
namespace {

std::shared_ptr<GraphWork> freeze(const CUgraph_st& graph) {
  auto result = std::make_shared<GraphWork>();
  std::unordered_map<CUgraphNode, size_t> places;
  for (CUgraphNode node : in_order(graph)) {
    places[node] = result->steps.size();
    result->steps.push_back(node->work);
    result->contexts.push_back(node->context);
    std::vector<size_t>& after = result->dependencies.emplace_back();
    for (CUgraphNode d : node->dependencies) after.push_back(places.at(d));
  }
  return result;
}

template <class Make>
CUresult add(const char* function, CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
             CUgraphNodeType type, Make make) {
  return call(function, Call::Needs::HealthyContext, [&](Call& c) {
    require(result != nullptr);
    CUgraph_st& g = live_graph(graph);
    auto after = given_nodes(graph, dependencies, count);
    *result = add_node(g, type, make(c), std::move(after), &c.context());
  });
}

Work kernel_work(Call& c, const CUDA_KERNEL_NODE_PARAMS* p) {
  require(p != nullptr);
  CUfunction handle = p->func != nullptr ? p->func : reinterpret_cast<CUfunction>(p->kern);
  CUfunc_st& function = live_function(c, handle);
  LaunchRequest request;
  request.grid = {p->gridDimX, p->gridDimY, p->gridDimZ};
  request.block = {p->blockDimX, p->blockDimY, p->blockDimZ};
  request.dynamic_shared = p->sharedMemBytes;
  return make_launch(function, request, p->kernelParams, p->extra);
}

Work set_work(const CUDA_MEMSET_NODE_PARAMS* p) {
  require(p != nullptr && (p->elementSize == 1 || p->elementSize == 2 || p->elementSize == 4));
  return set_of(p->dst, p->pitch != 0 ? p->pitch : p->width * p->elementSize, p->value, p->elementSize, p->width,
                p->height);
}

Work copy_work(const CUDA_MEMCPY3D* p) {
  require(p != nullptr);
  return copy_of(*p);
}

Work host_work(const CUDA_HOST_NODE_PARAMS* p) {
  require(p != nullptr && p->fn != nullptr);
  return HostWork{p->fn, p->userData};
}

void get_kernel_params(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* out) {
  CUgraphNode_st& node = live_node(handle);
  const auto* work = std::get_if<KernelWork>(&node.work);
  require(out != nullptr && work != nullptr);
  node.param_pointers.clear();
  for (uint32_t offset : work->kernel->param_offsets) {
    node.param_pointers.push_back(const_cast<uint8_t*>(work->params.data() + offset));
  }
  *out = {};
  out->func = work->function;
  out->gridDimX = work->grid.x;
  out->gridDimY = work->grid.y;
  out->gridDimZ = work->grid.z;
  out->blockDimX = work->block.x;
  out->blockDimY = work->block.y;
  out->blockDimZ = work->block.z;
  out->sharedMemBytes = work->dynamic_shared;
  out->kernelParams = node.param_pointers.empty() ? nullptr : node.param_pointers.data();
}

}  // namespace

CUDA_KERNEL_NODE_PARAMS widened(const CUDA_KERNEL_NODE_PARAMS_v1* p) {
  CUDA_KERNEL_NODE_PARAMS wide{};
  if (p != nullptr) std::memcpy(&wide, p, sizeof *p);
  return wide;
}

Work changed_kernel(Call& c, const Work& old, const CUDA_KERNEL_NODE_PARAMS* p) {
  const auto* before = std::get_if<KernelWork>(&old);
  require(p != nullptr && before != nullptr);
  CUfunction handle = p->func != nullptr ? p->func : reinterpret_cast<CUfunction>(p->kern);
  LaunchRequest request;
  request.grid = {p->gridDimX, p->gridDimY, p->gridDimZ};
  request.block = {p->blockDimX, p->blockDimY, p->blockDimZ};
  request.dynamic_shared = p->sharedMemBytes;
  if (before->explicit_cluster) request.cluster = before->cluster;
  return make_launch(live_function(c, handle), request, p->kernelParams, p->extra);
}

}  // namespace sim::driver

using namespace sim::driver;

CUresult cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS* params) {
  return add(__func__, node, graph, after, count, CU_GRAPH_NODE_TYPE_KERNEL,
             [&](Call& c) { return kernel_work(c, params); });
}
CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  const CUDA_KERNEL_NODE_PARAMS wide = widened(params);
  return cuGraphAddKernelNode_v2(node, graph, after, count, params != nullptr ? &wide : nullptr);
}
CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_MEMCPY3D* params, CUcontext) {
  return add(__func__, node, graph, after, count, CU_GRAPH_NODE_TYPE_MEMCPY, [&](Call&) { return copy_work(params); });
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* params, CUcontext) {
  return add(__func__, node, graph, after, count, CU_GRAPH_NODE_TYPE_MEMSET, [&](Call&) { return set_work(params); });
}
CUresult cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                            const CUDA_HOST_NODE_PARAMS* params) {
  return add(__func__, node, graph, after, count, CU_GRAPH_NODE_TYPE_HOST, [&](Call&) { return host_work(params); });
}
CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count) {
  return add(__func__, node, graph, after, count, CU_GRAPH_NODE_TYPE_EMPTY, [](Call&) { return Work{}; });
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                                   CUevent event) {
  return add(__func__, node, graph, after, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&](Call&) {
    state().events.get(event);
    return Work{EventRecordWork{event}};
  });
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                                 CUevent event) {
  return add(__func__, node, graph, after, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&](Call&) {
    state().events.get(event);
    return Work{EventWaitWork{event}};
  });
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                                  CUgraph child) {
  return add(__func__, node, graph, after, count, CU_GRAPH_NODE_TYPE_GRAPH, [&](Call&) {
    // The child is copied when it is added.
    return Work{freeze(live_graph(child))};
  });
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  API(Initialized, { get_kernel_params(node, params); });
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  API(Initialized, {
    require(params != nullptr);
    CUDA_KERNEL_NODE_PARAMS wide;
    get_kernel_params(node, &wide);
    std::memcpy(params, &wide, sizeof *params);
  });
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  API(HealthyContext, { live_node(node).work = changed_kernel(c, live_node(node).work, params); });
}
CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  const CUDA_KERNEL_NODE_PARAMS wide = widened(params);
  return cuGraphKernelNodeSetParams_v2(node, params != nullptr ? &wide : nullptr);
}
