// The recorded steps that ship with the program, as files in share/hvd_bench/steps beside the program's folder bin.
// results/steps has their sources.
#pragma once

#include <string>

namespace hvd::bench {

/// Returns the file of the recorded step that `named` means, a value of --replay. The name of a step that ships means
/// this step, even if the current folder has a file of that name. Every other text is the path of a file.
/// scripts/hvdb/base/data.py has the same rule.
/// Errors: io if `named` has no '/' and no '.', and neither a step nor a file is called so; io if this program has lost
/// its steps.
std::string step_file(const std::string& named);

/// Returns a line if `named` is a step that ships and also a file in the current folder, which is not played; else "".
std::string unplayed_file(const std::string& named);

}  // namespace hvd::bench
