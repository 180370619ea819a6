// Everything that runs a plan's groups on a device: the libraries' handles, finalised plans of cuDNN, and each group's
// launch. Also where candidates are timed. One thread; the GPU must be current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/gpu/runtime.h"
#include "models/cudnn/execution.h"
#include "models/cudnn/linear.h"
#include "models/cudnn/own_launch.h"
#include "models/cudnn/plan.h"
#include "models/cudnn/plan_cache.h"

namespace hvd::models::cudnn {

/// What calls go to: the vendor's libraries and our kernels, or a test's.
struct Backends {
  std::shared_ptr<const Library> cudnn;
  std::shared_ptr<const CublasLt> cublaslt;
  kernels::Table kernels;
};

class EngineRoom {
 public:
  EngineRoom(gpu::Runtime& runtime, const Backends& backends);

  [[nodiscard]] Handle& handle() noexcept { return handle_; }

  /// Finalises, for every signature of `plan`, the chosen engine, or with `all` each candidate that is not rejected. An
  /// engine that turns out not to work is struck from the plan's choices, with a note; if the chosen one is, the next
  /// takes its place. Errors: unsupported, naming the operations, when none is left.
  void finalize(Plan& plan, bool all);
  /// The most that any finalised plan, product or kernel of ours needs.
  [[nodiscard]] std::size_t workspace_bytes(const Plan& plan) const;
  /// The launch of every group, in order, with the chosen engines.
  [[nodiscard]] std::vector<Launch> bind(const Plan& plan, const Addresses& addresses, const OwnContext& context);
  /// Times all finalised candidates on the memory of the first group of each signature, whatever that holds then, and
  /// chooses the fastest. Returns the winners. All stay finalised until keep_chosen().
  [[nodiscard]] std::vector<Winner> tune(Plan& plan, const Addresses& addresses, gpu::StreamView stream);

  /// Gives up every candidate but the chosen ones. A chosen one that does not run here gives way to the first that
  /// does, with a note.
  void keep_chosen(Plan& plan);

  /// What did not work as planned, one line each.
  [[nodiscard]] const std::vector<std::string>& notes() const noexcept { return notes_; }
  [[nodiscard]] const CublasLt& cublaslt() const noexcept { return linear_.library(); }

 private:
  using Finalized = std::shared_ptr<const ExecutionPlan>;
  [[nodiscard]] double microseconds(const Launch& launch, gpu::StreamView stream);

  gpu::Runtime& runtime_;
  kernels::Table kernels_;
  Handle handle_;
  LinearLibrary linear_;
  std::vector<std::vector<Finalized>> finalized_;  // [signature][choice]; null: not finalised
  std::vector<std::string> notes_;
};

}  // namespace hvd::models::cudnn
