// SPDX-License-Identifier: Apache-2.0
// Graphs: nodes with work, and the edges between them.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/driver/abi.h"
#include "sim/driver/work.h"

struct CUgraphNode_st {
  CUgraph graph = nullptr;
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  sim::driver::Work work;
  std::vector<CUgraphNode> dependencies;
  // Whose device does the work.
  CUcontext context = nullptr;
  // The memory of a memory allocation node, freed with the last graph that needs it.
  std::shared_ptr<uint64_t> memory;
  uint64_t memory_bytes = 0;
  // cuGraphKernelNodeGetParams returns a pointer to these.
  std::vector<void*> param_pointers;
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
};

namespace sim::driver {

CUgraph new_graph();
void destroy_graph(CUgraph graph);
CUgraph_st& live_graph(CUgraph handle);
CUgraphNode_st& live_node(CUgraphNode handle);
// The nodes of an array that a caller gave, all of which must belong to the graph.
std::vector<CUgraphNode> given_nodes(CUgraph graph, const CUgraphNode* nodes, size_t count);
CUgraphNode add_node(CUgraph_st& graph, CUgraphNodeType type, Work work, std::vector<CUgraphNode> dependencies,
                     CUcontext context);
// Every node stands behind its dependencies. Nodes of a cycle are missing.
std::vector<CUgraphNode> in_order(const CUgraph_st& graph);

}  // namespace sim::driver
