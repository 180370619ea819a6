#include "engine/comm/nccl/census.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <span>
#include <utility>

#include "engine/base/error.h"

namespace hvd::comm::nccl {
namespace {

std::string rank_at(std::size_t rank, const std::vector<std::string>& hosts) {
  return "rank " + std::to_string(rank) + " (host " + hosts.at(rank) + ")";
}

}  // namespace

Bytes Seat::to_bytes() const {
  const std::string text = gpu_uuid + '\n' + gpu_label + '\n' + std::to_string(visible_gpus) + '\n' + version + '\n';
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Seat Seat::parse(const Bytes& bytes) {
  std::string text = text_of(bytes);
  std::vector<std::string> lines;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
    lines.push_back(text.substr(0, end));
    text.erase(0, end + 1);
  }
  Seat seat;
  constexpr std::size_t kLines = 4;
  if (lines.size() == kLines) {
    const std::string& number = lines[2];
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), seat.visible_gpus);
    if (error == std::errc{} && end == number.data() + number.size()) {
      seat.gpu_uuid = lines[0];
      seat.gpu_label = lines[1];
      seat.version = lines[3];
      return seat;
    }
  }
  throw Error(Errc::kMismatch, "a rank's description of its GPU is unreadable: do all ranks run the same binary?");
}

std::string double_booking(const std::vector<Seat>& seats, const std::vector<std::string>& hosts) {
  std::map<std::pair<std::string, std::string>, std::size_t> first;  // (host, GPU) -> its first rank
  for (std::size_t rank = 0; rank < seats.size(); ++rank) {
    const auto [found, fresh] = first.emplace(std::pair(hosts.at(rank), seats[rank].gpu_uuid), rank);
    if (fresh) continue;
    const Seat& seat = seats[rank];
    const auto here = std::count(hosts.begin(), hosts.end(), hosts[rank]);
    std::string text = rank_at(found->second, hosts) + " and " + rank_at(rank, hosts) + " were both given " +
                       seat.gpu_label + ", " + seat.gpu_uuid + ": " + std::to_string(here) +
                       " ranks run on this host, and rank " + std::to_string(rank) + " sees " +
                       std::to_string(seat.visible_gpus) + (seat.visible_gpus == 1 ? " GPU" : " GPUs") +
                       "; NCCL needs one GPU per rank: ";
    return text + (here > seat.visible_gpus
                       ? "start no more ranks per host than it has GPUs, or let every rank see all of them (srun "
                         "--gpus-per-node=N --gpu-bind=none; mpirun without a common CUDA_VISIBLE_DEVICES)"
                       : "let each rank take the GPU of its local rank (leave the device index to the program)");
  }
  return {};
}

std::string version_difference(const std::vector<Seat>& seats, const std::vector<std::string>& hosts) {
  for (std::size_t rank = 1; rank < seats.size(); ++rank) {
    if (seats[rank].version == seats[0].version) continue;
    return rank_at(rank, hosts) + " loaded NCCL " + seats[rank].version + ", " + rank_at(0, hosts) + " " +
           seats[0].version + ": give all ranks the same (HVD_NCCL_ROOT, LD_LIBRARY_PATH)";
  }
  return {};
}

void take_census(Communicator& host, const Seat& mine, bool share_gpus, Deadline deadline) {
  const std::vector<std::string>& hosts = host.topology().hosts;
  const std::vector<Bytes> all = host.control().gather(mine.to_bytes(), deadline);
  std::string verdict;
  if (host.topology().rank == 0) {
    std::vector<Seat> seats;
    try {
      for (const Bytes& bytes : all) seats.push_back(Seat::parse(bytes));
      const std::string booked = share_gpus ? "" : double_booking(seats, hosts);
      if (!booked.empty()) verdict = "b" + booked;
      if (const std::string versions = version_difference(seats, hosts); verdict.empty() && !versions.empty()) {
        verdict = "v" + versions;
      }
    } catch (const Error& error) {
      verdict = std::string("v") + error.what();
    }
  }
  verdict = text_of(host.control().broadcast(std::as_bytes(std::span(verdict)), 0, deadline));
  if (verdict.empty()) return;
  throw Error(verdict.front() == 'b' ? Errc::kInvalidArgument : Errc::kMismatch, verdict.substr(1));
}

}  // namespace hvd::comm::nccl
