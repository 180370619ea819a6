// A vendor's library, loaded at run time: the program must start on machines that have none of them. Any thread.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace hvd::gpu {

/// The first of several files that the loader takes. Never closed: such libraries leave threads and thread-local
/// destructors behind, which would run in unmapped memory.
class SharedLibrary {
 public:
  struct Refusal {
    std::string name, why;  ///< `why` is the loader's, in one line
  };

  /// Tries `names` (file names or paths) in turn. That none can be loaded is no error here: loaded().
  explicit SharedLibrary(std::span<const std::string> names);

  [[nodiscard]] bool loaded() const noexcept { return handle_ != nullptr; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Of the names that were tried before, or of all.
  [[nodiscard]] const std::vector<Refusal>& refusals() const noexcept { return refusals_; }
  /// Sets `function` to the symbol, or to null; whether it is there. For a library that is loaded.
  template <class Function>
  bool find(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(address(symbol));
    return function != nullptr;
  }

 private:
  [[nodiscard]] void* address(const char* symbol) const;

  void* handle_ = nullptr;
  std::string name_;
  std::vector<Refusal> refusals_;
};

/// A library that has to be there. Errors: unsupported, "<what> could not be loaded (<why>; ...): <how_to_get>".
SharedLibrary require_library(std::span<const std::string> names, const std::string& what,
                              const std::string& how_to_get);

/// A library's message as one line.
std::string one_line(std::string text);

}  // namespace hvd::gpu
