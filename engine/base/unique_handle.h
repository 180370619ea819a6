// Owns one C handle. `Traits` has `using Handle`, `static Handle null()` and
// `static void destroy(Handle) noexcept`. Code that does not own the handle borrows it with get().
#pragma once

#include <utility>

namespace hvd {

template <class Traits>
class UniqueHandle {
 public:
  using Handle = typename Traits::Handle;

  UniqueHandle() noexcept : handle_(Traits::null()) {}
  explicit UniqueHandle(Handle handle) noexcept : handle_(handle) {}
  UniqueHandle(const UniqueHandle&) = delete;
  UniqueHandle& operator=(const UniqueHandle&) = delete;
  UniqueHandle(UniqueHandle&& other) noexcept : handle_(other.release()) {}
  UniqueHandle& operator=(UniqueHandle&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueHandle() { reset(); }

  [[nodiscard]] Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != Traits::null(); }
  Handle release() noexcept { return std::exchange(handle_, Traits::null()); }
  void reset(Handle handle = Traits::null()) noexcept {
    if (Handle old = std::exchange(handle_, handle); old != Traits::null() && old != handle) Traits::destroy(old);
  }
  /// Destroys the handle held so far. Returns the address at which a C function shall write the new handle.
  [[nodiscard]] Handle* out() noexcept {
    reset();
    return &handle_;
  }

 private:
  Handle handle_;
};

}  // namespace hvd
