// SPDX-License-Identifier: Apache-2.0
// What the handles of moxie/c.h point to.
#pragma once
#include <atomic>
#include <vector>

#include "moxie/c.h"
#include "moxie/device.h"
#include "moxie/gemm.h"
#include "moxie/layer.h"
#include "moxie/tuned.h"

struct moxie_device {
  moxie::Device device;
  std::atomic<int64_t> holders{1};
};

struct moxie_device_list {
  std::vector<moxie::DeviceInfo> devices;
};

struct moxie_grouped_gemm {
  moxie::GroupedGemm gemm;
};

struct moxie_expert_layer {
  moxie::ExpertLayer layer;
};

struct moxie_plan {
  moxie::PlanInfo info;
};

struct moxie_tuned_table {
  std::vector<moxie::TunedHopper> rows;
};
