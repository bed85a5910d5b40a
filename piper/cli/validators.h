// Checks of flags that CLI11's own let through: NaN is in no range, and -1 is no unsigned integer.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <string>

namespace piper::cli {

// A finite number from `least` to `most`.
inline CLI::Validator number_in(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool number = error == std::errc() && end == text.data() + text.size();
        if (number && std::isfinite(value) && value >= least && value <= most) return std::string();
        return fmt::format("is {}; allowed: a number from {} to {}", text, least, most);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

inline CLI::Validator not_negative() {
  return CLI::Validator(
      [](const std::string& text) {
        const bool digits =
            !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return digits ? std::string()
                      : fmt::format("is {}; allowed: an integer from 0 to 2^64 - 1", text);
      },
      "");
}

// A file to be written: its folder exists, so that long work does not end in an error.
inline CLI::Validator writable_file() {
  return CLI::Validator(
      [](const std::string& text) {
        const std::filesystem::path folder = std::filesystem::path(text).parent_path();
        std::error_code error;
        if (folder.empty() || std::filesystem::is_directory(folder, error)) return std::string();
        return fmt::format("is {}; allowed: a file in a folder that exists ('{}' does not)", text,
                           folder.string());
      },
      "FILE");
}

}  // namespace piper::cli
