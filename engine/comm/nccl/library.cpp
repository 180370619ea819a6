// The real NCCL, loaded at run time: one binary runs with whichever version the host has.
#include <dlfcn.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/comm/nccl/api.h"

namespace hvd::comm::nccl {
namespace {

namespace fs = std::filesystem;

struct Functions {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommFinalize) comm_finalize = nullptr;
  decltype(&::ncclCommDestroy) comm_destroy = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  // Since 2.19; null before.
  ncclResult_t (*mem_alloc)(void**, std::size_t) = nullptr;
  ncclResult_t (*mem_free)(void*) = nullptr;
  ncclResult_t (*comm_register)(ncclComm_t, void*, std::size_t, void**) = nullptr;
  ncclResult_t (*comm_deregister)(ncclComm_t, void*) = nullptr;
};

ncclComm_t native(Comm comm) { return static_cast<ncclComm_t>(comm.native); }
cudaStream_t native(gpu::StreamView stream) { return static_cast<cudaStream_t>(stream.native); }

ncclDataType_t native(DataType type) {
  switch (type) {
    case DataType::kF32: return ncclFloat32;
    case DataType::kF64: return ncclFloat64;
    case DataType::kF16: return ncclFloat16;
    case DataType::kBF16: return ncclBfloat16;
    case DataType::kI32: return ncclInt32;
    case DataType::kI64: return ncclInt64;
    case DataType::kU8: return ncclUint8;
  }
  return ncclNumTypes;
}

ncclRedOp_t native(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return ncclSum;
    case ReduceOp::kAverage: return ncclAvg;
    case ReduceOp::kMin: return ncclMin;
    case ReduceOp::kMax: return ncclMax;
  }
  return ncclNumOps;
}

Result result_of(ncclResult_t code) {
  const Status status = code == ncclSuccess      ? Status::kDone
                        : code == ncclInProgress ? Status::kInProgress
                                                 : Status::kFailed;
  return {status, static_cast<int>(code), code == ncclRemoteError};
}

/// One line: the loader and NCCL write several.
std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

template <class Function>
bool find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

bool find_all(void* library, Functions& f) {
  find(library, "ncclMemAlloc", f.mem_alloc);
  find(library, "ncclMemFree", f.mem_free);
  find(library, "ncclCommRegister", f.comm_register);
  find(library, "ncclCommDeregister", f.comm_deregister);
  return find(library, "ncclGetVersion", f.get_version) && find(library, "ncclGetErrorString", f.get_error_string) &&
         find(library, "ncclGetLastError", f.get_last_error) && find(library, "ncclGetUniqueId", f.get_unique_id) &&
         find(library, "ncclCommInitRankConfig", f.comm_init_rank_config) &&
         find(library, "ncclCommGetAsyncError", f.comm_get_async_error) &&
         find(library, "ncclCommFinalize", f.comm_finalize) && find(library, "ncclCommDestroy", f.comm_destroy) &&
         find(library, "ncclCommAbort", f.comm_abort) && find(library, "ncclAllReduce", f.all_reduce) &&
         find(library, "ncclBroadcast", f.broadcast);
}

class Library final : public Api {
 public:
  Library(Functions functions, Version version, std::string name)
      : f_(functions), version_(version), name_(std::move(name)) {}

  [[nodiscard]] Version version() const override { return version_; }
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::string explain(Result result, Comm comm) const override {
    std::string text = f_.get_error_string(static_cast<ncclResult_t>(result.code));
    const char* const last = f_.get_last_error(native(comm));
    if (last != nullptr && *last != '\0') text += ": " + one_line(last);
    return text;
  }

  Result unique_id(UniqueId& id) override {
    ncclUniqueId theirs{};
    const Result result = result_of(f_.get_unique_id(&theirs));
    static_assert(sizeof theirs == sizeof id);
    std::memcpy(id.data(), &theirs, sizeof theirs);
    return result;
  }
  Result init_rank(Comm& comm, const UniqueId& id, const CommConfig& config) override {
    ncclUniqueId theirs{};
    std::memcpy(&theirs, id.data(), sizeof theirs);
    ncclConfig_t settings = NCCL_CONFIG_INITIALIZER;
    settings.blocking = 0;
    if (config.max_ctas > 0) settings.maxCTAs = config.max_ctas;
    ncclComm_t made = nullptr;
    const Result result = result_of(f_.comm_init_rank_config(&made, config.size, theirs, config.rank, &settings));
    comm.native = made;
    return result;
  }
  Result state(Comm comm) override {
    ncclResult_t asynchronous = ncclSuccess;
    const Result asked = result_of(f_.comm_get_async_error(native(comm), &asynchronous));
    return asked.status == Status::kDone ? result_of(asynchronous) : asked;
  }
  Result finalize(Comm comm) override { return result_of(f_.comm_finalize(native(comm))); }
  Result destroy(Comm comm) override { return result_of(f_.comm_destroy(native(comm))); }
  Result cancel(Comm comm) override { return result_of(f_.comm_abort(native(comm))); }

  Result all_reduce(Comm comm, const Collective& what, gpu::StreamView stream) override {
    return result_of(f_.all_reduce(what.data, what.data, what.count, native(what.dtype), native(what.op), native(comm),
                                   native(stream)));
  }
  Result broadcast(Comm comm, const Collective& what, gpu::StreamView stream) override {
    return result_of(
        f_.broadcast(what.data, what.data, what.count, native(what.dtype), what.root, native(comm), native(stream)));
  }

  [[nodiscard]] bool can_register() const override {
    return f_.mem_alloc != nullptr && f_.mem_free != nullptr && f_.comm_register != nullptr &&
           f_.comm_deregister != nullptr;
  }
  Result allocate(std::size_t bytes, void*& data) override { return result_of(f_.mem_alloc(&data, bytes)); }
  Result free(void* data) override { return result_of(f_.mem_free(data)); }
  Result enroll(Comm comm, std::span<std::byte> memory, Registration& registration) override {
    return result_of(f_.comm_register(native(comm), memory.data(), memory.size(), &registration.native));
  }
  Result withdraw(Comm comm, Registration registration) override {
    return result_of(f_.comm_deregister(native(comm), registration.native));
  }

 private:
  const Functions f_;
  const Version version_;
  const std::string name_;
};

}  // namespace

std::vector<std::string> candidates(const Search& search) {
  std::vector<std::string> paths;
  const auto add = [&](const fs::path& folder) {
    for (const char* const file : {"libnccl.so.2", "libnccl.so"}) paths.push_back(folder / file);
  };
  if (!search.root.empty()) {
    for (const char* const below : {"lib", "lib64", ""}) add(fs::path(search.root) / below);
    return paths;  // who names one wants no other
  }
  for (const char* const file : {"libnccl.so.2", "libnccl.so"}) paths.emplace_back(file);
#ifdef HVD_NCCL_LIBRARY  // where CMake found it: toolkits in wheels and modules are in no loader path
  paths.emplace_back(HVD_NCCL_LIBRARY);
#endif
  for (const std::string& folder : search.python_folders) add(fs::path(folder) / "nvidia/nccl/lib");
  return paths;
}

std::unique_ptr<Api> load(const Search& search) {
  void* handle = nullptr;
  std::string name, absent, broken;
  for (const std::string& path : candidates(search)) {
    // Never closed: NCCL's own threads and thread-local destructors may still run at exit.
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      name = path;
      break;
    }
    const char* const error = dlerror();
    const std::string why = one_line(error != nullptr ? error : "");
    // The loader names the file that is not there: this one, or one that this one needs.
    if (why.starts_with(path + ": ") && why.find("No such file") != std::string::npos) {
      absent += (absent.empty() ? "; there is no " : ", ") + path;
    } else {
      broken.append("; ").append(path).append(": ").append(why);
    }
  }
  const std::string advice = "install NCCL " + kOldestVersion.text() +
                             " or newer for this CUDA version, or point HVD_NCCL_ROOT at the folder above its lib";
  if (handle == nullptr)
    throw Error(Errc::kUnsupported, "NCCL could not be loaded (" + (absent + broken).substr(2) + "): " + advice);
  Functions functions;
  const bool complete = find_all(handle, functions);
  int number = 0;
  if (functions.get_version != nullptr) static_cast<void>(functions.get_version(&number));
  const Version version = version_from_number(number);
  if (!complete || version < kOldestVersion) {
    throw Error(Errc::kUnsupported, name + " is NCCL " + version.text() + ", older than " + kOldestVersion.text() +
                                        (complete ? "" : " or without a function that it should have") + ": " + advice);
  }
  return std::make_unique<Library>(functions, version, name);
}

}  // namespace hvd::comm::nccl
