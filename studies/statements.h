// What papers state in numbers, beside what this project computes for it: the exact statements,
// with misprints shown as such, and the measured ones, with their misses.
//
// For the Piper paper (Dash and Wang) one constant is fitted: the compute efficiency of the trainer
// "piper-frontier", to 39.38 TFLOP/s a GPU with 862 billion parameters on 512 GPUs. The paper
// states neither PP x EP nor batch of its runs; what stands in for them is in
// statement_assumptions().
#pragma once

#include <piper/base/json_fwd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace piper::studies {

enum class Verdict : uint8_t {
  kHolds,     // within the limit
  kMisprint,  // exact, and the paper's own other figures contradict it
  kMiss,      // measured, beyond the limit
  kFitted     // what the constant was fitted to
};
const char* name(Verdict verdict);  // "holds", "misprint", "miss", "fitted"

struct Statement {
  std::string what, where;         // where: the paper's section, table or equation
  bool measured = false;           // else it follows from the paper's formulas
  std::string printed, predicted;  // with units
  std::optional<double> error;     // predicted / printed - 1
  double limit = 0;                // of its absolute value
  Verdict verdict = Verdict::kHolds;
  std::string cause;  // of a misprint or a miss
};

std::vector<Statement> paper_statements();
// The same of Parm (Pan et al. 2024), MoNTA (Guo et al. 2024) and PipeMoE (Shi et al. 2023) with
// its follow-up FSMoE (Pan et al. 2025), and HybridEP (Yang et al. 2025): formulas by paper/, measured
// figures on the descriptions of their machines, with nothing fitted.
std::vector<Statement> parm_statements();
std::vector<Statement> monta_statements();
std::vector<Statement> pipemoe_statements();
std::vector<Statement> hybridep_statements();
// What the measured statements are priced with where the paper is silent.
std::vector<std::string> statement_assumptions();
std::vector<std::string> parm_assumptions();
std::vector<std::string> monta_assumptions();
std::vector<std::string> pipemoe_assumptions();
std::vector<std::string> hybridep_assumptions();

// A paper by the name that a command line gives it.
struct Paper {
  const char* name = "";  // "piper", "parm", "monta", "pipemoe", "hybridep"
  std::vector<Statement> (*statements)() = nullptr;
  std::vector<std::string> (*assumptions)() = nullptr;
};
const std::vector<Paper>& papers();  // Piper's first

Json to_json(const Statement& statement);

}  // namespace piper::studies
