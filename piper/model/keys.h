// The keys of a config.json by meaning: one meaning has several spellings ("num_local_experts",
// "num_experts", "n_routed_experts"), and may stand in a nested object (text_config, attn_config).
// Used by the importer alone.
//
// A getter takes all spellings of one meaning, the commonest first: it names the key in messages
// when none is there. Two spellings with different values are a problem (a contradiction). Every
// problem goes to Problems; getters return nothing or a harmless value then, so that reading goes
// on and finds the rest.
#pragma once

#include <piper/base/json.h>

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace piper::model {

using Spellings = std::initializer_list<const char*>;

// Takes a key out of a document: a bare name from every part of it that the importer reads, or a
// path ("text_config.foo"). Returns what was taken, as "path: value".
std::vector<std::string> remove_key(Json& document, const std::string& key);

class Keys {
 public:
  // A language model inside a wrapper (text_config) is read instead of the wrapper. `document` must
  // outlive this.
  Keys(const Json& document, Problems* problems);

  // Values for keys that the config does not hold at all (a key that is null is held). Each one
  // used is noted.
  void set_defaults(Json defaults);
  void take_back_default(Spellings names);  // it was used and does not fit
  // "q_lora_rank is not given: 1536", of every default used.
  const std::vector<std::string>& defaults_used() const { return defaults_used_; }

  bool has(Spellings names) const;       // given, or filled in by a default
  bool is_given(Spellings names) const;  // present and not null
  std::optional<int64_t> integer(Spellings names, int64_t min, int64_t max);
  int64_t required_integer(Spellings names, int64_t min, int64_t max);
  std::optional<double> number(Spellings names, double min, double max);
  std::optional<bool> boolean(Spellings names);
  std::optional<std::string> text(Spellings names);
  // An array of one value a layer, or one value for all; empty when absent. Another length is a
  // problem.
  std::vector<int64_t> integers_by_layer(Spellings names, int64_t min, int64_t max,
                                         int64_t num_layers);
  // An array of booleans, or of 0 and 1, with one entry a layer; empty when absent. Another length is
  // a problem.
  std::vector<bool> booleans_by_layer(Spellings names, int64_t num_layers);
  // An array of strings with one entry a layer; empty when absent. A longer one is cut.
  std::vector<std::string> texts_by_layer(Spellings names, int64_t num_layers);
  std::vector<int64_t> integers(Spellings names, int64_t min, int64_t max);
  std::vector<double> numbers(Spellings names, double min, double max);
  const Json* object(Spellings names);

  // The value there is an integer within the bounds, or an array of such. For checks that compare
  // two keys: a value that is wrong by itself has its own problem already.
  bool sound(Spellings names, int64_t min, int64_t max) const;
  const Json* given(Spellings names) const;  // the first value that is present and not null
  bool is_zero(Spellings names) const;       // given as the number 0
  bool is_text(Spellings names) const;       // given as a string
  bool is_list(Spellings names) const;       // given as an array
  // The number of layers is not known: arrays with one entry a layer cannot be checked for their
  // length.
  void forget_layers() { layers_known_ = false; }
  bool layers_known() const { return layers_known_; }

  // The wrapper's value where the inner object has none (tie_word_embeddings).
  std::optional<bool> outer_boolean(const char* name);

  const Json* wrapper() const { return wrapper_object_; }  // nullptr = none

  // The path of the spelling that is there (else of the first), for messages.
  std::string path(Spellings names) const;
  void problem(Spellings names, const std::string& what);
  Problems* problems() { return problems_; }

  void ignore(const char* name);
  struct Unread {
    std::string path;
    std::string key;
    const Json* value;
    bool outside;  // beside the language model, in its wrapper
  };
  std::vector<Unread> unread() const;
  std::vector<Unread> entries() const;  // all keys, read or not

 private:
  struct Found {
    ObjectReader* scope = nullptr;
    const char* name = nullptr;
  };
  Found find(Spellings names);
  Found find_default(Spellings names);
  const char* default_name(Spellings names) const;  // nullptr = none, or the config holds the key
  void add_scope(const Json& object, const std::string& path);

  Problems* problems_;
  std::deque<ObjectReader> scopes_;
  std::deque<const Json*> objects_;  // of each scope
  std::optional<ObjectReader> wrapper_;
  const Json* wrapper_object_ = nullptr;
  Json defaults_document_ = Json::object();
  std::optional<ObjectReader> defaults_;
  std::vector<std::string> defaults_used_;
  bool layers_known_ = true;
};

}  // namespace piper::model
