#include <mpi.h>

#include <algorithm>
#include <array>

#include "engine/base/error.h"
#include "engine/comm/exchange_communicator.h"

namespace hvd::comm {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw Error(Errc::kBackend, std::string(call) + ": " + text.data());
}

class MpiExchange final : public Exchange {
 public:
  explicit MpiExchange(MPI_Comm comm, int size) : comm_(comm), size_(size) {}
  ~MpiExchange() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) MPI_Finalize();
  }
  MpiExchange(const MpiExchange&) = delete;
  MpiExchange& operator=(const MpiExchange&) = delete;
  std::vector<Bytes> exchange(std::span<const std::byte> message, Deadline /*deadline*/) override {
    const auto n = static_cast<std::size_t>(size_);
    std::vector<int> lengths(n);
    std::vector<int> offsets(n);
    const int length = static_cast<int>(message.size());
    check(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_), "MPI_Allgather");
    int total = 0;
    for (std::size_t r = 0; r < n; ++r) {
      offsets[r] = total;
      total += lengths[r];
    }
    Bytes all(static_cast<std::size_t>(total) + 1);
    check(MPI_Allgatherv(message.data(), length, MPI_BYTE, all.data(), lengths.data(), offsets.data(), MPI_BYTE, comm_),
          "MPI_Allgatherv");
    std::vector<Bytes> result;
    for (std::size_t r = 0; r < n; ++r) {
      result.emplace_back(all.begin() + offsets[r], all.begin() + offsets[r] + lengths[r]);
    }
    return result;
  }
  void abort(std::string_view /*reason*/) noexcept override { MPI_Abort(comm_, 5); }

 private:
  MPI_Comm comm_;
  int size_;
};

}  // namespace

bool mpi_available() noexcept { return true; }

std::unique_ptr<Communicator> make_mpi(const CommOptions& /*options*/) {
  int initialised = 0;
  check(MPI_Initialized(&initialised), "MPI_Initialized");
  int provided = 0;
  if (initialised == 0) check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
  MPI_Comm comm = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  Topology t;
  check(MPI_Comm_rank(comm, &t.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(comm, &t.size), "MPI_Comm_size");
  std::array<char, MPI_MAX_PROCESSOR_NAME + 1> host{};
  int length = 0;
  check(MPI_Get_processor_name(host.data(), &length), "MPI_Get_processor_name");
  auto exchange = std::make_unique<MpiExchange>(comm, t.size);
  const auto names = exchange->exchange(std::as_bytes(std::span(host.data(), static_cast<std::size_t>(length))),
                                        Deadline::after(std::chrono::seconds(60)));
  std::vector<std::string> seen;
  t.local_size = 0;
  for (int r = 0; r < t.size; ++r) {
    const Bytes& raw = names[static_cast<std::size_t>(r)];
    const std::string its(reinterpret_cast<const char*>(raw.data()), raw.size());
    t.hosts.push_back(its);
    if (std::find(seen.begin(), seen.end(), its) == seen.end()) seen.push_back(its);
    if (its == host.data()) {
      if (r < t.rank) ++t.local_rank;
      ++t.local_size;
    }
  }
  t.nodes = static_cast<int>(seen.size());
  t.node = static_cast<int>(std::find(seen.begin(), seen.end(), std::string(host.data())) - seen.begin());
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> version{};
  check(MPI_Get_library_version(version.data(), &length), "MPI_Get_library_version");
  return make_exchange_communicator(std::move(exchange), t, "mpi", version.data());
}

}  // namespace hvd::comm
