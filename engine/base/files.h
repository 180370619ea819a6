// Reads whole files, and replaces files atomically: a reader sees the whole old content or the whole new content.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hvd {

/// Returns the bytes of the file `path`, or none if it cannot be opened or read; errno then has the reason.
std::optional<std::string> read_file(const std::string& path);

/// Makes `text` the content of the file `path`. The text is written to a temporary file in the same folder; that file
/// is then renamed to `path`. A reader never sees half a file. Several threads and processes, of several
/// hosts, may call this at once with one path: the last one wins.
/// Errors: io, naming the file; the errors of require_replaceable().
void replace_file(const std::string& path, std::string_view text);

/// Returns the path of this process's program as the kernel names it: links are followed, and " (deleted)" is behind
/// the name of a file that has been removed or replaced. Empty if /proc cannot be read.
std::string program_file();

/// Returns 0, or errno of the write that failed.
int write_all(int descriptor, std::string_view text) noexcept;

/// Errors: io if `path` is a folder, a device, a pipe or a socket. Without this check a program run by root could
/// rename its file over /dev/null and remove the device for everybody.
void require_replaceable(const std::string& path);

}  // namespace hvd
