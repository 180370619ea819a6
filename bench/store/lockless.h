// Adds rows to a store on a file system without POSIX locks, where SQLite cannot keep other programs out: Lustre
// without -o flock, NFS without a lock daemon, some FUSE file systems.
//
// A writer creates `<store>.replacing`, a file of this fixed name, with O_EXCL, which keeps other writers out. It
// changes a copy of the store in this file, and renames the file to the store. So a reader needs no lock: it always
// opens a complete store, which nobody changes. A killed writer leaves the store as it was, and its file keeps writers
// out until a person removes it. scripts/hvdb/read/lockless.py does the same, with the same name.
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

/// The file `<store>.replacing`, from constructor to destructor. One thread at a time uses a WriteLock.
class WriteLock {
 public:
  /// Errors: io if the file of another process exists for longer than `patience`, or if the file cannot be created.
  WriteLock(const std::filesystem::path& store, std::chrono::milliseconds patience);
  /// Removes the file, unless it has become the store, or somebody has removed it.
  ~WriteLock();
  WriteLock(const WriteLock&) = delete;
  WriteLock& operator=(const WriteLock&) = delete;
  [[nodiscard]] const std::filesystem::path& file() const { return file_; }
  /// Call after opening file() by its name, and before writing to it. Errors: io if somebody has removed the file. The
  /// file of that name may then be another writer's.
  void require_held() const;
  /// Copies the content and the permissions of `store` into the file. Errors: io.
  void copy_from(const std::filesystem::path& store) const;
  /// Renames the file to `store`. `unique` becomes a part of a temporary name. Errors: io; `store` is then unchanged.
  void rename_to(const std::filesystem::path& store, const std::string& unique) const;

 private:
  [[nodiscard]] bool owns(const std::filesystem::path& name) const;

  std::filesystem::path file_;
  int descriptor_ = -1;
};

/// Replaces `store` by a copy that `change` has changed. `change` gets the copy's name, which is lock.file(), and calls
/// lock.require_held() when it has opened the copy, and leaves no journal. `unique`: see WriteLock::rename_to().
/// Errors: io, also if the store was changed in spite of the lock; those of `change`. After an error `store` is
/// unchanged.
void replace_store(const std::filesystem::path& store, const WriteLock& lock, const std::string& unique,
                   const std::function<void(const std::filesystem::path& copy)>& change);

}  // namespace hvd::bench
