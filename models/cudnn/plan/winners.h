// Text files with the engines that were fastest on a GPU (winners), so that later runs need not time engines again.
// There is one file for each combination of cuDNN version, GPU, program and types. Each winner is stored under the hash
// of a group's signature, so that every program with an equal group can use the winner, on the same GPU with the same
// versions.
//
//   hvd_bench cudnn winners 2
//   cudnn 9.19.0 cublaslt 13.1.0
//   device NVIDIA H200
//   program resnet101 9f0c2d11a4b3e877 fp16
//   fusion level 1, prologues none, own norms rectifying, images as columns
//   winner 51c7d2aa01f3b964 62[2=5,13=1] workspace 131 microseconds 41.5
//   winner 8d0412aa01f3b964 lt:0000000000000042... workspace 0 microseconds 12
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/cudnn/plan/plan.h"

namespace hvd::models::cudnn {

struct Winner {
  std::uint64_t signature = 0;  ///< signature_hash()
  EngineChoice choice = {};     ///< engine, knobs, workspace
  std::string algorithm =
      {};  ///< cuBLASLt's algorithm (cublaslt_launcher.h) for a matrix product; empty for a cuDNN group
  double microseconds = 0;  ///< per launch, as measured when this winner was chosen
};

std::uint64_t signature_hash(std::string_view signature);

/// Hash of the program's groups and types, but not of the engines that run them. The hash is part of the name of the
/// winners' file.
std::uint64_t program_hash(const Plan& plan);

/// For example "resnet101-9f0c2d11a4b3e877-fp16.cudnn-9.19.0.NVIDIA-H200.winners".
std::string winners_file_name(const Plan& plan);

/// Returns the chosen engine of each signature, in order of first use: "51c7d2aa01f3b964 62[2=5,13=1]; ...".
std::string chosen_text(const Plan& plan);

struct Winners {
  std::vector<Winner> list;
  /// text() of the fastest fusion of PlanSource::fusions. Empty if fusions were not timed. Only the file of the program
  /// that is planned first has this text.
  std::string fusion = {};
  std::string why_not;   ///< why the text cannot be used (other version or GPU, damage); if set, `list` is empty
  bool foreign = false;  ///< the text is not damaged, but of another version or GPU
};
std::string winners_text(const Plan& plan, const Winners& winners);
/// Does not throw. If the text cannot be used, sets `why_not`, and the caller has to time engines anew.
Winners parse_winners(std::string_view text, const Plan& plan);

/// Chooses each signature's winner, if it is among the candidates in `plan`, and updates plan.workspace_bytes. Returns
/// the number of signatures without a winner.
std::size_t choose_winners(Plan& plan, const std::vector<Winner>& winners);

/// Makes the folder of `path`, writes a temporary file there and renames it to `path`. Errors: io, naming the file or
/// the folder.
void save_winners(const std::string& path, const Plan& plan, const Winners& winners);
/// If the file cannot be opened, the result has an empty list and the reason in `why_not`.
Winners load_winners(const std::string& path, const Plan& plan);
/// Returns winners that other programs stored in `folder`, except those for signatures that `winners` already has.
/// Reads files in order of their names. Skips files of other versions or GPUs and damaged files.
std::vector<Winner> borrow_winners(const std::string& folder, const Plan& plan, const std::vector<Winner>& winners);
/// Returns those of `winners` that are chosen in `plan`, and all those for products of cuBLASLt.
std::vector<Winner> in_use(const Plan& plan, const std::vector<Winner>& winners);

}  // namespace hvd::models::cudnn
