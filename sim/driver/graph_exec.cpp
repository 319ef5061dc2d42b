// SPDX-License-Identifier: Apache-2.0
// Executable graphs: instantiation, launch and update.
#include "sim/driver/graph_exec.h"

#include <unordered_map>
#include <utility>

#include "sim/driver/graph.h"
#include "sim/driver/graph_node.h"
#include "sim/driver/stream.h"
#include "sim/driver/submit.h"

namespace sim::driver {
namespace {

CUgraphExec_st& live_exec(CUgraphExec handle) {
  require(state().graph_execs.contains(handle), CUDA_ERROR_INVALID_VALUE, "not a live executable graph");
  return *handle;
}

void fill_exec(CUgraphExec_st& exec, const CUgraph_st& graph) {
  exec.sources = in_order(graph);
  std::unordered_map<CUgraphNode, size_t> places;
  for (CUgraphNode node : exec.sources) {
    places[node] = exec.steps.size();
    exec.steps.push_back(node->work);
    exec.contexts.push_back(node->context);
    std::vector<size_t>& after = exec.dependencies.emplace_back();
    for (CUgraphNode d : node->dependencies) after.push_back(places.at(d));
    if (node->memory != nullptr) exec.memory.push_back(node->memory);
  }
  exec.enabled.assign(exec.steps.size(), true);
}

CUresult instantiate(const char* function, CUgraphExec* result, CUgraph graph, unsigned long long flags) {
  return call(function, Call::Needs::HealthyContext, [&](Call& c) {
    require(result != nullptr);
    constexpr unsigned long long kKnown =
        CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
        CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    require((flags & ~kKnown) == 0);
    require((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) == 0, CUDA_ERROR_NOT_SUPPORTED,
            "graph launch from the device");
    auto exec = std::make_unique<CUgraphExec_st>();
    exec->context = &c.context();
    exec->flags = flags;
    fill_exec(*exec, live_graph(graph));
    *result = state().graph_execs.add(std::move(exec));
  });
}

Work& exec_step(CUgraphExec handle, CUgraphNode node) {
  CUgraphExec_st& exec = live_exec(handle);
  for (size_t i = 0; i < exec.sources.size(); ++i) {
    if (exec.sources[i] == node) return exec.steps[i];
  }
  fail(CUDA_ERROR_INVALID_VALUE, "the node has no counterpart in the executable graph");
}

// Takes the parameters of the nodes of a graph, unless it differs in more.
CUgraphExecUpdateResultInfo update(CUgraphExec handle, CUgraph graph_handle) {
  CUgraphExec_st& exec = live_exec(handle);
  CUgraphExec_st next;
  fill_exec(next, live_graph(graph_handle));
  if (next.steps.size() != exec.steps.size()) return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr, nullptr};
  for (size_t i = 0; i < next.steps.size(); ++i) {
    CUgraphNode node = next.sources[i];
    const auto &after = next.dependencies[i], &before = exec.dependencies[i];
    if (after.size() != before.size()) return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node, nullptr};
    for (size_t d = 0; d < after.size(); ++d) {
      if (after[d] != before[d]) return {CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node, next.sources[after[d]]};
    }
    if (next.steps[i].index() != exec.steps[i].index())
      return {CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, node, nullptr};
    const auto* now = std::get_if<KernelWork>(&next.steps[i]);
    const auto* was = std::get_if<KernelWork>(&exec.steps[i]);
    if (now != nullptr && now->cluster.count() != was->cluster.count())
      return {CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED, node, nullptr};
  }
  exec.steps = std::move(next.steps);
  exec.contexts = std::move(next.contexts);
  exec.memory.insert(exec.memory.end(), next.memory.begin(), next.memory.end());
  return {CU_GRAPH_EXEC_UPDATE_SUCCESS, nullptr, nullptr};
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
  return instantiate(__func__, exec, graph, flags);
}
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, CUgraphNode* wrong, char* log, size_t size) {
  if (wrong != nullptr) *wrong = nullptr;
  if (log != nullptr && size > 0) *log = 0;
  return instantiate(__func__, exec, graph, 0);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph, CUgraphNode* wrong, char* log, size_t size) {
  return cuGraphInstantiate(exec, graph, wrong, log, size);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params == nullptr) API(Initialized, { fail(CUDA_ERROR_INVALID_VALUE, "the parameters are null"); });
  const CUresult result = instantiate(__func__, exec, graph, params->flags);
  params->hErrNode_out = nullptr;
  params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  API(Initialized, {
    live_exec(exec);
    state().graph_execs.remove(exec);
  });
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
  API(Initialized, {
    require(flags != nullptr);
    *flags = live_exec(exec).flags;
  });
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  API(HealthyContext, {
    live_exec(exec);
    live_stream(c, stream);
  });
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream) {
  API(HealthyContext, {
    CUgraphExec_st& exec = live_exec(handle);
    CUstream_st& s = live_stream(c, stream);
    auto work = std::make_shared<GraphWork>();
    for (size_t i = 0; i < exec.steps.size(); ++i) work->steps.push_back(exec.enabled[i] ? exec.steps[i] : Work{});
    work->dependencies = exec.dependencies;
    work->contexts = exec.contexts;
    work->memory = exec.memory;
    submit(c, s, std::move(work), CU_GRAPH_NODE_TYPE_GRAPH);
  });
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
  API(HealthyContext, {
    Work& step = exec_step(exec, node);
    step = changed_kernel(c, step, params);
  });
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  const CUDA_KERNEL_NODE_PARAMS wide = widened(params);
  return cuGraphExecKernelNodeSetParams_v2(exec, node, params != nullptr ? &wide : nullptr);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int enabled) {
  API(Initialized, {
    const size_t i = static_cast<size_t>(&exec_step(handle, node) - live_exec(handle).steps.data());
    const CUgraphNodeType type = live_node(node).type;
    require(type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMSET ||
            type == CU_GRAPH_NODE_TYPE_MEMCPY);
    handle->enabled[i] = enabled != 0;
  });
}
CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int* enabled) {
  API(Initialized, {
    require(enabled != nullptr);
    *enabled = handle->enabled[static_cast<size_t>(&exec_step(handle, node) - live_exec(handle).steps.data())];
  });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  API(HealthyContext, {
    require(info != nullptr);
    *info = update(exec, graph);
    require(info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  });
}
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* wrong, CUgraphExecUpdateResult* result) {
  API(HealthyContext, {
    require(result != nullptr);
    const CUgraphExecUpdateResultInfo info = update(exec, graph);
    *result = info.result;
    if (wrong != nullptr) *wrong = info.errorNode;
    require(*result == CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  });
}
