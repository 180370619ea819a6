// A vendor's library, loaded at run time: the program must start on machines that have none of them. Any thread.
#pragma once

#include <span>
#include <string>

namespace hvd::models::cudnn {

/// One of `names` that the loader found. Never closed: such libraries leave thread-local destructors behind, which
/// would run in unmapped memory.
class SharedLibrary {
 public:
  /// Loads the first of `names` (file names or paths) that can be loaded. Errors: unsupported if none can, with the
  /// loader's reasons; `what` and `how_to_get` make the line: "<what> could not be loaded (...): <how_to_get>".
  SharedLibrary(std::span<const std::string> names, const std::string& what, const std::string& how_to_get);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Sets `function` to the symbol, or to null; whether it is there.
  template <class Function>
  bool find(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(address(symbol));
    return function != nullptr;
  }

 private:
  [[nodiscard]] void* address(const char* symbol) const;

  void* handle_ = nullptr;
  std::string name_;
};

/// A library's message as one line.
std::string one_line(std::string text);

}  // namespace hvd::models::cudnn
