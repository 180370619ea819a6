// Runs a plan's groups on a device: holds the libraries' handles and cuDNN's finalised plans, makes each group's
// launch, and times candidates. One thread, on which the GPU is current; it starts helpers to finalise plans.
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

/// The libraries and kernels that are called: the vendor's and our own, or a test's.
struct Backends {
  std::shared_ptr<const Library> cudnn;
  std::shared_ptr<const CublasLt> cublaslt;
  kernels::Table kernels;
};

class CompiledEngines {
 public:
  /// Plans are finalised on up to `threads` threads, because cuDNN compiles many of them when they are finalised. The
  /// threads share one handle. cuDNN's manual asks for one per thread at a time, but finalising a plan only reads the
  /// handle; 9.14 and 9.19 did so with 16 threads on an H200.
  CompiledEngines(gpu::GpuRuntime& runtime, const Backends& backends, int threads = 1);

  [[nodiscard]] Handle& handle() noexcept { return handle_; }

  /// Finalises the chosen engine of signature `e`. If it does not work here or needs more workspace than the cap, it is
  /// added to `failures` and the first candidate that works is chosen. Returns false if there is none.
  bool finalize(Plan& plan, std::size_t e, EngineFailures& failures);
  /// Does this for every signature, even after one has no engine left. Returns false if any has none.
  bool finalize(Plan& plan, EngineFailures& failures);
  /// Finalises every candidate, for tune(), and sets plan.workspace_bytes to the largest that any of them needs.
  void finalize_all(Plan& plan, EngineFailures& failures);
  /// The largest workspace that any chosen plan, product or kernel of ours needs.
  [[nodiscard]] std::size_t workspace_bytes(const Plan& plan) const;

  /// Launches the chosen engine of signature `e` on the memory of the signature's first group. Errors: backend, with
  /// cuDNN's reason, if the engine does not run although it was finalised.
  void launch_once(const Plan& plan, std::size_t e, const Addresses& addresses, gpu::StreamView stream);
  /// Launches each product once, which settles the algorithm that runs it. If no algorithm multiplies the columns of
  /// images, adds that to `failures` and returns false. Errors: unsupported, if no algorithm runs another product.
  bool try_products(const Plan& plan, const Addresses& addresses, gpu::StreamView stream, EngineFailures& failures);
  /// Returns the launch of every group, in order, with the chosen engines.
  [[nodiscard]] std::vector<Launch> bind(const Plan& plan, const Addresses& addresses, const OwnContext& context);

  /// Times all finalised candidates and all algorithms of products, on the memory of the first group with each
  /// signature, whatever data it holds. Returns the fastest of each. Candidates that do not run go into `failures`.
  [[nodiscard]] std::vector<Winner> tune(const Plan& plan, const Addresses& addresses, gpu::StreamView stream,
                                         EngineFailures& failures);
  /// Chooses, for products, the algorithms in `winners`. choose_winners() does the same for cuDNN's engines.
  void choose_products(const std::vector<Winner>& winners);
  /// Destroys the finalised plans of all candidates but the chosen ones, and reduces plan.workspace_bytes to what these
  /// need. The chosen ones must be finalised.
  void keep_chosen(Plan& plan);

  /// The algorithms that run the products, for the record.
  [[nodiscard]] std::string products_text() const { return linear_.chosen_text(); }
  /// Products that do not run as planned, one line each.
  [[nodiscard]] std::vector<std::string> notes() const { return linear_.notes(); }
  [[nodiscard]] const CublasLt& cublaslt() const noexcept { return linear_.library(); }

 private:
  using Finalized = std::shared_ptr<const ExecutionPlan>;
  /// A candidate: engines[engine].choices[choice] of a plan.
  struct Candidate {
    std::size_t engine = 0, choice = 0;
  };
  /// Result of build(): a plan, or the reason why cuDNN refused it, or any exception that is not an Error.
  struct Built {
    Finalized plan;
    std::string why;
    std::exception_ptr fault;
  };
  /// May be called on any thread on which the GPU is current.
  [[nodiscard]] Built build(const Plan& plan, Candidate candidate) const;
  /// Builds, in parallel, those candidates that are not finalised yet and have not failed.
  void build_ahead(const Plan& plan, const std::vector<Candidate>& candidates, EngineFailures& failures);
  /// Returns the finalised plan of a candidate; null, and an entry in `failures`, if the candidate cannot be used.
  Finalized finalized(Plan& plan, std::size_t e, std::size_t choice, EngineFailures& failures);
  [[nodiscard]] Finalized chosen(const Plan& plan, std::size_t e) const;
  /// Time of a launch, the best of several rounds; none, with the reason in `why`, if the first launch is refused.
  [[nodiscard]] std::optional<double> microseconds(const Launch& launch, gpu::StreamView stream, std::string& why);
  [[nodiscard]] std::vector<Winner> tune_products(const Plan& plan, const Addresses& addresses, gpu::StreamView stream);

  gpu::GpuRuntime& runtime_;
  int threads_;
  kernels::Table kernels_;
  Handle handle_;
  LinearLibrary linear_;
  std::map<std::string, Finalized> finalized_;  // by signature and engine, so that a new plan can reuse them
};

}  // namespace hvd::models::cudnn
