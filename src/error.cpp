// Names of the error codes.
#include "moxie/error.h"

namespace moxie {

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
      return "InvalidArgument";
    case ErrorCode::Unsupported:
      return "Unsupported";
    case ErrorCode::Compile:
      return "Compile";
    case ErrorCode::Driver:
      return "Driver";
    case ErrorCode::OutOfMemory:
      return "OutOfMemory";
  }
  return "unknown";
}

}  // namespace moxie
