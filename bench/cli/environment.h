// The process environment as plain data, taken once at the start of main(). Everything that depends on the
// environment is a pure function of this map, so that a test can hand in its own.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace hvd::bench {

using Environment = std::map<std::string, std::string, std::less<>>;

/// Returns a copy of this process's environment.
Environment process_environment();

/// Returns the value of `name`, or an empty string.
std::string_view value_of(const Environment& environment, std::string_view name);

}  // namespace hvd::bench
