// SPDX-License-Identifier: Apache-2.0
// What every function of moxie/c.h does around its work: no exception leaves it, and a failure leaves its sentence.
#pragma once
#include <fmt/format.h>

#include "moxie/c.h"
#include "moxie/error.h"

namespace moxie::c {

template <typename... T>
[[noreturn]] void reject(fmt::format_string<T...> format, T&&... values) {
  throw Error(ErrorCode::InvalidArgument, fmt::format(format, std::forward<T>(values)...));
}

// The status of the exception that is being handled; its sentence becomes the thread's last error.
moxie_status status_of_exception() noexcept;

template <class Work>
moxie_status guarded(Work&& work) noexcept {
  try {
    work();
    return MOXIE_OK;
  } catch (...) {
    return status_of_exception();
  }
}

// `name` stands for the argument in the sentence.
template <class T>
T& not_null(T* pointer, const char* name) {
  if (pointer == nullptr) reject("{} is null", name);
  return *pointer;
}

}  // namespace moxie::c
