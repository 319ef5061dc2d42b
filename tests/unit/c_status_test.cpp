// SPDX-License-Identifier: Apache-2.0
// What an exception becomes that reaches the C interface: its status and its sentence.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "c/status.h"
#include "scratch.h"

namespace moxie::c {
namespace {

TEST(CStatus, EveryExceptionHasAStatusAndASentence) {
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  const struct {
    std::function<void()> work;
    moxie_status status;
    std::string sentence;
  } kCases[] = {
      {[] { throw Error(ErrorCode::Peer, "rank 1 sent no tokens"); }, MOXIE_ERROR_PEER, "rank 1 sent no tokens"},
      {[] { reject("{} is {}", "n", 3); }, MOXIE_ERROR_INVALID_ARGUMENT, "n is 3"},
      {[] { throw std::bad_alloc(); }, MOXIE_ERROR_OUT_OF_MEMORY, "the host has no memory left"},
      {[] { throw std::length_error("vector"); }, MOXIE_ERROR_OUT_OF_MEMORY,
       "a size exceeds what the host's memory can hold"},
      {[&] { throw no_thread; }, MOXIE_ERROR_OUT_OF_MEMORY, no_thread.what()},
      {[] { throw std::runtime_error("something else"); }, MOXIE_ERROR_INTERNAL, "something else"},
      {[] { throw 7; }, MOXIE_ERROR_INTERNAL, "an exception of an unknown type was thrown"},
  };
  for (const auto& [work, status, sentence] : kCases) {
    EXPECT_EQ(guarded(work), status) << sentence;
    EXPECT_EQ(moxie_last_error(), sentence);
  }
  EXPECT_EQ(guarded([] {}), MOXIE_OK);
  EXPECT_EQ(moxie_last_error(), kCases[std::size(kCases) - 1].sentence) << "a success leaves it alone";
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which need more address space than that
TEST(CStatus, ASentenceThatFindsNoMemoryIsReplaced) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto error = std::make_exception_ptr(Error(ErrorCode::Peer, std::string(size_t{1} << 26, 'x')));
    const rlimit none{0, 0};
    if (::setrlimit(RLIMIT_AS, &none) != 0) ::_exit(2);
    if (guarded([&] { std::rethrow_exception(error); }) != MOXIE_ERROR_PEER) ::_exit(3);
    const char* const said = "there is no memory for the sentence that says what went wrong";
    ::_exit(std::strcmp(moxie_last_error(), said) == 0 ? 0 : 4);
  }
  EXPECT_EQ(test::wait_for(child), 0);
}
#endif

}  // namespace
}  // namespace moxie::c
