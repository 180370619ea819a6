#include "bench/peers/shared_page.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace hvd::peers {
namespace {

constexpr auto kPatience = std::chrono::seconds(60);
constexpr int kLooksBetweenClocks = 64;

}  // namespace

SharedPage::SharedPage(const std::string& file, int rank, int size) : rank_(rank), size_(size) {
  const auto check = [&](bool good) {
    if (!good) throw std::runtime_error("cannot map " + file + ": " + std::strerror(errno));
  };
  const int descriptor = open(file.c_str(), O_RDWR | O_CLOEXEC);
  check(descriptor >= 0);
  const bool sized = ftruncate(descriptor, sizeof(Page)) == 0;
  void* memory = sized ? mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) : MAP_FAILED;
  close(descriptor);
  check(memory != MAP_FAILED);
  page_ = static_cast<Page*>(memory);  // the file's zeros are the initial values of all fields
}

SharedPage::~SharedPage() { munmap(page_, sizeof(Page)); }

void SharedPage::barrier() {
  const std::uint64_t all = ++rounds_ * static_cast<std::uint64_t>(size_);
  page_->arrived.fetch_add(1);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (int look = 1; page_->arrived.load() < all; ++look) {
    sched_yield();  // ranks may share a core
    if (look % kLooksBetweenClocks != 0) continue;
    if (page_->failed.load()) throw std::runtime_error("another rank failed");
    if (std::chrono::steady_clock::now() < end) continue;
    const std::uint64_t missing = all - page_->arrived.load();
    throw std::runtime_error("waited 60 s for " + std::to_string(missing) + " of " + std::to_string(size_) +
                             " ranks at a barrier");
  }
}

void SharedPage::post(const Result& result) { page_->results[rank_] = result; }
Result SharedPage::posted(int rank) const { return page_->results[rank]; }
void SharedPage::decide(bool stop) { page_->stop.store(stop); }
bool SharedPage::stopped() const { return page_->stop.load(); }
void SharedPage::fail() noexcept { page_->failed.store(true); }

}  // namespace hvd::peers
