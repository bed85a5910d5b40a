#include <fmt/format.h>
#include <piper/base/json.h>
#include <piper/model/keys.h>

#include <algorithm>
#include <string_view>

namespace piper::model {
namespace {

constexpr const char* kInnerModels[] = {"thinker_config", "text_config", "llm_config",
                                        "language_config", "llm_cfg"};
constexpr const char* kParts[] = {"attn_config", "ffn_config"};  // DBRX

const char* present(const ObjectReader& scope, Spellings names) {
  for (const char* name : names)
    if (scope.has(name)) return name;
  return nullptr;
}

void remove_from(Json& object, const std::string& key, const std::string& path,
                 std::vector<std::string>& removed) {
  if (!object.is_object()) return;
  const auto below = [&](const std::string& name) {
    return path.empty() ? name : path + "." + name;
  };
  if (object.contains(key)) {
    removed.push_back(fmt::format("{}: {}", below(key), quote(object.at(key))));
    object.erase(key);
  }
  const size_t dot = key.find('.');
  if (dot != std::string::npos && object.contains(key.substr(0, dot)))
    remove_from(object.at(key.substr(0, dot)), key.substr(dot + 1), below(key.substr(0, dot)),
                removed);
  if (dot != std::string::npos) return;
  for (const char* inner : kInnerModels)
    if (object.contains(inner)) remove_from(object.at(inner), key, below(inner), removed);
  for (const char* part : kParts)
    if (object.contains(part)) remove_from(object.at(part), key, below(part), removed);
}

}  // namespace

std::vector<std::string> remove_key(Json& document, const std::string& key) {
  std::vector<std::string> removed;
  remove_from(document, key, "", removed);
  return removed;
}

Keys::Keys(const Json& document, Problems* problems) : problems_(problems) {
  const Json* root = &document;
  std::string path;
  // A thinker that holds a text_config (Qwen-Omni) is a wrapper in a wrapper: the inner one counts.
  for (const char* inner : kInnerModels) {
    if (!root->is_object() || !root->contains(inner) || (*root)[inner].is_null()) continue;
    wrapper_.emplace(*root, path, problems);
    wrapper_object_ = root;
    path = path.empty() ? inner : path + "." + inner;
    root = &(*root)[inner];
    wrapper_->ignore(inner);
    wrapper_->ignore("model_type");
  }
  add_scope(*root, path);
  for (const char* part : kParts)
    if (const Json* object = scopes_.front().object(part))
      add_scope(*object, scopes_.front().path(part));
}

void Keys::add_scope(const Json& object, const std::string& path) {
  scopes_.emplace_back(object, path, problems_);
  objects_.push_back(&object);
}

void Keys::set_defaults(Json defaults) {
  defaults_document_ = std::move(defaults);
  defaults_.emplace(defaults_document_, "", problems_);
}

void Keys::take_back_default(Spellings names) {
  for (const std::string name : names) {
    defaults_document_.erase(name);
    std::erase_if(defaults_used_,
                  [&](const std::string& line) { return line.starts_with(name + " "); });
  }
}

const char* Keys::default_name(Spellings names) const {
  if (!defaults_) return nullptr;
  for (const ObjectReader& scope : scopes_)
    for (const char* name : names)
      if (scope.value_of(name) != nullptr) return nullptr;
  return present(*defaults_, names);
}

Keys::Found Keys::find_default(Spellings names) {
  const char* name = default_name(names);
  if (name == nullptr) return {};
  const std::string line =
      fmt::format("{} is not given: {}", name, defaults_document_.at(name).dump());
  if (std::ranges::find(defaults_used_, line) == defaults_used_.end())
    defaults_used_.push_back(line);
  return {&*defaults_, name};
}

bool Keys::is_given(Spellings names) const {
  return std::ranges::any_of(
      scopes_, [&](const ObjectReader& scope) { return present(scope, names) != nullptr; });
}

bool Keys::has(Spellings names) const { return is_given(names) || default_name(names) != nullptr; }

Keys::Found Keys::find(Spellings names) {
  Found found;
  const Json* value = nullptr;
  for (size_t i = 0; i < scopes_.size(); ++i)
    for (const char* name : names) {
      if (i > 0 && std::string_view(name) == "model_type")
        continue;  // DBRX repeats it in its parts
      scopes_[i].ignore(name);
      if (!scopes_[i].has(name)) continue;
      const Json& other = *scopes_[i].value_of(name);
      if (value == nullptr) {
        found = {&scopes_[i], name};
        value = &other;
      } else if (*value != other) {
        scopes_[i].problem(name,
                           fmt::format("is {} but '{}' is {}; they mean the same", quote(other),
                                       found.scope->path(found.name), quote(*value)));
      }
    }
  return value == nullptr ? find_default(names) : found;
}

std::optional<int64_t> Keys::integer(Spellings names, int64_t min, int64_t max) {
  const Found found = find(names);
  if (found.scope == nullptr) return std::nullopt;
  return found.scope->integer(found.name, min, max);
}

int64_t Keys::required_integer(Spellings names, int64_t min, int64_t max) {
  const std::optional<int64_t> value = integer(names, min, max);
  if (!value)
    problem(names, fmt::format("is missing; allowed: an integer from {} to {}", min, max));
  return value.value_or(min);
}

std::optional<double> Keys::number(Spellings names, double min, double max) {
  const Found found = find(names);
  if (found.scope == nullptr) return std::nullopt;
  return found.scope->number(found.name, min, max);
}

std::optional<bool> Keys::boolean(Spellings names) {
  const Found found = find(names);
  if (found.scope == nullptr) return std::nullopt;
  return found.scope->boolean(found.name, false);
}

std::optional<std::string> Keys::text(Spellings names) {
  const Found found = find(names);
  if (found.scope == nullptr) return std::nullopt;
  return found.scope->text(found.name);
}

std::vector<int64_t> Keys::integers_by_layer(Spellings names, int64_t min, int64_t max,
                                             int64_t num_layers) {
  const Found found = find(names);
  if (found.scope == nullptr) return {};
  const auto wanted = static_cast<size_t>(num_layers);
  if (!found.scope->raw(found.name).is_array())
    return std::vector<int64_t>(wanted, found.scope->integer(found.name, min, max));
  std::vector<int64_t> values = found.scope->integers(found.name, min, max);
  if (values.size() != wanted && layers_known_)
    found.scope->problem(found.name,
                         fmt::format("has {} entries; allowed: one for each of the {} layers",
                                     values.size(), num_layers));
  values.resize(wanted, min);
  return values;
}

std::vector<bool> Keys::booleans_by_layer(Spellings names, int64_t num_layers) {
  const Found found = find(names);
  if (found.scope == nullptr) return {};
  const Json* array = found.scope->array(found.name);
  if (array == nullptr) return {};
  std::vector<bool> values;
  for (size_t i = 0; i < array->size(); ++i) {
    const Json& value = (*array)[i];
    if (!value.is_boolean() && value != 0 && value != 1)
      found.scope->problem(fmt::format("{}[{}]", found.name, i),
                           "is " + quote(value) + "; allowed: true, false");
    values.push_back(value == true || value == 1);
  }
  if (std::ssize(values) == num_layers || !layers_known_) {
    values.resize(static_cast<size_t>(num_layers));
    return values;
  }
  found.scope->problem(found.name, fmt::format("has {} entries; allowed: one for each of the {} "
                                               "layers",
                                               values.size(), num_layers));
  return {};
}

std::vector<std::string> Keys::texts_by_layer(Spellings names, int64_t num_layers) {
  const Found found = find(names);
  if (found.scope == nullptr) return {};
  const Json* array = found.scope->array(found.name);
  if (array == nullptr) return {};
  const auto wanted = static_cast<size_t>(num_layers);
  std::vector<std::string> values;
  for (size_t i = 0; i < array->size() && i < wanted; ++i) {
    const Json& value = (*array)[i];
    if (!value.is_string())
      found.scope->problem(fmt::format("{}[{}]", found.name, i),
                           "is " + quote(value) + "; allowed: a string");
    values.push_back(value.is_string() ? value.get<std::string>() : std::string());
  }
  if (values.size() < wanted && layers_known_) {
    found.scope->problem(found.name,
                         fmt::format("has {} entries; allowed: one for each of the {} layers",
                                     values.size(), num_layers));
    return {};
  }
  return values;
}

std::vector<int64_t> Keys::integers(Spellings names, int64_t min, int64_t max) {
  const Found found = find(names);
  return found.scope == nullptr ? std::vector<int64_t>{}
                                : found.scope->integers(found.name, min, max);
}

std::vector<double> Keys::numbers(Spellings names, double min, double max) {
  const Found found = find(names);
  return found.scope == nullptr ? std::vector<double>{}
                                : found.scope->numbers(found.name, min, max);
}

const Json* Keys::object(Spellings names) {
  const Found found = find(names);
  return found.scope == nullptr ? nullptr : found.scope->object(found.name);
}

bool Keys::sound(Spellings names, int64_t min, int64_t max) const {
  const auto within = [&](const Json& value) {
    return value.is_number_integer() && value.get<int64_t>() >= min && value.get<int64_t>() <= max;
  };
  for (const ObjectReader& scope : scopes_) {
    const char* name = present(scope, names);
    if (name == nullptr) continue;
    const Json& value = *scope.value_of(name);
    return value.is_array() ? std::all_of(value.begin(), value.end(), within) : within(value);
  }
  const char* name = default_name(names);
  return name != nullptr && within(defaults_document_.at(name));
}

const Json* Keys::given(Spellings names) const {
  for (const ObjectReader& scope : scopes_)
    if (const char* name = present(scope, names)) return scope.value_of(name);
  return nullptr;
}

bool Keys::is_zero(Spellings names) const {
  const Json* value = given(names);
  return value != nullptr && value->is_number_integer() && *value == 0;
}

bool Keys::is_text(Spellings names) const {
  const Json* value = given(names);
  return value != nullptr && value->is_string();
}

bool Keys::is_list(Spellings names) const {
  const Json* value = given(names);
  return value != nullptr && value->is_array();
}

std::optional<bool> Keys::outer_boolean(const char* name) {
  if (!wrapper_ || !wrapper_->has(name)) return std::nullopt;
  return wrapper_->boolean(name, false);
}

std::string Keys::path(Spellings names) const {
  for (const ObjectReader& scope : scopes_)
    if (const char* name = present(scope, names)) return scope.path(name);
  return scopes_.front().path(*names.begin());
}

void Keys::problem(Spellings names, const std::string& what) { problems_->add(path(names), what); }

void Keys::ignore(const char* name) {
  for (ObjectReader& scope : scopes_) scope.ignore(name);
  if (wrapper_) wrapper_->ignore(name);
}

std::vector<Keys::Unread> Keys::entries() const {
  std::vector<Unread> out;
  for (size_t i = 0; i < scopes_.size(); ++i)
    if (objects_[i]->is_object())
      for (const auto& [key, value] : objects_[i]->items())
        out.push_back({scopes_[i].path(key), key, &value, false});
  if (wrapper_)
    for (const auto& [key, value] : wrapper_object_->items())
      out.push_back({wrapper_->path(key), key, &value, true});
  return out;
}

std::vector<Keys::Unread> Keys::unread() const {
  std::vector<Unread> out;
  for (const ObjectReader& scope : scopes_)
    for (const std::string& key : scope.unread())
      out.push_back({scope.path(key), key, scope.value_of(key), false});
  if (wrapper_)
    for (const std::string& key : wrapper_->unread())
      out.push_back({wrapper_->path(key), key, wrapper_->value_of(key), true});
  return out;
}

}  // namespace piper::model
