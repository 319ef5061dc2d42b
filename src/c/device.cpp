// SPDX-License-Identifier: Apache-2.0
// Devices in C: handles, information, memory.
#include "c/handles.h"
#include "c/structs.h"

namespace moxie::c {
namespace {

moxie_device_info to_c(const DeviceInfo& d) {
  moxie_device_info info{};
  info.name = d.name.c_str();
  info.driver_path = d.driver_path.c_str();
  info.arch = d.arch;
  info.sm_count = d.sm_count;
  info.shared_bytes = d.shared_bytes;
  info.driver_version = d.driver_version;
  info.simulated = d.simulated;
  info.memory_bytes = d.memory_bytes;
  info.l2_bytes = d.l2_bytes;
  info.memory_rate = d.memory_rate;
  info.clock = d.clock;
  return info;
}

// A copy with a null pointer would end the process inside the driver.
void check_copy(const char* name, const void* pointer, size_t bytes) {
  if (pointer == nullptr && bytes > 0) reject("{} is null, but bytes is {}", name, bytes);
}

}  // namespace
}  // namespace moxie::c

using moxie::c::guarded;
using moxie::c::not_null;

extern "C" {

moxie_status moxie_device_open(moxie_device_kind kind, int32_t ordinal, moxie_device** device) {
  return guarded([&] {
    not_null(device, "device");
    const auto of = moxie::c::enum_of<moxie::DeviceKind>("kind", kind);
    *device = new moxie_device{moxie::Device::open(of, ordinal)};
  });
}

moxie_status moxie_device_retain(moxie_device* device) {
  return guarded([&] { not_null(device, "device").holders.fetch_add(1, std::memory_order_relaxed); });
}

void moxie_device_release(moxie_device* device) {
  if (device && device->holders.fetch_sub(1, std::memory_order_acq_rel) == 1) delete device;
}

moxie_status moxie_device_get_info(const moxie_device* device, moxie_device_info* info) {
  return guarded([&] {
    const moxie::DeviceInfo& of = not_null(device, "device").device.info();
    moxie::c::write(info, moxie::c::checked_size(info, "info"), moxie::c::to_c(of));
  });
}

moxie_status moxie_device_list_create(moxie_device_list** list) {
  return guarded([&] {
    not_null(list, "list");
    *list = new moxie_device_list{moxie::Device::list()};
  });
}

void moxie_device_list_release(moxie_device_list* list) { delete list; }

moxie_status moxie_device_list_count(const moxie_device_list* list, size_t* count) {
  return guarded([&] {
    const size_t found = not_null(list, "list").devices.size();
    not_null(count, "count") = found;
  });
}

moxie_status moxie_device_list_get(const moxie_device_list* list, size_t index, moxie_device_info* info) {
  return guarded([&] {
    const auto& devices = not_null(list, "list").devices;
    const size_t size = moxie::c::checked_size(info, "info");
    if (index >= devices.size()) moxie::c::reject("index is {}, but there are {} devices", index, devices.size());
    moxie::c::write(info, size, moxie::c::to_c(devices[index]));
  });
}

moxie_status moxie_device_allocate(const moxie_device* device, size_t bytes, void** device_pointer) {
  return guarded([&] {
    const moxie::Device& on = not_null(device, "device").device;
    not_null(device_pointer, "device_pointer");
    *device_pointer = on.allocate(bytes);
  });
}

moxie_status moxie_device_free(const moxie_device* device, void* device_pointer) {
  return guarded([&] { not_null(device, "device").device.free(device_pointer); });
}

moxie_status moxie_device_upload(const moxie_device* device, void* to_device, const void* from_host, size_t bytes,
                                 moxie_stream stream) {
  return guarded([&] {
    const moxie::Device& on = not_null(device, "device").device;
    moxie::c::check_copy("to_device", to_device, bytes);
    moxie::c::check_copy("from_host", from_host, bytes);
    on.upload(to_device, from_host, bytes, stream);
  });
}

moxie_status moxie_device_download(const moxie_device* device, void* to_host, const void* from_device, size_t bytes,
                                   moxie_stream stream) {
  return guarded([&] {
    const moxie::Device& on = not_null(device, "device").device;
    moxie::c::check_copy("to_host", to_host, bytes);
    moxie::c::check_copy("from_device", from_device, bytes);
    on.download(to_host, from_device, bytes, stream);
  });
}

moxie_status moxie_device_fill(const moxie_device* device, void* device_pointer, uint8_t value, size_t bytes,
                               moxie_stream stream) {
  return guarded([&] {
    const moxie::Device& on = not_null(device, "device").device;
    moxie::c::check_copy("device_pointer", device_pointer, bytes);
    on.fill(device_pointer, value, bytes, stream);
  });
}

moxie_status moxie_device_synchronize(const moxie_device* device, moxie_stream stream) {
  return guarded([&] { not_null(device, "device").device.synchronize(stream); });
}

}  // extern "C"
