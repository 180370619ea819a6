// Runs the ranks of a test as threads.
#pragma once

#include <cstddef>
#include <thread>
#include <vector>

namespace hvd::test {

/// Calls body(0) to body(count - 1), each on its own thread. Returns when all calls have returned.
template <class Body>
void on_threads(std::size_t count, const Body& body) {
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
}

}  // namespace hvd::test
