#include <fmt/format.h>
#include <piper/cli/enum_help.h>

namespace piper::cli {

using strategy::MoeSchedule;
using strategy::MoeScheduleTraits;

std::string in_a_sentence(const std::vector<std::string>& words, const char* between,
                          const char* before_last) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? before_last : between;
    text += words[i];
  }
  return text;
}

std::string cut_exchanges() {
  return in_a_sentence(names_where<strategy::AllToAll>(kIsCut), ", ", " and ");
}

std::string what_moe_chunks_are() {
  const auto chunked = [](bool by_peers) {
    return in_a_sentence(names_where<MoeSchedule>([by_peers](const MoeScheduleTraits& row) {
                           return kRuns(row) && row.has_chunks && row.groups_peers == by_peers;
                         }),
                         ", ", " and ");
  };
  return fmt::format(
      "of --moe-schedule {}: chunks of a rank's tokens; of {}: groups of the ranks of ep",
      chunked(false), chunked(true));
}

}  // namespace piper::cli
