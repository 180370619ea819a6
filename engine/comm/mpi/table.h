// The functions of MPI that the engine calls, over handles of one width. table.cpp is compiled once against the mpi.h
// of each MPI, and the engine against none, so that one engine runs on every MPI. Only C crosses this boundary, because
// a table may come from a shared library that was built by another compiler.
#pragma once

#include <stddef.h>
#include <stdint.h>

// NOLINTBEGIN(modernize-*): this is a header of C.
#ifdef __cplusplus
extern "C" {
#endif

/// An MPI_Comm, MPI_Request or MPI_Message of the MPI behind a table, which is an int or a pointer.
typedef uintptr_t HvdMpiHandle;

enum HvdMpiType { HVD_MPI_F32, HVD_MPI_F64, HVD_MPI_I32, HVD_MPI_I64, HVD_MPI_U8, HVD_MPI_I8, HVD_MPI_I16 };
enum HvdMpiOp { HVD_MPI_SUM, HVD_MPI_MIN, HVD_MPI_MAX, HVD_MPI_PRODUCT };
enum HvdMpiThreads { HVD_MPI_ONE_THREAD, HVD_MPI_SERIALIZED, HVD_MPI_MULTIPLE };

/// Number that changes whenever HvdMpiTable does.
#define HVD_MPI_TABLE_VERSION 1

/// Every function returns 0 or an error code of MPI. Counts are bytes, and below 2^31. Communicators that a function
/// makes report errors by code.
typedef struct HvdMpiTable {
  uint32_t version;  ///< HVD_MPI_TABLE_VERSION
  HvdMpiHandle comm_null, comm_world, request_null;

  /// These four may be called before MPI is initialised and after it is finalised.
  int (*initialized)(int* flag);
  int (*finalized)(int* flag);
  int (*library_version)(char* text, size_t size);  ///< text: `size` bytes, filled up to a 0 at most
  /// Reads control variables of MPI_T. Not 0 unless all `count` of them are numbers. Every call takes a tenth of a
  /// second, because Open MPI registers all its variables anew.
  int (*control_variables)(const char* const* names, size_t count, uint64_t* values);

  int (*init)(int* threads);  ///< asks for HVD_MPI_SERIALIZED. threads: HvdMpiThreads that MPI provides
  int (*query_threads)(int* threads);
  int (*finalize)(void);
  int (*error_text)(int code, char* text, size_t size, int* truncated);  ///< truncated: a message was too long
  int (*processor_name)(char* text, size_t size);

  int (*comm_rank)(HvdMpiHandle comm, int* rank);
  int (*comm_size)(HvdMpiHandle comm, int* size);
  int (*comm_dup)(HvdMpiHandle comm, HvdMpiHandle* made);
  int (*comm_split)(HvdMpiHandle comm, int color, int key, HvdMpiHandle* made);  ///< color < 0: the caller gets none
  int (*comm_split_shared)(HvdMpiHandle comm, int key, HvdMpiHandle* made);      ///< ranks that share memory
  int (*comm_free)(HvdMpiHandle comm);

  int (*broadcast)(void* data, size_t bytes, int root, HvdMpiHandle comm);
  int (*all_gather)(const void* mine, size_t bytes, void* all, HvdMpiHandle comm);
  int (*all_reduce_min)(uint64_t* value, HvdMpiHandle comm);

  /// These begin an operation. `data` must live until test() or wait() has found the request done.
  int (*begin_barrier)(HvdMpiHandle comm, HvdMpiHandle* request);
  int (*begin_all_reduce)(void* data, size_t count, enum HvdMpiType type, enum HvdMpiOp op, HvdMpiHandle comm,
                          HvdMpiHandle* request);
  int (*begin_send)(const void* data, size_t bytes, int to, int tag, HvdMpiHandle comm, HvdMpiHandle* request);
  int (*begin_receive)(void* data, size_t bytes, int from, int tag, HvdMpiHandle comm, HvdMpiHandle* request);
  int (*test)(HvdMpiHandle* request, int* done);
  int (*wait)(HvdMpiHandle* request);
  int (*cancel)(HvdMpiHandle* request);  ///< MPI_Cancel, then MPI_Request_free

  /// Looks for a message from any rank. receive_probed() must then receive `message`.
  int (*probe)(int tag, HvdMpiHandle comm, int* found, HvdMpiHandle* message, int* source, size_t* bytes);
  int (*receive_probed)(void* data, size_t bytes, HvdMpiHandle* message);
} HvdMpiTable;

/// Fills `table` with the functions of the MPI that this function was compiled against. Returns 0, or 1 and leaves the
/// table as it is if `version` is not the HVD_MPI_TABLE_VERSION that it was compiled with.
int hvd_mpi_table(HvdMpiTable* table, uint32_t version);

#ifdef __cplusplus
}
#endif
// NOLINTEND(modernize-*)
