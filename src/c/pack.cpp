// SPDX-License-Identifier: Apache-2.0
// Packs of kernels and tables of measured kernels in C.
#include "moxie/pack.h"

#include "c/description.h"
#include "c/handles.h"
#include "c/structs.h"

namespace moxie::c {
namespace {

moxie_tuned_hopper row_of(const TunedHopper& r) {
  moxie_tuned_hopper row{};
  row.n = r.n;
  row.k = r.k;
  row.rows_from = r.rows_from;
  row.rows_to = r.rows_to;
  row.grouping = static_cast<int32_t>(r.grouping);
  row.gated = r.gated;
  row.schedule = static_cast<int32_t>(r.schedule);
  row.tile_m = r.tile_m;
  row.tile_n = r.tile_n;
  row.multicast = static_cast<int32_t>(r.multicast);
  return row;
}

TunedHopper row_of(const moxie_tuned_hopper* given) {
  const moxie_tuned_hopper r = read(given, "row");
  TunedHopper row;
  row.n = r.n;
  row.k = r.k;
  row.rows_from = r.rows_from;
  row.rows_to = r.rows_to;
  row.grouping = enum_of<Grouping>("row.grouping", r.grouping);
  row.gated = flag("row.gated", r.gated);
  row.schedule = enum_of<WarpSchedule>("row.schedule", r.schedule);
  row.tile_m = r.tile_m;
  row.tile_n = r.tile_n;
  row.multicast = enum_of<Multicast>("row.multicast", r.multicast);
  return row;
}

PackImage image_of(int32_t image) {
  if (image != MOXIE_PACK_IMAGE_MACHINE_CODE && image != MOXIE_PACK_IMAGE_PTX)
    reject("options.image is {}, but only 0 and 1 have a meaning", image);
  return static_cast<PackImage>(image);
}

}  // namespace
}  // namespace moxie::c

using moxie::c::guarded;
using moxie::c::not_null;

extern "C" {

moxie_status moxie_pack(const moxie_gemm_description* const* descriptions, size_t description_count, const char* folder,
                        const moxie_pack_options* options, moxie_pack_result* result) {
  return guarded([&] {
    if (description_count > 0) not_null(descriptions, "descriptions");
    not_null(folder, "folder");
    const size_t size = result ? moxie::c::checked_size(result, "result") : 0;
    const moxie_pack_options o = moxie::c::read_optional(options, "options");
    const moxie::PackImage image = moxie::c::image_of(o.image);
    std::vector<moxie::GemmDescription> products;
    for (size_t i = 0; i < description_count; ++i)
      products.push_back(moxie::c::description_of(descriptions[i], fmt::format("descriptions[{}]", i).c_str()));
    const moxie::PackResult packed = moxie::pack(products, folder, moxie::c::device_figures_of(o), image, o.threads);
    if (result == nullptr) return;
    moxie_pack_result figures{};
    figures.bytes = packed.bytes;
    figures.kernels = packed.kernels;
    figures.compiled = packed.compiled;
    moxie::c::write(result, size, figures);
  });
}

moxie_status moxie_tuned_table_read(const char* path, moxie_tuned_table** table) {
  return guarded([&] {
    not_null(path, "path");
    not_null(table, "table");
    *table = new moxie_tuned_table{moxie::read_tuned(path)};
  });
}

void moxie_tuned_table_release(moxie_tuned_table* table) { delete table; }

moxie_status moxie_tuned_table_count(const moxie_tuned_table* table, size_t* count) {
  return guarded([&] {
    const size_t rows = not_null(table, "table").rows.size();
    not_null(count, "count") = rows;
  });
}

moxie_status moxie_tuned_table_get(const moxie_tuned_table* table, size_t index, moxie_tuned_hopper* row) {
  return guarded([&] {
    const auto& rows = not_null(table, "table").rows;
    const size_t size = moxie::c::checked_size(row, "row");
    if (index >= rows.size()) moxie::c::reject("index is {}, but the table has {} rows", index, rows.size());
    moxie::c::write(row, size, moxie::c::row_of(rows[index]));
  });
}

moxie_status moxie_tuned_line(const moxie_tuned_hopper* row, char* text, size_t capacity, size_t* length) {
  return guarded([&] {
    not_null(length, "length");
    if (capacity > 0) not_null(text, "text");
    const std::string line = moxie::tuned_line(moxie::c::row_of(row));
    *length = line.size();
    if (capacity > 0) text[line.copy(text, capacity - 1)] = '\0';
  });
}

}  // extern "C"
