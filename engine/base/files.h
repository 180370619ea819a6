// Files that are there whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace hvd {

/// Puts `text` in the place of what is in `path`: written beside it and renamed, so that nobody reads half of it and
/// several processes may do so at once. Errors: io, naming the file; that of require_replaceable().
void replace_file(const std::string& path, std::string_view text);

/// Errors: io if `path` is a folder, a device, a pipe or a socket: a program with the rights to do so would rename its
/// file over it, and /dev/null would be gone for everybody.
void require_replaceable(const std::string& path);

}  // namespace hvd
