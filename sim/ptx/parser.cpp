// SPDX-License-Identifier: Apache-2.0
// The grammar of PTX modules: directives, variables, functions, instructions and their operands (PTX ISA 4.3, 5.4, 11).
// Names are resolved here: registers to indices, labels to instruction indices, nested variables to unique names.
#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "sim/ptx/scanner.h"

namespace sim::ptx {
namespace {

// What keeps hostile text from using up memory or stack.
constexpr int kMaxScopeDepth = 200;
constexpr int kMaxOperandDepth = 8;
constexpr uint64_t kMaxRegisters = 1u << 20;            // of a module
constexpr uint64_t kMaxMadeNames = 1u << 17;            // of a module's variables and tables of labels
constexpr uint64_t kMaxVariableBytes = 1ull << 40;      // of one variable
constexpr uint64_t kOpenDimension = UINT64_MAX;         // of an array that its initialiser sizes
constexpr uint64_t kMaxInitialisedBytes = 64ull << 20;  // of a module

// Section 10. Those that end in a digit or have components are spelled by their prefix.
bool is_special_register(std::string_view name) {
  static const std::unordered_set<std::string_view> kNames = {"%laneid",
                                                              "%warpid",
                                                              "%nwarpid",
                                                              "%smid",
                                                              "%nsmid",
                                                              "%gridid",
                                                              "%is_explicit_cluster",
                                                              "%cluster_ctarank",
                                                              "%cluster_nctarank",
                                                              "%lanemask_eq",
                                                              "%lanemask_le",
                                                              "%lanemask_lt",
                                                              "%lanemask_ge",
                                                              "%lanemask_gt",
                                                              "%clock",
                                                              "%clock_hi",
                                                              "%clock64",
                                                              "%globaltimer",
                                                              "%globaltimer_lo",
                                                              "%globaltimer_hi",
                                                              "%reserved_smem_offset_begin",
                                                              "%reserved_smem_offset_end",
                                                              "%reserved_smem_offset_cap",
                                                              "%reserved_smem_offset_0",
                                                              "%reserved_smem_offset_1",
                                                              "%total_smem_size",
                                                              "%aggr_smem_size",
                                                              "%dynamic_smem_size",
                                                              "%current_graph_exec"};
  return kNames.count(name) != 0;
}
bool is_special_vector(std::string_view name) {
  static const std::unordered_set<std::string_view> kNames = {
      "%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"};
  return kNames.count(name) != 0;
}
bool is_numbered_special(std::string_view name) {
  for (std::string_view prefix : {"%envreg", "%pm"}) {
    if (name.size() <= prefix.size() || name.substr(0, prefix.size()) != prefix) continue;
    const std::string_view rest = name.substr(prefix.size());
    if (rest[0] >= '0' && rest[0] <= '9') return true;
  }
  return false;
}

std::vector<std::string> split_opcode(const std::string& opcode) {
  std::vector<std::string> parts;
  size_t start = 0;
  for (size_t dot; (dot = opcode.find('.', start)) != std::string::npos; start = dot + 1)
    parts.push_back(opcode.substr(start, dot - start));
  parts.push_back(opcode.substr(start));
  return parts;
}

// The names that one { } scope declares.
struct Scope {
  int parent = -1;
  struct Range {
    int first;
    uint64_t count;
    int width;  // registers of a name
  };
  std::unordered_map<std::string, int> registers;
  std::unordered_map<std::string, Range> register_ranges;  // %r<N>
  std::unordered_map<std::string, std::string> variables;  // written name -> unique name
  std::unordered_map<std::string, int> labels;
  std::unordered_map<std::string, std::string> tables;  // .branchtargets, .callprototype, .calltargets
};

class Parser {
 public:
  explicit Parser(std::string_view text) : in_(text) {}
  Module parse();

 private:
  // Module level.
  void version_target();
  void perf_directives(Function& f);
  bool perf_directive(Function& f);
  void function(bool is_entry, bool is_extern);
  void alias();
  void file_directive();
  void section();
  void pragma();
  void attribute();
  void check_symbols();

  // Variables.
  bool at_space(Space* space);
  struct Declared {
    Type type = Type::None;
    int vector = 1;
    int align = 0;
    bool is_pointer = false;
  };
  Declared declared_type(bool parameter);
  uint64_t made_names(const char* what);
  void variables(Space space, bool is_extern, std::vector<Variable>& out, int scope);
  Variable parameter();
  std::vector<Variable> parameter_list(Function* f, int scope);
  void initialiser(Variable& v, std::vector<uint64_t>& dims);
  void initialise_level(Variable& v, const std::vector<uint64_t>& dims, size_t level, uint64_t offset, uint64_t* count);
  void initialise_element(Variable& v, uint64_t offset);
  void merge_masked_relocations(Variable& v);
  void reserve_bytes(Variable& v, uint64_t end);

  // Function bodies.
  void body(int scope, int depth);
  void statement(int scope, int depth);
  void registers(int scope);
  std::string new_table(const std::string& label, int scope);
  void after_label(const std::string& label, Location where, int scope);
  void instruction(int scope, std::string_view first_word, Location where, int guard, bool negated);
  void call_operands(Instruction& i, int scope);
  Operand operand(int scope, int depth);
  Operand named_operand(int scope);
  Operand list(char close, int scope, int depth);
  void resolve_labels();
  void resolve(Operand& o, const Instruction& i);
  int new_scope(int parent) {
    scopes_.push_back({});
    scopes_.back().parent = parent;
    return static_cast<int>(scopes_.size()) - 1;
  }
  int find_register(int scope, const std::string& name) const;
  const std::string* find_variable(int scope, const std::string& name) const;
  std::string unique_name(const std::string& name);
  int add_register(const std::string& name, Type type);
  int add_vector(const std::string& name, const Declared& d);
  Operand vector_operand(int first, int width);

  Scanner in_;
  Module module_;
  Function* f_ = nullptr;  // the function whose body is being read
  std::vector<Scope> scopes_;
  std::unordered_map<std::string, int> name_uses_, label_uses_;  // within the function
  struct PendingTable {
    std::string table;
    std::vector<std::pair<std::string, Location>> labels;
    int scope;
  };
  std::vector<PendingTable> pending_tables_;
  int file_ = 0, source_line_ = 0;
  // Of the registers of the function, those that begin a vector: its width.
  std::unordered_map<int, int> vectors_;
  uint64_t register_count_ = 0, made_names_ = 0, initialised_bytes_ = 0;
  std::unordered_map<std::string, size_t> function_index_, variable_index_;
  struct UsedSymbol {
    std::string name;
    Location where;
  };
  std::vector<UsedSymbol> used_symbols_;
};

// ---- module ------------------------------------------------------------------------------------

Module Parser::parse() {
  version_target();
  while (!in_.at_end()) {
    if (in_.accept(';')) continue;
    if (in_.accept_directive(".address_size")) {
      if (in_.unsigned_integer("the address size", 64) != 64) in_.fail("only 64-bit addresses are supported");
      continue;
    }
    if (in_.accept_directive(".file")) {
      file_directive();
      continue;
    }
    if (in_.accept_directive(".loc")) {
      in_.skip_line();
      continue;
    }
    if (in_.accept_directive(".section")) {
      section();
      continue;
    }
    if (in_.accept_directive(".pragma")) {
      pragma();
      continue;
    }
    if (in_.accept_directive(".alias")) {
      alias();
      continue;
    }
    bool is_extern = false;
    for (;;) {
      if (in_.accept_directive(".extern"))
        is_extern = true;
      else if (!in_.accept_directive(".visible") && !in_.accept_directive(".weak") && !in_.accept_directive(".common"))
        break;
    }
    if (in_.accept_directive(".entry")) {
      function(true, is_extern);
      continue;
    }
    if (in_.accept_directive(".func")) {
      function(false, is_extern);
      continue;
    }
    Space space;
    if (at_space(&space)) {
      if (space == Space::Reg || space == Space::Param || space == Space::Local)
        in_.fail("a module-scope variable is in .global, .const or .shared");
      variables(space, is_extern, module_.variables, -1);
      continue;
    }
    in_.fail("expected a directive, found " + in_.next_for_message());
  }
  check_symbols();
  return std::move(module_);
}

// 11.1.2: all there are.
bool is_architecture(std::string_view name) {
  static constexpr std::string_view kKnown[] = {
      "10",   "11",  "12",   "13",   "20",  "30",   "32",   "35",  "37",   "50",   "52",  "53",   "60",   "61",  "62",
      "70",   "72",  "75",   "80",   "86",  "87",   "88",   "89",  "90",   "90a",  "100", "100a", "100f", "101", "101a",
      "101f", "103", "103a", "103f", "110", "110a", "110f", "120", "120a", "120f", "121", "121a", "121f"};
  return name.substr(0, 3) == "sm_" &&
         std::find(std::begin(kKnown), std::end(kKnown), name.substr(3)) != std::end(kKnown);
}

bool is_platform_option(std::string_view name) {
  return name == "texmode_unified" || name == "texmode_independent" || name == "debug" || name == "map_f64_to_f32";
}

void Parser::version_target() {
  if (!in_.accept_directive(".version")) in_.fail("PTX begins with .version, found " + in_.next_for_message());
  in_.skip_space();
  const std::string major(in_.word());
  if (major.empty() || !in_.accept('.')) in_.fail("expected a version like 8.0 after .version");
  const std::string minor(in_.word());
  auto number = [&](const std::string& s) {
    if (s.empty() || s.size() > 4 || s.find_first_not_of("0123456789") != std::string::npos)
      in_.fail("expected a version like 8.0 after .version");
    return std::stoi(s);
  };
  module_.version_major = number(major);
  module_.version_minor = number(minor);
  if (!in_.accept_directive(".target")) in_.fail(".target follows .version, found " + in_.next_for_message());
  do {
    in_.skip_space();
    const Location where = in_.where();
    const std::string name(in_.identifier("a target"));
    if (is_architecture(name))
      module_.target = name;
    else if (!is_platform_option(name))
      throw ParseError(where, "unknown target '" + name + "'");
  } while (in_.accept(','));
  if (module_.target.empty()) in_.fail(".target names no sm_ architecture");
}

void Parser::file_directive() {
  const int index = static_cast<int>(in_.unsigned_integer("a file index", 1 << 30));
  module_.files[index] = in_.string_literal();
  while (in_.accept(',')) in_.constant();
}

void Parser::section() {
  in_.skip_space();
  in_.opcode_rest();  // .debug_str
  if (in_.at_identifier()) in_.identifier("a section name");
  in_.expect('{', "after a section name");
  for (char c; (c = in_.peek()) != '}';) {
    if (in_.at_end()) in_.fail("this section is never closed");
    if (c == '"')
      in_.string_literal();
    else
      in_.accept(c);
  }
  in_.accept('}');
}

void Parser::pragma() {
  do in_.string_literal();
  while (in_.accept(','));
  in_.accept(';');
}

void Parser::attribute() {
  in_.expect('(', "after .attribute");
  for (int open = 1; open > 0;) {
    const char c = in_.peek();
    if (in_.at_end()) in_.fail("this .attribute is never closed");
    in_.accept(c);
    if (c == '(') ++open;
    if (c == ')') --open;
  }
}

void Parser::alias() {
  const std::string name(in_.identifier("an alias"));
  in_.expect(',', "between the names of .alias");
  const Location where = in_.where();
  const std::string target(in_.identifier("a function name"));
  in_.expect(';', "after .alias");
  module_.aliases[name] = target;
  used_symbols_.push_back({target, where});
}

bool Parser::perf_directive(Function& f) {
  auto dims = [&](int(&d)[3]) {
    d[0] = d[1] = d[2] = 1;
    for (int i = 0; i < 3; ++i) {
      d[i] = static_cast<int>(in_.unsigned_integer("a dimension", 1 << 30));
      if (i < 2 && !in_.accept(',')) break;
    }
    return true;
  };
  auto number = [&](int& n) {
    n = static_cast<int>(in_.unsigned_integer("a directive's argument", 1 << 30));
    return true;
  };
  int ignored = 0;
  if (in_.accept_directive(".maxntid")) return dims(f.maxntid);
  if (in_.accept_directive(".reqntid")) return dims(f.reqntid);
  if (in_.accept_directive(".reqnctapercluster")) return dims(f.reqnctapercluster);
  if (in_.accept_directive(".maxnreg")) return number(f.maxnreg);
  if (in_.accept_directive(".minnctapersm")) return number(f.minnctapersm);
  if (in_.accept_directive(".maxnctapersm")) return number(ignored);
  if (in_.accept_directive(".maxclusterrank")) return number(f.maxclusterrank);
  if (in_.accept_directive(".abi_preserve")) return number(ignored);
  if (in_.accept_directive(".abi_preserve_control")) return number(ignored);
  if (in_.accept_directive(".explicitcluster")) return f.explicit_cluster = true;
  if (in_.accept_directive(".blocksareclusters")) return f.blocks_are_clusters = true;
  if (in_.accept_directive(".noreturn")) return true;
  if (in_.accept_directive(".attribute")) return attribute(), true;
  if (in_.accept_directive(".pragma")) return pragma(), true;
  return false;
}

void Parser::perf_directives(Function& f) {
  while (perf_directive(f)) {
  }
}

void Parser::function(bool is_entry, bool is_extern) {
  Function f;
  f_ = &f;
  scopes_.clear();
  name_uses_.clear();
  label_uses_.clear();
  vectors_.clear();
  pending_tables_.clear();
  const int outer = new_scope(-1);
  f.is_entry = is_entry;
  perf_directives(f);
  if (!is_entry && in_.peek() == '(') f.results = parameter_list(&f, outer);
  const Location where = (in_.skip_space(), in_.where());
  f.name = std::string(in_.identifier("a function name"));
  if (in_.peek() == '(') f.params = parameter_list(&f, outer);
  perf_directives(f);
  const auto known = function_index_.find(f.name);
  if (in_.accept(';')) {
    f.is_declaration = true;
  } else {
    if (is_extern) in_.fail("an .extern function has no body");
    in_.accept('{') ? body(outer, 1)
                    : in_.fail("expected '{' or ';' after a function header, found " + in_.next_for_message());
    resolve_labels();
  }
  f_ = nullptr;
  if (variable_index_.count(f.name) != 0) throw ParseError(where, "'" + f.name + "' is already a variable");
  if (known == function_index_.end()) {
    function_index_[f.name] = module_.functions.size();
    module_.functions.push_back(std::move(f));
  } else if (module_.functions[known->second].is_declaration) {
    module_.functions[known->second] = std::move(f);
  } else if (!f.is_declaration) {
    throw ParseError(where, "function '" + f.name + "' is defined twice");
  }
}

void Parser::check_symbols() {
  for (const UsedSymbol& used : used_symbols_)
    if (function_index_.count(used.name) == 0 && variable_index_.count(used.name) == 0 &&
        module_.aliases.count(used.name) == 0)
      throw ParseError(used.where, "'" + used.name + "' is not declared");
}

// ---- variables ---------------------------------------------------------------------------------

bool Parser::at_space(Space* space) {
  static constexpr std::pair<std::string_view, Space> kSpaces[] = {{".global", Space::Global}, {".const", Space::Const},
                                                                   {".shared", Space::Shared}, {".local", Space::Local},
                                                                   {".param", Space::Param},   {".reg", Space::Reg}};
  for (const auto& [name, value] : kSpaces) {
    if (in_.accept_directive(name)) {
      *space = value;
      return true;
    }
  }
  return false;
}

Parser::Declared Parser::declared_type(bool is_parameter) {
  Declared d;
  auto alignment = [&] {
    const uint64_t n = in_.unsigned_integer("an alignment", 1 << 20);
    if (n == 0 || (n & (n - 1)) != 0) in_.fail("an alignment is a power of two");
    return static_cast<int>(n);
  };
  for (;;) {
    if (in_.peek() != '.') break;
    const Location where = in_.where();
    if (in_.accept_directive(".align")) {
      const int n = alignment();
      if (!d.is_pointer) d.align = n;  // 5.1.6.3: after .ptr it is the alignment of what is pointed to
      continue;
    }
    if (in_.accept_directive(".attribute")) {
      attribute();
      continue;
    }
    if (is_parameter && in_.accept_directive(".ptr")) {
      d.is_pointer = true;
      continue;
    }
    if (d.is_pointer && (in_.accept_directive(".global") || in_.accept_directive(".const") ||
                         in_.accept_directive(".shared") || in_.accept_directive(".local")))
      continue;
    if (in_.accept_directive(".v2")) {
      d.vector = 2;
      continue;
    }
    if (in_.accept_directive(".v4")) {
      d.vector = 4;
      continue;
    }
    in_.accept('.');
    const std::string name(in_.word());
    const Type type = type_from_name(name);
    if (type == Type::Other || d.type != Type::None)
      throw ParseError(where, "'." + name + "' is no type of a variable");
    d.type = type;
  }
  if (d.type == Type::None) in_.fail("expected a type, found " + in_.next_for_message());
  return d;
}

std::string Parser::unique_name(const std::string& name) {
  const int uses = name_uses_[name]++;
  return uses == 0 ? name : name + "@" + std::to_string(uses + 1);
}

// The N of name<N>, after the '<'.
uint64_t Parser::made_names(const char* what) {
  const uint64_t count = in_.unsigned_integer(what, 1 << 16);
  made_names_ += count;
  if (made_names_ > kMaxMadeNames) in_.fail("the module makes more than 131072 names by '<N>'");
  in_.expect('>', (std::string("after ") + what).c_str());
  return count;
}

// After the state space: .align 4 .b8 name[3][2] = {...}, name2;  or  .b32 p<4>;
void Parser::variables(Space space, bool is_extern, std::vector<Variable>& out, int scope) {
  const Declared d = declared_type(false);
  if (d.type == Type::Pred) in_.fail("a predicate variable is in the .reg state space");
  do {
    Variable v;
    in_.skip_space();
    const Location where = in_.where();
    const std::string name(in_.identifier("a variable name"));
    v.space = space;
    v.type = d.type;
    v.is_extern = is_extern;
    const uint64_t element = static_cast<uint64_t>(bytes_of(d.type));
    v.align = d.align != 0 ? d.align : static_cast<int>(element) * d.vector;
    std::vector<uint64_t> dims;
    uint64_t copies = 1;
    bool open = false;
    if (in_.accept('<')) {
      copies = made_names("a count of names");
    }
    const bool parameterised = copies != 1;
    while (!parameterised && in_.accept('[')) {
      if (in_.accept(']')) {
        if (!dims.empty()) in_.fail("only the first dimension of an array may be left out");
        dims.push_back(kOpenDimension);
        open = true;
        continue;
      }
      dims.push_back(in_.unsigned_expression("an array dimension", kMaxVariableBytes));
      in_.expect(']', "after an array dimension");
    }
    if (d.vector != 1) dims.push_back(static_cast<uint64_t>(d.vector));
    uint64_t total = element;
    for (size_t i = open ? 1 : 0; i < dims.size(); ++i) {
      if (dims[i] != 0 && total > kMaxVariableBytes / dims[i]) in_.fail("'" + name + "' is larger than any memory");
      total *= dims[i];
    }
    v.bytes = open ? 0 : total;
    if (in_.accept('=')) {
      if (space != Space::Global && space != Space::Const)
        in_.fail("only .global and .const variables have initialisers");
      if (is_extern) in_.fail("an .extern variable has no initialiser");
      if (parameterised) in_.fail("names made by '<N>' have no initialiser");
      if (d.type == Type::F16 || d.type == Type::F16x2 || d.type == Type::BF16 || d.type == Type::BF16x2 ||
          d.type == Type::B128)
        in_.fail("a variable of this type has no initialiser");
      initialiser(v, dims);
    }
    for (uint64_t c = 0; c < copies; ++c) {
      const std::string written = parameterised ? name + std::to_string(c) : name;
      Variable copy = v;
      if (scope >= 0) {
        if (scopes_[scope].variables.count(written) != 0 || scopes_[scope].registers.count(written) != 0)
          throw ParseError(where, "'" + written + "' is declared twice in this scope");
        std::string unique = unique_name(written);
        if (space == Space::Global || space == Space::Const) unique = f_->name + "@" + unique;
        scopes_[scope].variables[written] = unique;
        copy.name = unique;
      } else {
        copy.name = written;
      }
      if (&out == &module_.variables) {
        const auto known = variable_index_.find(copy.name);
        if (known != variable_index_.end()) {  // an .extern declaration beside the definition
          if (out[known->second].is_extern || is_extern) {
            if (!is_extern) out[known->second] = std::move(copy);
            continue;
          }
          throw ParseError(where, "variable '" + copy.name + "' is defined twice");
        }
        if (function_index_.count(copy.name) != 0) throw ParseError(where, "'" + copy.name + "' is already a function");
        variable_index_[copy.name] = out.size();
      }
      out.push_back(std::move(copy));
    }
  } while (in_.accept(','));
  in_.expect(';', "after a variable");
}

void Parser::reserve_bytes(Variable& v, uint64_t end) {
  if (end <= v.init.size()) return;
  initialised_bytes_ += end - v.init.size();
  if (initialised_bytes_ > kMaxInitialisedBytes) in_.fail("the module has more than 64 MiB of initialised variables");
  v.init.resize(end, 0);
}

void Parser::initialiser(Variable& v, std::vector<uint64_t>& dims) {
  if (dims.empty()) {
    initialise_element(v, 0);
  } else {
    uint64_t count = 0;
    initialise_level(v, dims, 0, 0, &count);
    if (dims[0] == kOpenDimension) {
      uint64_t stride = static_cast<uint64_t>(bytes_of(v.type));
      for (size_t i = 1; i < dims.size(); ++i) stride *= dims[i];
      v.bytes = count * stride;
    }
  }
  reserve_bytes(v, v.bytes);
  merge_masked_relocations(v);
}

void Parser::initialise_level(Variable& v, const std::vector<uint64_t>& dims, size_t level, uint64_t offset,
                              uint64_t* count) {
  uint64_t stride = static_cast<uint64_t>(bytes_of(v.type));
  for (size_t i = level + 1; i < dims.size(); ++i) stride *= dims[i];
  in_.expect('{', "before a list of initial values");
  if (in_.accept('}')) return;
  uint64_t n = 0;
  do {
    if (n >= dims[level]) in_.fail("this initialiser has more values than the array has elements");
    const uint64_t at = offset + n * stride;
    ++n;
    if (level + 1 < dims.size()) {
      uint64_t inner = 0;
      initialise_level(v, dims, level + 1, at, &inner);
    } else {
      initialise_element(v, at);
    }
  } while (in_.accept(','));
  in_.expect('}', "after a list of initial values");
  *count = n;
}

void Parser::initialise_element(Variable& v, uint64_t offset) {
  const int bytes = bytes_of(v.type);
  reserve_bytes(v, offset + static_cast<uint64_t>(bytes));
  uint64_t bits = 0;
  auto symbol = [&](uint8_t shift, int size) {
    bool generic = false;
    in_.skip_space();
    Location where = in_.where();
    std::string name(in_.identifier("a symbol"));
    if (name == "generic" && in_.accept('(')) {
      generic = true;
      in_.skip_space();
      where = in_.where();
      name = std::string(in_.identifier("a symbol"));
      in_.expect(')', "after generic(symbol");
    }
    int64_t addend = 0;
    while (in_.peek() == '+' || in_.peek() == '-') {
      const bool minus = in_.accept('-');  // `+` is a sign of the term.
      const Constant c = in_.term();
      if (!c.is_integer()) in_.fail("an offset is an integer");
      addend =
          static_cast<int64_t>(minus ? static_cast<uint64_t>(addend) - c.bits : static_cast<uint64_t>(addend) + c.bits);
    }
    used_symbols_.push_back({name, where});
    v.relocations.push_back({offset, name, addend, generic, size, shift});
  };
  if (in_.at_identifier() && !in_.at_warp_size()) {
    if (bytes < 4) in_.fail("an address needs a variable of 4 or 8 bytes, or a mask");
    symbol(0, bytes);
    return;
  }
  Constant c = in_.constant();
  if (in_.peek() == '(') {  // 5.4.4: mask(), one byte of an address or of a number
    if (!c.is_integer()) in_.fail("a mask is an integer");
    uint8_t shift = 0;
    while (shift < 64 && c.bits != 0xffull << shift) shift = static_cast<uint8_t>(shift + 8);
    if (shift == 64) in_.fail("a mask selects one whole byte, such as 0xff00");
    in_.accept('(');
    if (in_.at_identifier() && !in_.at_warp_size()) {
      symbol(shift, 1);
      in_.expect(')', "after a masked symbol");
      return;
    }
    c = in_.constant();
    if (!c.is_integer()) in_.fail("a masked value is an integer");
    in_.expect(')', "after a masked value");
    c.bits = c.bits >> shift & 0xff;
  }
  const bool is_float = v.type == Type::F32 || v.type == Type::F64;
  if (is_float) {
    const double d = c.as_double();
    const float f = static_cast<float>(d);
    if (v.type == Type::F64)
      std::memcpy(&bits, &d, 8);
    else if (c.kind == Constant::Kind::Single)
      bits = c.bits;
    else
      std::memcpy(&bits, &f, 4);
  } else {
    const bool bit_type = v.type == Type::B32 || v.type == Type::B64;
    if (!c.is_integer() && !bit_type) in_.fail("an integer variable needs an integer initial value");
    if (!c.is_integer() && bytes != (c.kind == Constant::Kind::Single ? 4 : 8))
      in_.fail("this floating-point literal does not have the size of the variable");
    bits = c.bits;
  }
  std::memcpy(v.init.data() + offset, &bits, static_cast<size_t>(bytes));
}

// A pointer inside an initialised structure is written as eight masked bytes; it becomes one relocation again.
void Parser::merge_masked_relocations(Variable& v) {
  std::vector<Variable::Relocation> merged;
  for (size_t i = 0; i < v.relocations.size();) {
    int n = 1;
    const auto& first = v.relocations[i];
    if (first.bytes == 1 && first.shift == 0) {
      const int most = static_cast<int>(std::min<size_t>(8, v.relocations.size() - i));
      while (n < most) {
        const auto& next = v.relocations[i + static_cast<size_t>(n)];
        if (next.bytes != 1 || next.shift != 8 * n || next.offset != first.offset + static_cast<uint64_t>(n) ||
            next.symbol != first.symbol || next.addend != first.addend || next.generic != first.generic)
          break;
        ++n;
      }
    }
    merged.push_back(first);
    if (n == 8)
      merged.back().bytes = 8;
    else
      n = 1;
    i += static_cast<size_t>(n);
  }
  v.relocations = std::move(merged);
}

Variable Parser::parameter() {
  Space space;
  if (!at_space(&space) || (space != Space::Param && space != Space::Reg))
    in_.fail("a parameter is in .param or .reg, found " + in_.next_for_message());
  const Declared d = declared_type(true);
  if (d.type == Type::Pred && space != Space::Reg) in_.fail("a predicate parameter is in the .reg state space");
  Variable v;
  v.space = space;
  v.type = d.type;
  v.align = d.align != 0 ? d.align : std::max(1, bytes_of(d.type) * d.vector);
  v.bytes = static_cast<uint64_t>(bytes_of(d.type) * d.vector);
  v.name = in_.peek() == '_' && !in_.at_identifier() ? (in_.accept('_'), "_")
                                                     : std::string(in_.identifier("a parameter name"));
  while (in_.accept('[')) {
    if (in_.accept(']')) {
      v.bytes = 0;  // 11.2.2: unsized last parameter
      continue;
    }
    const uint64_t n = in_.unsigned_expression("an array dimension", 1 << 20);
    in_.expect(']', "after an array dimension");
    if (n != 0 && v.bytes > (1u << 20) / n) in_.fail("this parameter is larger than any launch can pass");
    v.bytes *= n;
  }
  return v;
}

std::vector<Variable> Parser::parameter_list(Function* f, int scope) {
  std::vector<Variable> list;
  in_.expect('(', "before parameters");
  if (in_.accept(')')) return list;
  do {
    in_.skip_space();
    const Location where = in_.where();
    Variable v = parameter();
    if (f != nullptr && v.name != "_") {
      Scope& s = scopes_[scope];
      if (s.variables.count(v.name) != 0 || s.registers.count(v.name) != 0)
        throw ParseError(where, "parameter '" + v.name + "' is declared twice");
      if (v.space == Space::Reg) {
        s.registers[v.name] = add_register(v.name, v.type);
      } else {
        s.variables[v.name] = unique_name(v.name);
      }
    }
    list.push_back(std::move(v));
  } while (in_.accept(','));
  in_.expect(')', "after parameters");
  return list;
}

// ---- function bodies ---------------------------------------------------------------------------

void Parser::body(int scope, int depth) {
  if (depth > kMaxScopeDepth) in_.fail("scopes are nested too deeply");
  while (!in_.accept('}')) {
    if (in_.at_end()) in_.fail("expected '}', found the end of the text");
    statement(scope, depth);
  }
}

void Parser::statement(int scope, int depth) {
  if (in_.accept(';')) return;
  if (in_.accept('{')) {
    body(new_scope(scope), depth + 1);
    return;
  }
  if (in_.peek() == '.') {
    if (in_.accept_directive(".loc")) {
      file_ = static_cast<int>(in_.unsigned_integer("a file index", 1 << 30));
      source_line_ = static_cast<int>(in_.unsigned_integer("a line number", 1 << 30));
      in_.unsigned_integer("a column number", 1 << 30);
      while (in_.accept(',')) {  // 11.5.4: function_name label {+ imm}, inlined_at file line column
        const std::string_view key = in_.identifier("function_name or inlined_at");
        if (key == "function_name") {
          in_.identifier("a label");
          if (in_.accept('+')) in_.constant();
        } else if (key == "inlined_at") {
          for (int i = 0; i < 3; ++i) in_.unsigned_integer("a location", 1 << 30);
        } else {
          in_.fail("expected function_name or inlined_at in .loc");
        }
      }
      return;
    }
    if (perf_directive(*f_)) {
      in_.accept(';');
      return;
    }
    if (in_.accept_directive(".file")) return file_directive();
    if (in_.accept_directive(".section")) return section();
    Space space;
    if (!at_space(&space)) in_.fail("unknown directive " + in_.next_for_message());
    if (space == Space::Reg) return registers(scope);
    return variables(space, false, space == Space::Global || space == Space::Const ? module_.variables : f_->locals,
                     scope);
  }
  int guard = -1;
  bool negated = false;
  if (in_.accept('@')) {
    negated = in_.accept('!');
    in_.skip_space();
    const Location where = in_.where();
    const std::string name(in_.identifier("a predicate register"));
    guard = find_register(scope, name);
    if (guard < 0 || f_->registers[guard].type != Type::Pred)
      throw ParseError(where, "'" + name + "' is not a predicate register");
  }
  in_.skip_space();
  const Location where = in_.where();
  const std::string_view first = in_.identifier("an instruction");
  if (in_.peek() == ':' && in_.peek_raw(1) != ':') {
    if (guard >= 0) in_.fail("a guard stands after the label");
    in_.accept(':');
    return after_label(std::string(first), where, scope);
  }
  instruction(scope, first, where, guard, negated);
}

void Parser::after_label(const std::string& label, Location where, int scope) {
  if (in_.accept_directive(".branchtargets")) {
    PendingTable table{label, {}, scope};
    table.table = new_table(label, scope);
    f_->branch_targets[table.table] = {};
    do {
      in_.skip_space();
      const Location at = in_.where();
      const std::string name(in_.identifier("a label"));
      if (in_.accept('<')) {
        const uint64_t n = made_names("a count of labels");
        for (uint64_t i = 0; i < n; ++i) table.labels.push_back({name + std::to_string(i), at});
      } else {
        table.labels.push_back({name, at});
      }
    } while (in_.accept(','));
    in_.expect(';', "after .branchtargets");
    pending_tables_.push_back(std::move(table));
    return;
  }
  if (in_.accept_directive(".calltargets")) {
    CallTable& table = f_->call_tables[new_table(label, scope)];
    do {
      in_.skip_space();
      const Location at = in_.where();
      table.targets.emplace_back(in_.identifier("a function name"));
      used_symbols_.push_back({table.targets.back(), at});
    } while (in_.accept(','));
    in_.expect(';', "after .calltargets");
    return;
  }
  if (in_.accept_directive(".callprototype")) {
    CallTable& table = f_->call_tables[new_table(label, scope)];
    table.is_prototype = true;
    if (in_.peek() == '(') table.results = parameter_list(nullptr, scope);
    if (in_.at_identifier())
      in_.identifier("'_'");
    else
      in_.expect('_', "in .callprototype");
    if (in_.peek() == '(') table.params = parameter_list(nullptr, scope);
    Function ignored;
    perf_directives(ignored);
    in_.expect(';', "after .callprototype");
    return;
  }
  const int index = static_cast<int>(f_->body.size());
  if (!scopes_[scope].labels.emplace(label, index).second)
    throw ParseError(where, "label '" + label + "' is defined twice in this scope");
  const int uses = ++label_uses_[label];
  f_->labels.emplace(uses == 1 ? label : label + "@" + std::to_string(uses), index);
}

// Tables of nested scopes may have one name: their names in the function are unique.
std::string Parser::new_table(const std::string& label, int scope) {
  std::string unique = label;
  if (f_->branch_targets.count(unique) != 0 || f_->call_tables.count(unique) != 0)
    unique += "@" + std::to_string(f_->branch_targets.size() + f_->call_tables.size());
  scopes_[scope].tables[label] = unique;
  return unique;
}

int Parser::add_register(const std::string& name, Type type) {
  if (++register_count_ > kMaxRegisters) in_.fail("the module declares more than 1048576 registers");
  f_->registers.push_back({name, type});
  return static_cast<int>(f_->registers.size()) - 1;
}

// A vector (5.4.2) is as many registers, one after the other. Returns the first.
int Parser::add_vector(const std::string& name, const Declared& d) {
  if (d.vector == 1) return add_register(name, d.type);
  const int first = static_cast<int>(f_->registers.size());
  for (int i = 0; i < d.vector; ++i) add_register(name + '.' + "xyzw"[i], d.type);
  vectors_[first] = d.vector;
  return first;
}

void Parser::registers(int scope) {
  const Declared d = declared_type(false);
  if (d.vector != 1 && d.type == Type::Pred) in_.fail("predicates have no vectors");
  if (d.vector * bytes_of(d.type) > 16) in_.fail("a vector has at most 128 bits");
  do {
    in_.skip_space();
    const Location where = in_.where();
    const std::string name(in_.identifier("a register name"));
    Scope& s = scopes_[scope];
    if (s.registers.count(name) != 0 || s.register_ranges.count(name) != 0 || s.variables.count(name) != 0)
      throw ParseError(where, "'" + name + "' is declared twice in this scope");
    if (in_.accept('<')) {
      const uint64_t count = in_.unsigned_integer("a count of registers", kMaxRegisters);
      in_.expect('>', "after a count of registers");
      s.register_ranges[name] = {static_cast<int>(f_->registers.size()), count, d.vector};
      for (uint64_t i = 0; i < count; ++i) add_vector(name + std::to_string(i), d);
    } else {
      s.registers[name] = add_vector(name, d);
    }
  } while (in_.accept(','));
  in_.expect(';', "after registers");
}

int Parser::find_register(int scope, const std::string& name) const {
  size_t digits = name.size();
  while (digits > 1 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  for (int s = scope; s >= 0; s = scopes_[s].parent) {
    const Scope& sc = scopes_[s];
    if (const auto it = sc.registers.find(name); it != sc.registers.end()) return it->second;
    if (sc.variables.count(name) != 0) return -1;  // a variable of an inner scope hides an outer register
    if (sc.register_ranges.empty()) continue;
    // %r12 belongs to the range %r<N>, %r1<N> ...: every split of the trailing digits may be the one declared.
    for (size_t split = digits; split < name.size(); ++split) {
      if (name[split] == '0' && split + 1 != name.size()) continue;
      if (name.size() - split > 7) continue;
      const auto it = sc.register_ranges.find(name.substr(0, split));
      if (it == sc.register_ranges.end()) continue;
      const uint64_t n = std::stoul(name.substr(split));
      if (n < it->second.count) return it->second.first + static_cast<int>(n) * it->second.width;
    }
  }
  return -1;
}

const std::string* Parser::find_variable(int scope, const std::string& name) const {
  for (int s = scope; s >= 0; s = scopes_[s].parent)
    if (const auto it = scopes_[s].variables.find(name); it != scopes_[s].variables.end()) return &it->second;
  return nullptr;
}

void Parser::instruction(int scope, std::string_view first_word, Location where, int guard, bool negated) {
  Instruction i;
  i.opcode = std::string(first_word) + std::string(in_.opcode_rest());
  while (in_.at_modifier()) i.opcode += in_.opcode_rest();  // ptxas lets modifiers stand apart.
  i.parts = split_opcode(i.opcode);
  i.guard = guard;
  i.guard_negated = negated;
  i.where = where;
  i.file = file_;
  i.source_line = source_line_;
  if (i.parts[0] == "call") {
    call_operands(i, scope);
  } else if (in_.peek() != ';') {
    do {
      i.operands.push_back(operand(scope, 0));
      if (i.operands.size() == 1 && in_.accept('|')) {
        i.operands.push_back(operand(scope, 0));
        i.dual_destination = true;
      }
    } while (in_.accept(','));
  }
  in_.expect(';', "after an instruction");
  f_->body.push_back(std::move(i));
}

// 9.7.12.5. The operands are always {results}, callee, {arguments} and, for an indirect call, its prototype or targets.
void Parser::call_operands(Instruction& i, int scope) {
  Operand results, arguments;
  results.kind = arguments.kind = Operand::Kind::Vector;
  if (in_.peek() == '(') {
    results = list(')', scope, 0);
    in_.expect(',', "after the results of a call");
  }
  Operand callee = operand(scope, 0);
  Operand prototype;
  bool has_prototype = false;
  if (in_.accept(',')) {
    if (in_.peek() == '(') {
      arguments = list(')', scope, 0);
      has_prototype = in_.accept(',');
    } else {
      has_prototype = true;
    }
    if (has_prototype) prototype = operand(scope, 0);
  }
  i.operands.push_back(std::move(results));
  i.operands.push_back(std::move(callee));
  i.operands.push_back(std::move(arguments));
  if (has_prototype) i.operands.push_back(std::move(prototype));
}

Operand Parser::list(char close, int scope, int depth) {
  Operand o;
  o.kind = Operand::Kind::Vector;
  in_.accept(in_.peek());
  if (in_.accept(close)) return o;
  do o.elements.push_back(operand(scope, depth + 1));
  while (in_.accept(','));
  in_.expect(close, "after a list of operands");
  return o;
}

// The vector that begins at a register, or one of its elements when a name of it follows (6.4.3).
Operand Parser::vector_operand(int first, int width) {
  Operand o;
  o.kind = Operand::Kind::Register;
  if (in_.peek() == '.') {
    const std::string component(in_.opcode_rest());
    const size_t index = component.size() == 2 ? std::string_view("xyzwrgba").find(component[1]) % 4 : 4;
    if (component.size() != 2 || std::string_view("xyzwrgba").find(component[1]) == std::string_view::npos ||
        index >= static_cast<size_t>(width))
      in_.fail("a vector of " + std::to_string(width) + " has no element '" + component + "'");
    o.reg = first + static_cast<int>(index);
    return o;
  }
  Operand all;
  all.kind = Operand::Kind::Vector;
  for (int i = 0; i < width; ++i) {
    o.reg = first + i;
    all.elements.push_back(o);
  }
  return all;
}

Operand Parser::named_operand(int scope) {
  Operand o;
  in_.skip_space();
  const Location where = in_.where();
  std::string name(in_.identifier("an operand"));
  o.reg = find_register(scope, name);
  if (o.reg >= 0) {
    if (const auto vector = vectors_.find(o.reg); vector != vectors_.end())
      return vector_operand(vector->first, vector->second);
    o.kind = Operand::Kind::Register;
    return o;
  }
  if (const std::string* variable = find_variable(scope, name)) {
    o.kind = Operand::Kind::Symbol;
    o.name = *variable;
  } else if (name[0] == '%' && (is_special_register(name) || is_numbered_special(name))) {
    o.kind = Operand::Kind::Special;
    o.name = name;
    return o;
  } else if (name[0] == '%' && is_special_vector(name)) {
    o.kind = Operand::Kind::Special;
    const std::string component(in_.opcode_rest());
    if (component != ".x" && component != ".y" && component != ".z" && component != ".w")
      throw ParseError(where, "'" + name + "' needs a component .x, .y or .z");
    o.name = name + component;
    return o;
  } else if (name[0] == '%') {
    throw ParseError(where, "register '" + name + "' is not declared");
  } else {
    o.kind = Operand::Kind::Symbol;  // a label, a table or something of the module: resolve() decides
    o.name = name;
    o.target = scope;
  }
  while (in_.peek() == '+' || in_.peek() == '-') {
    const bool minus = in_.accept('-');  // `+` is a sign of the term.
    const Constant c = in_.term();
    if (!c.is_integer()) in_.fail("an offset is an integer");
    o.addend = static_cast<int64_t>(minus ? static_cast<uint64_t>(o.addend) - c.bits
                                          : static_cast<uint64_t>(o.addend) + c.bits);
  }
  return o;
}

Operand Parser::operand(int scope, int depth) {
  if (depth > kMaxOperandDepth) in_.fail("operands are nested too deeply");
  Operand o;
  const char c = in_.peek();
  if (c == '{') return list('}', scope, depth);
  if (c == '[') {
    in_.accept('[');
    o.kind = Operand::Kind::Address;
    o.elements.push_back(operand(scope, depth + 1));
    Operand& base = o.elements[0];
    if (base.kind == Operand::Kind::Vector || base.kind == Operand::Kind::Address || base.kind == Operand::Kind::Sink ||
        base.negated)
      in_.fail("an address begins with a register, a symbol or a number");
    o.addend = std::exchange(base.addend, 0);
    while (base.kind != Operand::Kind::Immediate && (in_.peek() == '+' || in_.peek() == '-')) {
      const bool minus = in_.accept('-');  // `+` is a sign of the term.
      const Constant v = in_.term();
      if (!v.is_integer()) in_.fail("an offset is an integer");
      o.addend = static_cast<int64_t>(minus ? static_cast<uint64_t>(o.addend) - v.bits
                                            : static_cast<uint64_t>(o.addend) + v.bits);
    }
    while (in_.accept(',')) o.elements.push_back(operand(scope, depth + 1));
    in_.expect(']', "after an address");
    return o;
  }
  if (in_.at_negated_name()) {  // Before a number `!` is part of the constant expression.
    in_.accept('!');
    o = named_operand(scope);
    if (o.kind != Operand::Kind::Register || f_->registers[o.reg].type != Type::Pred)
      in_.fail("'!' needs a predicate register");
    o.negated = true;
    return o;
  }
  if (in_.at_identifier() && !in_.at_warp_size()) return named_operand(scope);
  if (c == '_') {
    in_.accept('_');
    return o;
  }
  const Constant v = in_.constant();
  o.kind = Operand::Kind::Immediate;
  o.bits = v.bits;
  o.is_float = !v.is_integer();
  o.is_double = v.kind == Constant::Kind::Double;
  return o;
}

// ---- labels ------------------------------------------------------------------------------------

void Parser::resolve(Operand& o, const Instruction& i) {
  for (Operand& e : o.elements) resolve(e, i);
  if (o.kind != Operand::Kind::Symbol || o.target < 0) return;
  const int scope = std::exchange(o.target, -1);
  for (int s = scope; s >= 0; s = scopes_[s].parent) {
    if (const auto it = scopes_[s].labels.find(o.name); it != scopes_[s].labels.end()) {
      o.kind = Operand::Kind::Label;
      o.target = it->second;
      return;
    }
    if (const auto it = scopes_[s].tables.find(o.name); it != scopes_[s].tables.end()) {
      o.name = it->second;
      return;
    }
  }
  used_symbols_.push_back({o.name, i.where});
}

void Parser::resolve_labels() {
  for (Instruction& i : f_->body)
    for (Operand& o : i.operands) resolve(o, i);
  for (const PendingTable& table : pending_tables_) {
    for (const auto& [name, where] : table.labels) {
      int target = -1;
      for (int s = table.scope; s >= 0 && target < 0; s = scopes_[s].parent)
        if (const auto it = scopes_[s].labels.find(name); it != scopes_[s].labels.end()) target = it->second;
      if (target < 0) throw ParseError(where, "label '" + name + "' is not defined in this function");
      f_->branch_targets[table.table].push_back(target);
    }
  }
}

}  // namespace

Module parse(std::string_view text) { return Parser(text).parse(); }

}  // namespace sim::ptx
