#include "bench/tune/schedule_memory.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "bench/store/build_info.h"
#include "bench/store/key_lines.h"
#include "bench/world/setup.h"
#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"

namespace hvd::bench {
namespace {

namespace fs = std::filesystem;

/// The facts about a GPU or a CPU on which a setting's speed depends.
constexpr std::array kDeviceKeys{"gpu.name",  "gpu.driver",      "gpu.cuda_runtime", "gpu.power_limit_watts",
                                 "processor", "processor.cores", "threads",          "replay"};
constexpr std::string_view kChosen = "chosen";

std::string_view name_of(Knob knob) {
  switch (knob) {
    case Knob::kGraph: return "graph";
    case Knob::kOverlap: return "overlap";
    case Knob::kBuckets: return "buckets";
    case Knob::kCtas: return "ctas";
    case Knob::kRegistration: return "registration";
    case Knob::kAlgorithm: return "algorithm";
    case Knob::kSegment: return "segment";
    case Knob::kThreshold: return "threshold";
    case Knob::kCycle: return "cycle time";
  }
  return "unknown";
}

}  // namespace

ScheduleCase schedule_case(const Setup& setup, const comm::Topology& world, const std::string& library,
                           const GpuDescription& device, const ScheduleSetting& start, const std::vector<Knob>& knobs) {
  ScheduleCase conditions{{"model", setup.model.model},
                          {"auxiliary head", setup.model.auxiliary_head ? "yes" : "no"},
                          {"image size", std::to_string(setup.model.image_size)},
                          {"classes", std::to_string(setup.model.classes)},
                          {"batch size", std::to_string(setup.model.batch_size)},
                          {"type", setup.compute_name()},
                          {"all-reduce type", std::string(hvd::name(setup.gradient))},
                          {"fusion level", std::to_string(setup.gpu.fusion_level)},
                          {"deterministic", setup.gpu.deterministic ? "yes" : "no"},
                          {"ranks", std::to_string(world.size)},
                          {"nodes", std::to_string(world.nodes)},
                          {"launching ahead", setup.gpu.schedule.ahead ? "yes" : "no"},
                          {"libraries", library},
                          {"hvd_bench", std::string(build_info().version)},
                          {"from", setting_text(start)}};
  std::string turned;
  for (const Knob knob : knobs) turned += (turned.empty() ? "" : " ") + std::string(name_of(knob));
  conditions.emplace_back("knobs", turned);
  for (const char* const key : kDeviceKeys) {
    if (const auto found = device.find(key); found != device.end()) conditions.emplace_back(*found);
  }
  return conditions;
}

std::string schedule_path(const std::string& folder, const ScheduleCase& conditions) {
  const std::string hash = hex64(Hasher().text(key_lines(conditions)).value());
  return (fs::path(folder) / (conditions.front().second + "-" + hash + ".schedule")).string();
}

std::string schedule_text(const ScheduleCase& conditions, const ScheduleSetting& setting) {
  std::string values = fmt::format("{:d} {:d} {} {} {:d}", setting.graph, setting.overlap, setting.bucket_bytes,
                                   setting.max_ctas, setting.register_memory);
  if (!setting.on_gpu) {
    values += fmt::format(" {:d} {} {} {} {}", setting.negotiated, comm::name(setting.algorithm), setting.segment_bytes,
                          setting.threshold_bytes, setting.cycle_time.count());
  }
  ScheduleCase lines = conditions;
  lines.emplace_back(kChosen, values);
  return key_lines(lines);
}

std::optional<ScheduleSetting> parse_schedule(const std::string& text, const ScheduleCase& conditions) {
  const std::string key = key_lines(conditions);
  if (!text.starts_with(key)) return std::nullopt;
  std::string_view rest = std::string_view(text).substr(key.size());
  const auto [name, values] = split_line(take_line(rest));
  if (name != kChosen) return std::nullopt;
  std::istringstream in{std::string(values)};
  ScheduleSetting setting;
  in >> setting.graph >> setting.overlap >> setting.bucket_bytes >> setting.max_ctas >> setting.register_memory;
  if (in && !in.eof()) {  // a setting for CPUs has more fields
    setting.on_gpu = false;
    std::string algorithm;
    std::chrono::microseconds::rep cycle_time = 0;
    in >> setting.negotiated >> algorithm >> setting.segment_bytes >> setting.threshold_bytes >> cycle_time;
    try {
      setting.algorithm = comm::parse_algorithm(algorithm);
    } catch (const Error&) {
      return std::nullopt;
    }
    setting.cycle_time = std::chrono::microseconds(cycle_time);
  }
  // Writing the values again must give the same text. A file with extra or other text is refused.
  return in && schedule_text(conditions, setting) == text ? std::optional(setting) : std::nullopt;
}

std::optional<ScheduleSetting> kept_schedule(const std::string& folder, const ScheduleCase& conditions) {
  return parse_schedule(read_file(schedule_path(folder, conditions)).value_or(""), conditions);
}

void keep_schedule(const std::string& folder, const ScheduleCase& conditions, const ScheduleSetting& setting) {
  std::error_code trouble;  // ignored: without a folder, writing the file fails below
  fs::create_directories(folder, trouble);
  replace_file(schedule_path(folder, conditions), schedule_text(conditions, setting));  // jobs may share the folder
}

}  // namespace hvd::bench
