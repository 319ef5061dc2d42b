// SPDX-License-Identifier: Apache-2.0
// The enumerations of moxie/c.h: that they agree with those of C++, their names, and values of names.
#include "c/constants.h"
#include "c/status.h"
#include "moxie/moxie.h"

namespace moxie::c {
namespace {

template <class Enum>
const char* name_of(int32_t value) {
  return to_string(static_cast<Enum>(value)).data();  // the tables' texts are literals, which end with a 0
}

template <class Enum>
moxie_status parse_name(const char* text, int32_t* value) {
  return guarded([&] {
    not_null(text, "text");
    not_null(value, "value");
    const std::optional<Enum> found = parse<Enum>(text);
    if (!found) {
      std::string known;
      for (const EnumName<Enum>& name : names<Enum>())
        known += fmt::format("{}{}", known.empty() ? "" : ", ", name.text);
      reject("text is '{}', but must be one of: {}", text, known);
    }
    *value = static_cast<int32_t>(*found);
  });
}

// moxie/pack.h and moxie/plan.h have no names for these.
static_assert(MOXIE_PACK_IMAGE_MACHINE_CODE == int(PackImage::MachineCode));
static_assert(MOXIE_PACK_IMAGE_PTX == int(PackImage::Ptx));
static_assert(MOXIE_ROWS_SOURCE_GIVEN == int(RowsSource::Given));
static_assert(MOXIE_ROWS_SOURCE_EXPECTED == int(RowsSource::Expected));
static_assert(MOXIE_ROWS_SOURCE_ASSUMED == int(RowsSource::Assumed));

}  // namespace
}  // namespace moxie::c

// The two functions of an enumeration, behind the list of all its constants.
#define MOXIE_NAMES(Enum, prefix, ...)                                                                   \
  namespace moxie::c {                                                                                   \
  namespace {                                                                                            \
  constexpr Constant k##Enum[] = {__VA_ARGS__};                                                          \
  static_assert(are_enumerators<Enum>(k##Enum), "moxie/c.h and moxie::" #Enum " have different values"); \
  }                                                                                                      \
  }                                                                                                      \
  extern "C" {                                                                                           \
  const char* prefix##_name(int32_t value) { return moxie::c::name_of<moxie::Enum>(value); }             \
  moxie_status prefix##_parse(const char* text, int32_t* value) {                                        \
    return moxie::c::parse_name<moxie::Enum>(text, value);                                               \
  }                                                                                                      \
  }

MOXIE_NAMES(Grouping, moxie_grouping, MOXIE_CONSTANT(MOXIE_GROUPING_DENSE), MOXIE_CONSTANT(MOXIE_GROUPING_BATCHED),
            MOXIE_CONSTANT(MOXIE_GROUPING_OFFSETS), MOXIE_CONSTANT(MOXIE_GROUPING_ROW_GROUPS),
            MOXIE_CONSTANT(MOXIE_GROUPING_MASKED), MOXIE_CONSTANT(MOXIE_GROUPING_POINTERS),
            MOXIE_CONSTANT(MOXIE_GROUPING_K_GROUPS))
MOXIE_NAMES(Activation, moxie_activation, MOXIE_CONSTANT(MOXIE_ACTIVATION_NONE), MOXIE_CONSTANT(MOXIE_ACTIVATION_RELU),
            MOXIE_CONSTANT(MOXIE_ACTIVATION_RELU2), MOXIE_CONSTANT(MOXIE_ACTIVATION_GELU_TANH),
            MOXIE_CONSTANT(MOXIE_ACTIVATION_GELU_ERF), MOXIE_CONSTANT(MOXIE_ACTIVATION_SILU),
            MOXIE_CONSTANT(MOXIE_ACTIVATION_SWIGLU), MOXIE_CONSTANT(MOXIE_ACTIVATION_SWIGLU_OAI),
            MOXIE_CONSTANT(MOXIE_ACTIVATION_GEGLU), MOXIE_CONSTANT(MOXIE_ACTIVATION_REGLU),
            MOXIE_CONSTANT(MOXIE_ACTIVATION_SWIGLU_CLAMPED), MOXIE_CONSTANT(MOXIE_ACTIVATION_SITU))
MOXIE_NAMES(GateLayout, moxie_gate_layout, MOXIE_CONSTANT(MOXIE_GATE_LAYOUT_INTERLEAVED),
            MOXIE_CONSTANT(MOXIE_GATE_LAYOUT_SPLIT), MOXIE_CONSTANT(MOXIE_GATE_LAYOUT_SPLIT_UP_FIRST))
MOXIE_NAMES(DataType, moxie_data_type, MOXIE_CONSTANT(MOXIE_DATA_TYPE_BF16), MOXIE_CONSTANT(MOXIE_DATA_TYPE_F32),
            MOXIE_CONSTANT(MOXIE_DATA_TYPE_MXFP4), MOXIE_CONSTANT(MOXIE_DATA_TYPE_MXFP8),
            MOXIE_CONSTANT(MOXIE_DATA_TYPE_NVFP4))
MOXIE_NAMES(OperandFormat, moxie_operand_format, MOXIE_CONSTANT(MOXIE_OPERAND_FORMAT_BF16),
            MOXIE_CONSTANT(MOXIE_OPERAND_FORMAT_MXFP4), MOXIE_CONSTANT(MOXIE_OPERAND_FORMAT_NVFP4))
MOXIE_NAMES(WarpSchedule, moxie_warp_schedule, MOXIE_CONSTANT(MOXIE_WARP_SCHEDULE_COOPERATIVE),
            MOXIE_CONSTANT(MOXIE_WARP_SCHEDULE_PING_PONG))
MOXIE_NAMES(TileSource, moxie_tile_source, MOXIE_CONSTANT(MOXIE_TILE_SOURCE_STATIC),
            MOXIE_CONSTANT(MOXIE_TILE_SOURCE_LAUNCH_CONTROL))
MOXIE_NAMES(Multicast, moxie_multicast, MOXIE_CONSTANT(MOXIE_MULTICAST_NONE), MOXIE_CONSTANT(MOXIE_MULTICAST_A),
            MOXIE_CONSTANT(MOXIE_MULTICAST_B), MOXIE_CONSTANT(MOXIE_MULTICAST_EITHER))
MOXIE_NAMES(RouterScore, moxie_router_score, MOXIE_CONSTANT(MOXIE_ROUTER_SCORE_SOFTMAX),
            MOXIE_CONSTANT(MOXIE_ROUTER_SCORE_SIGMOID))
MOXIE_NAMES(IdType, moxie_id_type, MOXIE_CONSTANT(MOXIE_ID_TYPE_INT32), MOXIE_CONSTANT(MOXIE_ID_TYPE_INT64))
MOXIE_NAMES(ScaleLayout, moxie_scale_layout, MOXIE_CONSTANT(MOXIE_SCALE_LAYOUT_BLOCKED),
            MOXIE_CONSTANT(MOXIE_SCALE_LAYOUT_ROW_MAJOR))
MOXIE_NAMES(RowFormat, moxie_row_format, MOXIE_CONSTANT(MOXIE_ROW_FORMAT_BF16), MOXIE_CONSTANT(MOXIE_ROW_FORMAT_FP8),
            MOXIE_CONSTANT(MOXIE_ROW_FORMAT_MXFP8))
MOXIE_NAMES(ResultFormat, moxie_result_format, MOXIE_CONSTANT(MOXIE_RESULT_FORMAT_ROWS),
            MOXIE_CONSTANT(MOXIE_RESULT_FORMAT_SUMS), MOXIE_CONSTANT(MOXIE_RESULT_FORMAT_BF16_SUMS))
MOXIE_NAMES(LayerPart, moxie_layer_part, MOXIE_CONSTANT(MOXIE_LAYER_PART_ALL), MOXIE_CONSTANT(MOXIE_LAYER_PART_SEND),
            MOXIE_CONSTANT(MOXIE_LAYER_PART_MULTIPLY), MOXIE_CONSTANT(MOXIE_LAYER_PART_SUM))
MOXIE_NAMES(DeviceKind, moxie_device_kind, MOXIE_CONSTANT(MOXIE_DEVICE_KIND_AUTO),
            MOXIE_CONSTANT(MOXIE_DEVICE_KIND_CUDA), MOXIE_CONSTANT(MOXIE_DEVICE_KIND_SIM))
MOXIE_NAMES(PlanSource, moxie_plan_source, MOXIE_CONSTANT(MOXIE_PLAN_SOURCE_MODEL),
            MOXIE_CONSTANT(MOXIE_PLAN_SOURCE_TUNED_TABLE), MOXIE_CONSTANT(MOXIE_PLAN_SOURCE_CALLER))
