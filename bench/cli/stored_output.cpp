#include "bench/cli/stored_output.h"

#include <ostream>

#include "bench/cli/console.h"
#include "engine/base/error.h"

namespace hvd::bench {

int print_stored_labels(const StoredLabels& labels, std::ostream& out) {
  for (const std::string& value : labels.values) out << printable(value) << '\n';
  if (!labels.note.empty()) say_warning(labels.note);
  for (const std::string& problem : labels.problems) say_error(problem + "; what it holds is not listed");
  return labels.problems.empty() ? 0 : exit_code(Errc::kIo);
}

}  // namespace hvd::bench
