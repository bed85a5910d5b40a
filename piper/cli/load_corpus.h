// What --data of `train` and `eval` means.
#pragma once

#include <piper/data/corpus.h>

#include <cstdint>
#include <string>
#include <vector>

namespace piper::cli {

// Byte texts or indexed datasets (data::read_corpus), none = the project's own files; every token
// is checked against the vocabulary, with a progress bar when that takes reading them. Throws
// InvalidInput, IoError.
data::Corpus load_corpus(const std::vector<std::string>& paths, int64_t vocabulary);

// "README.md (12.3 KiB)", "pile (1.2 M tokens)"
std::string describe(const data::Corpus& corpus);

}  // namespace piper::cli
