// The engines that won on a GPU, kept in a text file so that later runs need not time them again. One file per
// (cuDNN version, GPU, program, types); lines are keyed by the group's signature, so a file is read by any program
// that holds the same group, as long as version and GPU are the same.
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

#include "models/cudnn/plan.h"

namespace hvd::models::cudnn {

struct Winner {
  std::uint64_t signature = 0;  ///< signature_hash()
  EngineChoice choice = {};     ///< engine, knobs, workspace
  std::string algorithm = {};   ///< of cuBLASLt (linear.h) for a product, which has no engine; else empty
  double microseconds = 0;      ///< as measured when it won
};

std::uint64_t signature_hash(std::string_view signature);

/// Of the program's groups and types, whatever engines run them: names a plan's file.
std::uint64_t program_hash(const Plan& plan);

/// "resnet101-9f0c2d11a4b3e877-fp16.cudnn-9.19.0.NVIDIA-H200.winners".
std::string winners_file_name(const Plan& plan);

/// The chosen engines in one line: "51c7d2aa01f3b964 62[2=5,13=1]; ...", by signature, in the order of first use.
std::string chosen_text(const Plan& plan);

struct Winners {
  std::vector<Winner> list;
  /// In the file of the program that would run otherwise: of all ways to fuse it the fastest (text() of it). Empty:
  /// they were not timed.
  std::string fusion = {};
  std::string why_not;  ///< the text is of another version or GPU, or damaged: then the list is empty
};
std::string winners_text(const Plan& plan, const Winners& winners);
/// Never fails: a cache that cannot be used is a reason to measure again.
Winners parse_winners(std::string_view text, const Plan& plan);

/// Chooses, in `plan`, the winners that are among its candidates. Returns how many signatures have none.
std::size_t choose_winners(Plan& plan, const std::vector<Winner>& winners);

/// Written beside and renamed into place. Errors: io, naming the file.
void save_winners(const std::string& path, const Plan& plan, const Winners& winners);
/// A file that is not there is an empty list with the reason.
Winners load_winners(const std::string& path, const Plan& plan);
/// What other programs left in `folder` for groups of this plan that are not among `winners`, by the same versions on
/// the same GPU. Files are read in the order of their names; those that cannot be used are passed over.
std::vector<Winner> borrow_winners(const std::string& folder, const Plan& plan, const std::vector<Winner>& winners);
/// Those of them that are for one of the plan's engines, as it is chosen, or for a product.
std::vector<Winner> in_use(const Plan& plan, const std::vector<Winner>& winners);

}  // namespace hvd::models::cudnn
