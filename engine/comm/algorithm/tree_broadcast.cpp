#include "engine/comm/algorithm/tree_broadcast.h"

#include <vector>

namespace hvd::comm {

void tree_broadcast(Transport& transport, const Members& members, std::size_t root, std::span<std::byte> data,
                    const Wait& wait) {
  const std::size_t n = members.size();
  if (n == 1 || data.empty()) return;
  const std::size_t place = (members.me + n - root) % n;  // the root is at place 0
  const auto rank_at = [&](std::size_t p) { return members.ranks[(p + root) % n]; };
  std::size_t reach = 1;  // the lowest set bit of `place` is the distance to its parent
  while (reach < n && (place & reach) == 0) reach *= 2;
  if (place != 0) transport.wait(transport.receive(rank_at(place - reach), data), wait);
  std::vector<Transport::Ticket> sends;
  for (std::size_t distance = reach / 2; distance > 0; distance /= 2) {
    if (place + distance < n) sends.push_back(transport.send(rank_at(place + distance), data));
  }
  for (const Transport::Ticket send : sends) transport.wait(send, wait);
}

}  // namespace hvd::comm
