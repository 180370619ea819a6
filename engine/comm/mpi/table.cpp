// Fills table.h's table with the functions of the MPI whose mpi.h is found first. CMake compiles this file into a
// module for each MPI that the program may load, and into hvd_mpi for programs that link MPI themselves. It uses
// nothing of the C++ library and throws nothing.
#include "engine/comm/mpi/table.h"

#include <cstring>

#define OMPI_SKIP_MPICXX 1   // the C++ bindings of Open MPI 4
#define MPICH_SKIP_MPICXX 1  // and of MPICH
#include <mpi.h>

#include "engine/comm/mpi/handles.h"

namespace {

using hvd::comm::handle_of;
using hvd::comm::native_of;

/// Calls `begin` with a null request. Stores the request that it began, which test() or wait() ends. The analyser
/// cannot follow it there.
template <class Begin>
int begun(HvdMpiHandle* request, Begin begin) {
  // NOLINTBEGIN(clang-analyzer-optin.mpi.MPI-Checker)
  MPI_Request native = MPI_REQUEST_NULL;
  const int code = begin(&native);
  *request = handle_of(native);
  return code;
  // NOLINTEND(clang-analyzer-optin.mpi.MPI-Checker)
}

/// Stores `comm` if `code` is 0. Its errors are reported by code.
int made(int code, MPI_Comm comm, HvdMpiHandle* handle) {
  if (code != MPI_SUCCESS) return code;
  *handle = handle_of(comm);
  return comm == MPI_COMM_NULL ? MPI_SUCCESS : MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

void copy(const char* from, char* to, size_t size) {
  strncpy(to, from, size - 1);
  to[size - 1] = '\0';
}

/// Copies the text that `call` writes into a buffer of MPI's size, which may be longer than `size`. Returns its code.
int text_of(int (*call)(char*, int*), char* text, size_t size) {
  constexpr int kVersion = MPI_MAX_LIBRARY_VERSION_STRING, kName = MPI_MAX_PROCESSOR_NAME;
  char whole[(kVersion > kName ? kVersion : kName) + 1] = "";
  int length = 0;
  const int code = call(whole, &length);
  copy(whole, text, size);
  return code;
}

int threads_of(int provided) {
  if (provided < MPI_THREAD_SERIALIZED) return HVD_MPI_ONE_THREAD;
  return provided == MPI_THREAD_MULTIPLE ? HVD_MPI_MULTIPLE : HVD_MPI_SERIALIZED;
}

MPI_Datatype type_of(HvdMpiType type) {
  switch (type) {
    case HVD_MPI_F32: return MPI_FLOAT;
    case HVD_MPI_F64: return MPI_DOUBLE;
    case HVD_MPI_I32: return MPI_INT32_T;
    case HVD_MPI_I64: return MPI_INT64_T;
    case HVD_MPI_U8: return MPI_UINT8_T;
    case HVD_MPI_I8: return MPI_INT8_T;
    case HVD_MPI_I16: return MPI_INT16_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op op_of(HvdMpiOp op) {
  switch (op) {
    case HVD_MPI_SUM: return MPI_SUM;
    case HVD_MPI_MIN: return MPI_MIN;
    case HVD_MPI_MAX: return MPI_MAX;
    case HVD_MPI_PRODUCT: return MPI_PROD;
  }
  return MPI_OP_NULL;
}

/// Reads a control variable that is a single number. Call between MPI_T_init_thread() and MPI_T_finalize().
int read_number(const char* name, uint64_t* value) {
  int index = 0;
  if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS) return MPI_ERR_OTHER;
  int length = 0, described = 0, verbosity = 0, binding = 0, scope = 0, count = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_T_enum meaning = MPI_T_ENUM_NULL;
  if (MPI_T_cvar_get_info(index, nullptr, &length, &verbosity, &type, &meaning, nullptr, &described, &binding,
                          &scope) != MPI_SUCCESS) {
    return MPI_ERR_OTHER;
  }
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  if (MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) return MPI_ERR_OTHER;
  int code = MPI_ERR_OTHER;
  unsigned narrow = 0;
  unsigned long wide = 0;
  unsigned long long widest = 0;
  if (count == 1 && (type == MPI_INT || type == MPI_UNSIGNED)) {
    code = MPI_T_cvar_read(handle, &narrow);
    *value = narrow;
  } else if (count == 1 && type == MPI_UNSIGNED_LONG) {
    code = MPI_T_cvar_read(handle, &wide);
    *value = wide;
  } else if (count == 1 && type == MPI_UNSIGNED_LONG_LONG) {
    code = MPI_T_cvar_read(handle, &widest);
    *value = widest;
  }
  MPI_T_cvar_handle_free(&handle);
  return code;
}

int initialized(int* flag) { return MPI_Initialized(flag); }
int finalized(int* flag) { return MPI_Finalized(flag); }

int library_version(char* text, size_t size) { return text_of(MPI_Get_library_version, text, size); }

int control_variables(const char* const* names, size_t count, uint64_t* values) {
  int provided = MPI_THREAD_SINGLE;
  if (MPI_T_init_thread(MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS) return MPI_ERR_OTHER;
  int code = MPI_SUCCESS;
  for (size_t i = 0; i < count && code == MPI_SUCCESS; ++i) code = read_number(names[i], &values[i]);
  MPI_T_finalize();
  return code;
}

int init(int* threads) {
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  *threads = threads_of(provided);
  if (code != MPI_SUCCESS) return code;
  // MPICH reports an error of MPI_Test() to one of these, and not to the communicator of the request.
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  return MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

int query_threads(int* threads) {
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Query_thread(&provided);
  *threads = threads_of(provided);
  return code;
}

int finalize() { return MPI_Finalize(); }

int error_text(int code, char* text, size_t size, int* truncated) {
  int error_class = MPI_ERR_UNKNOWN;
  MPI_Error_class(code, &error_class);
  *truncated = error_class == MPI_ERR_TRUNCATE ? 1 : 0;
  char message[MPI_MAX_ERROR_STRING + 1] = "unknown MPI error";
  int length = 0;
  const int known = MPI_Error_string(code, message, &length);
  copy(message, text, size);
  return known;
}

int processor_name(char* text, size_t size) { return text_of(MPI_Get_processor_name, text, size); }

int comm_rank(HvdMpiHandle comm, int* rank) { return MPI_Comm_rank(native_of<MPI_Comm>(comm), rank); }
int comm_size(HvdMpiHandle comm, int* size) { return MPI_Comm_size(native_of<MPI_Comm>(comm), size); }

int comm_dup(HvdMpiHandle comm, HvdMpiHandle* handle) {
  MPI_Comm copied = MPI_COMM_NULL;
  const int code = MPI_Comm_dup(native_of<MPI_Comm>(comm), &copied);
  return made(code, copied, handle);
}

int comm_split(HvdMpiHandle comm, int color, int key, HvdMpiHandle* handle) {
  MPI_Comm part = MPI_COMM_NULL;
  const int code = MPI_Comm_split(native_of<MPI_Comm>(comm), color < 0 ? MPI_UNDEFINED : color, key, &part);
  return made(code, part, handle);
}

int comm_split_shared(HvdMpiHandle comm, int key, HvdMpiHandle* handle) {
  MPI_Comm part = MPI_COMM_NULL;
  const int code = MPI_Comm_split_type(native_of<MPI_Comm>(comm), MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &part);
  return made(code, part, handle);
}

int comm_free(HvdMpiHandle comm) {
  MPI_Comm native = native_of<MPI_Comm>(comm);
  return MPI_Comm_free(&native);
}

int broadcast(void* data, size_t bytes, int root, HvdMpiHandle comm) {
  return MPI_Bcast(data, static_cast<int>(bytes), MPI_BYTE, root, native_of<MPI_Comm>(comm));
}

int all_gather(const void* mine, size_t bytes, void* all, HvdMpiHandle comm) {
  const int count = static_cast<int>(bytes);
  return MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, native_of<MPI_Comm>(comm));
}

int all_reduce_min(uint64_t* value, HvdMpiHandle comm) {
  return MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_UINT64_T, MPI_MIN, native_of<MPI_Comm>(comm));
}

int begin_barrier(HvdMpiHandle comm, HvdMpiHandle* request) {
  return begun(request, [&](MPI_Request* native) { return MPI_Ibarrier(native_of<MPI_Comm>(comm), native); });
}

int begin_all_reduce(void* data, size_t count, HvdMpiType type, HvdMpiOp op, HvdMpiHandle comm, HvdMpiHandle* request) {
  return begun(request, [&](MPI_Request* native) {
    return MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(count), type_of(type), op_of(op),
                          native_of<MPI_Comm>(comm), native);
  });
}

int begin_send(const void* data, size_t bytes, int to, int tag, HvdMpiHandle comm, HvdMpiHandle* request) {
  return begun(request, [&](MPI_Request* native) {
    return MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, native_of<MPI_Comm>(comm), native);
  });
}

int begin_receive(void* data, size_t bytes, int from, int tag, HvdMpiHandle comm, HvdMpiHandle* request) {
  return begun(request, [&](MPI_Request* native) {
    return MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, from, tag, native_of<MPI_Comm>(comm), native);
  });
}

int test(HvdMpiHandle* request, int* done) {
  MPI_Request native = native_of<MPI_Request>(*request);
  const int code = MPI_Test(&native, done, MPI_STATUS_IGNORE);
  *request = handle_of(native);
  return code;
}

int wait(HvdMpiHandle* request) {
  MPI_Request native = native_of<MPI_Request>(*request);
  // A begin_ function started this request. The analyser does not follow requests through handles.
  const int code = MPI_Wait(&native, MPI_STATUS_IGNORE);  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker)
  *request = handle_of(native);
  return code;
}

int cancel(HvdMpiHandle* request) {
  MPI_Request native = native_of<MPI_Request>(*request);
  MPI_Cancel(&native);
  const int code = MPI_Request_free(&native);
  *request = handle_of(native);
  return code;
}

int probe(int tag, HvdMpiHandle comm, int* found, HvdMpiHandle* message, int* source, size_t* bytes) {
  MPI_Message native = MPI_MESSAGE_NULL;
  MPI_Status status;
  int code = MPI_Improbe(MPI_ANY_SOURCE, tag, native_of<MPI_Comm>(comm), found, &native, &status);
  if (code != MPI_SUCCESS || *found == 0) return code;
  int count = 0;
  code = MPI_Get_count(&status, MPI_BYTE, &count);
  *message = handle_of(native);
  *source = status.MPI_SOURCE;
  *bytes = count > 0 ? static_cast<size_t>(count) : 0;
  return code;
}

int receive_probed(void* data, size_t bytes, HvdMpiHandle* message) {
  MPI_Message native = native_of<MPI_Message>(*message);
  const int code = MPI_Mrecv(data, static_cast<int>(bytes), MPI_BYTE, &native, MPI_STATUS_IGNORE);
  *message = handle_of(native);
  return code;
}

}  // namespace

int hvd_mpi_table(HvdMpiTable* table, uint32_t version) {
  if (version != HVD_MPI_TABLE_VERSION) return 1;
  *table = {HVD_MPI_TABLE_VERSION,
            handle_of(MPI_COMM_NULL),
            handle_of(MPI_COMM_WORLD),
            handle_of(MPI_REQUEST_NULL),
            initialized,
            finalized,
            library_version,
            control_variables,
            init,
            query_threads,
            finalize,
            error_text,
            processor_name,
            comm_rank,
            comm_size,
            comm_dup,
            comm_split,
            comm_split_shared,
            comm_free,
            broadcast,
            all_gather,
            all_reduce_min,
            begin_barrier,
            begin_all_reduce,
            begin_send,
            begin_receive,
            test,
            wait,
            cancel,
            probe,
            receive_probed};
  return 0;
}
