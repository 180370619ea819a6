// The version, commit and compiler that this program was built with. The build looks up the commit each time it builds
// something, so that the stored commit is never out of date (cmake/BuildInfo.cmake).
#pragma once

#include <string>
#include <string_view>

namespace hvd::bench {

struct BuildInfo {
  std::string_view version;     ///< "0.1.0"
  std::string_view git_commit;  ///< 40 hexadecimal digits, or "unknown" outside a repository
  std::string_view git_state;   ///< "clean", "dirty" (tracked files changed) or "unknown"
  std::string_view compiler;    ///< "GNU 12.2.0"
  std::string_view flags;
  std::string_view build_type;
};

const BuildInfo& build_info();

/// The text of results/schema.sql, embedded in the program. Executing the text makes a store of schema version 1.
std::string_view schema_sql();
/// The text of results/schema_2.sql, embedded in the program. Executing the text turns a store of version 1 into a
/// store of version 2.
std::string_view schema_2_sql();

/// Returns text such as "hvd_bench 0.1.0 (commit 42bcb1278b, dirty)".
std::string version_text();

}  // namespace hvd::bench
