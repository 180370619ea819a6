// Writes JSON documents member by member, for the reports that the program prints. Used by one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/base/json.h"

namespace hvd::bench {

/// Writes one object or array: adds commas, and indents by two spaces per level.
class JsonWriter {
 public:
  explicit JsonWriter(std::string& out, int depth = 0) : out_(out), depth_(depth) {}

  void text(std::string_view key, std::string_view value) { raw(key, json_string(value)); }
  void number(std::string_view key, double value) { raw(key, json_number(value)); }
  void integer(std::string_view key, std::int64_t value) { raw(key, std::to_string(value)); }
  void truth(std::string_view key, bool value) { raw(key, value ? "true" : "false"); }
  void null(std::string_view key) { raw(key, "null"); }
  void number(std::string_view key, const std::optional<double>& value) {
    raw(key, value ? json_number(*value) : "null");
  }

  /// `value` must be JSON.
  void raw(std::string_view key, std::string_view value) {
    begin(key);
    out_ += value;
  }

  template <class Fill>
  void object(std::string_view key, Fill fill) {
    nest(key, '{', '}', fill);
  }
  template <class Fill>
  void array(std::string_view key, Fill fill) {
    nest(key, '[', ']', fill);
  }
  void element(std::string_view value) { raw({}, json_string(value)); }
  void element(int value) { raw({}, std::to_string(value)); }

 private:
  void begin(std::string_view key) {
    if (!first_) out_ += ',';
    first_ = false;
    out_ += '\n';
    out_.append(2 * static_cast<std::size_t>(depth_), ' ');
    if (!key.empty()) out_.append(json_string(key)).append(": ");
  }
  template <class Fill>
  void nest(std::string_view key, char open, char close, Fill fill) {
    begin(key);
    out_ += open;
    JsonWriter inner(out_, depth_ + 1);
    fill(inner);
    if (!inner.first_) {
      out_ += '\n';
      out_.append(2 * static_cast<std::size_t>(depth_), ' ');
    }
    out_ += close;
  }

  std::string& out_;
  int depth_;
  bool first_ = true;
};

}  // namespace hvd::bench
