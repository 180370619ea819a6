// Makes the launch of each of a plan's groups on a device: holds the libraries' handles and cuDNN's finalised plans,
// and times candidates. Use the object on one thread, on which the GPU is current. The object starts helper
// threads to finalise plans.
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
#include "models/cudnn/plan/plan.h"
#include "models/cudnn/plan/winners.h"
#include "models/cudnn/run/cublaslt_launcher.h"
#include "models/cudnn/run/cudnn_launch.h"
#include "models/cudnn/run/own_launch.h"

namespace hvd::models::cudnn {

/// The libraries and kernels to call: cuDNN, cuBLASLt and our kernels, or a test's replacements for them.
struct Backends {
  std::shared_ptr<const Library> cudnn;
  std::shared_ptr<const CublasLt> cublaslt;
  kernels::Table kernels;
};

class GroupLauncher {
 public:
  /// Plans are finalised on up to `threads` threads, because cuDNN compiles many plans when it finalises them. The
  /// threads share one handle. cuDNN's manual asks for one handle per thread, but finalising a plan only reads the
  /// handle; cuDNN 9.14 and 9.19 finalised plans on 16 threads with one handle (H200).
  GroupLauncher(gpu::GpuRuntime& runtime, const Backends& backends, int threads = 1);

  [[nodiscard]] Handle& handle() noexcept { return handle_; }

  /// Finalises the chosen engine of plan.engines[e]. If this engine fails or needs more workspace than the cap, adds it
  /// to `failures` and chooses the first candidate that works. Returns false if no candidate works.
  bool finalize(Plan& plan, std::size_t e, EngineFailures& failures);
  /// Finalises the chosen engines of all signatures, even after a failure. Returns false if a signature has no engine
  /// that works.
  bool finalize(Plan& plan, EngineFailures& failures);
  /// Finalises every candidate, for tune(). Sets plan.workspace_bytes to the largest need of all candidates.
  void finalize_all(Plan& plan, EngineFailures& failures);
  /// Returns the largest workspace that any chosen plan, product or kernel of ours needs.
  [[nodiscard]] std::size_t workspace_bytes(const Plan& plan) const;

  /// Launches the chosen engine of plan.engines[e] on the memory of the first group with the engine's signature.
  /// Errors: backend, with cuDNN's reason, if the engine does not run although it was finalised.
  void launch_once(const Plan& plan, std::size_t e, const Addresses& addresses, gpu::StreamView stream);
  /// Launches each product once, to find an algorithm that runs. If no algorithm multiplies the columns of images, adds
  /// this failure to `failures` and returns false. Errors: unsupported, if any other product has no algorithm that
  /// runs.
  bool try_products(const Plan& plan, const Addresses& addresses, gpu::StreamView stream, EngineFailures& failures);
  /// Returns the launch of every group, in order, with the chosen engines.
  [[nodiscard]] std::vector<Launch> bind(const Plan& plan, const Addresses& addresses, const OwnContext& context);

  /// Times all finalised candidates and all algorithms of products, on the memory of each signature's first group. The
  /// memory may hold any data. Returns the fastest candidate of each signature and product. Adds engines that fail to
  /// `failures`.
  [[nodiscard]] std::vector<Winner> tune(const Plan& plan, const Addresses& addresses, gpu::StreamView stream,
                                         EngineFailures& failures);
  /// Makes products use the algorithms in `winners`. choose_winners() does the same for cuDNN's engines.
  void choose_products(const std::vector<Winner>& winners);
  /// Destroys all finalised plans except those of the chosen candidates, which must be finalised. Reduces
  /// plan.workspace_bytes to what the chosen candidates need.
  void keep_chosen(Plan& plan);

  /// Text with the algorithms that run the products, to be stored with the run.
  [[nodiscard]] std::string products_text() const { return cublaslt_launcher_.chosen_text(); }
  /// Returns one line for each product that does not run as planned.
  [[nodiscard]] std::vector<std::string> notes() const { return cublaslt_launcher_.notes(); }
  [[nodiscard]] const CublasLt& cublaslt() const noexcept { return cublaslt_launcher_.library(); }

 private:
  using Finalized = std::shared_ptr<const ExecutionPlan>;
  /// A candidate: engines[engine].choices[choice] of a plan.
  struct Candidate {
    std::size_t engine = 0, choice = 0;
  };
  /// Result of build(): `plan`; or `why`, cuDNN's reason to refuse the plan; or `fault`, an exception that is not an
  /// Error.
  struct Built {
    Finalized plan;
    std::string why;
    std::exception_ptr fault;
  };
  /// May be called on any thread on which the GPU is current.
  [[nodiscard]] Built build(const Plan& plan, Candidate candidate) const;
  /// Builds, in parallel, those candidates that are not finalised yet and have not failed.
  void build_ahead(const Plan& plan, const std::vector<Candidate>& candidates, EngineFailures& failures);
  /// Returns the finalised plan of a candidate. If the candidate cannot be used, adds it to `failures` and returns
  /// null.
  Finalized finalized(Plan& plan, std::size_t e, std::size_t choice, EngineFailures& failures);
  [[nodiscard]] Finalized chosen(const Plan& plan, std::size_t e) const;
  /// Returns the time of one launch in the fastest of several rounds. If the first launch is refused, sets `why` and
  /// returns nothing.
  [[nodiscard]] std::optional<double> microseconds(const Launch& launch, gpu::StreamView stream, std::string& why);
  [[nodiscard]] std::vector<Winner> tune_products(const Plan& plan, const Addresses& addresses, gpu::StreamView stream);

  gpu::GpuRuntime& runtime_;
  int threads_;
  kernels::Table kernels_;
  Handle handle_;
  CublasLtLauncher cublaslt_launcher_;
  std::map<std::string, Finalized> finalized_;  // by signature and engine: later Plans can reuse these
};

}  // namespace hvd::models::cudnn
