// cuDNN's backend API, loaded at run time, so that one binary runs with any cuDNN 8.9 or 9 that the host has. Without
// cuDNN, the error says in one line what is missing. Enumerations come from the headers at build time; the values are
// equal in all these versions. The values of status codes differ between versions, so our code compares them only with
// "success".
//
// load() returns a shared owner; everybody else borrows the library. Calls are as thread-safe as cuDNN's.
#pragma once

#include <cudnn_backend.h>

#include <compare>
#include <cstddef>
#include <memory>
#include <string>

#include "engine/gpu/shared_library.h"

namespace hvd::models::cudnn {

struct Version {
  int major = 0, minor = 0, patch = 0;
  // clang-tidy 14 takes the zero in a defaulted <=> for a null pointer.
  auto operator<=>(const Version&) const = default;  // NOLINT(modernize-use-nullptr)
  [[nodiscard]] std::string text() const;            ///< e.g. "9.19.0"
};

/// Parses the number that cudnnGetVersion() returns. Up to version 8: 1000 * major + 100 * minor + patch. Since version
/// 9: 10000 * major + 100 * minor + patch.
Version version_from_number(std::size_t number) noexcept;

/// The oldest version that the planner and the executor support.
inline constexpr Version kOldestVersion{8, 9, 0};
/// From this version on, cuDNN lists engines for a device described by its properties, with no device present.
inline constexpr Version kDevicelessVersion{9, 8, 0};

/// The functions of cuDNN that we call. Functions that the loaded version does not have are null.
struct Functions {
  decltype(&::cudnnGetVersion) get_version = nullptr;
  decltype(&::cudnnGetErrorString) get_error_string = nullptr;
  void (*get_last_error_string)(char*, std::size_t) = nullptr;    ///< since 9.0
  decltype(&::cudnnGetCudartVersion) get_cuda_version = nullptr;  ///< may be null
  decltype(&::cudnnCreate) create_handle = nullptr;
  decltype(&::cudnnDestroy) destroy_handle = nullptr;
  decltype(&::cudnnSetStream) set_stream = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) create = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) destroy = nullptr;
  decltype(&::cudnnBackendSetAttribute) set = nullptr;
  decltype(&::cudnnBackendGetAttribute) get = nullptr;
  decltype(&::cudnnBackendFinalize) finalize = nullptr;
  decltype(&::cudnnBackendExecute) execute = nullptr;
};

class Library {
 public:
  /// Searches the places in gpu::candidates. Errors: unsupported if no library is found, if the library lacks a
  /// function, or if the library is older than kOldestVersion.
  static std::shared_ptr<const Library> load(const gpu::LibrarySearch& search = {});
  /// Uses the functions that the caller gives, for tests.
  static std::shared_ptr<const Library> with(const Functions& functions);

  [[nodiscard]] const Functions& call() const noexcept { return functions_; }
  [[nodiscard]] Version version() const noexcept { return version_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Returns a text for errors, for example "cuDNN 9.10.2 for CUDA 12 (this program: 13)". A cuDNN for another CUDA
  /// version than this program's is not refused.
  [[nodiscard]] std::string description() const;
  /// Explains the calling thread's last call: the name of `status`, and the library's last error text if it has one.
  [[nodiscard]] std::string explain(cudnnStatus_t status) const;

 private:
  Library() = default;

  Functions functions_;
  Version version_;
  std::string name_;
};

}  // namespace hvd::models::cudnn
