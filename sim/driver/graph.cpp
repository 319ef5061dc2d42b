// Graphs: nodes and edges, whether captured or added by hand, instantiation and launch.
#include <algorithm>
#include <cstring>

#include "sim/driver/driver.h"

namespace sim::driver {
namespace {

CUgraphNode_st& live_node(CUgraphNode handle) {
  require(state().nodes.count(handle) != 0, CUDA_ERROR_INVALID_VALUE, "not a node of a live graph");
  return *handle;
}

CUgraph_st& live_graph(CUgraph handle) {
  require(state().graphs.contains(handle), CUDA_ERROR_INVALID_VALUE, "not a live graph");
  return *handle;
}

CUgraphExec_st& live_exec(CUgraphExec handle) {
  require(state().graph_execs.contains(handle), CUDA_ERROR_INVALID_VALUE, "not a live executable graph");
  return *handle;
}

std::vector<CUgraphNode> given_nodes(CUgraph graph, const CUgraphNode* nodes, size_t count) {
  require(nodes != nullptr || count == 0);
  std::vector<CUgraphNode> result(nodes, nodes + count);
  for (CUgraphNode node : result)
    require(live_node(node).graph == graph, CUDA_ERROR_INVALID_VALUE, "a node of another graph");
  return result;
}

std::shared_ptr<GraphWork> freeze(const CUgraph_st& graph) {
  auto result = std::make_shared<GraphWork>();
  for (CUgraphNode node : in_order(graph)) result->steps.push_back(node->work);
  return result;
}

void fill_exec(CUgraphExec_st& exec, const CUgraph_st& graph) {
  std::vector<Work> steps;
  std::vector<CUgraphNode> sources = in_order(graph);
  for (CUgraphNode node : sources) {
    steps.push_back(node->work);
    if (node->memory != nullptr) exec.memory.push_back(node->memory);
  }
  exec.steps = std::move(steps);
  exec.sources = std::move(sources);
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

// The shared form of functions that list nodes: with nodes == null the count alone is returned.
void list_nodes(const std::vector<CUgraphNode>& all, CUgraphNode* nodes, size_t* count) {
  require(count != nullptr);
  if (nodes == nullptr) {
    *count = all.size();
    return;
  }
  for (size_t i = 0; i < *count; ++i) nodes[i] = i < all.size() ? all[i] : nullptr;
  *count = std::min(*count, all.size());
}

std::vector<CUgraphNode> nodes_of(const CUgraph_st& graph) {
  std::vector<CUgraphNode> result;
  for (auto& node : graph.nodes) result.push_back(node.get());
  return result;
}

std::vector<CUgraphNode> dependents_of(const CUgraphNode_st& node) {
  std::vector<CUgraphNode> result;
  for (auto& other : node.graph->nodes) {
    auto& d = other->dependencies;
    if (std::find(d.begin(), d.end(), &node) != d.end()) result.push_back(other.get());
  }
  return result;
}

void plain_edges(CUgraphEdgeData* edges, size_t count) {
  if (edges != nullptr) std::memset(edges, 0, count * sizeof *edges);
}

void get_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  std::vector<CUgraphNode> tails, heads;
  for (auto& node : live_graph(handle).nodes) {
    for (CUgraphNode d : node->dependencies) {
      tails.push_back(d);
      heads.push_back(node.get());
    }
  }
  require(count != nullptr && (from == nullptr) == (to == nullptr));
  const size_t room = *count;
  list_nodes(tails, from, count);
  *count = room;
  list_nodes(heads, to, count);
  if (from != nullptr) plain_edges(data, room);
}

void add_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  CUgraph_st& graph = live_graph(handle);
  const auto tails = given_nodes(handle, from, count), heads = given_nodes(handle, to, count);
  for (size_t i = 0; i < count; ++i) {
    auto& d = heads[i]->dependencies;
    require(std::find(d.begin(), d.end(), tails[i]) == d.end(), CUDA_ERROR_INVALID_VALUE, "the edge is there already");
  }
  for (size_t i = 0; i < count; ++i) heads[i]->dependencies.push_back(tails[i]);
  if (in_order(graph).size() == graph.nodes.size()) return;
  for (size_t i = 0; i < count; ++i) heads[i]->dependencies.pop_back();
  fail(CUDA_ERROR_INVALID_VALUE, "the edges would close a cycle");
}

void remove_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  live_graph(handle);
  const auto tails = given_nodes(handle, from, count), heads = given_nodes(handle, to, count);
  for (size_t i = 0; i < count; ++i) {
    auto& d = heads[i]->dependencies;
    auto it = std::find(d.begin(), d.end(), tails[i]);
    require(it != d.end(), CUDA_ERROR_INVALID_VALUE, "there is no such edge");
    d.erase(it);
  }
}

template <class Make>
CUresult add(const char* function, CUgraphNode* result, CUgraph graph, const CUgraphNode* dependencies, size_t count,
             CUgraphNodeType type, Make make) {
  return call(function, Call::Needs::HealthyContext, [&](Call& c) {
    require(result != nullptr);
    CUgraph_st& g = live_graph(graph);
    auto after = given_nodes(graph, dependencies, count);
    *result = add_node(g, type, make(c), std::move(after));
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

// The first form of the structure ends before `kern`.
CUDA_KERNEL_NODE_PARAMS widened(const CUDA_KERNEL_NODE_PARAMS_v1* p) {
  CUDA_KERNEL_NODE_PARAMS wide{};
  if (p != nullptr) std::memcpy(&wide, p, sizeof *p);
  return wide;
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

// A changed node keeps what the parameters do not name.
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

Work& exec_step(CUgraphExec handle, CUgraphNode node) {
  CUgraphExec_st& exec = live_exec(handle);
  for (size_t i = 0; i < exec.sources.size(); ++i) {
    if (exec.sources[i] == node) return exec.steps[i];
  }
  fail(CUDA_ERROR_INVALID_VALUE, "the node has no counterpart in the executable graph");
}

CUgraphExecUpdateResult update(CUgraphExec handle, CUgraph graph_handle, CUgraphNode* wrong) {
  CUgraphExec_st& exec = live_exec(handle);
  CUgraphExec_st next;
  fill_exec(next, live_graph(graph_handle));
  *wrong = nullptr;
  if (next.steps.size() != exec.steps.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  for (size_t i = 0; i < next.steps.size(); ++i) {
    *wrong = next.sources[i];
    if (next.steps[i].index() != exec.steps[i].index()) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    const auto* now = std::get_if<KernelWork>(&next.steps[i]);
    const auto* was = std::get_if<KernelWork>(&exec.steps[i]);
    if (now != nullptr && now->cluster.count() != was->cluster.count()) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
    }
  }
  *wrong = nullptr;
  exec.steps = std::move(next.steps);
  exec.memory.insert(exec.memory.end(), next.memory.begin(), next.memory.end());
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

}  // namespace

CUgraph new_graph() {
  auto graph = std::make_unique<CUgraph_st>();
  graph->id = state().next_id++;
  return state().graphs.add(std::move(graph));
}

void destroy_graph(CUgraph handle) {
  for (auto& node : handle->nodes) state().nodes.erase(node.get());
  state().graphs.remove(handle);
}

CUgraphNode add_node(CUgraph_st& graph, CUgraphNodeType type, Work work, std::vector<CUgraphNode> dependencies) {
  auto node = std::make_unique<CUgraphNode_st>();
  node->graph = &graph;
  node->type = type;
  node->work = std::move(work);
  node->dependencies = std::move(dependencies);
  node->id = state().next_id++;
  CUgraphNode handle = node.get();
  graph.nodes.push_back(std::move(node));
  state().nodes[handle] = &graph;
  return handle;
}

std::vector<CUgraphNode> in_order(const CUgraph_st& graph) {
  std::unordered_map<CUgraphNode, size_t> missing;
  std::unordered_map<CUgraphNode, std::vector<CUgraphNode>> dependents;
  std::vector<CUgraphNode> result;
  for (auto& node : graph.nodes) {
    missing[node.get()] = node->dependencies.size();
    for (CUgraphNode d : node->dependencies) dependents[d].push_back(node.get());
    if (node->dependencies.empty()) result.push_back(node.get());
  }
  for (size_t i = 0; i < result.size(); ++i) {
    for (CUgraphNode next : dependents[result[i]]) {
      if (--missing[next] == 0) result.push_back(next);
    }
  }
  return result;
}

}  // namespace sim::driver

using namespace sim::driver;

// ---- graphs --------------------------------------------------------------------------------------

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  API(Initialised, {
    require(graph != nullptr && flags == 0);
    *graph = new_graph();
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  API(Initialised, {
    live_graph(graph);
    destroy_graph(graph);
  });
}

CUresult cuGraphClone(CUgraph* result, CUgraph graph) {
  API(Initialised, {
    require(result != nullptr);
    const CUgraph_st& from = live_graph(graph);
    CUgraph to = new_graph();
    std::unordered_map<CUgraphNode, CUgraphNode> twin;
    for (CUgraphNode node : in_order(from)) {
      std::vector<CUgraphNode> after;
      for (CUgraphNode d : node->dependencies) after.push_back(twin[d]);
      twin[node] = add_node(*to, node->type, node->work, std::move(after));
      twin[node]->memory = node->memory;
      twin[node]->memory_bytes = node->memory_bytes;
    }
    *result = to;
  });
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  API(Initialised, { list_nodes(nodes_of(live_graph(graph)), nodes, count); });
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  API(Initialised, {
    std::vector<CUgraphNode> roots;
    for (CUgraphNode node : nodes_of(live_graph(graph))) {
      if (node->dependencies.empty()) roots.push_back(node);
    }
    list_nodes(roots, nodes, count);
  });
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  API(Initialised, { get_edges(graph, from, to, nullptr, count); });
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  API(Initialised, { get_edges(graph, from, to, data, count); });
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  API(Initialised, { list_nodes(live_node(node).dependencies, nodes, count); });
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  API(Initialised, {
    list_nodes(live_node(node).dependencies, nodes, count);
    if (nodes != nullptr) plain_edges(data, *count);
  });
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  API(Initialised, { list_nodes(dependents_of(live_node(node)), nodes, count); });
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  API(Initialised, {
    list_nodes(dependents_of(live_node(node)), nodes, count);
    if (nodes != nullptr) plain_edges(data, *count);
  });
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  API(Initialised, { add_edges(graph, from, to, count); });
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t count) {
  API(Initialised, { add_edges(graph, from, to, count); });
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  API(Initialised, { remove_edges(graph, from, to, count); });
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, size_t count) {
  API(Initialised, { remove_edges(graph, from, to, count); });
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  API(Initialised, {
    CUgraph_st& graph = *live_node(handle).graph;
    for (auto& other : graph.nodes) {
      auto& d = other->dependencies;
      d.erase(std::remove(d.begin(), d.end(), handle), d.end());
    }
    state().nodes.erase(handle);
    auto& nodes = graph.nodes;
    nodes.erase(std::remove_if(nodes.begin(), nodes.end(), [&](auto& n) { return n.get() == handle; }), nodes.end());
  });
}

// ---- nodes ---------------------------------------------------------------------------------------

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  API(Initialised, {
    require(type != nullptr);
    *type = live_node(node).type;
  });
}

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
    return Work{freeze(live_graph(child))};  // the child is copied when it is added
  });
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
  API(Initialised, { get_kernel_params(node, params); });
}
CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  API(Initialised, {
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

// ---- executable graphs ---------------------------------------------------------------------------

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
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = instantiate(__func__, exec, graph, params->flags);
  params->hErrNode_out = nullptr;
  params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  API(Initialised, {
    live_exec(exec);
    state().graph_execs.remove(exec);
  });
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
  API(Initialised, {
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
    for (size_t i = 0; i < exec.steps.size(); ++i) {
      if (exec.enabled[i]) work->steps.push_back(exec.steps[i]);
    }
    const auto memory = exec.memory;  // outlives the launch whatever the steps do
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
  API(Initialised, {
    const size_t i = static_cast<size_t>(&exec_step(handle, node) - live_exec(handle).steps.data());
    const CUgraphNodeType type = live_node(node).type;
    require(type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMSET ||
            type == CU_GRAPH_NODE_TYPE_MEMCPY);
    handle->enabled[i] = enabled != 0;
  });
}
CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode node, unsigned int* enabled) {
  API(Initialised, {
    require(enabled != nullptr);
    *enabled = handle->enabled[static_cast<size_t>(&exec_step(handle, node) - live_exec(handle).steps.data())];
  });
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  API(HealthyContext, {
    require(info != nullptr);
    *info = {};
    info->result = update(exec, graph, &info->errorNode);
    require(info->result == CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  });
}
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode* wrong, CUgraphExecUpdateResult* result) {
  API(HealthyContext, {
    require(result != nullptr);
    CUgraphNode node = nullptr;
    *result = update(exec, graph, &node);
    if (wrong != nullptr) *wrong = node;
    require(*result == CU_GRAPH_EXEC_UPDATE_SUCCESS, CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  });
}
