// SPDX-License-Identifier: Apache-2.0
// What the PTX parser yields: a module of variables and functions, each function a flat list of
// instructions with labels resolved to indices. Types and modifiers stay as they are written;
// their meaning is given in sim/isa and sim/async.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sim::ptx {

struct Location {
  int line = 0;
  int column = 0;
};

// Bad PTX. what() is one sentence that starts with "line L, column C: ".
class ParseError : public std::runtime_error {
 public:
  ParseError(Location at, const std::string& text)
      : std::runtime_error("line " + std::to_string(at.line) + ", column " + std::to_string(at.column) + ": " + text),
        where(at) {}
  Location where;
};

enum class Space : uint8_t { None, Reg, Const, Global, Local, Param, Shared };

enum class Type : uint8_t {
  None,
  B8,
  B16,
  B32,
  B64,
  B128,
  U8,
  U16,
  U32,
  U64,
  S8,
  S16,
  S32,
  S64,
  F16,
  F16x2,
  BF16,
  BF16x2,
  F32,
  F64,
  Pred,
  Other
};
int bytes_of(Type t);                        // 0 for Pred and None
Type type_from_name(std::string_view name);  // "u32" -> U32; unknown -> Other

// A .reg declaration, one entry a register (ranges %r<N> are expanded).
struct Register {
  std::string name;
  Type type = Type::None;
};

// A variable in .global, .const, .shared, .local or .param.
struct Variable {
  std::string name;
  Space space = Space::None;
  Type type = Type::None;
  int align = 1;
  uint64_t bytes = 0;  // 0 for extern __shared__ arrays of unknown size
  bool is_extern = false;
  std::vector<uint8_t> init;  // empty or `bytes` long
  // `bytes` bytes at offset hold (address of symbol + addend) >> shift; shift is 0 but for a lone masked byte.
  struct Relocation {
    uint64_t offset;
    std::string symbol;
    int64_t addend;
    bool generic;
    int bytes = 8;
    int shift = 0;
  };
  std::vector<Relocation> relocations;  // addresses inside init
};

struct Operand {
  enum class Kind : uint8_t {
    Register,   // reg = index into Function::registers
    Special,    // name, e.g. "%tid.x", "%laneid", "%cluster_ctarank"
    Immediate,  // bits: integer two's complement, or the IEEE bits of a float/double literal (is_float says)
    Symbol,     // name of a variable or function; addend
    Label,      // target = instruction index
    Address,    // [base + addend]: elements[0] is the base (Register, Symbol, Special or Immediate); further
                // elements are what follows the first comma, e.g. the coordinate Vector of [map, {x, y}]
    Vector,     // {a, b, ...}: elements. `call` has always {results}, callee, {arguments}[, call table]
    Sink,       // _
  };
  Kind kind = Kind::Sink;
  bool negated = false;  // !%p
  bool is_float = false;
  bool is_double = false;  // 0d..., or a decimal literal
  int reg = -1;
  int target = -1;
  int64_t addend = 0;
  uint64_t bits = 0;
  std::string name;
  std::vector<Operand> elements;
};

struct Instruction {
  std::string opcode;              // as written, "mad.lo.s32"
  std::vector<std::string> parts;  // split at '.'; "shared::cta" stays one part: {"mad", "lo", "s32"}
  int guard = -1;                  // predicate register, or -1
  bool guard_negated = false;
  std::vector<Operand> operands;  // `p|q` destinations are two operands, dual_destination is set
  bool dual_destination = false;
  Location where;
  int file = 0, source_line = 0;  // from the last .loc, 0 when there is none
};

// What an indirect call may reach: the functions of a .calltargets list, or any with the signature of a .callprototype.
struct CallTable {
  bool is_prototype = false;
  std::vector<std::string> targets;
  std::vector<Variable> params, results;
};

struct Function {
  std::string name;
  bool is_entry = false;
  bool is_declaration = false;
  std::vector<Variable> params;     // in order
  std::vector<Variable> results;    // of a .func
  std::vector<Register> registers;  // all scopes, shadowed names already resolved to indices
  std::vector<Variable> locals;     // .local, .shared, .param variables of the body; names unique within the function
  std::vector<Instruction> body;
  std::unordered_map<std::string, int> labels;                       // name -> instruction index
  std::unordered_map<std::string, std::vector<int>> branch_targets;  // .branchtargets tables
  std::unordered_map<std::string, CallTable> call_tables;            // .calltargets, .callprototype
  int reqntid[3] = {0, 0, 0}, maxntid[3] = {0, 0, 0};
  int reqnctapercluster[3] = {0, 0, 0};
  int maxnreg = 0, minnctapersm = 0, maxclusterrank = 0;
  bool explicit_cluster = false, blocks_are_clusters = false;
};

struct Module {
  int version_major = 0, version_minor = 0;
  std::string target;               // "sm_90a"
  std::vector<Variable> variables;  // module scope .global, .const, .shared (extern too)
  std::vector<Function> functions;
  std::unordered_map<int, std::string> files;            // .file
  std::unordered_map<std::string, std::string> aliases;  // .alias name -> function
};

// Throws ParseError. Never reads beyond text.
Module parse(std::string_view text);

}  // namespace sim::ptx
