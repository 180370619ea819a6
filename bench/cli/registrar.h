// Registers options on a CLI11 app. CLI11 hands over each value as text, and values.h converts it. Used by one thread
// while the command line is parsed.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/cli/values.h"
#include "engine/base/error.h"

namespace hvd::bench {

class Registrar {
 public:
  explicit Registrar(CLI::App& app) : app_(app) {}

  Registrar& group(const char* name) {
    group_ = name;
    return *this;
  }
  void value(const char* name, const char* placeholder, const char* help, std::function<void(const std::string&)> set) {
    app_.add_option_function<std::string>(
            name,
            [name, set = std::move(set)](const std::string& text) {
              if (text.starts_with("--")) {
                throw Error(Errc::kInvalidArgument, fmt::format("{}: the value is missing (found {})", name, text));
              }
              set(text);
            },
            help)
        ->type_name(placeholder)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
        ->group(group_);
  }
  /// file() and folder() refuse an empty name, which is most likely an unset shell variable.
  void file(const char* name, const char* help, std::string& target) { path(name, "FILE", "file", help, target); }
  void folder(const char* name, const char* help, std::string& target) { path(name, "FOLDER", "folder", help, target); }
  /// Registers an option that may be given several times, with one value each.
  void repeated(const char* name, const char* placeholder, const char* help,
                std::function<void(const std::string&)> set) {
    app_.add_option_function<std::vector<std::string>>(
            name,
            [set = std::move(set)](const std::vector<std::string>& texts) {
              for (const std::string& text : texts) set(text);
            },
            help)
        ->type_name(placeholder)
        ->type_size(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->group(group_);
  }
  void flag(const char* name, const char* help, std::function<void()> set) {
    app_.add_flag_callback(name, std::move(set), help)->group(group_);
  }
  template <class Integer>
  void integer(const char* name, const char* help, std::int64_t low, std::int64_t high, Integer& target) {
    value(name, "N", help, [=, &target](const std::string& text) {
      target = static_cast<typename ValueOf<Integer>::type>(parse_integer(name, text, low, high));
    });
  }
  void number(const char* name, const char* placeholder, const char* help, double low, double high,
              std::function<void(double)> set) {
    value(name, placeholder, help,
          [=, set = std::move(set)](const std::string& text) { set(parse_number(name, text, low, high)); });
  }

 private:
  void path(const char* name, const char* placeholder, const char* kind, const char* help, std::string& target) {
    value(name, placeholder, help, [name, kind, &target](const std::string& text) {
      if (text.empty()) throw Error(Errc::kInvalidArgument, fmt::format("{}: the {}'s name is empty", name, kind));
      target = text;
    });
  }
  template <class T>
  struct ValueOf {
    using type = T;
  };
  template <class T>
  struct ValueOf<std::optional<T>> {
    using type = T;
  };
  CLI::App& app_;
  std::string group_;
};

}  // namespace hvd::bench
