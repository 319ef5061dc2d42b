# Writes the table behind moxie::jit::kernel_headers(): every file under ROOT/kernels/moxie, as raw string literals.
#   cmake -DOUT=kernel_headers.cpp -DROOT=<project folder> -P embed_kernels.cmake
if(NOT OUT OR NOT ROOT)
  message(FATAL_ERROR "embed_kernels.cmake needs -DOUT=<file to write> and -DROOT=<project folder>")
endif()

set(piece_bytes 16000)  # below every compiler's limit on the length of one literal
file(GLOB_RECURSE files RELATIVE "${ROOT}/kernels" "${ROOT}/kernels/moxie/*.cuh" "${ROOT}/kernels/moxie/*.h")
list(SORT files)

set(text "// The kernel sources, written by scripts/embed_kernels.cmake.\n#include \"jit/jit.h\"\n\n")
string(APPEND text "namespace moxie::jit {\n\nconst std::map<std::string, std::string>& kernel_headers() {\n")
string(APPEND text "  static const std::map<std::string, std::string> headers = {\n")
foreach(name IN LISTS files)
  file(READ "${ROOT}/kernels/${name}" source)
  string(FIND "${source}" ")moxie_source\"" clash)
  if(NOT clash EQUAL -1)
    message(FATAL_ERROR "${name} contains the raw string delimiter that embeds it: )moxie_source\"")
  endif()
  string(LENGTH "${source}" bytes)
  string(APPEND text "      {\"${name}\",\n       std::string()")
  set(at 0)
  while(at LESS bytes)
    string(SUBSTRING "${source}" ${at} ${piece_bytes} piece)
    string(APPEND text " +\n           R\"moxie_source(${piece})moxie_source\"")
    math(EXPR at "${at} + ${piece_bytes}")
  endwhile()
  string(APPEND text "},\n")
endforeach()
string(APPEND text "  };\n  return headers;\n}\n\n}  // namespace moxie::jit\n")

file(WRITE "${OUT}" "${text}")
