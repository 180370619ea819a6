// The real NCCL, loaded at run time, so that one binary runs with any version that the host has.
#include <fmt/format.h>
#include <nccl.h>

#include <cstring>

#include "engine/base/error.h"
#include "engine/comm/nccl/api.h"
#include "engine/gpu/shared_library.h"

namespace hvd::comm::nccl {
namespace {

#ifndef HVD_NCCL_LIBRARY  // the path where CMake found NCCL
#define HVD_NCCL_LIBRARY ""
#endif

gpu::WantedLibrary wanted_nccl() {
  return {.what = "NCCL",
          .files = {"libnccl.so.2", "libnccl.so"},
          .root_variable = "HVD_NCCL_ROOT",
          .root = &gpu::LibrarySearch::nccl_root,
          .build_path = HVD_NCCL_LIBRARY,
          .wheel_folders = {"nvidia/nccl/lib"},
          .how_to_get = fmt::format("install NCCL {} or newer for this CUDA version", kOldestVersion.text())};
}

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
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclReduce) reduce = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) receive = nullptr;
  // These four functions exist since NCCL 2.19; with older versions the pointers are null.
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
    case DataType::kI8: return ncclInt8;
    case DataType::kI16: break;  // NCCL does not have this type, so the plane never passes it
  }
  return ncclNumTypes;
}

ncclRedOp_t native(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return ncclSum;
    case ReduceOp::kAverage: return ncclAvg;
    case ReduceOp::kMin: return ncclMin;
    case ReduceOp::kMax: return ncclMax;
    case ReduceOp::kProduct: return ncclProd;
  }
  return ncclNumOps;
}

Result result_of(ncclResult_t code) {
  const Status status = code == ncclSuccess      ? Status::kDone
                        : code == ncclInProgress ? Status::kInProgress
                                                 : Status::kFailed;
  return {status, static_cast<int>(code), code == ncclRemoteError};
}

bool find_all(const gpu::SharedLibrary& library, Functions& f) {
  return library.find("ncclGetVersion", f.get_version) && library.find("ncclGetErrorString", f.get_error_string) &&
         library.find("ncclGetLastError", f.get_last_error) && library.find("ncclGetUniqueId", f.get_unique_id) &&
         library.find("ncclCommInitRankConfig", f.comm_init_rank_config) &&
         library.find("ncclCommGetAsyncError", f.comm_get_async_error) &&
         library.find("ncclCommFinalize", f.comm_finalize) && library.find("ncclCommDestroy", f.comm_destroy) &&
         library.find("ncclCommAbort", f.comm_abort) && library.find("ncclGroupStart", f.group_start) &&
         library.find("ncclGroupEnd", f.group_end) && library.find("ncclAllReduce", f.all_reduce) &&
         library.find("ncclBroadcast", f.broadcast) && library.find("ncclReduce", f.reduce) &&
         library.find("ncclReduceScatter", f.reduce_scatter) && library.find("ncclAllGather", f.all_gather) &&
         library.find("ncclSend", f.send) && library.find("ncclRecv", f.receive) &&
         library.find("ncclMemAlloc", f.mem_alloc) && library.find("ncclMemFree", f.mem_free) &&
         library.find("ncclCommRegister", f.comm_register) && library.find("ncclCommDeregister", f.comm_deregister);
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
    if (last != nullptr && *last != '\0') text += ": " + gpu::one_line(last);
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
  Result comm_abort(Comm comm) override { return result_of(f_.comm_abort(native(comm))); }
  Result begin_group() override { return result_of(f_.group_start()); }
  Result end_group() override { return result_of(f_.group_end()); }

  Result all_reduce(Comm comm, const CallArguments& what, gpu::StreamView stream) override {
    return result_of(f_.all_reduce(what.in, what.out, what.count, native(what.dtype), native(what.op), native(comm),
                                   native(stream)));
  }
  Result broadcast(Comm comm, const CallArguments& what, gpu::StreamView stream) override {
    return result_of(
        f_.broadcast(what.in, what.out, what.count, native(what.dtype), what.root, native(comm), native(stream)));
  }

  Result reduce(Comm comm, const CallArguments& what, gpu::StreamView stream) override {
    return result_of(f_.reduce(what.in, what.out, what.count, native(what.dtype), native(what.op), what.root,
                               native(comm), native(stream)));
  }
  Result reduce_scatter(Comm comm, const CallArguments& what, gpu::StreamView stream) override {
    return result_of(f_.reduce_scatter(what.in, what.out, what.count, native(what.dtype), native(what.op), native(comm),
                                       native(stream)));
  }
  Result all_gather(Comm comm, const CallArguments& what, gpu::StreamView stream) override {
    return result_of(f_.all_gather(what.in, what.out, what.count, native(what.dtype), native(comm), native(stream)));
  }
  Result send(Comm comm, const CallArguments& what, gpu::StreamView stream) override {
    return result_of(f_.send(what.in, what.count, native(what.dtype), what.peer, native(comm), native(stream)));
  }
  Result receive(Comm comm, const CallArguments& what, gpu::StreamView stream) override {
    return result_of(f_.receive(what.out, what.count, native(what.dtype), what.peer, native(comm), native(stream)));
  }

  Result allocate(std::size_t bytes, void*& data) override { return result_of(f_.mem_alloc(&data, bytes)); }
  Result free(void* data) override { return result_of(f_.mem_free(data)); }
  Result comm_register(Comm comm, std::span<std::byte> memory, Registration& registration) override {
    return result_of(f_.comm_register(native(comm), memory.data(), memory.size(), &registration.native));
  }
  Result comm_deregister(Comm comm, Registration registration) override {
    return result_of(f_.comm_deregister(native(comm), registration.native));
  }

 private:
  const Functions f_;
  const Version version_;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Api> load(const gpu::LibrarySearch& search) {
  const gpu::WantedLibrary wanted = wanted_nccl();
  const gpu::SharedLibrary file = gpu::load_library(wanted, search);
  Functions functions;
  const bool complete = find_all(file, functions);
  int number = 0;
  if (functions.get_version != nullptr) static_cast<void>(functions.get_version(&number));
  const Version version = version_from_number(number);
  if (!complete || version < kOldestVersion) {
    gpu::refuse_library(wanted, file,
                        fmt::format("is NCCL {}, older than {}{}", version.text(), kOldestVersion.text(),
                                    complete ? "" : " or without a function that it should have"));
  }
  return std::make_unique<Library>(functions, version, file.name());
}

}  // namespace hvd::comm::nccl
