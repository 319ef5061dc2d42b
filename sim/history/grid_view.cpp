// SPDX-License-Identifier: Apache-2.0
// A tree of clocks that is never changed: what is added makes new nodes along one path.
#include "sim/history/grid_view.h"

#include <algorithm>
#include <array>

#include "sim/history/clock.h"

namespace sim {

namespace {

constexpr uint32_t kBits = 4;  // of a cluster's number, that each node decides

}  // namespace

struct GridView::Node {
  uint32_t height = 0;
  Clock clock;  // at height 0
  std::array<Pointer, 1u << kBits> below{};
};

GridView::Pointer GridView::lifted(Pointer node, uint32_t height) {
  while (node->height < height) {
    auto above = std::make_shared<Node>();
    above->height = node->height + 1;
    above->below[0] = std::move(node);
    node = std::move(above);
  }
  return node;
}

GridView::Pointer GridView::joined(const Pointer& a, const Pointer& b) {
  if (b == nullptr || a == b) return a;
  if (a == nullptr) return b;
  if (a->height == 0) {
    if (a->clock.covers(b->clock)) return a;
    if (b->clock.covers(a->clock)) return b;
    auto both = std::make_shared<Node>(*a);
    both->clock.join(b->clock);
    return both;
  }
  std::array<Pointer, 1u << kBits> below;
  bool like_a = true, like_b = true;
  for (size_t i = 0; i < below.size(); ++i) {
    below[i] = joined(a->below[i], b->below[i]);
    like_a = like_a && below[i] == a->below[i];
    like_b = like_b && below[i] == b->below[i];
  }
  if (like_a) return a;
  if (like_b) return b;
  auto both = std::make_shared<Node>();
  both->height = a->height;
  both->below = std::move(below);
  return both;
}

void GridView::join_other(const GridView& other) {
  if (root_ == nullptr) {
    root_ = other.root_;
    return;
  }
  const uint32_t height = std::max(root_->height, other.root_->height);
  root_ = joined(lifted(root_, height), lifted(other.root_, height));
}

void GridView::add(uint32_t cluster, const Clock& clock) {
  auto leaf = std::make_shared<Node>();
  leaf->clock = clock;
  Pointer node = std::move(leaf);
  uint32_t height = 0;
  do {
    auto above = std::make_shared<Node>();
    above->height = ++height;
    above->below[cluster >> (kBits * (height - 1)) & ((1u << kBits) - 1)] = std::move(node);
    node = std::move(above);
  } while (kBits * height < 32 && cluster >> (kBits * height) != 0);
  GridView one;
  one.root_ = std::move(node);
  join(one);
}

const Clock* GridView::of(uint32_t cluster) const {
  const Node* node = root_.get();
  if (node == nullptr || (kBits * node->height < 32 && cluster >> (kBits * node->height) != 0)) return nullptr;
  while (node != nullptr && node->height > 0)
    node = node->below[cluster >> (kBits * (node->height - 1)) & ((1u << kBits) - 1)].get();
  return node == nullptr ? nullptr : &node->clock;
}

}  // namespace sim
