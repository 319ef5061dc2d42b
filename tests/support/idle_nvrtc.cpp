// SPDX-License-Identifier: Apache-2.0
// An NVRTC that compiles nothing: the image is the options that it was given, a line each. It shows what is asked of
// versions that a machine does not have and what is said when one fails (tests/unit/jit_test.cpp). MOXIE_NVRTC names
// it, MOXIE_IDLE_VERSION is the version that it reports (major * 100 + minor), MOXIE_IDLE_FAILURE the function that
// fails, MOXIE_IDLE_LOG what it says, and MOXIE_IDLE_IMAGE a file with another image.
#pragma GCC visibility push(default)
#include <nvrtc.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace {

std::string image;
std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

nvrtcResult result_of(const char* function) {
  return variable("MOXIE_IDLE_FAILURE") == function ? NVRTC_ERROR_INTERNAL_ERROR : NVRTC_SUCCESS;
}

std::string log() { return std::getenv("MOXIE_IDLE_LOG") == nullptr ? "said\n" : std::getenv("MOXIE_IDLE_LOG"); }

}  // namespace

extern "C" {

nvrtcResult nvrtcVersion(int* major, int* minor) {
  const int version = std::atoi(variable("MOXIE_IDLE_VERSION").data());
  *major = version / 100, *minor = version % 100;
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult) { return "failed"; }
nvrtcResult nvrtcCreateProgram(nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*) {
  return result_of("nvrtcCreateProgram");
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram*) { return NVRTC_SUCCESS; }
nvrtcResult nvrtcCompileProgram(nvrtcProgram, int options, const char* const* option) {
  image.clear();
  for (int i = 0; i < options; ++i) image += std::string(option[i]) + "\n";
  if (const char* file = std::getenv("MOXIE_IDLE_IMAGE"))
    image.assign(std::istreambuf_iterator<char>(std::ifstream(file).rdbuf()), {});
  return result_of("nvrtcCompileProgram");
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram, size_t* bytes) {
  *bytes = log().size() + 1;
  return result_of("nvrtcGetProgramLogSize");
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram, char* to) {
  std::memcpy(to, log().c_str(), log().size() + 1);
  return result_of("nvrtcGetProgramLog");
}
// PTX ends in a zero byte, machine code does not.
nvrtcResult nvrtcGetPTXSize(nvrtcProgram, size_t* bytes) {
  *bytes = image.size() + 1;
  return result_of("nvrtcGetPTXSize");
}
nvrtcResult nvrtcGetPTX(nvrtcProgram, char* ptx) {
  std::memcpy(ptx, image.c_str(), image.size() + 1);
  return result_of("nvrtcGetPTX");
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram, size_t* bytes) {
  *bytes = image.size();
  return result_of("nvrtcGetCUBINSize");
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram, char* cubin) {
  std::memcpy(cubin, image.data(), image.size());
  return result_of("nvrtcGetCUBIN");
}
}
