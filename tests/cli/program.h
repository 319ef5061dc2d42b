// SPDX-License-Identifier: Apache-2.0
// Runs the program `moxie` as a user would and keeps what it said; makes the files it reads.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace moxie::test {

struct Finished {
  int status = -1;  // exit status; -1: it did not exit by itself
  std::string out, err;
  int lines_on_stderr() const;
};

struct Setting {
  std::map<std::string, std::string> environment;  // beside this process' own
  uint64_t file_limit = 0;                         // most bytes of a file it writes; 0: no limit
  uint64_t memory_limit = 0;                       // most bytes of address space; 0: no limit
  bool obeys_permissions = false;                  // those of files, even where root runs it
};

// A setting in which the program takes the simulator for a GPU.
Setting simulator_as_gpu();

Finished run_moxie(const std::vector<std::string>& arguments, const Setting& setting = {});

// Starts it without waiting; its output goes to `log`.
pid_t start_moxie(const std::vector<std::string>& arguments, const Setting& setting, const std::string& log);
int wait_for(pid_t process);  // exit status, -1 when it was killed
// Waits until its output has what the regular expression finds, and kills it then. False when it ended before.
bool kill_when_it_says(pid_t process, const std::string& log, const std::string& expression);

// A folder that is gone at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  const std::filesystem::path& path() const { return path_; }
  // `text` with DIR in place of the folder, whose name is another one each time.
  std::string without_path(std::string text) const;

 private:
  std::filesystem::path path_;
};

// A file of tensors made by hand, so that it can be wrong.
class RawFile {
 public:
  // Appends a tensor of zeros (or of `data`), in order.
  RawFile& add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
               const std::string& data = "");
  RawFile& add_int32(const std::string& name, const std::vector<int32_t>& values);
  std::string header() const;
  std::string bytes() const;
  static std::string with_header(const std::string& header, const std::string& data = "");

 private:
  std::string entries_, data_;
};

void write_file(const std::string& path, const std::string& bytes);
std::string read_file(const std::string& path);

}  // namespace moxie::test
