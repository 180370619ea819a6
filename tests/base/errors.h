// Functions that return the error which a call throws, and that check texts. Any thread may call these functions.
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

#include "engine/base/error.h"

namespace hvd::test {

/// Runs `call`. Returns the Error that `call` throws as "code: text", or "" if it throws none.
template <class Call>
std::string error_of(Call&& call) {
  try {
    static_cast<void>(call());
  } catch (const Error& error) {
    return std::string(name(error.code())) + ": " + error.what();
  }
  return {};
}

inline void expect_contains(std::string_view text, std::string_view part) {
  EXPECT_NE(text.find(part), std::string_view::npos) << "'" << part << "' is not in: " << text;
}

/// Expects that `call` throws an Error of `code` whose text contains all of `parts`.
template <class Call>
void expect_error(Errc code, std::initializer_list<std::string_view> parts, Call&& call) {
  const std::string error = error_of(call), start = std::string(name(code)) + ": ";
  EXPECT_TRUE(error.starts_with(start) && error.size() > start.size()) << "'" << error << "' is not " << start;
  for (const std::string_view part : parts) expect_contains(error, part);
}
template <class Call>
void expect_error(Errc code, std::string_view part, Call&& call) {
  expect_error(code, std::initializer_list<std::string_view>{part}, call);
}

}  // namespace hvd::test
