// Finds and loads vendors' libraries at run time, because the program must start on machines without them. Any thread
// may call these functions.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hvd::gpu {

/// A loaded library: the first of several files that the dynamic loader can load. The library is never closed, because
/// the vendors' libraries leave threads and thread-local destructors behind, which would run in unmapped memory.
class SharedLibrary {
 public:
  /// kGlobal: libraries that are loaded later may use the symbols, as if the program were linked with this library.
  enum class Scope { kLocal, kGlobal };
  struct Refusal {
    std::string name, why;  ///< `name`: file name or path; `why`: the loader's message, in one line
  };

  /// Tries `names` (file names or paths) one after another. Does not throw if none can be loaded; check loaded().
  explicit SharedLibrary(std::span<const std::string> names, Scope scope = Scope::kLocal);

  [[nodiscard]] bool loaded() const noexcept { return handle_ != nullptr; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Returns the path of the file that the loader found for name(). Call only if loaded().
  [[nodiscard]] std::string path() const;
  /// Returns the names that could not be loaded, each with the reason.
  [[nodiscard]] const std::vector<Refusal>& refusals() const noexcept { return refusals_; }
  /// Sets `function` to the symbol's address. Sets null and returns false if the library does not have the symbol. Call
  /// only if loaded().
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

/// The folders in which to look for libraries. library_search() reads them from environment variables.
struct LibrarySearch {
  /// Folders that the user named. The library must be in the folder or in its lib or lib64. Empty: the user named none.
  std::string cudnn_root;   ///< HVD_CUDNN_ROOT
  std::string cublas_root;  ///< HVD_CUBLAS_ROOT
  std::string nccl_root;    ///< HVD_NCCL_ROOT
  /// Folders as in Python's sys.path. They contain the folder nvidia/ if NVIDIA's wheels are installed.
  std::vector<std::string> python_folders;
};

/// Builds a LibrarySearch from environment variables; `value_of` returns a variable's value. Python's folders are those
/// of the active environment (VIRTUAL_ENV, CONDA_PREFIX), of PYTHONPATH, of the first python3 in PATH, and of the user
/// (HOME). Reads folders, but starts no program.
LibrarySearch library_search(const std::function<std::string_view(const char* variable)>& value_of);

/// The names of one library, and the places where it may be installed.
struct WantedLibrary {
  std::string what;                            ///< "cuDNN"
  std::vector<std::string> files;              ///< names of usable files, the best first: "libcudnn.so.9"
  std::string root_variable;                   ///< "HVD_CUDNN_ROOT"
  std::string LibrarySearch::*root = nullptr;  ///< the member that holds the value of `root_variable`
  std::string build_path;                      ///< the file that CMake found; empty: none
  std::vector<std::string> wheel_folders;      ///< relative to a Python folder: "nvidia/cudnn/lib"
  std::string how_to_get;                      ///< advice for errors: "install cuDNN 9"
};

/// Returns the file names and paths to try, in order. If the user named a root, only that folder is searched.
/// Otherwise the order is: the dynamic loader's search path (the host's library), the file that CMake found, Python's
/// wheels.
std::vector<std::string> candidates(const WantedLibrary& wanted, const LibrarySearch& search);

/// Loads the first candidate that can be loaded. Errors: unsupported if there is none; the text names in one line the
/// files tried, and what to do.
SharedLibrary load_library(const WantedLibrary& wanted, const LibrarySearch& search);

/// Rejects a library that was loaded but is not usable. Throws unsupported: "<library> <trouble>: <what to do>".
[[noreturn]] void refuse_library(const WantedLibrary& wanted, const SharedLibrary& library, const std::string& trouble);

/// Turns a library's message into one line.
std::string one_line(std::string text);

}  // namespace hvd::gpu
