// Adds rows to a store on a file system without POSIX locks, where SQLite cannot keep other programs out: Lustre
// without -o flock, NFS without a lock daemon, some FUSE file systems.
//
// A writer holds the lock file `<store>.write-lock`, which keeps other writers out, changes a copy of the store, and
// renames the copy to the store. So a reader needs no lock: it always opens a complete store, which nobody changes. A
// killed writer leaves the store as it was. scripts/hvdb/read/lockless.py and base/locks.py do the same.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace hvd::bench {

/// Returns why the file system of `file`, an existing file, has no locks; empty if it has locks.
/// Never call this while SQLite has the file open in this process: closing a file drops all POSIX locks of the process
/// on the file.
std::string lock_fault(const std::filesystem::path& file);
/// Returns a note for the user: what the file system of `file` lacks, what follows, and what to do. `fault` comes from
/// lock_fault().
std::string no_locks_note(const std::filesystem::path& file, const std::string& fault);

/// What a write to a store changes.
struct StoreState {
  std::uint64_t inode = 0;
  std::int64_t bytes = -1;  ///< -1: there is no file
  std::int64_t modified_ns = 0;
  std::uint32_t transactions = 0;  ///< the file change counter in SQLite's header
  bool operator==(const StoreState&) const = default;
};
/// Reads without a lock. Do not call while SQLite has the file open in this process. Errors: io.
StoreState store_state(const std::filesystem::path& file);

/// Holds the lock file of a store from constructor to destructor. A lock file whose process has ended on this host is
/// removed. One thread at a time uses a WriteLock.
class WriteLock {
 public:
  /// Errors: io if another process holds the lock for longer than `patience`, or if the file cannot be created.
  WriteLock(const std::filesystem::path& store, std::chrono::milliseconds patience);
  ~WriteLock();
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(const WriteLock&) = delete;
  /// Returns false if somebody has removed the lock file.
  [[nodiscard]] bool is_held() const;

 private:
  std::filesystem::path file_;
  std::string content_;
};

/// Replaces `store` by a copy, in the same folder, that `change` has changed. `unique` becomes a part of the copy's
/// name. Call while `lock` is held. Errors: io, also if the store was changed in spite of the lock; those of `change`.
/// After an error `store` is unchanged.
void replace_store(const std::filesystem::path& store, const WriteLock& lock, const std::string& unique,
                   const std::function<void(const std::filesystem::path& copy)>& change);

}  // namespace hvd::bench
