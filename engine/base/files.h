// Files that are there whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

/// Puts `text` in the place of what is in `path`: written beside it and renamed, so that nobody reads half of it and
/// several processes may do so at once. Errors: io, naming the file.
void replace_file(const std::string& path, std::string_view text);

}  // namespace hvd
