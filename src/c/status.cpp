// SPDX-License-Identifier: Apache-2.0
// Statuses and the thread's last error: from exceptions to what C sees.
#include "c/status.h"

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "c/constants.h"

namespace moxie::c {
namespace {

constexpr Constant kErrors[] = {
    MOXIE_CONSTANT(MOXIE_ERROR_INVALID_ARGUMENT), MOXIE_CONSTANT(MOXIE_ERROR_UNSUPPORTED),
    MOXIE_CONSTANT(MOXIE_ERROR_COMPILE),          MOXIE_CONSTANT(MOXIE_ERROR_DRIVER),
    MOXIE_CONSTANT(MOXIE_ERROR_OUT_OF_MEMORY),    MOXIE_CONSTANT(MOXIE_ERROR_PEER),
};
static_assert(are_enumerators<ErrorCode>(kErrors, "Error", 1));

// The sentence is kept as a pointer beside its text, since the text itself may find no memory.
struct LastError {
  std::string text;
  const char* sentence = "";
};
thread_local LastError last_error;

moxie_status fail(moxie_status status, const char* sentence) noexcept {
  try {
    last_error.text = sentence;
    last_error.sentence = last_error.text.c_str();
  } catch (...) {
    last_error.sentence = "there is no memory for the sentence that says what went wrong";
  }
  return status;
}

}  // namespace

moxie_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return fail(static_cast<moxie_status>(error.code()) + 1, error.what());
  } catch (const std::bad_alloc&) {
    return fail(MOXIE_ERROR_OUT_OF_MEMORY, "the host has no memory left");
  } catch (const std::length_error&) {
    return fail(MOXIE_ERROR_OUT_OF_MEMORY, "a size exceeds what the host's memory can hold");
  } catch (const std::system_error& error) {  // a thread that cannot start
    return fail(MOXIE_ERROR_OUT_OF_MEMORY, error.what());
  } catch (const std::exception& error) {
    return fail(MOXIE_ERROR_INTERNAL, error.what());
  } catch (...) {
    return fail(MOXIE_ERROR_INTERNAL, "an exception of an unknown type was thrown");
  }
}

}  // namespace moxie::c

extern "C" {

const char* moxie_version(void) { return MOXIE_VERSION; }

const char* moxie_last_error(void) { return moxie::c::last_error.sentence; }

const char* moxie_status_name(moxie_status status) {
  if (status == MOXIE_OK) return "Ok";
  if (status == MOXIE_ERROR_INTERNAL) return "Internal";
  return moxie::to_string(static_cast<moxie::ErrorCode>(int64_t{status} - 1)).data();
}

}  // extern "C"
