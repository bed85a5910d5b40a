// A Hugging Face config.json becomes a Model: one importer built on what keys mean, not on model
// names.
#pragma once

#include <piper/base/json_fwd.h>
#include <piper/model/model.h>

#include <filesystem>
#include <string>
#include <vector>

namespace piper::model {

// Throws InvalidInput with every problem of the document: missing or nonsensical keys,
// contradictions, and keys that change shapes and are not supported, by name. `source` names the
// file in messages.
//
// `ignore`: keys to read the document without, by name or by path ("text_config.foo"). What they
// held is listed in Model::ignored_on_request; a key that the document lacks is passed over.
Model import_config(const Json& config, const std::string& source,
                    const std::vector<std::string>& ignore = {});

// A path to a config.json, a folder holding one, or a built-in name ("mixtral-8x7b"; case does not
// matter). Throws InvalidInput (unknown name: with a suggestion; no such file), IoError (a file
// that cannot be read).
Model load_model(const std::string& name_or_path, const std::vector<std::string>& ignore = {});

// The document that load_model() reads, without the keys to ignore.
Json load_config(const std::string& name_or_path, const std::vector<std::string>& ignore = {});

// Names of the built-in models, sorted (the files of configs/models).
std::vector<std::string> builtin_models();

}  // namespace piper::model
