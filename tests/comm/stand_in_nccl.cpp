// A library with NCCL's symbols that reports version 2.18.6, which the engine refuses as too old. No function works.
// NOLINTBEGIN(readability-identifier-naming): NCCL's names
extern "C" {

int ncclGetVersion(int* version) {
  *version = 21806;
  return 0;
}
const char* ncclGetErrorString(int /*result*/) { return "unhandled"; }
const char* ncclGetLastError(void* /*comm*/) { return ""; }
int ncclGetUniqueId(void* /*id*/) { return 1; }
int ncclCommInitRankConfig() { return 1; }
int ncclCommGetAsyncError() { return 1; }
int ncclCommFinalize() { return 1; }
int ncclCommDestroy() { return 1; }
int ncclCommAbort() { return 1; }
int ncclGroupStart() { return 1; }
int ncclGroupEnd() { return 1; }
int ncclAllReduce() { return 1; }
int ncclBroadcast() { return 1; }
int ncclReduce() { return 1; }
int ncclReduceScatter() { return 1; }
int ncclAllGather() { return 1; }
int ncclSend() { return 1; }
int ncclRecv() { return 1; }
int ncclMemAlloc() { return 1; }
int ncclMemFree() { return 1; }
int ncclCommRegister() { return 1; }
int ncclCommDeregister() { return 1; }

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
