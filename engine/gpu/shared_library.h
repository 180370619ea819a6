// A vendor's library, loaded at run time: the program must start on machines that have none of them. Any thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
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
  /// The file that the loader found by that name. For a library that is loaded.
  [[nodiscard]] std::string path() const;
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

/// What this machine's environment says of where libraries lie; the same for all of them.
struct LibrarySearch {
  /// Folders that the user named, in which (or in the lib or lib64 below) the library must be; empty: none was named.
  std::string cudnn_root;   ///< HVD_CUDNN_ROOT
  std::string cublas_root;  ///< HVD_CUBLAS_ROOT
  std::string nccl_root;    ///< HVD_NCCL_ROOT
  /// In the manner of sys.path: folders that hold the nvidia/ of NVIDIA's wheels.
  std::vector<std::string> python_folders;
};

/// From environment variables, by name: the three above, and the packages of the active Python environment
/// (VIRTUAL_ENV, CONDA_PREFIX), of PYTHONPATH, of the python3 that PATH finds, and of the user (HOME). Reads folders,
/// starts nothing.
LibrarySearch library_search(const std::function<std::string_view(const char* variable)>& value_of);

/// One library: what it is called, and where it lies where it is installed.
struct WantedLibrary {
  std::string what;                            ///< "cuDNN"
  std::vector<std::string> files;              ///< that will do, the best first: "libcudnn.so.9"
  std::string root_variable;                   ///< "HVD_CUDNN_ROOT"
  std::string LibrarySearch::*root = nullptr;  ///< its value
  std::string build_path;                      ///< the file that CMake found; empty: none
  std::vector<std::string> wheel_folders;      ///< below a Python folder: "nvidia/cudnn/lib"
  std::string how_to_get;                      ///< "install cuDNN 9": the advice where there is none
};

/// File names and paths in the one order in which libraries are looked for. A root that the user named is the only
/// place. Else: where the dynamic loader looks (the host's own), where CMake found it, Python's wheels.
std::vector<std::string> candidates(const WantedLibrary& wanted, const LibrarySearch& search);

/// The first candidate that can be loaded. Errors: unsupported, in one line that lists what was tried and says what to
/// do.
SharedLibrary load_library(const WantedLibrary& wanted, const LibrarySearch& search);

/// For a library that was loaded and will not do. Throws unsupported: "<library> <trouble>: <what to do>".
[[noreturn]] void refuse_library(const WantedLibrary& wanted, const SharedLibrary& library, const std::string& trouble);

/// A library's message as one line.
std::string one_line(std::string text);

}  // namespace hvd::gpu
