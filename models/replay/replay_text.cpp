// Writes and reads the text form of a replay profile. It has "key value" lines, one line per gradient, and the number
// of gradients as a check. Version 1 has batch_size in place of unit and units_per_step, needs image_size and
// forward_seconds, and knows no factors. A profile is written in the oldest version that can express it, so that a
// profile of version 1 keeps its text, whose hash is part of the fingerprint of its runs.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "models/replay/replay.h"

namespace hvd::models {
namespace {

constexpr std::string_view kVersionLine = "hvd-replay 2", kVersionLine1 = "hvd-replay 1";
// No real step exceeds these limits. Larger values could overflow sums and clocks.
constexpr double kMaxSeconds = 86400;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;
constexpr std::int64_t kMaxUnits = 1 << 30, kMaxImage = 1 << 20;
constexpr std::size_t kMaxUnitLetters = 20;

std::string number_text(double value) {
  char buffer[32];
  // to_chars() writes the shortest text that reads back as the same value.
  const auto result = std::to_chars(std::begin(buffer), std::end(buffer), value);
  return {std::begin(buffer), result.ptr};
}

std::string one_line(const char* key, const std::string& value) {
  if (value.find_first_of("\r\n") != std::string::npos) {
    throw Error(Errc::kInvalidArgument, fmt::format("replay profile: {} contains a line break", key));
  }
  return value;
}

class Parser {
 public:
  Parser(const std::string& text, const std::string& origin) : rest_(text), origin_(origin) {}

  ReplayProfile run() {
    const std::string_view version = next_line();
    if (version.starts_with("\xEF\xBB\xBF")) {
      fail("begins with a byte-order mark; remove it: sed -i '1s/^\\xEF\\xBB\\xBF//' FILE");
    }
    if (version != kVersionLine && version != kVersionLine1) {
      fail(fmt::format("is not a replay profile that this program can read (the first line must be '{}' or '{}')",
                       kVersionLine, kVersionLine1));
    }
    is_version_1_ = version == kVersionLine1;
    bool ended = false;
    while (!ended) {
      if (rest_.empty()) fail("the file ends early: the 'end' line is missing");
      const std::string_view line = next_line();
      const std::size_t space = line.find(' ');
      const std::string_view key = line.substr(0, space);
      const std::string_view value = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
      if (key == "gradient") {
        gradient(value);
      } else if (key == "end") {
        end(value);
        ended = true;
      } else {
        header(key, value);
      }
    }
    if (!rest_.empty()) fail("there is text after the 'end' line");
    return profile_;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    // A stranger's file may have words of megabytes.
    throw Error(Errc::kInvalidArgument, fmt::format("{}:{}: {:.300}", origin_, line_number_, what));
  }

  std::string_view next_line() {
    const std::size_t end = rest_.find('\n');
    const std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    ++line_number_;
    if (line.ends_with('\r')) fail("has the line ends of Windows (CR LF); convert them: sed -i 's/\\r$//' FILE");
    return line;
  }

  template <class T>
  T number(std::string_view text, const char* what) const {
    T value{};
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size()) {
      fail(fmt::format("'{}' is not a {}", text, what));
    }
    return value;
  }
  [[nodiscard]] double seconds(std::string_view text) const {
    const auto value = number<double>(text, "time in seconds");
    if (!std::isfinite(value) || value < 0) fail(fmt::format("a time must be finite and not negative, got {}", text));
    if (value > kMaxSeconds) fail(fmt::format("a time must be at most a day, got {} s", text));
    return value;
  }
  [[nodiscard]] std::int64_t positive(std::string_view text, std::int64_t most) const {
    const auto value = number<std::int64_t>(text, "whole number");
    if (value < 1) fail(fmt::format("must be at least 1, got {}", text));
    if (value > most) fail(fmt::format("must be at most {}, got {}", most, text));
    return value;
  }

  void header(std::string_view key, std::string_view value) {
    if (!seen_.emplace(key).second) fail(fmt::format("'{}' appears twice", key));
    if (key == "model") {
      profile_.model = value;
    } else if (key == (is_version_1_ ? "batch_size" : "units_per_step")) {
      profile_.units_per_step = positive(value, kMaxUnits);
    } else if (key == "unit" && !is_version_1_) {
      profile_.unit = unit(value);
    } else if (key == "factors" && !is_version_1_) {
      factors(value);
    } else if (key == "image_size") {
      profile_.image_size = positive(value, kMaxImage);
    } else if (key == "device") {
      profile_.device = value;
    } else if (key == "compute_type") {
      profile_.compute_type = value;
    } else if (key == "source_run") {
      profile_.source_run = value;
    } else if (key == "forward_seconds") {
      profile_.forward_seconds = seconds(value);
    } else if (key == "backward_end_seconds") {
      profile_.backward_end_seconds = seconds(value);
    } else if (key == "update_seconds") {
      profile_.update_seconds = seconds(value);
    } else {
      fail(fmt::format("unknown key '{}'", key));
    }
  }

  [[nodiscard]] std::string unit(std::string_view value) const {
    const bool is_word = std::all_of(value.begin(), value.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    if (value.empty() || value.size() > kMaxUnitLetters || !is_word) {
      fail(fmt::format("the unit of work must be 1 to {} small letters, such as images or tokens", kMaxUnitLetters));
    }
    return std::string(value);
  }

  // factors <factor> <factor> ...
  void factors(std::string_view value) {
    while (true) {
      const std::size_t space = value.find(' ');
      const std::string_view text = value.substr(0, space);
      const auto factor = number<double>(text, "factor");
      if (!(factor >= kMinFactor && factor <= kMaxFactor)) {
        fail(fmt::format("a factor must be from {} to {}, got {}", kMinFactor, kMaxFactor, text));
      }
      if (profile_.factors.size() == kMaxFactors) fail(fmt::format("more than {} factors", kMaxFactors));
      profile_.factors.push_back(factor);
      if (space == std::string_view::npos) return;
      value.remove_prefix(space + 1);
    }
  }

  // gradient <elements> <submit seconds> <ready seconds> <name>
  void gradient(std::string_view value) {
    std::string_view fields[3];
    for (std::string_view& field : fields) {
      const std::size_t space = value.find(' ');
      if (space == std::string_view::npos) fail("a gradient line is: gradient elements submit ready name");
      field = value.substr(0, space);
      value.remove_prefix(space + 1);
    }
    if (value.empty()) fail("the gradient has no name");
    if (!names_.emplace(value).second) fail(fmt::format("gradient '{}' appears twice", value));
    const std::int64_t count = positive(fields[0], kMaxElements);
    elements_ += count;  // cannot overflow: both terms are at most kMaxElements
    if (elements_ > kMaxElements) fail(fmt::format("more than {} elements in all", kMaxElements));
    profile_.gradients.push_back({.name = std::string(value),
                                  .count = static_cast<std::size_t>(count),
                                  .submit_seconds = seconds(fields[1]),
                                  .ready_seconds = seconds(fields[2])});
  }

  void end(std::string_view value) {
    const auto count = number<std::size_t>(value, "number of gradients");
    if (count != profile_.gradients.size()) {
      fail(fmt::format("the file says {} gradients and holds {}", value, profile_.gradients.size()));
    }
    const auto require = [&](std::initializer_list<std::string_view> keys) {
      for (const std::string_view key : keys) {
        if (!seen_.contains(key)) fail(fmt::format("'{}' is missing", key));
      }
    };
    require({"model", "device", "compute_type", "source_run", "backward_end_seconds", "update_seconds"});
    if (is_version_1_) {
      require({"batch_size", "image_size", "forward_seconds"});
    } else {
      require({"unit", "units_per_step"});
    }
  }

  std::string_view rest_;
  const std::string& origin_;
  bool is_version_1_ = false;
  int line_number_ = 0;
  std::int64_t elements_ = 0;
  std::set<std::string, std::less<>> seen_, names_;
  ReplayProfile profile_;
};

}  // namespace

std::string to_text(const ReplayProfile& profile) {
  const bool is_version_1 = profile.unit == kImages && profile.image_size != 0 && profile.factors.empty();
  std::string text = fmt::format("{}\n", is_version_1 ? kVersionLine1 : kVersionLine);
  const auto line = [&text](const char* key, const std::string& value) {
    text += fmt::format("{} {}\n", key, one_line(key, value));
  };
  line("model", profile.model);
  if (!is_version_1) line("unit", profile.unit);
  line(is_version_1 ? "batch_size" : "units_per_step", std::to_string(profile.units_per_step));
  if (profile.image_size != 0) line("image_size", std::to_string(profile.image_size));
  line("device", profile.device);
  line("compute_type", profile.compute_type);
  line("source_run", profile.source_run);
  if (is_version_1 || profile.forward_seconds != 0) {
    line("forward_seconds", number_text(profile.forward_seconds));
  }
  line("backward_end_seconds", number_text(profile.backward_end_seconds));
  line("update_seconds", number_text(profile.update_seconds));
  if (!profile.factors.empty()) {
    std::string factors;
    for (const double factor : profile.factors) factors += (factors.empty() ? "" : " ") + number_text(factor);
    line("factors", factors);
  }
  for (const ReplayProfile::Gradient& gradient : profile.gradients) {
    line("gradient", fmt::format("{} {} {} {}", gradient.count, number_text(gradient.submit_seconds),
                                 number_text(gradient.ready_seconds), gradient.name));
  }
  line("end", std::to_string(profile.gradients.size()));
  return text;
}

ReplayProfile parse_replay(const std::string& text, const std::string& origin) { return Parser(text, origin).run(); }

}  // namespace hvd::models
