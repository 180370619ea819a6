// Keeps choices of --tune-schedule in --tuning-folder, so that later runs of the same case need not search. There is
// one text file per case, and its lines describe the case. Only rank 0 reads and writes the files.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/hardware/gpu_facts.h"
#include "bench/tune/schedule_search.h"
#include "bench/world/setup.h"
#include "engine/comm/communicator.h"

namespace hvd::bench {

/// The properties that decide which setting is fastest, as name and value: network, world, device, options, ... Pure.
using ScheduleCase = std::vector<std::pair<std::string, std::string>>;
ScheduleCase schedule_case(const Setup& setup, const comm::Topology& world, const std::string& library,
                           const GpuDescription& device, const ScheduleSetting& start, const std::vector<Knob>& knobs);

/// Returns "FOLDER/resnet101-9f0c2d11a4b3e877.schedule".
std::string schedule_path(const std::string& folder, const ScheduleCase& conditions);
std::string schedule_text(const ScheduleCase& conditions, const ScheduleSetting& setting);
/// Reads what schedule_text() wrote. Returns nothing if the text belongs to another case or is damaged.
std::optional<ScheduleSetting> parse_schedule(const std::string& text, const ScheduleCase& conditions);

/// Reads the case's file in `folder`. Returns nothing if there is no usable file; the caller then searches.
std::optional<ScheduleSetting> kept_schedule(const std::string& folder, const ScheduleCase& conditions);
/// Creates the folder if needed, writes a temporary file and renames it. Errors: io, naming the file.
void keep_schedule(const std::string& folder, const ScheduleCase& conditions, const ScheduleSetting& setting);

}  // namespace hvd::bench
