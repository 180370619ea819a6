// The text that tells `hvd_bench analyse` what a training of another program measured, in phases solo, none and full of
// interleaved rounds (bench/measure/decomposition.h). scripts/hvdb/torch_efficiency.py writes it. A text may come from
// a stranger. Pure.
//
// Words are separated by single spaces, and every line ends with a line break. Times are seconds, at most 86,400. A
// TEXT is the rest of its line, in printable UTF-8. Lines stand in this order; those in brackets may be absent:
//
//   hvd-samples 1                      version
//   model TEXT                         up to 200 bytes
//   unit WORD                          what a step works on: sequences, images, ...; up to 20 small letters
//   units_per_rank N                   of one step of one rank
//   device torch
//   schedule ddp
//   comm gloo | nccl
//   compute_type fp32 | tf32 | fp16 | bf16 | fp64
//   allreduce_type fp32 | fp16 | bf16 | fp64
//   threads N                          compute threads of a rank
//   parameters N
//   gradient_bytes N
//   warmup_steps N                     discarded
//   started_utc 2026-11-20T20:56:00.123Z
//   finished_utc 2026-11-20T20:57:00.123Z
//   status complete | incomplete
//   [status_reason TEXT]               exactly if incomplete; up to 400 bytes
//   [fact KEY 0|1 TEXT]                up to 256; 1: in the fingerprint. KEY begins with one of kFactPrefixes, holds
//                                      a-z 0-9 _ . and stands once; TEXT has up to 4,096 bytes
//   rank R LOCAL_RANK HOST             2 to 4,096, from rank 0 on
//   round N                            1 to 1,000 rounds, from 1 on; phases solo, none and full of each
//   phase solo | none | full
//   rank R                             rank 0 in phase solo, all ranks in the others; its series have equally many
//                                      samples on all ranks of a phase of a round. The parts of a step are no longer
//                                      than the step
//   step_seconds X X ...
//   [input_seconds X X ...]            part of the step in which it waits for its batch; in all phases or in none
//   compute_seconds X X ...            forward and backward; without waits for reductions if exposed_seconds follows
//   [exposed_seconds X X ...]          waits for reductions; in phase full alone, in all rounds or in none
//   update_seconds X X ...
//   [loss X X ...]                     in phase full alone, in all rounds or in none
//   end N                              number of rounds
//
// The last round of an incomplete training may end after phase solo or none, but not the first round.
// Limits: 256 MiB, and 1,000,000 steps, counted on each rank.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "bench/measure/decomposition.h"
#include "bench/store/run_record.h"

namespace hvd::bench {

inline constexpr std::size_t kMaxSamplesBytes = std::size_t{256} << 20;
inline constexpr std::array<std::string_view, 6> kFactPrefixes{"torch.", "work.", "lib.file.", "gpu.", "cpu.", "os."};

struct SamplesText {
  RunRecord run;              ///< what the runs of all phases have in common; its ranks have no samples
  std::vector<Round> rounds;  ///< series of the engine's thread are 0; without exposed_seconds, `exposed` is 0
  std::size_t whole = 0;      ///< rounds that have all phases; at least 1, and all but maybe the last
  bool exposed = false;       ///< phase full has exposed_seconds
  bool loss = false;          ///< phase full has losses
};

/// Errors: invalid_argument for a malformed or truncated text and for one beyond the limits, with `origin` (the file)
/// and the line.
SamplesText parse_samples(std::string_view text, const std::string& origin);

}  // namespace hvd::bench
