#include "frame_eval/cpython/instruction_roles.h"

#include <utility>

namespace frametap {

InstructionRole RoleOf(std::string_view opcode) {
  using Role = InstructionRole;
  static constexpr std::pair<std::string_view, Role> kRoles[] = {
      {"LOAD_CONST", Role::kLoadsConstant},
      {"STORE_FAST", Role::kStoresLocal},
      {"DELETE_FAST", Role::kDeletesLocal},
      {"POP_TOP", Role::kPops},
      {"IS_OP", Role::kComparesIdentity},
      {"POP_JUMP_IF_NONE", Role::kJumpsOnNone},
      {"POP_JUMP_IF_NOT_NONE", Role::kJumpsOnNone},
      {"POP_JUMP_FORWARD_IF_NONE", Role::kJumpsOnNone},
      {"POP_JUMP_FORWARD_IF_NOT_NONE", Role::kJumpsOnNone},
      {"POP_JUMP_BACKWARD_IF_NONE", Role::kJumpsOnNone},
      {"POP_JUMP_BACKWARD_IF_NOT_NONE", Role::kJumpsOnNone},
      {"CALL_FUNCTION_EX", Role::kCallsWithSpread},
      {"CONTAINS_OP", Role::kTakesElements},
      {"LIST_EXTEND", Role::kTakesElements},
      {"SET_UPDATE", Role::kTakesElements},
      {"DICT_UPDATE", Role::kTakesElements},
      {"DICT_MERGE", Role::kTakesElements},
      {"UNPACK_SEQUENCE", Role::kTakesElements},
      {"UNPACK_EX", Role::kTakesElements},
      {"PUSH_EXC_INFO", Role::kBeginsHandler},
      {"POP_EXCEPT", Role::kEndsHandler},
      {"RERAISE", Role::kRethrows},
      {"CHECK_EXC_MATCH", Role::kMatchesClass},
      {"CHECK_EG_MATCH", Role::kMatchesGroup},
  };
  for (const auto& [name, role] : kRoles) {
    if (name == opcode) return role;
  }
  return Role::kOther;
}

}  // namespace frametap
