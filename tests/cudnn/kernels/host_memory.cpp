// Host memory for kernels compiled for the host. A launch returns when its kernel has ended, so nothing needs to wait.
#include <cstring>
#include <new>

#include "tests/cudnn/kernels/kernel_memory.h"

namespace hvd::models::cudnn::kernels {

namespace {
constexpr std::align_val_t kAlign{256};  // cudaMalloc aligns memory in the same way
}

std::string no_device() { return {}; }
void* device_allocate(std::size_t bytes) { return ::operator new(bytes, kAlign); }
void device_free(void* data) noexcept { ::operator delete(data, kAlign); }
void device_fill(void* to, int value, std::size_t bytes) { std::memset(to, value, bytes); }
void to_device(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
void from_device(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }

}  // namespace hvd::models::cudnn::kernels
