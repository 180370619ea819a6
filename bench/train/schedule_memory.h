// Choices of --tune-schedule kept in --tuning-folder, so that later runs of the same case need not search: one text
// file per case, whose lines say of what. Rank 0 alone reads and writes.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/train/gpu_facts.h"
#include "bench/train/schedule_search.h"
#include "bench/train/setup.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// What the fastest setting depends on, by name: network, types, world, device, versions, and what was given. Pure.
using ScheduleCase = std::vector<std::pair<std::string, std::string>>;
ScheduleCase schedule_case(const Setup& setup, const comm::Topology& world, const std::string& library,
                           const GpuDescription& device, const ScheduleSetting& start, const std::vector<Knob>& knobs);

/// "FOLDER/resnet101-9f0c2d11a4b3e877.schedule".
std::string schedule_path(const std::string& folder, const ScheduleCase& of);
std::string schedule_text(const ScheduleCase& of, const ScheduleSetting& setting);
/// Nothing where the text is of another case, or damaged: a reason to search.
std::optional<ScheduleSetting> parse_schedule(const std::string& text, const ScheduleCase& of);

/// Nothing where there is no such file in `folder` that can be used.
std::optional<ScheduleSetting> kept_schedule(const std::string& folder, const ScheduleCase& of);
/// Makes the folder; written beside and renamed into place. Errors: io, naming the file.
void keep_schedule(const std::string& folder, const ScheduleCase& of, const ScheduleSetting& setting);

}  // namespace hvd::bench
