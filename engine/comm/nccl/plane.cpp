#include "engine/comm/nccl/plane.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "engine/base/align.h"
#include "engine/base/error.h"
#include "engine/comm/nccl/census.h"

namespace hvd::comm::nccl {
namespace {

using namespace std::chrono_literals;

/// Creation and the first collectives take some 0.1 to 10 s, later calls are over at once.
constexpr auto kNap = 200us;
/// For a call of the owner to return before the communicator is taken from under it. Such calls only enqueue; one that
/// takes longer is stuck behind the very work that abort() is to end.
constexpr auto kCourtesy = 500ms;
/// For user buffer registration. Source: NCCL_WIN_REQUIRED_ALIGNMENT, NCCL 2.28.
constexpr std::size_t kAlignBytes = 4096;

std::size_t rounded_up(std::size_t bytes) { return align_up(bytes, kAlignBytes); }

std::string seconds_text(Clock::time_point since) {
  const auto tenths = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since).count() / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace

/// Either NCCL's own, registered, or plain device memory.
class Plane::Memory final : public RegisteredMemory {
 public:
  Memory(Plane& plane, std::size_t bytes) : plane_(plane) {
    if (!plane.alone() && plane.options_.register_memory) take_registered(bytes);
    if (memory_.empty()) {
      block_ = plane.runtime_.allocate(rounded_up(bytes) + kAlignBytes, "memory to reduce");
      void* start = block_->bytes.data();
      std::size_t space = block_->bytes.size();
      std::align(kAlignBytes, rounded_up(bytes), start, space);
      memory_ = {static_cast<std::byte*>(start), bytes};
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() override {
    if (registration_.native != nullptr && !plane_.aborted_) {
      static_cast<void>(plane_.call([&] { return plane_.api_->withdraw(plane_.comm_, registration_); }));
    }
    if (!block_) static_cast<void>(plane_.api_->free(memory_.data()));
  }
  [[nodiscard]] std::span<std::byte> bytes() const override { return memory_; }

 private:
  void take_registered(std::size_t bytes) {
    if (!plane_.api_->can_register()) {
      plane_.unregistered_ = "NCCL " + plane_.api_->version().text() + " has no registration";
      return;
    }
    void* data = nullptr;
    if (const Result result = plane_.api_->allocate(rounded_up(bytes), data); result.status != Status::kDone) {
      plane_.unregistered_ = "ncclMemAlloc: " + plane_.api_->explain(result, plane_.comm_);
      return;  // plain memory may still be had; if not, that says how much is free
    }
    memory_ = {static_cast<std::byte*>(data), bytes};
    const Result result = plane_.call([&] {
      return plane_.api_->enroll(plane_.comm_, {memory_.data(), rounded_up(bytes)}, registration_);
    });
    if (result.status == Status::kFailed) {
      plane_.unregistered_ = "ncclCommRegister: " + plane_.api_->explain(result, plane_.comm_);
      registration_ = {};
    }
  }

  Plane& plane_;
  gpu::DeviceMemory block_;  // empty: the memory is NCCL's
  std::span<std::byte> memory_;
  Registration registration_;
};

Plane::Plane(Communicator& host, gpu::Runtime& runtime, std::shared_ptr<Api> api, const NcclOptions& options,
             Deadline deadline)
    : host_(host),
      runtime_(runtime),
      api_(std::move(api)),
      options_(options),
      stream_(runtime.make_stream(gpu::Priority::kHigh)) {
  if (alone()) return;
  const auto begin = Clock::now();
  try {
    create(deadline);
    try_out(deadline);
  } catch (const Error& error) {
    abort();
    if (error.code() != Errc::kPeerLost) host_.control().abort(error.what());
    throw;
  }
  creation_time_ = Clock::now() - begin;
}

Plane::~Plane() {
  if (alone() || aborted_) return;
  const Deadline deadline = Deadline::after(options_.deadline);
  try {
    host_.control().throw_if_aborted();
    settle(call([&] { return api_->finalize(comm_); }), "ncclCommFinalize", deadline);
    const MutexLock lock(mutex_);
    static_cast<void>(api_->destroy(std::exchange(comm_, {})));
  } catch (...) {  // a peer has not come to its end: nobody is left to tell
    abort();
  }
}

bool Plane::alone() const { return host_.topology().size == 1; }

std::string Plane::doing(const std::string& what) const {
  const Topology& where = host_.topology();
  return "rank " + std::to_string(where.rank) + " (host " + where.hosts.at(static_cast<std::size_t>(where.rank)) +
         ", " + runtime_.label() + "): " + what;
}

UniqueId Plane::agree_on_id(Deadline deadline) {
  UniqueId id{};
  Bytes message;
  if (host_.topology().rank == 0) {
    const Result result = api_->unique_id(id);
    if (result.status == Status::kDone) {
      message.assign(id.begin(), id.end());
    } else {
      const std::string trouble = doing("ncclGetUniqueId: " + api_->explain(result, {}));
      const auto bytes = std::as_bytes(std::span(trouble));
      message.assign(id.size(), std::byte{0});  // longer than an id: what follows is text
      message.insert(message.end(), bytes.begin(), bytes.end());
    }
  }
  message = host_.control().broadcast(message, 0, deadline);
  if (message.size() != id.size()) {
    const std::string text(reinterpret_cast<const char*>(message.data()), message.size());
    throw Error(Errc::kBackend, text.substr(std::min(text.size(), id.size())));
  }
  std::copy(message.begin(), message.end(), id.begin());
  return id;
}

void Plane::create(Deadline deadline) {
  runtime_.make_current();
  const UniqueId id = agree_on_id(deadline);
  const Topology& where = host_.topology();
  const CommConfig config{.rank = where.rank, .size = where.size, .max_ctas = options_.max_ctas};
  Comm made;
  const Result result = api_->init_rank(made, id, config);
  {
    const MutexLock lock(mutex_);
    comm_ = made;
  }
  settle(result, "ncclCommInitRankConfig of " + std::to_string(where.size) + " ranks", deadline);
}

/// One reduction whose sum is known: connections are made here and not in a step, and ranks that NCCL has connected
/// wrongly do not train.
void Plane::try_out(Deadline deadline) {
  constexpr std::size_t kCount = 1024;
  const gpu::PinnedMemory staging = runtime_.allocate_pinned(kCount * sizeof(float), "the trial reduction");
  const gpu::DeviceMemory device = runtime_.allocate(kCount * sizeof(float), "the trial reduction");
  auto* const values = reinterpret_cast<float*>(staging->bytes.data());
  const Topology& where = host_.topology();
  const auto value_of = [](int rank, std::size_t i) {
    return static_cast<float>(rank + 1) * static_cast<float>(i % 7);
  };
  for (std::size_t i = 0; i < kCount; ++i) values[i] = value_of(where.rank, i);
  copy(device->bytes.data(), values, staging->bytes.size());
  all_reduce(device->bytes.data(), kCount, DataType::kF32, ReduceOp::kSum, deadline);
  copy(values, device->bytes.data(), staging->bytes.size());
  complete("the trial reduction", deadline);
  for (std::size_t i = 0; i < kCount; ++i) {
    float expected = 0;
    for (int rank = 0; rank < where.size; ++rank) expected += value_of(rank, i);
    if (values[i] == expected) continue;
    throw Error(Errc::kCheckFailed, doing("NCCL summed element " + std::to_string(i) + " of a trial to " +
                                          std::to_string(values[i]) + " instead of " + std::to_string(expected) +
                                          ": try NCCL_P2P_DISABLE=1 or NCCL_ALGO=Ring, and report it to NVIDIA"));
  }
}

template <class Call>
Result Plane::call(Call&& body) {
  calls_.fetch_add(1);
  const Result result = aborted_ ? Result{.status = Status::kFailed} : body();
  calls_.fetch_sub(1);
  return result;
}

Result Plane::state() {
  const MutexLock lock(mutex_);
  if (comm_.native == nullptr) return {};
  return api_->state(comm_);
}

void Plane::settle(Result result, const std::string& what, Deadline deadline) {
  const auto begin = Clock::now();
  while (result.status == Status::kInProgress) {
    throw_if_aborted();
    host_.control().answer_roll_call(doing(what));
    host_.control().throw_if_aborted();
    if (deadline.passed()) {
      throw Error(Errc::kTimeout, doing(what + " is not over after " + seconds_text(begin) +
                                        ": a rank is not there, or the network between them does not work "
                                        "(NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)"));
    }
    std::this_thread::sleep_for(kNap);
    result = state();
  }
  if (result.status == Status::kFailed) refuse(result, what);
}

void Plane::refuse(Result result, const std::string& what) {
  throw_if_aborted();
  std::string explanation;
  {
    const MutexLock lock(mutex_);
    explanation = api_->explain(result, comm_);
  }
  host_.control().throw_if_aborted();  // a peer may have said why already
  throw Error(result.remote ? Errc::kPeerLost : Errc::kBackend,
              doing(what + ": " + explanation + (result.remote ? "; a peer is lost or gave up" : "")));
}

void Plane::throw_if_aborted() {
  if (aborted_) throw Error(Errc::kInterrupted, doing("communication was aborted"));
}

std::unique_ptr<RegisteredMemory> Plane::allocate(std::size_t bytes, Deadline deadline) {
  throw_if_aborted();
  runtime_.make_current();
  auto memory = std::make_unique<Memory>(*this, bytes);
  if (!alone()) settle(state(), "registering " + std::to_string(bytes) + " bytes", deadline);
  runtime_.fill(memory->bytes().data(), std::byte{0}, bytes, stream_);
  complete("zeroing memory", deadline);
  return memory;
}

void Plane::all_reduce(void* data, std::size_t count, DataType dtype, ReduceOp op, Deadline deadline) {
  throw_if_aborted();
  if (alone() || count == 0) return;
  runtime_.make_current();
  const Collective what{.data = data, .count = count, .dtype = dtype, .op = op};
  settle(call([&] { return api_->all_reduce(comm_, what, stream_); }),
         "ncclAllReduce (" + std::to_string(count * size_of(dtype)) + " bytes)", deadline);
}

void Plane::broadcast(void* data, std::size_t bytes, int root, Deadline deadline) {
  throw_if_aborted();
  if (alone() || bytes == 0) return;
  runtime_.make_current();
  const Collective what{.data = data, .count = bytes, .dtype = DataType::kU8, .root = root};
  const std::string name = "ncclBroadcast (" + std::to_string(bytes) + " bytes)";
  settle(call([&] { return api_->broadcast(comm_, what, stream_); }), name, deadline);
  complete(name, deadline);
}

void Plane::copy(void* to, const void* from, std::size_t bytes) { runtime_.copy(to, from, bytes, stream_); }

void Plane::complete(std::string_view what, Deadline deadline) {
  runtime_.synchronize(stream_.view(), deadline, doing(std::string(what)), [this] {
    check();
    host_.control().throw_if_aborted();
  });
}

std::string Plane::description() const {
  if (alone()) return "none";
  std::string text = "nccl " + api_->version().text();
  text += !options_.register_memory ? ", memory not registered"
          : unregistered_.empty()   ? ", memory registered"
                                    : ", memory not registered (" + unregistered_ + ")";
  if (options_.max_ctas > 0) text += ", at most " + std::to_string(options_.max_ctas) + " CTAs";
  return text;
}

void Plane::check() {
  throw_if_aborted();
  const Result result = state();
  if (result.status == Status::kFailed) refuse(result, "communication failed");
}

void Plane::abort() noexcept {
  if (aborted_.exchange(true)) return;
  for (const Deadline courtesy = Deadline::after(kCourtesy); calls_.load() > 0 && !courtesy.passed();) {
    std::this_thread::sleep_for(kNap);
  }
  const MutexLock lock(mutex_);
  if (comm_.native != nullptr) static_cast<void>(api_->cancel(std::exchange(comm_, {})));
}

namespace {

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> host, gpu::Runtime& runtime, std::shared_ptr<Api> api,
                   const NcclOptions& options, Deadline deadline)
      : host_(std::move(host)),
        runtime_(runtime),
        library_(host_->library() + (api ? ", NCCL " + api->version().text() + " (" + api->name() + ")" : "")),
        plane_(*host_, runtime, std::move(api), options, deadline) {}
  [[nodiscard]] const Topology& topology() const override { return host_->topology(); }
  [[nodiscard]] ControlPlane& control() override { return host_->control(); }
  [[nodiscard]] DataPlane& data() override { return plane_; }
  [[nodiscard]] DevicePlane& device() override { return plane_; }
  [[nodiscard]] gpu::Runtime& runtime() override { return runtime_; }
  [[nodiscard]] std::string_view backend() const override { return "nccl"; }
  [[nodiscard]] std::string library() const override { return library_; }

 private:
  std::unique_ptr<Communicator> host_;
  gpu::Runtime& runtime_;
  std::string library_;
  Plane plane_;
};

}  // namespace
}  // namespace hvd::comm::nccl

namespace hvd::comm {

std::unique_ptr<DeviceCommunicator> make_nccl(std::unique_ptr<Communicator> host, gpu::Runtime& runtime,
                                              std::shared_ptr<nccl::Api> api, const NcclOptions& options,
                                              Deadline deadline) {
  if (host->topology().size > 1) {
    if (!api) throw Error(Errc::kInvalidArgument, "several ranks on GPUs need NCCL");
    nccl::take_census(*host,
                      {.gpu_uuid = runtime.device().uuid,
                       .gpu_label = runtime.label(),
                       .visible_gpus = runtime.device().visible,
                       .version = api->version().text()},
                      options.share_gpus, deadline);
  }
  return std::make_unique<nccl::NcclCommunicator>(std::move(host), runtime, std::move(api), options, deadline);
}

}  // namespace hvd::comm
