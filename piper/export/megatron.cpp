#include <piper/export/megatron_settings.h>
#include <piper/export/start_script.h>

#include <iterator>
#include <utility>

namespace piper::exporting {
namespace {

// With what the script asks for; further flags stand behind its name.
constexpr const char* kFilledIn[] = {"--lr \"$LR\"",
                                     "--min-lr \"$MIN_LR\"",
                                     "--lr-decay-style cosine",
                                     "--train-iters \"$TRAIN_ITERS\"",
                                     "--data-path \"$DATA_PATH\"",
                                     "--tokenizer-type HuggingFaceTokenizer",
                                     "--tokenizer-model \"$TOKENIZER\"",
                                     "\"$@\""};

}  // namespace

Exported to_megatron(const Job& job) {
  MegatronSettings of = megatron_settings(job);
  Exported exported{.differs = std::move(of.differs), .cannot = std::move(of.cannot)};
  exported.cannot.insert(exported.cannot.end(), of.has_no_flag.begin(), of.has_no_flag.end());
  StartScript script{
      .software = "Megatron-LM d98e8a64 (2026-08-22)",
      .remarks = {"Other versions may call settings otherwise."},
      .settings = {{"MEGATRON", "folder of Megatron-LM", ""},
                   {"DATA_PATH",
                    "prefix of the indexed data, as tools/preprocess_data.py writes it", ""},
                   {"TOKENIZER", "folder or name of the Hugging Face tokenizer", ""},
                   {"LR", "learning rate", ""},
                   {"MIN_LR", "lowest learning rate", ""},
                   {"TRAIN_ITERS", "number of steps", ""}},
      .environment = {job.ruling.environment.begin(), job.ruling.environment.end()},
      .program = "\"$MEGATRON/pretrain_gpt.py\"",
      .flags = {}};
  for (const Setting& s : of.settings) {
    // What is off has no flag, but where one says so.
    if (s.flag.empty() || (s.value.python == "False" && !s.flag.starts_with("--no-"))) continue;
    script.flags.push_back(s.value.shell.empty() ? s.flag : s.flag + " " + s.value.shell);
  }
  script.flags.insert(script.flags.end(), std::begin(kFilledIn), std::end(kFilledIn));
  exported.text = text_of(script, job.strategy, job.machine);
  return exported;
}

}  // namespace piper::exporting
