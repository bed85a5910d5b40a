// Executes the steps of all members on symbols (sums.h), block by block, and notes all that is
// wrong.
//
// A message moves when both its send and its receive are posted, as a rendezvous does: what
// finishes here needs no buffer of the transport's. One order is executed; because steps of a
// member that touch the same place are shown to be ordered (races.h), it stands for every order of
// starting and of arrival.
#pragma once

#include <piper/collective/races.h>
#include <testing/collective/symbol_memory.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace piper::collective {

class SymbolicExecutor {
 public:
  // The symbol of element i of member m's input is {label m, i}; the same of its output before the
  // first step when `in_place`. `members` outlives the executor.
  SymbolicExecutor(const std::vector<MemberSteps>& members, bool in_place);

  // False when anything is wrong: blocks outside their buffers, writes to the input, `after` that
  // does not point back, races, messages without counterpart or of other sizes, repeated ones,
  // steps that never finish, reads of what nobody wrote.
  bool execute();

  SymbolMemory& memory(size_t member, Buffer buffer) {
    return memory_[member][static_cast<size_t>(buffer)];
  }
  std::vector<Piece> read(size_t member, const Block& block);
  Sums& sums() { return sums_; }

  // The first ones; more are only counted.
  std::vector<std::string>& problems() { return problems_; }
  void problem(std::string text);

 private:
  static constexpr size_t kMaxProblems = 50;

  // It belongs to one member, and is by step.
  struct State {
    std::vector<int32_t> partner;  // messages: the step of the peer at the other end
    std::vector<int32_t> unmet;    // unfinished steps that it waits for; -1: started
    std::vector<int32_t> first_dependent, dependents;  // by step: where its dependents begin
  };

  void check_list(size_t m);
  void check_step(size_t m, size_t s);
  void check_block(size_t m, size_t s, const Block& block);
  void match_messages();
  void match_receives(size_t m, std::vector<std::array<int64_t, 3>>& sent);
  void connect(size_t m);
  void start(size_t m, int32_t s);
  void finish(size_t m, int32_t s);
  void transfer(size_t from, const Block& source, size_t to, const Block& target, bool add);
  void move_rows(size_t m, const Step& step);
  void check_finished();

  const std::vector<MemberSteps>& members_;
  std::vector<std::array<SymbolMemory, kNumBuffers>> memory_;
  std::vector<State> state_;
  std::vector<std::pair<int32_t, int32_t>> ready_;  // member, step
  int64_t num_finished_ = 0;
  Sums sums_;
  std::vector<std::string> problems_;
};

}  // namespace piper::collective
