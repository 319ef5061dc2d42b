// SPDX-License-Identifier: Apache-2.0
// See program.h.
#include "tests/cli/program.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace moxie::test {

int Finished::lines_on_stderr() const { return static_cast<int>(std::count(err.begin(), err.end(), '\n')); }

namespace {

pid_t start(const std::vector<std::string>& arguments, const Setting& setting, const std::string& out,
            const std::string& err) {
  std::vector<char*> argv;
  std::string program = MOXIE_PROGRAM;
  std::vector<std::string> copies = arguments;
  argv.push_back(program.data());
  for (auto& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t process = fork();
  if (process != 0) return process;
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // it does not outlive a test that is killed
  const int out_file = open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  const int err_file = open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(out_file, STDOUT_FILENO);
  dup2(err_file, STDERR_FILENO);
  for (const auto& [name, value] : setting.environment) setenv(name.c_str(), value.c_str(), 1);
  if (setting.file_limit != 0) {
    const rlimit limit{setting.file_limit, setting.file_limit};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  if (setting.memory_limit != 0) {
    const rlimit limit{setting.memory_limit, setting.memory_limit};
    setrlimit(RLIMIT_AS, &limit);
  }
  if (setting.obeys_permissions && geteuid() == 0) {
    // Where root may not give these up, it seldom has them.
    for (const int capability : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH}) prctl(PR_CAPBSET_DROP, capability);
  }
  execv(argv[0], argv.data());
  _exit(127);
}

}  // namespace

Setting simulator_as_gpu() {
  std::string folders = std::filesystem::path(MOXIE_SIM_LIBRARY).parent_path().string();
  if (const char* others = getenv("LD_LIBRARY_PATH")) folders += std::string(":") + others;
  Setting setting;
  setting.environment = {
      {"MOXIE_DEVICE", "cuda"}, {"LD_LIBRARY_PATH", folders}, {"MOXIE_SIM_ARCH", "sm_90a"}, {"MOXIE_SIM_SMS", "2"}};
  return setting;
}

pid_t start_moxie(const std::vector<std::string>& arguments, const Setting& setting, const std::string& log) {
  return start(arguments, setting, log, log);
}

int wait_for(pid_t process) {
  int status = 0;
  if (process < 0 || waitpid(process, &status, 0) != process) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool kill_when_it_says(pid_t process, const std::string& log, const std::string& expression) {
  while (!std::regex_search(read_file(log), std::regex(expression))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (waitpid(process, nullptr, WNOHANG) != 0) return false;
  }
  kill(process, SIGKILL);
  wait_for(process);
  return true;
}

Finished run_moxie(const std::vector<std::string>& arguments, const Setting& setting) {
  const Folder folder;
  Finished finished;
  finished.status = wait_for(start(arguments, setting, folder / "out", folder / "err"));
  finished.out = read_file(folder / "out");
  finished.err = read_file(folder / "err");
  return finished;
}

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "moxie-test-XXXXXX").string();
  path_ = mkdtemp(name.data());
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::without_path(std::string text) const {
  const std::string path = path_.string();
  for (size_t at = text.find(path); at != std::string::npos; at = text.find(path)) text.replace(at, path.size(), "DIR");
  return text;
}

RawFile& RawFile::add(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
                      const std::string& data) {
  const bool one = dtype == "U8" || dtype == "I8" || dtype == "F8_E4M3";
  size_t bytes = dtype == "F32" || dtype == "I32" ? 4 : dtype == "I64" ? 8 : one ? 1 : 2;
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  if (!entries_.empty()) entries_ += ",";
  entries_ += fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, dtype,
                          fmt::join(shape, ","), data_.size(), data_.size() + bytes);
  data_ += data.empty() ? std::string(bytes, '\0') : data;
  return *this;
}

RawFile& RawFile::add_int32(const std::string& name, const std::vector<int32_t>& values) {
  return add(name, "I32", {static_cast<int64_t>(values.size())},
             std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4));
}

std::string RawFile::header() const { return "{" + entries_ + "}"; }
std::string RawFile::bytes() const { return with_header(header(), data_); }

std::string RawFile::with_header(const std::string& header, const std::string& data) {
  std::string head(8, '\0');
  for (int i = 0; i < 8; ++i) head[static_cast<size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
  return head + header + data;
}

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string read_file(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace moxie::test
