// Everything that runs a plan's groups on a device: the libraries' handles, finalised plans of cuDNN, and each group's
// launch. Also where candidates are timed. One thread, which may use others to finalise plans; the GPU must be current.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
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
  /// Plans are finalised on up to `threads` threads, because cuDNN compiles many of them there and then. They share one
  /// handle: cuDNN's manual wants one per thread at a time, but to finalise a plan only reads it, and 9.14 and 9.19 did
  /// so with 16 threads on an H200.
  EngineRoom(gpu::GpuRuntime& runtime, const Backends& backends, int threads = 1);

  [[nodiscard]] Handle& handle() noexcept { return handle_; }

  /// Finalises the chosen engine of signature `e`. One that does not work here, or wants more workspace than the cap,
  /// goes into `failures`, and the next that is not there takes its place. False: none is left.
  bool finalize(Plan& plan, std::size_t e, EngineFailures& failures);
  /// That of every signature, even where one has none left.
  bool finalize(Plan& plan, EngineFailures& failures);
  /// Every candidate, for tune(), and the workspace for all of them.
  void finalize_all(Plan& plan, EngineFailures& failures);
  /// The most that any chosen plan, product or kernel of ours needs.
  [[nodiscard]] std::size_t workspace_bytes(const Plan& plan) const;

  /// Launches the chosen engine of signature `e`, on the memory of its first group. Errors: backend, with cuDNN's
  /// reason, if it does not run after all.
  void launch_once(const Plan& plan, std::size_t e, const Addresses& addresses, gpu::StreamView stream);
  /// Launches each product once, and settles which algorithm runs it. Returns false where none multiplies the columns
  /// of images, and adds that to `failures`. Errors: unsupported, if none runs another product.
  bool try_products(const Plan& plan, const Addresses& addresses, gpu::StreamView stream, EngineFailures& failures);
  /// The launch of every group, in order, with the chosen engines.
  [[nodiscard]] std::vector<Launch> bind(const Plan& plan, const Addresses& addresses, const OwnContext& context);

  /// Times all finalised candidates and the algorithms of all products, on the memory of the first group of each kind,
  /// whatever that holds then. Returns the fastest. One that does not run goes into `failures`.
  [[nodiscard]] std::vector<Winner> tune(const Plan& plan, const Addresses& addresses, gpu::StreamView stream,
                                         EngineFailures& failures);
  /// Uses the algorithms among `winners` for products. (choose_winners() does it for cuDNN's engines.)
  void choose_products(const std::vector<Winner>& winners);
  /// Gives up every candidate but the chosen ones, which are finalised, and what workspace only those needed.
  void keep_chosen(Plan& plan);

  /// What runs the products, for the record.
  [[nodiscard]] std::string products_text() const { return linear_.chosen_text(); }
  /// Products that do not run as planned, a line each.
  [[nodiscard]] std::vector<std::string> notes() const { return linear_.notes(); }
  [[nodiscard]] const CublasLt& cublaslt() const noexcept { return linear_.library(); }

 private:
  using Finalized = std::shared_ptr<const ExecutionPlan>;
  /// A candidate: engines[engine].choices[choice] of a plan.
  struct Candidate {
    std::size_t engine = 0, choice = 0;
  };
  /// A plan, or why there is none, or an error that is no refusal.
  struct Built {
    Finalized plan;
    std::string why;
    std::exception_ptr fault;
  };
  /// Any thread whose GPU is current.
  [[nodiscard]] Built build(const Plan& plan, Candidate candidate) const;
  /// All of them that are not there and have not failed, side by side.
  void build_ahead(const Plan& plan, const std::vector<Candidate>& candidates, EngineFailures& failures);
  /// Null, and a failure, if it does not work.
  Finalized finalized(Plan& plan, std::size_t e, std::size_t choice, EngineFailures& failures);
  [[nodiscard]] Finalized chosen(const Plan& plan, std::size_t e) const;
  /// The fastest of several; none if the first launch is refused, with the reason in `why`.
  [[nodiscard]] std::optional<double> microseconds(const Launch& launch, gpu::StreamView stream, std::string& why);
  [[nodiscard]] std::vector<Winner> tune_products(const Plan& plan, const Addresses& addresses, gpu::StreamView stream);

  gpu::GpuRuntime& runtime_;
  int threads_;
  kernels::Table kernels_;
  Handle handle_;
  LinearLibrary linear_;
  std::map<std::string, Finalized>
      finalized_;  // by signature and engine: a new plan finds what it shares with the last
};

}  // namespace hvd::models::cudnn
