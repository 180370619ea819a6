// A stand-in for cuDNN, for tests of versions. It reports the version that the build sets. All its other functions
// fail.
#include <cstddef>
#include <cstdio>

// NOLINTBEGIN(readability-identifier-naming): cuDNN's names
extern "C" {

std::size_t cudnnGetVersion() { return HVD_STAND_IN_VERSION; }
std::size_t cudnnGetCudartVersion() { return HVD_STAND_IN_CUDA; }
const char* cudnnGetErrorString(int /*status*/) { return "CUDNN_STATUS_NOT_INITIALIZED"; }
#if HVD_STAND_IN_VERSION >= 90000
void cudnnGetLastErrorString(char* text, std::size_t size) { std::snprintf(text, size, "no device\n"); }
#endif

int cudnnCreate(void** /*handle*/) { return 1; }
int cudnnDestroy(void* /*handle*/) { return 1; }
int cudnnSetStream(void* /*handle*/, void* /*stream*/) { return 1; }
int cudnnBackendCreateDescriptor(int /*type*/, void** /*descriptor*/) { return 1; }
int cudnnBackendDestroyDescriptor(void* /*descriptor*/) { return 1; }
int cudnnBackendSetAttribute() { return 1; }
int cudnnBackendGetAttribute() { return 1; }
int cudnnBackendFinalize(void* /*descriptor*/) { return 1; }
int cudnnBackendExecute() { return 1; }

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
