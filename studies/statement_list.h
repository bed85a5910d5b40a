// How a paper's statements are collected: figures with their error and limit, and claims in words.
#pragma once

#include <fmt/format.h>
#include <studies/statements.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace piper::studies {

inline constexpr double kExact = 0.005;   // of the error: three digits are printed
inline constexpr double kMeasured = 0.1;  // of the error of what was measured

class StatementList {
 public:
  void exact(const std::string& what, const std::string& where, double printed, double predicted,
             const std::string& unit, const std::string& cause = "", double limit = kExact) {
    Statement s = figures(what, where, printed, predicted, unit);
    s.limit = limit;
    if (std::abs(*s.error) > s.limit) {
      s.verdict = Verdict::kMisprint;
      s.cause = cause;
    }
    list_.push_back(s);
  }
  void measured(const std::string& what, const std::string& where, double printed, double predicted,
                const std::string& unit, const std::string& cause = "") {
    Statement s = figures(what, where, printed, predicted, unit);
    s.measured = true;
    s.limit = kMeasured;
    if (std::abs(*s.error) > s.limit) {
      s.verdict = Verdict::kMiss;
      s.cause = cause;
    }
    list_.push_back(s);
  }
  void fitted(const std::string& what, const std::string& where, double printed, double predicted,
              const std::string& unit) {
    measured(what, where, printed, predicted, unit);
    list_.back().verdict = Verdict::kFitted;
  }
  void claim(const std::string& what, const std::string& where, const std::string& printed,
             const std::string& predicted, bool holds, const std::string& cause = "") {
    list_.push_back({.what = what,
                     .where = where,
                     .measured = true,
                     .printed = printed,
                     .predicted = predicted,
                     .verdict = holds ? Verdict::kHolds : Verdict::kMiss,
                     .cause = holds ? "" : cause});
  }
  // What follows from formulas and is no figure.
  void exact_claim(const std::string& what, const std::string& where, const std::string& printed,
                   const std::string& computed, bool holds, const std::string& cause = "") {
    claim(what, where, printed, computed, holds, cause);
    list_.back().measured = false;
    if (!holds) list_.back().verdict = Verdict::kMisprint;
  }
  std::vector<Statement> take() { return std::move(list_); }

 private:
  static Statement figures(const std::string& what, const std::string& where, double printed,
                           double predicted, const std::string& unit) {
    return {.what = what,
            .where = where,
            .printed = fmt::format("{:.4g}{}", printed, unit),
            .predicted = fmt::format("{:.4g}{}", predicted, unit),
            .error = predicted / printed - 1};
  }
  std::vector<Statement> list_;
};

}  // namespace piper::studies
