// SPDX-License-Identifier: Apache-2.0
// The cache of compiled kernels: damage, owners, full and unwritable disks, many processes.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pwd.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <utime.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "jit/jit.h"
#include "jit/pack.h"
#include "jit/sha256.h"
#include "moxie/error.h"
#include "scratch.h"

namespace moxie::jit {
namespace {

using test::ScopedVariable;
using test::ScratchFolder;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

mode_t mode_of(const fs::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesOfAnySizeGiveTheSameDigest) {
  std::string text;
  for (int i = 0; i < 300; ++i) text.push_back(static_cast<char>(i * 7));
  for (size_t length = 0; length < text.size(); ++length) {
    const std::string whole = sha256_hex(text.substr(0, length));
    for (const size_t piece : {size_t{1}, size_t{63}, size_t{64}, size_t{65}}) {
      Sha256 hash;
      for (size_t at = 0; at < length; at += piece) hash.add(text.substr(at, std::min(piece, length - at)));
      ASSERT_EQ(hash.hex(), whole) << length << " bytes in pieces of " << piece;
    }
  }
}

TEST(Sha256, AFieldBeginsWithItsLength) {
  Sha256 hash;
  hash.add_field("abc");
  EXPECT_EQ(hash.hex(), sha256_hex(std::string("\3\0\0\0\0\0\0\0abc", 11)));
}

class CacheTest : public ::testing::Test {
 protected:
  ScratchFolder scratch_;
  fs::path folder_ = scratch_.path() / "deep" / "moxie";
  std::string image_ = std::string("an image\n\0with any byte \xff", 25) + std::string(200, 'x');
};

TEST_F(CacheTest, StoresAndLoads) {
  const Cache cache(folder_);
  EXPECT_FALSE(cache.load("k.cubin"));
  EXPECT_EQ(cache.store("k.cubin", image_), "");
  EXPECT_EQ(cache.load("k.cubin"), image_);
  EXPECT_FALSE(cache.load("other.cubin"));
  cache.store("empty.ptx", "");
  EXPECT_EQ(cache.load("empty.ptx"), "");
  EXPECT_EQ(Cache(folder_.string() + "/").load("k.cubin"), image_);
}

TEST_F(CacheTest, IsPrivateToItsUser) {
  const mode_t old = ::umask(0);
  Cache(folder_).store("k.cubin", image_);
  ::umask(old);
  EXPECT_EQ(mode_of(folder_), 0700u);
  EXPECT_EQ(mode_of(folder_ / "k.cubin"), 0600u);
}

TEST_F(CacheTest, EveryDamagedByteIsNoticed) {
  const Cache cache(folder_);
  cache.store("k.cubin", image_);
  const std::string good = test::read_file(folder_ / "k.cubin");
  ASSERT_GT(good.size(), image_.size());
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char flip : {'\x01', '\x80'}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ flip);
      test::write_file(folder_ / "k.cubin", bad);
      ASSERT_FALSE(cache.load("k.cubin")) << "byte " << at;
    }
  }
  cache.store("k.cubin", image_);
  EXPECT_EQ(cache.load("k.cubin"), image_);
}

TEST_F(CacheTest, EveryTruncationAndExtensionIsNoticed) {
  const Cache cache(folder_);
  cache.store("k.cubin", image_);
  const std::string good = test::read_file(folder_ / "k.cubin");
  for (size_t length = 0; length < good.size(); ++length) {
    test::write_file(folder_ / "k.cubin", good.substr(0, length));
    ASSERT_FALSE(cache.load("k.cubin")) << length << " bytes";
  }
  test::write_file(folder_ / "k.cubin", good + "x");
  EXPECT_FALSE(cache.load("k.cubin"));
  test::write_file(folder_ / "other.cubin", good);
  EXPECT_FALSE(cache.load("other.cubin")) << "another key's entry";
}

TEST_F(CacheTest, WhatIsNoRegularFileIsAbsent) {
  const Cache cache(folder_);
  cache.store("k.cubin", image_);
  fs::create_directory(folder_ / "folder.cubin");
  fs::create_symlink(folder_ / "k.cubin", folder_ / "link.cubin");
  ASSERT_EQ(::mkfifo((folder_ / "pipe.cubin").c_str(), 0600), 0);
  EXPECT_FALSE(cache.load("folder.cubin"));
  EXPECT_FALSE(cache.load("link.cubin"));
  EXPECT_FALSE(cache.load("pipe.cubin"));
}

// A link that somebody else may aim later is not followed, be the entry behind it as it should be.
TEST_F(CacheTest, LinksAreNotFollowed) {
  const Cache cache(folder_);
  cache.store("k.cubin", image_);
  fs::rename(folder_ / "k.cubin", scratch_.path() / "elsewhere");
  fs::create_symlink(scratch_.path() / "elsewhere", folder_ / "k.cubin");
  EXPECT_FALSE(cache.load("k.cubin"));
  cache.store("k.cubin", image_);
  EXPECT_FALSE(fs::is_symlink(folder_ / "k.cubin"));
  EXPECT_EQ(cache.load("k.cubin"), image_);

  test::write_file(scratch_.path() / "version", "13.0\n");
  fs::create_symlink(scratch_.path() / "version", folder_ / "VERSION");
  EXPECT_FALSE(Cache(folder_).pack_version());
}

// A pack of root's serves everybody. What makes a folder of root's one is a file of root's and no link to one.
TEST_F(CacheTest, APackOfRootHasAVersionOfItsOwn) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a pack of root's";
  fs::create_directories(folder_);
  test::write_file(scratch_.path() / "version", "13.0\n");
  for (const fs::path& open : {scratch_.path(), folder_.parent_path(), folder_}) fs::permissions(open, fs::perms(0755));
  const auto serves_others = [&] {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::setuid(65534) != 0) ::_exit(2);
      try {
        ::_exit(Cache(folder_).pack_version() ? 0 : 3);
      } catch (const Error&) {
        ::_exit(1);
      }
    }
    return test::wait_for(child);
  };
  EXPECT_EQ(serves_others(), 1) << "no VERSION";
  fs::create_symlink(scratch_.path() / "version", folder_ / "VERSION");
  EXPECT_EQ(serves_others(), 1) << "a link";
  fs::remove(folder_ / "VERSION");
  test::write_file(folder_ / "VERSION", "13.0\n");
  EXPECT_EQ(serves_others(), 0) << "a file";
  ASSERT_EQ(::chown((folder_ / "VERSION").c_str(), 12345, 12345), 0);
  EXPECT_EQ(serves_others(), 1) << "somebody else's file";
}

TEST_F(CacheTest, AFolderOfAnotherUserIsRefused) {
  fs::create_directories(folder_);
  // Root can give the folder away; others try one that is root's.
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::chown(folder_.c_str(), 12345, 12345), 0);
  }
  const fs::path foreign = root ? folder_ : fs::path("/usr");
  try {
    const Cache cache(foreign);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("cache directory " + foreign.string() + " belongs to another user"));
    EXPECT_THAT(error.what(), ::testing::EndsWith("; MOXIE_CACHE_DIR names another"));
  }
}

TEST_F(CacheTest, AnEntryOfAnotherUserIsAbsentAndReplaced) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const Cache cache(folder_);
  cache.store("k.cubin", image_);
  ASSERT_EQ(::chown((folder_ / "k.cubin").c_str(), 12345, 12345), 0);
  EXPECT_FALSE(cache.load("k.cubin"));
  cache.store("k.cubin", image_);
  EXPECT_EQ(cache.load("k.cubin"), image_);
}

TEST_F(CacheTest, AFileInTheFoldersPlaceIsRefused) {
  test::write_file(scratch_.path() / "file", "x");
  EXPECT_THROW(Cache(scratch_.path() / "file"), Error);
}

TEST_F(CacheTest, AnUnwritableFolderOnlyWarns) {
  test::write_file(scratch_.path() / "file", "x");
  const Cache cache(scratch_.path() / "file" / "moxie");
  EXPECT_THAT(cache.store("k.cubin", image_), HasSubstr("cannot be kept in " + cache.folder().string()));
  EXPECT_FALSE(cache.load("k.cubin"));
  fs::remove(scratch_.path() / "file");
  EXPECT_EQ(cache.store("k.cubin", image_), "");
  EXPECT_EQ(cache.load("k.cubin"), image_);
}

TEST_F(CacheTest, WithoutPermissionItOnlyWarns) {
  fs::create_directories(folder_);
  fs::permissions(scratch_.path(), fs::perms(0755));
  const uid_t nobody = 65534;
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(folder_.c_str(), nobody, nobody), 0);
  }
  fs::permissions(folder_, fs::perms(0500));
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(nobody) != 0) ::_exit(2);
    const Cache cache(folder_);
    ::_exit(cache.store("k.cubin", image_).find("Permission denied") == std::string::npos ? 3 : 0);
  }
  EXPECT_EQ(test::wait_for(child), 0);
  EXPECT_TRUE(names_in(folder_).empty());
}

TEST_F(CacheTest, ADiskThatFillsUpLeavesNothingBehind) {
  const Cache before(folder_);
  before.store("old.cubin", image_);
  const pid_t child = ::fork();
  if (child == 0) {
    // A limit on the size of files makes write() fail half-way, as a full disk does.
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100000, 100000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(2);
    const Cache cache(folder_);
    ::_exit(cache.store("new.cubin", std::string(1000000, 'x')).empty() ? 3 : 0);
  }
  EXPECT_EQ(test::wait_for(child), 0);
  EXPECT_EQ(names_in(folder_), std::vector<std::string>{"old.cubin"});
}

TEST_F(CacheTest, OnlyStaleTemporaryFilesAreRemoved) {
  const Cache cache(folder_);
  cache.store("old.cubin", image_);
  for (const char* name : {".tmp-1-stale", ".tmp-2-fresh"}) test::write_file(folder_ / name, "half");
  const std::time_t now = std::time(nullptr);
  const utimbuf two_hours{now - 7200, now - 7200};
  ASSERT_EQ(::utime((folder_ / ".tmp-1-stale").c_str(), &two_hours), 0);
  ASSERT_EQ(::utime((folder_ / "old.cubin").c_str(), &two_hours), 0);
  cache.store("k.cubin", image_);
  EXPECT_THAT(names_in(folder_), ::testing::UnorderedElementsAre("old.cubin", "k.cubin", ".tmp-2-fresh"));
}

TEST_F(CacheTest, ReadersNeverSeeHalfAnEntryAndKilledWritersLeaveNone) {
  const std::string a(300000, 'a'), b(500000, 'b');
  const Cache cache(folder_);
  cache.store("k.cubin", a);
  for (int round = 0; round < 5; ++round) {
    std::vector<pid_t> writers;
    for (int i = 0; i < 4; ++i) {
      const pid_t child = ::fork();
      if (child == 0) {
        const Cache own(folder_);
        for (;;) own.store("k.cubin", i % 2 == 0 ? a : b);
      }
      writers.push_back(child);
    }
    for (int i = 0; i < 30; ++i) {
      const auto image = cache.load("k.cubin");
      ASSERT_TRUE(image);
      ASSERT_TRUE(*image == a || *image == b);
    }
    for (const pid_t writer : writers) ::kill(writer, SIGKILL);
    for (const pid_t writer : writers) EXPECT_EQ(test::wait_for(writer), 128 + SIGKILL);
    const auto image = cache.load("k.cubin");
    ASSERT_TRUE(image);
    EXPECT_TRUE(*image == a || *image == b);
  }
}

TEST_F(CacheTest, FollowsTheEnvironment) {
  const ScopedVariable xdg("XDG_CACHE_HOME", std::nullopt);
  const ScopedVariable own("MOXIE_CACHE_DIR", std::nullopt);
  const ScopedVariable no_home("HOME", std::nullopt);
  const passwd* user = ::getpwuid(::geteuid());
  const bool has_home = user != nullptr && *user->pw_dir != '\0';
  EXPECT_EQ(Cache::default_folder(), has_home ? std::string(user->pw_dir) + "/.cache/moxie" : "");
  const ScopedVariable home("HOME", "/home/someone");
  EXPECT_EQ(Cache::default_folder(), "/home/someone/.cache/moxie");
  const ScopedVariable relative("XDG_CACHE_HOME", "relative");
  EXPECT_EQ(Cache::default_folder(), "/home/someone/.cache/moxie");
  const ScopedVariable absolute("XDG_CACHE_HOME", "/var/caches");
  EXPECT_EQ(Cache::default_folder(), "/var/caches/moxie");
  const ScopedVariable named("MOXIE_CACHE_DIR", "/elsewhere");
  EXPECT_EQ(Cache::default_folder(), "/elsewhere");
}

// What lies in the current folder is nobody's cache.
TEST_F(CacheTest, WithoutAFolderNothingIsKept) {
  Cache(folder_).store("k.cubin", image_);
  test::write_file(folder_ / "VERSION", "13.0\n");
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  const Cache cache("");
  EXPECT_FALSE(cache.load("k.cubin"));
  EXPECT_FALSE(cache.pack_version());
  const std::string warning = cache.store("other.cubin", image_);
  fs::current_path(before);
  EXPECT_EQ(warning, "compiled kernels cannot be kept: there is no home directory and MOXIE_CACHE_DIR is not set");
  EXPECT_FALSE(fs::exists(folder_ / "other.cubin"));
}

// The kernel's files say that they have 4096 bytes.
TEST_F(CacheTest, AFileThatEndsEarlyIsAbsent) {
  const fs::path folder = "/sys/devices/system/cpu";
  struct stat status {};
  if (::stat((folder / "online").c_str(), &status) != 0 || status.st_uid != ::geteuid())
    GTEST_SKIP() << "no such file of this user";
  EXPECT_FALSE(Cache(folder).load("online"));
}

TEST_F(CacheTest, AVersionFileMakesItAPack) {
  fs::create_directories(folder_);
  EXPECT_FALSE(Cache(folder_).pack_version());
  test::write_file(folder_ / "VERSION", "13.0\n");
  EXPECT_EQ(Cache(folder_).pack_version(), "13.0");
}

Request empty_kernel(const std::string& name) {
  Request request;
  request.source = "extern \"C\" __global__ void " + name + "() {}\n";
  request.kind = ImageKind::Ptx;
  return request;
}

TEST_F(CacheTest, APackIsReadableByEverybody) {
  const mode_t old = ::umask(0077);
  const PackSummary packed = write_pack(folder_, {empty_kernel("one"), empty_kernel("two")}, 1);
  ::umask(old);
  EXPECT_EQ(packed.compiled, 2);
  EXPECT_EQ(mode_of(folder_), 0755u);
  EXPECT_EQ(names_in(folder_).size(), 3u);
  for (const std::string& name : names_in(folder_)) EXPECT_EQ(mode_of(folder_ / name), 0644u) << name;
}

TEST_F(CacheTest, APackThatCannotBeWrittenIsNamed) {
  const Request request = empty_kernel("one");
  const auto refusal = [&](const std::vector<Request>& requests) -> std::string {
    try {
      write_pack(folder_, requests, 1);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::OutOfMemory);
      return error.what();
    }
    return "written";
  };
  const std::string begin = "the pack " + folder_.string() + " cannot be written: ";
  fs::create_directories(folder_ / "VERSION");
  EXPECT_EQ(refusal({}), begin + "VERSION cannot be written");
  fs::remove(folder_ / "VERSION");
  // A file that can be written, but whose mode nobody changes.
  if (::access("/proc/self/comm", W_OK) == 0) {
    fs::create_symlink("/proc/self/comm", folder_ / "VERSION");
    EXPECT_EQ(refusal({}), begin + std::strerror(EPERM));
    fs::remove(folder_ / "VERSION");
  }
  fs::create_directories(folder_ / cache_key(request, Compiler::get().version()));
  EXPECT_EQ(refusal({request}),
            begin + "compiled kernels cannot be kept in " + folder_.string() + ": " + std::strerror(EISDIR));
}

}  // namespace
}  // namespace moxie::jit
