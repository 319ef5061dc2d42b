// SPDX-License-Identifier: Apache-2.0
// The one exception type of the library.
#pragma once
#include <stdexcept>
#include <string>

#include "moxie/names.h"

namespace moxie {

// What kind of thing went wrong.
enum class ErrorCode : int {
  InvalidArgument,  // a caller's argument breaks a rule; nothing was launched
  Unsupported,      // valid, but not on this device or not in this build; nothing was launched
  Compile,          // NVRTC is missing or rejected a kernel
  Driver,           // the CUDA driver is missing or reported an error
  OutOfMemory,      // device or host memory, or disk space
  Peer,             // another rank is late or different, or what the ranks were given does not fit
};

template <>
struct EnumTable<ErrorCode> {
  static constexpr std::string_view kType = "ErrorCode";
  static constexpr EnumName<ErrorCode> kNames[] = {
      {ErrorCode::InvalidArgument, "InvalidArgument", "InvalidArgument"},
      {ErrorCode::Unsupported, "Unsupported", "Unsupported"},
      {ErrorCode::Compile, "Compile", "Compile"},
      {ErrorCode::Driver, "Driver", "Driver"},
      {ErrorCode::OutOfMemory, "OutOfMemory", "OutOfMemory"},
      {ErrorCode::Peer, "Peer", "Peer"},
  };
};

// what() is one sentence that names the argument, what was given and what is allowed.
class Error : public std::runtime_error {
 public:
  // The sentence is what() says.
  Error(ErrorCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ErrorCode code() const { return code_; }  // what kind of error it is

 private:
  ErrorCode code_;
};

}  // namespace moxie
