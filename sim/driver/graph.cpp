// SPDX-License-Identifier: Apache-2.0
// Graphs: their nodes and edges, whatever the work of a node is.
#include "sim/driver/graph.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "sim/driver/call.h"

namespace sim::driver {

CUgraph new_graph() { return state().graphs.add(std::make_unique<CUgraph_st>()); }

void destroy_graph(CUgraph handle) {
  for (auto& node : handle->nodes) state().nodes.erase(node.get());
  state().graphs.remove(handle);
}

CUgraph_st& live_graph(CUgraph handle) {
  require(state().graphs.contains(handle), CUDA_ERROR_INVALID_VALUE, "not a live graph");
  return *handle;
}

CUgraphNode_st& live_node(CUgraphNode handle) {
  require(state().nodes.count(handle) != 0, CUDA_ERROR_INVALID_VALUE, "not a node of a live graph");
  return *handle;
}

std::vector<CUgraphNode> given_nodes(CUgraph graph, const CUgraphNode* nodes, size_t count) {
  require(nodes != nullptr || count == 0);
  std::vector<CUgraphNode> result(nodes, nodes + count);
  for (CUgraphNode node : result)
    require(live_node(node).graph == graph, CUDA_ERROR_INVALID_VALUE, "a node of another graph");
  return result;
}

CUgraphNode add_node(CUgraph_st& graph, CUgraphNodeType type, Work work, std::vector<CUgraphNode> dependencies,
                     CUcontext context) {
  auto node = std::make_unique<CUgraphNode_st>();
  node->graph = &graph;
  node->type = type;
  node->work = std::move(work);
  node->dependencies = std::move(dependencies);
  node->context = context;
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

namespace {

// What the functions that list nodes have in common: without `nodes` they return the count alone.
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

// The edges of a graph, which a call that fails leaves as they were.
class Unchanged {
 public:
  explicit Unchanged(CUgraph_st& graph) : graph_(graph) {
    for (auto& node : graph.nodes) dependencies_.push_back(node->dependencies);
  }
  ~Unchanged() {
    for (size_t i = 0; i < dependencies_.size(); ++i) graph_.nodes[i]->dependencies = std::move(dependencies_[i]);
  }
  void forget() { dependencies_.clear(); }

 private:
  CUgraph_st& graph_;
  std::vector<std::vector<CUgraphNode>> dependencies_;
};

void add_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  CUgraph_st& graph = live_graph(handle);
  const auto tails = given_nodes(handle, from, count), heads = given_nodes(handle, to, count);
  Unchanged before(graph);
  for (size_t i = 0; i < count; ++i) {
    auto& d = heads[i]->dependencies;
    require(std::find(d.begin(), d.end(), tails[i]) == d.end(), CUDA_ERROR_INVALID_VALUE, "the edge is there already");
    d.push_back(tails[i]);
  }
  require(in_order(graph).size() == graph.nodes.size(), CUDA_ERROR_INVALID_VALUE, "the edges would close a cycle");
  before.forget();
}

void remove_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  CUgraph_st& graph = live_graph(handle);
  const auto tails = given_nodes(handle, from, count), heads = given_nodes(handle, to, count);
  Unchanged before(graph);
  for (size_t i = 0; i < count; ++i) {
    auto& d = heads[i]->dependencies;
    auto it = std::find(d.begin(), d.end(), tails[i]);
    require(it != d.end(), CUDA_ERROR_INVALID_VALUE, "there is no such edge");
    d.erase(it);
  }
  before.forget();
}

}  // namespace
}  // namespace sim::driver

using namespace sim::driver;

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  API(Initialized, {
    require(graph != nullptr && flags == 0);
    *graph = new_graph();
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  API(Initialized, {
    live_graph(graph);
    destroy_graph(graph);
  });
}

CUresult cuGraphClone(CUgraph* result, CUgraph graph) {
  API(Initialized, {
    require(result != nullptr);
    const CUgraph_st& from = live_graph(graph);
    CUgraph to = new_graph();
    std::unordered_map<CUgraphNode, CUgraphNode> twin;
    for (CUgraphNode node : in_order(from)) {
      std::vector<CUgraphNode> after;
      for (CUgraphNode d : node->dependencies) after.push_back(twin[d]);
      twin[node] = add_node(*to, node->type, node->work, std::move(after), node->context);
      twin[node]->memory = node->memory;
      twin[node]->memory_bytes = node->memory_bytes;
    }
    *result = to;
  });
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  API(Initialized, { list_nodes(nodes_of(live_graph(graph)), nodes, count); });
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  API(Initialized, {
    std::vector<CUgraphNode> roots;
    for (CUgraphNode node : nodes_of(live_graph(graph))) {
      if (node->dependencies.empty()) roots.push_back(node);
    }
    list_nodes(roots, nodes, count);
  });
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  API(Initialized, { get_edges(graph, from, to, nullptr, count); });
}
CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  API(Initialized, { get_edges(graph, from, to, data, count); });
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  API(Initialized, { list_nodes(live_node(node).dependencies, nodes, count); });
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  API(Initialized, {
    list_nodes(live_node(node).dependencies, nodes, count);
    if (nodes != nullptr) plain_edges(data, *count);
  });
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
  API(Initialized, { list_nodes(dependents_of(live_node(node)), nodes, count); });
}
CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
  API(Initialized, {
    list_nodes(dependents_of(live_node(node)), nodes, count);
    if (nodes != nullptr) plain_edges(data, *count);
  });
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  API(Initialized, { add_edges(graph, from, to, count); });
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t count) {
  API(Initialized, { add_edges(graph, from, to, count); });
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  API(Initialized, { remove_edges(graph, from, to, count); });
}
CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                      const CUgraphEdgeData*, size_t count) {
  API(Initialized, { remove_edges(graph, from, to, count); });
}

CUresult cuGraphDestroyNode(CUgraphNode handle) {
  API(Initialized, {
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

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  API(Initialized, {
    require(type != nullptr);
    *type = live_node(node).type;
  });
}
