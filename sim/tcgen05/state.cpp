// SPDX-License-Identifier: Apache-2.0
// Tensor memory of a block: allocations, the marks in its cells and the order they call for, and its end.
#include "sim/tcgen05/state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace sim {

namespace {

constexpr uint32_t kRowBytes = 64;

std::string block_text(const Cta& cta) {
  return "block (" + std::to_string(cta.index.x) + "," + std::to_string(cta.index.y) + "," +
         std::to_string(cta.index.z) + ")";
}

std::string by_text(const Warp& reader, const TensorMark& mark) {
  std::string text = mark.source->opcode + " (ptx line " + std::to_string(mark.source->where.line) + ") of warp " +
                     std::to_string(mark.warp->index);
  if (mark.warp->cta != reader.cta) text += " of block rank " + std::to_string(mark.warp->cta->rank);
  return text;
}

bool saw(const Warp& warp, Agent agent, uint32_t at) {
  return warp.view.seen[agent] >= at || (warp.has_read && warp.read_view.seen[agent] >= at);
}

// Why `access` may not follow `mark`; empty when it may.
std::string conflict(const TensorAccess& access, const TensorMark& mark) {
  using By = TensorMark::By;
  if (mark.by == By::None) return "";
  const Warp& warp = access.warp;
  const Clock& ordered = warp.tensor->ordered;
  const std::string no_after = "no tcgen05.fence::after_thread_sync stands between the synchronisation and this access";
  if (mark.by == By::Pipe) {
    const bool piped = access.mark.by == By::Pipe;
    if (piped && (mark.warp == &warp || ordered[mark.pipe->issued] >= mark.at)) return "";
    if (ordered[mark.pipe->done] >= mark.at) return "";
    if (!warp.tensor->strict && warp.view.seen[mark.pipe->done] >= mark.at) return "";
    const bool completed = saw(warp, mark.pipe->done, mark.at);
    if (access.mark.by == By::Dealloc && completed) return "";
    if (completed || (piped && saw(warp, mark.pipe->issued, mark.at))) return no_after;
    if (piped && mark.warp->view.seen[mark.pipe->issued] < mark.at)
      return "no tcgen05.fence::before_thread_sync follows it";
    return piped ? "the two are not ordered" : "no tcgen05.commit that covers it has been waited for";
  }
  const bool load = mark.by == By::Load;
  const TensorTransfers& transfers = load ? mark.warp->tensor->loads : mark.warp->tensor->stores;
  const std::string wait = load ? "tcgen05.wait::ld" : "tcgen05.wait::st";
  if (transfers.done < mark.at) return "no " + wait + " has waited for it";
  if (mark.warp == &warp || ordered[transfers.published] >= mark.at) return "";
  if (!warp.tensor->strict && warp.view.seen[transfers.waited] >= mark.at) return "";
  if (access.mark.by == By::Dealloc && saw(warp, transfers.waited, mark.at)) return "";
  if (mark.warp->view.seen[transfers.published] < mark.at &&
      (warp.tensor->strict || !saw(warp, transfers.waited, mark.at)))
    return "no tcgen05.fence::before_thread_sync follows its " + wait;
  if (saw(warp, transfers.published, mark.at)) return no_after;
  return "the two are not ordered";
}

}  // namespace

void TensorMemory::Free::operator()(uint32_t* p) const { std::free(p); }

TensorMemory::TensorMemory(Cta& owner) : cta(owner), cells_(size_t{kCellRows} * kTensorColumns, 0) {
  constexpr size_t kBytes = size_t{kTensorLanes} * kTensorColumns * 4;
  words_.reset(static_cast<uint32_t*>(std::aligned_alloc(64, kBytes)));
  if (!words_) throw std::bad_alloc();
  std::memset(words_.get(), 0xff, kBytes);
  queue = new_agent(*owner.cluster, {AgentInfo::Kind::TensorPipe, &owner, 0});
}

bool TensorMemory::is_free(uint32_t column, uint32_t columns) const {
  return std::none_of(allocations.begin(), allocations.end(), [&](const Allocation& a) {
    return a.column < column + columns && column < a.column + a.columns;
  });
}

uint32_t TensorMemory::find_free(uint32_t columns, const TensorMemory* peer) const {
  for (uint32_t at = 0; at + columns <= kTensorColumns; at += kAllocationUnit) {
    if (is_free(at, columns) && (peer == nullptr || peer->is_free(at, columns))) return at;
  }
  return kTensorColumns;
}

void TensorMemory::allocate(uint32_t column, uint32_t columns, int cta_group, const Origin& by) {
  TensorWarp& tensor = tensor_warp(*by.warp);
  const Stamp stamp{tensor.allocated, ++tensor.allocations};
  by.warp->view.seen.raise(stamp.by, stamp.at);
  allocations.push_back({column, columns, cta_group, stamp, by, by.warp->next_cluster_barrier(1), false});
  smallest = columns;
  // What nobody has written is not zero on a GPU either.
  for (uint32_t lane = 0; lane < kTensorLanes; ++lane) {
    std::memset(row(lane) + column, 0xff, columns * 4);
    if (!undefined.empty()) std::memset(undefined_row(lane) + column, 0, columns * 4);
  }
  for (uint32_t cell = 0; cell < kCellRows; ++cell)
    std::fill_n(cells_.begin() + cell * kTensorColumns + column, columns, 0u);
}

TensorMemory::Allocation* TensorMemory::find(uint32_t column) {
  for (Allocation& a : allocations) {
    if (a.column <= column && column < a.column + a.columns) return &a;
  }
  return nullptr;
}

void TensorMemory::release(uint32_t column) {
  allocations.erase(
      std::find_if(allocations.begin(), allocations.end(), [&](const Allocation& a) { return a.column == column; }));
}

uint32_t TensorMemory::after(uint32_t index, const TensorMark& mark, bool write) {
  History fresh;
  if (write) {
    if (written_ != 0 && histories_[written_].write.same(mark)) return written_;
    fresh.write = mark;
  } else {
    const History& old = histories_[index];
    int place = -1;
    for (int i = 0; i < old.count; ++i) {
      const TensorMark& reader = old.readers[i];
      if (reader.by != mark.by || reader.warp != mark.warp || reader.pipe != mark.pipe) continue;
      if (reader.at >= mark.at) return index;
      place = i;
    }
    fresh = old;
    if (place < 0) place = fresh.count < History::kReaders ? fresh.count++ : 0;
    fresh.readers[place] = mark;
  }
  histories_.push_back(fresh);
  const auto result = static_cast<uint32_t>(histories_.size()) - 1;
  if (write) written_ = result;
  return result;
}

void TensorMemory::collect() {
  if (histories_.size() < collect_at_) return;
  std::vector<uint32_t> renamed(histories_.size(), UINT32_MAX);
  std::vector<History> kept(1);
  renamed[0] = 0;
  for (uint32_t& cell : cells_) {
    uint32_t& name = renamed[cell];
    if (name == UINT32_MAX) {
      name = static_cast<uint32_t>(kept.size());
      kept.push_back(histories_[cell]);
    }
    cell = name;
  }
  collect_at_ = std::max<size_t>(4096, 2 * kept.size());
  histories_ = std::move(kept);
  written_ = 0;
}

void TensorMemory::touch(const TensorAccess& access, uint32_t cell, uint32_t cells, uint32_t column, uint32_t columns,
                         bool write) {
  const std::string& opcode = access.mark.source->opcode;
  const std::string whose = &cta == access.warp.cta ? "" : " of block rank " + std::to_string(cta.rank);
  if (cell + cells > kCellRows)
    fault(Hazard::TensorMemory, access.warp, access.lane,
          opcode + " leaves tensor memory" + whose + " at lane " + std::to_string(kTensorLanes));
  for (uint32_t at = column; at < column + columns;) {
    const Allocation* a = at < kTensorColumns ? find(at) : nullptr;
    if (a == nullptr)
      fault(
          Hazard::TensorMemory, access.warp, access.lane,
          opcode + " touches column " + std::to_string(at) + " of tensor memory" + whose + ", which is not allocated");
    const TensorWarp& tensor = *access.warp.tensor;
    const bool ordered = tensor.ordered[a->stamp.by] >= a->stamp.at;
    if (&cta == access.warp.cta && !ordered && !access.warp.has_seen(a->stamp)) {
      const auto text = [&] {
        return opcode + " touches column " + std::to_string(at) +
               " of tensor memory and is not ordered after its tcgen05.alloc";
      };
      if (!is_behind_cluster_barrier(access.warp, a->before))
        fault(Hazard::TensorMemory, access.warp, access.lane, text());
      deviation(Hazard::TensorMemory, access.warp, access.lane, text);
    }
    // Only asynchronous operations need the fence behind a synchronisation (9.7.16.6.3).
    if (tensor.strict && &cta == access.warp.cta && access.mark.by != TensorMark::By::Dealloc &&
        a->stamp.by != tensor.allocated && !ordered)
      fault(Hazard::TensorMemory, access.warp, access.lane,
            opcode + " touches column " + std::to_string(at) +
                " of tensor memory, and no tcgen05.fence::after_thread_sync stands between the synchronisation with "
                "its tcgen05.alloc and this access");
    at = a->column + a->columns;
  }
  collect();
  uint32_t old = UINT32_MAX, fresh = 0;
  for (uint32_t i = cell; i < cell + cells; ++i) {
    uint32_t* const of = cells_.data() + size_t{i} * kTensorColumns;
    for (uint32_t at = column; at < column + columns; ++at) {
      if (of[at] == old) {
        of[at] = fresh;
        continue;
      }
      const uint32_t met = of[at];
      const History& h = histories_[met];
      const auto check = [&](const TensorMark& mark) {
        const std::string why = conflict(access, mark);
        if (why.empty()) return;
        fault(Hazard::DataInFlight, access.warp, access.lane,
              opcode + (write ? " writes " : " reads ") + tensor_text(i * kCellLanes, at) + whose + " while " +
                  by_text(access.warp, mark) + " may still " + (mark.same(h.write) ? "write" : "read") + " it: " + why);
      };
      // A warp's own marks that are the same operation: the instruction touches a cell twice.
      if (!h.write.same(access.mark)) check(h.write);
      if (write) {
        for (int r = 0; r < h.count; ++r) {
          if (!h.readers[r].same(access.mark)) check(h.readers[r]);
        }
      }
      fresh = access.mark.by == TensorMark::By::Dealloc ? met : after(met, access.mark, write);
      old = met;
      of[at] = fresh;
    }
  }
}

bool TensorMemory::expect_written(const TensorAccess& access, uint32_t column, uint32_t columns) const {
  for (uint32_t cell = 0; cell < kCellRows; ++cell) {
    for (uint32_t at = column; at < std::min(column + columns, kTensorColumns); ++at) {
      if (histories_[cells_[size_t{cell} * kTensorColumns + at]].write.by != TensorMark::By::None) return true;
    }
  }
  const std::string whose = &cta == access.warp.cta ? "" : " of block rank " + std::to_string(cta.rank);
  const auto text = [&] {
    return access.mark.source->opcode + " reads columns " + std::to_string(column) + " to " +
           std::to_string(column + columns - 1) + " of tensor memory" + whose +
           ", in which nothing was written since their tcgen05.alloc";
  };
  if (access.mark.by != TensorMark::By::Load) fault(Hazard::TensorMemory, access.warp, access.lane, text());
  deviation(Hazard::TensorMemory, access.warp, access.lane, text);
  return false;
}

TensorMemory& tensor_memory(Cta& cta) {
  if (!cta.tensor) cta.tensor = {new TensorMemory(cta), [](TensorMemory* m) { delete m; }};
  return *cta.tensor;
}

TensorWarp& tensor_warp(Warp& warp) {
  if (!warp.tensor) {
    warp.tensor = {new TensorWarp, [](TensorWarp* w) { delete w; }};
    Cluster& cluster = *warp.cta->cluster;
    warp.tensor->strict = cluster.launch->rules.strict_tensor_fences;
    const AgentInfo info{AgentInfo::Kind::TensorPipe, warp.cta, static_cast<uint32_t>(warp.index)};
    for (TensorTransfers* t : {&warp.tensor->loads, &warp.tensor->stores}) {
      t->published = new_agent(cluster, info);
      t->waited = new_agent(cluster, info);
    }
    warp.tensor->allocated = new_agent(cluster, info);
    warp.tensor->in_flight.resize(cluster.launch->kernel->register_bytes / kRowBytes + 1);
    warp.tensor->load_of.resize(warp.tensor->in_flight.size());
  }
  return *warp.tensor;
}

TensorPipe& tensor_pipe(Warp& warp, int lane) {
  TensorPipe& pipe = tensor_warp(warp).pipes[lane];
  if (pipe.issued == 0) {
    const AgentInfo info{AgentInfo::Kind::TensorPipe, warp.cta, static_cast<uint32_t>(warp.index)};
    pipe.issued = new_agent(*warp.cta->cluster, info);
    pipe.done = new_agent(*warp.cta->cluster, info);
    pipe.commits = new_agent(*warp.cta->cluster, info);
  }
  return pipe;
}

TensorGroup tensor_group(Warp& warp, int group, int lane) {
  TensorMemory& memory = tensor_memory(*warp.cta);
  if (memory.group == 0) memory.group = group;
  if (memory.group != group)
    fault(Hazard::IllegalUse, warp, lane,
          "tcgen05 instructions of one kernel specify both .cta_group::1 and .cta_group::2");
  TensorGroup result;
  result.cta[0] = warp.cta;
  if (group == 1) return result;
  Cluster& cluster = *warp.cta->cluster;
  const uint32_t peer = warp.cta->rank ^ 1;
  if (peer >= cluster.ctas.size())
    fault(Hazard::IllegalUse, warp, lane,
          ".cta_group::2 in a cluster where block rank " + std::to_string(warp.cta->rank) + " has no peer");
  result.count = 2;
  result.own = static_cast<int>(warp.cta->rank & 1);
  result.cta[result.own] = warp.cta;
  result.cta[1 - result.own] = cluster.ctas[peer].get();
  return result;
}

TensorMark pipe_mark(Warp& warp, int lane, const ptx::Instruction& source) {
  TensorPipe& pipe = tensor_pipe(warp, lane);
  ++pipe.count;
  pipe.last = {&warp, &source, lane};
  return {TensorMark::By::Pipe, &warp, &pipe, pipe.count, &source};
}

void submit_to_pipe(Warp& warp, const TensorGroup& group, std::unique_ptr<AsyncOp> op) {
  Cluster& cluster = *warp.cta->cluster;
  op->queue = tensor_memory(*group.cta[0]).queue;
  cluster.engine.submit(cluster, std::move(op));
}

std::string tensor_text(uint32_t lane, uint32_t column) {
  return "tensor memory at lane " + std::to_string(lane) + ", column " + std::to_string(column);
}

int group_of(const ptx::Instruction& source) {
  if (has_part(source, "cta_group::1")) return 1;
  if (has_part(source, "cta_group::2")) return 2;
  unsupported(source, ".cta_group is missing");
}

// A true register dependency on a tcgen05.ld is respected (9.7.16.6.4.5), but orders nothing else: results are to be
// used after tcgen05.wait::ld. The copies that a compiler may place before it only pass the state on.
void check_tensor_registers(Warp& warp, const Instr& instr) {
  TensorWarp& tensor = *warp.tensor;
  const auto state = [&](uint16_t i) -> uint8_t* {
    const uint32_t row = instr.reg[i] / kRowBytes;
    return instr.reg[i] != kNoReg && row < tensor.in_flight.size() ? &tensor.in_flight[row] : nullptr;
  };
  const bool copy = instr.source != nullptr && instr.source->parts[0] == "mov" && instr.reg_count >= 2;
  bool passed = false;
  uint32_t load = 0;
  for (uint16_t i = 0; i < instr.reg_count; ++i) {
    uint8_t* const s = state(i);
    if (s == nullptr || *s == 0) continue;
    if (copy && i > 0) {
      passed = true;
      load = tensor.load_of[static_cast<size_t>(s - tensor.in_flight.data())];
    } else if (*s == TensorWarp::kCopied && i == 0) {
      *s = 0;  // overwritten
    } else {
      deviation(Hazard::RegistersInFlight, warp, -1, [] {
        return std::string("accesses a destination register of a tcgen05.ld that no tcgen05.wait::ld has waited for");
      });
      // Who has its results knows that the load is done.
      tensor.loads.done = std::max(tensor.loads.done, tensor.load_of[static_cast<size_t>(s - tensor.in_flight.data())]);
      warp.view.seen.raise(tensor.loads.waited, tensor.loads.done);
    }
  }
  if (passed) {
    if (uint8_t* const s = state(0); s != nullptr) {
      *s = TensorWarp::kCopied;
      tensor.load_of[static_cast<size_t>(s - tensor.in_flight.data())] = load;
      tensor.in_flight_rows.push_back(instr.reg[0] / kRowBytes);
    }
  }
}

void reset_tensor_state(Cluster& cluster) {
  for (auto& cta : cluster.ctas) {
    cta->tensor.reset();
    for (auto& warp : cta->warps) warp->tensor.reset();
  }
}

void finish_tensor_state(Cluster& cluster) {
  const auto seen_by_any = [&](Agent agent, uint32_t at) {
    for (auto& cta : cluster.ctas) {
      for (auto& warp : cta->warps) {
        if (saw(*warp, agent, at)) return true;
      }
    }
    return false;
  };
  for (auto& cta : cluster.ctas) {
    for (auto& warp : cta->warps) {
      if (!warp->tensor) continue;
      for (const auto& [lane, pipe] : warp->tensor->pipes) {
        if (pipe.count == 0 || seen_by_any(pipe.done, pipe.count)) continue;
        pipe.last.fail(Hazard::DataInFlight,
                       block_text(*cta) +
                           " exits while tcgen05 operations may be in flight, and no thread waited for a "
                           "tcgen05.commit that covers them");
      }
    }
    if (!cta->tensor || cta->tensor->allocations.empty()) continue;
    const TensorMemory::Allocation& a = cta->tensor->allocations[0];
    a.by.fail(Hazard::TensorMemory, block_text(*cta) + " exits without tcgen05.dealloc of the " +
                                        std::to_string(a.columns) + " columns at column " + std::to_string(a.column) +
                                        " of tensor memory");
  }
}

namespace {

bool decode_tcgen05(const ptx::Instruction& source, DecodeContext& context, Instr& out) {
  if (context.arch() < 100) unsupported(source, "tcgen05 needs target sm_100a");
  if (source.parts.size() < 2) unsupported(source, "the form is not known");
  if (decode_allocation(source, context, out) || decode_transfer(source, context, out) ||
      decode_movement(source, context, out) || decode_order(source, context, out) || decode_mma(source, context, out)) {
    return true;
  }
  unsupported(source, "the form is not known");
}

}  // namespace

void register_tcgen05() { register_opcode("tcgen05", decode_tcgen05); }

}  // namespace sim
