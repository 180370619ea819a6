// Tests which settings the search for a schedule tries and chooses at scripted costs, and the file that keeps choices.
#include "bench/tune/schedule_search.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "bench/tune/schedule_memory.h"

namespace hvd::bench::schedule_search_test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMebi = std::size_t{1} << 20;
constexpr std::size_t kGradients = 170 * kMebi;
const std::vector<Knob> kAll{Knob::kGraph, Knob::kOverlap, Knob::kBuckets, Knob::kCtas, Knob::kRegistration};

ScheduleSetting defaults() { return {.bucket_bytes = 25 * kMebi}; }

using Cost = std::function<double(const ScheduleSetting& setting, std::size_t visit)>;

/// Runs a search to its end and returns it.
ScheduleSearch searched(const Cost& cost, const std::vector<Knob>& knobs = kAll,
                        const ScheduleSetting& start = defaults()) {
  ScheduleSearch search(start, knobs, kGradients);
  while (const ScheduleSetting* const setting = search.next()) search.add(cost(*setting, search.visits()));
  EXPECT_EQ(search.visits_left(), 0U);
  return search;
}

TEST(ScheduleSearch, TakesWhatIsFasterKnobByKnob) {
  const ScheduleSearch search = searched([](const ScheduleSetting& s, std::size_t) {
    double cost = 0.1;
    if (!s.graph) cost += 0.004;
    if (!s.overlap) cost -= 0.003;
    if (s.bucket_bytes == 100 * kMebi) cost -= 0.005;
    if (s.max_ctas == 8) cost -= 0.002;
    if (!s.register_memory) cost += 0.001;
    return cost;
  });
  EXPECT_EQ(search.chosen(),
            (ScheduleSetting{
                .graph = true, .overlap = false, .bucket_bytes = 100 * kMebi, .max_ctas = 8, .register_memory = true}));
  ASSERT_EQ(search.gains().size(), 3U);
  EXPECT_EQ(setting_change(search.gains()[0].from, search.gains()[0].to), "no overlap");
  EXPECT_DOUBLE_EQ(search.gains()[0].from_seconds, 0.1);
  EXPECT_DOUBLE_EQ(search.gains()[0].to_seconds, 0.097);
  EXPECT_EQ(setting_change(search.gains()[1].from, search.gains()[1].to), "buckets of 100 MiB");
  EXPECT_EQ(setting_change(search.gains()[2].from, search.gains()[2].to), "at most 8 CTAs");
  // The first turn tries 13 settings: 2 positions of graph, 2 of overlap, 3 of buckets, 4 of CTAs, 2 of registration.
  // The second turn tries the 7 positions of graph, overlap and buckets, because a later knob made steps faster. Two
  // more settings are the start and the sum of the three gains. Each setting has three visits.
  EXPECT_EQ(search.trials().size(), 22U);
  EXPECT_EQ(search.visits(), 66U);
  const auto kept = std::count_if(search.trials().begin(), search.trials().end(),
                                  [](const ScheduleSearch::Trial& trial) { return trial.chosen; });
  EXPECT_EQ(kept, 9) << "one per turn, and what was confirmed";
}

TEST(ScheduleSearch, DefaultsStayUnlessTheGainIsBeyondSpreadAndMargin) {
  const auto equal = [](const ScheduleSetting&, std::size_t) { return 0.1; };
  EXPECT_EQ(searched(equal).chosen(), defaults());
  const auto hardly = [](const ScheduleSetting& s, std::size_t) { return s.overlap ? 0.1 : 0.0995; };
  EXPECT_EQ(searched(hardly).chosen(), defaults());
  // Two of three visits without overlap are 3 % faster than visits with overlap.
  std::size_t visits = 0;
  const auto noisy = [&](const ScheduleSetting& s, std::size_t) {
    return s.overlap || ++visits % 3 == 0 ? 0.1 : 0.097;
  };
  EXPECT_EQ(searched(noisy).chosen().overlap, true);
  const auto clear = [](const ScheduleSetting& s, std::size_t) { return s.overlap ? 0.1 : 0.098; };
  EXPECT_EQ(searched(clear).chosen().overlap, false);
}

// Step times that drift during the search must not favour the settings that are visited first or last.
TEST(ScheduleSearch, ADriftChoosesNothing) {
  for (const double drift : {0.01, -0.01}) {
    const auto drifting = [drift](const ScheduleSetting&, std::size_t visit) {
      return 0.1 * std::pow(1 + drift, static_cast<double>(visit));
    };
    EXPECT_EQ(searched(drifting).chosen(), defaults()) << drift;
  }
}

TEST(ScheduleSearch, ReplacementNeedsAllVisitsAndOnePercent) {
  EXPECT_EQ(replacement({{10, 10, 10}}), std::nullopt);
  EXPECT_EQ(replacement({{10, 10, 10}, {9, 9, 9}}), 1U);
  EXPECT_EQ(replacement({{10, 10, 10}, {9, 8, 9}, {8, 8, 8}}), 2U);
  EXPECT_EQ(replacement({{10, 10, 10}, {9, 9, 10}}), std::nullopt);
  EXPECT_EQ(replacement({{9, 11, 11}, {9, 9, 9}}), std::nullopt);
  EXPECT_EQ(replacement({{10, 10, 10}, {9.95, 9.95, 9.95}}), std::nullopt);
  EXPECT_EQ(replacement({{10, 10, 10}, {11, 11, 11}}), std::nullopt);
}

TEST(ScheduleSearch, OnlyTheKnobsGivenAreTurned) {
  std::set<int> ctas;
  const ScheduleSetting start{.graph = false, .overlap = false, .bucket_bytes = 7, .register_memory = false};
  const ScheduleSearch search = searched(
      [&](const ScheduleSetting& s, std::size_t) {
        ScheduleSetting same = s;
        ctas.insert(std::exchange(same.max_ctas, start.max_ctas));
        EXPECT_EQ(same, start);
        return 1.0;
      },
      {Knob::kCtas}, start);
  EXPECT_EQ(ctas, (std::set<int>{0, 4, 8, 16}));
  EXPECT_EQ(search.visits(), 12U);
}

TEST(ScheduleSearch, WithoutKnobsNothingIsTried) {
  const ScheduleSearch search(defaults(), {}, kGradients);
  EXPECT_EQ(search.next(), nullptr);
  EXPECT_EQ(search.visits_left(), 0U);
  EXPECT_EQ(search.chosen(), defaults());
}

TEST(ScheduleSearch, BucketsThatHoldAllAreTriedOnce) {
  const auto sizes = [](std::size_t bucket, std::size_t gradients) {
    std::vector<std::size_t> all;
    for (const ScheduleSetting& s : alternatives({.bucket_bytes = bucket}, Knob::kBuckets, gradients)) {
      all.push_back(s.bucket_bytes);
    }
    return all;
  };
  EXPECT_EQ(sizes(100, 1000), (std::vector<std::size_t>{25, 400}));
  EXPECT_EQ(sizes(100, 101), (std::vector<std::size_t>{25, 400}));
  EXPECT_EQ(sizes(100, 100), std::vector<std::size_t>{25});
  EXPECT_TRUE(sizes(100, 20).empty());
}

TEST(ScheduleSearch, SettingsAreThoseOfTheCommandLine) {
  EngineOptions engine;
  GpuOptions gpu;
  comm::CommOptions comm;
  EXPECT_EQ(gpu_setting(engine, gpu), defaults());
  EXPECT_EQ(setting_text(defaults()),
            "CUDA graph, overlap, buckets of 25 MiB, NCCL's choice of CTAs, registered memory");
  const ScheduleSetting other{
      .graph = false, .overlap = false, .bucket_bytes = kMebi / 2, .max_ctas = 4, .register_memory = false};
  put(other, engine, gpu, comm);
  EXPECT_EQ(gpu_setting(engine, gpu), other);
  EXPECT_EQ(engine.buckets.first_bucket_bytes, kMebi / 2) << "never larger than the others";
  EXPECT_EQ(setting_options(defaults()), "");
  EXPECT_EQ(setting_options(other),
            "--no-cuda-graph --no-overlap --bucket-mb 0.5 --nccl-max-ctas 4 --no-nccl-registration");
  EXPECT_EQ(setting_text(other),
            "enqueued steps, no overlap, buckets of 0.5 MiB, at most 4 CTAs, memory not registered");
}

TEST(ScheduleSearch, SettingsOfACpuAreThoseOfTheCommandLine) {
  EngineOptions engine;
  GpuOptions gpu;
  comm::CommOptions comm;
  const ScheduleSetting before = cpu_setting(engine, comm);
  EXPECT_EQ(setting_text(before), "buckets of 25 MiB, algorithm auto, segments of 256 KiB");
  EXPECT_EQ(setting_options(before), "");
  ScheduleSetting other = before;
  other.bucket_bytes = 100 * kMebi;
  other.algorithm = comm::Algorithm::kRing;
  other.segment_bytes = kMebi;
  put(other, engine, gpu, comm);
  EXPECT_EQ(cpu_setting(engine, comm), other);
  EXPECT_EQ(setting_options(other), "--bucket-mb 100 --algorithm ring --segment-kb 1024");
  EXPECT_EQ(setting_change(before, other), "buckets of 100 MiB, algorithm ring, segments of 1024 KiB");

  engine.schedule = Schedule::kNegotiated;
  ScheduleSetting negotiated = cpu_setting(engine, {});
  EXPECT_EQ(setting_text(negotiated),
            "fusion threshold of 128 MiB, cycle time of 1 ms, algorithm auto, segments of 256 KiB");
  negotiated.bucket_bytes = 25 * kMebi;
  negotiated.threshold_bytes = 32 * kMebi;
  negotiated.cycle_time = std::chrono::microseconds(250);
  EXPECT_EQ(setting_options(negotiated), "--fusion-threshold-mb 32 --cycle-time-ms 0.25");
}

TEST(ScheduleSearch, KnobsOfACpuAreTurned) {
  ScheduleSetting start = cpu_setting({}, {});
  const ScheduleSearch search = searched(
      [](const ScheduleSetting& s, std::size_t) {
        return 0.1 - (s.algorithm == comm::Algorithm::kRing ? 0.01 : 0) - (s.segment_bytes < kMebi / 4 ? 0.01 : 0);
      },
      {Knob::kBuckets, Knob::kAlgorithm, Knob::kSegment}, start);
  start.algorithm = comm::Algorithm::kRing;
  start.segment_bytes = kMebi / 16;
  EXPECT_EQ(search.chosen(), start);
}

// Small buckets are slow with overlap and fast without overlap. Overlap is tried after buckets.
TEST(ScheduleSearch, AKnobIsTurnedAgainWhenALaterOneGains) {
  const ScheduleSearch search = searched(
      [](const ScheduleSetting& s, std::size_t) {
        const bool small = s.bucket_bytes < 25 * kMebi;
        if (s.overlap) return small ? 0.11 : 0.1;
        return small ? 0.08 : 0.09;
      },
      {Knob::kBuckets, Knob::kOverlap});
  EXPECT_FALSE(search.chosen().overlap);
  EXPECT_EQ(search.chosen().bucket_bytes, 25 * kMebi / 4);
}

/// Random costs. Each position of a knob multiplies the cost by a factor within 8 % of 1, and each pair of positions of
/// two knobs by a factor within `coupling` of 1. The model does not favour the starting setting.
class Model {
 public:
  Model(std::uint32_t seed, double coupling) : random_(seed), coupling_(coupling) {}

  double cost(const ScheduleSetting& s) {
    const std::array<std::int64_t, 6> positions{s.graph,
                                                s.overlap,
                                                static_cast<std::int64_t>(s.bucket_bytes),
                                                s.max_ctas,
                                                static_cast<std::int64_t>(s.algorithm),
                                                static_cast<std::int64_t>(s.segment_bytes)};
    double cost = 0.1;
    for (std::size_t a = 0; a < positions.size(); ++a) {
      cost *= 1 + factor({a, a, positions[a], positions[a]}, 0.08);
      for (std::size_t b = 0; b < a; ++b) cost *= 1 + factor({a, b, positions[a], positions[b]}, coupling_);
    }
    return cost;
  }
  /// The cost that one visit measures: cost() with 1 % of noise.
  double measured(const ScheduleSetting& s) {
    const double exact = cost(s);
    return exact * (1 + std::normal_distribution(0.0, 0.01)(random_));
  }

 private:
  using Pair = std::tuple<std::size_t, std::size_t, std::int64_t, std::int64_t>;

  double factor(const Pair& pair, double most) {
    const auto [at, fresh] = factors_.try_emplace(pair, 0.0);
    if (fresh) at->second = std::uniform_real_distribution(-most, most)(random_);
    return at->second;
  }

  std::mt19937 random_;
  double coupling_;
  std::map<Pair, double> factors_;
};

/// Returns all combinations of the positions of `knobs`.
std::vector<ScheduleSetting> space(const ScheduleSetting& start, const std::vector<Knob>& knobs) {
  std::vector<ScheduleSetting> all{start};
  for (const Knob knob : knobs) {
    std::vector<ScheduleSetting> more = all;
    for (const ScheduleSetting& from : all) {
      const auto others = alternatives(from, knob, kGradients);
      more.insert(more.end(), others.begin(), others.end());
    }
    all = std::move(more);
  }
  return all;
}

/// Runs one search on each of 200 models. Returns the share of searches that end within 3 % of the best setting.
double part_near_the_best(const ScheduleSetting& start, const std::vector<Knob>& knobs, double coupling) {
  constexpr std::uint32_t kModels = 200;
  const std::vector<ScheduleSetting> all = space(start, knobs);
  int near = 0;
  std::size_t most_visits = 0;
  for (std::uint32_t seed = 0; seed < kModels; ++seed) {
    Model model(seed, coupling);
    double best = model.cost(start);
    for (const ScheduleSetting& setting : all) best = std::min(best, model.cost(setting));
    const ScheduleSearch search =
        searched([&](const ScheduleSetting& s, std::size_t) { return model.measured(s); }, knobs, start);
    near += model.cost(search.chosen()) <= 1.03 * best ? 1 : 0;
    most_visits = std::max(most_visits, search.visits());
  }
  const double part = near / static_cast<double>(kModels);
  std::cout << all.size() << " settings, knobs that change one another by up to " << 100 * coupling << " %: " << near
            << " of " << kModels << " searches came within 3 % of the best, in at most " << most_visits << " visits\n";
  return part;
}

/// Compares the search with an exhaustive search of the same space. The seeds are fixed, so two runs with the same
/// standard library give the same shares. Another standard library draws other random numbers; the limits leave room
/// for the difference.
TEST(ScheduleSearch, ComesNearTheBestSettingOfTheWholeSpace) {
  const std::vector<Knob> on_cpus{Knob::kBuckets, Knob::kAlgorithm, Knob::kSegment};
  const std::vector<Knob> on_gpus{Knob::kGraph, Knob::kOverlap, Knob::kBuckets, Knob::kCtas};
  const ScheduleSetting cpu = cpu_setting({}, {});
  EXPECT_EQ(space(cpu, on_cpus).size(), 36U);
  EXPECT_EQ(space(defaults(), on_gpus).size(), 48U);
  EXPECT_GE(part_near_the_best(cpu, on_cpus, 0), 0.95);
  EXPECT_GE(part_near_the_best(defaults(), on_gpus, 0), 0.95);
  EXPECT_GE(part_near_the_best(cpu, on_cpus, 0.03), 0.8);
  EXPECT_GE(part_near_the_best(defaults(), on_gpus, 0.03), 0.8);
}

// Each new position makes steps faster when it is tried. At the end the start is measured again, and it is then faster
// than the setting with all new positions.
TEST(ScheduleSearch, GainsThatDoNotAddUpAreTakenBack) {
  std::size_t visits_of_the_start = 0;
  const ScheduleSearch search = searched(
      [&](const ScheduleSetting& s, std::size_t) {
        if (s == defaults()) return ++visits_of_the_start > ScheduleSearch::kRounds ? 0.05 : 0.1;
        return s.bucket_bytes == 100 * kMebi ? 0.08 : 0.09;
      },
      {Knob::kOverlap, Knob::kBuckets});
  EXPECT_EQ(search.chosen(), defaults());
  EXPECT_TRUE(search.gains().empty());
}

TEST(ScheduleSearch, WhatIsLeftOutIsNotTried) {
  ScheduleSearch search(defaults(), {Knob::kOverlap, Knob::kBuckets}, kGradients);
  EXPECT_EQ(search.visits_of_new_knob(), 6U);
  for (int i = 0; i < 6; ++i) search.add(search.next()->overlap ? 0.1 : 0.09);
  EXPECT_EQ(search.visits_of_new_knob(), 9U);
  search.leave_out_the_rest();
  EXPECT_TRUE(search.left_something_out());
  EXPECT_EQ(search.next(), nullptr);
  EXPECT_FALSE(search.chosen().overlap);
}

ScheduleCase case_of(const bench::Setup& setup, int ranks = 2, const std::string& library = "NCCL 2.28.9",
                     const std::string& driver = "580.1") {
  comm::Topology world;
  world.size = ranks;
  return schedule_case(setup, world, library, {{"gpu.name", "H200"}, {"gpu.driver", driver}, {"gpu.uuid", "GPU-1"}},
                       defaults(), kAll);
}

bench::Setup resnet50() {
  bench::Setup setup;
  setup.model.model = "resnet50";
  setup.model.batch_size = 64;
  return setup;
}

TEST(ScheduleMemory, ACaseIsWhatTheSpeedDependsOn) {
  const ScheduleCase conditions = case_of(resnet50());
  EXPECT_EQ(conditions, case_of(resnet50()));
  const auto differs = [&](auto change) {
    bench::Setup other = resnet50();
    change(other);
    return case_of(other) != conditions && schedule_path("f", case_of(other)) != schedule_path("f", conditions);
  };
  EXPECT_TRUE(differs([](bench::Setup& s) { s.model.model = "vgg16"; }));
  EXPECT_TRUE(differs([](bench::Setup& s) { s.model.batch_size = 32; }));
  EXPECT_TRUE(differs([](bench::Setup& s) { s.model.image_size = 32; }));
  EXPECT_TRUE(differs([](bench::Setup& s) { s.compute = DataType::kF16; }));
  EXPECT_TRUE(differs([](bench::Setup& s) { s.gradient = DataType::kF16; }));
  EXPECT_TRUE(differs([](bench::Setup& s) { s.gpu.fusion_level = 0; }));
  EXPECT_FALSE(differs([](bench::Setup& s) { s.seed = 2; }));
  EXPECT_NE(case_of(resnet50(), 4), conditions);
  EXPECT_NE(case_of(resnet50(), 2, "NCCL 2.29.1"), conditions);
  EXPECT_NE(case_of(resnet50(), 2, "NCCL 2.28.9", "590.1"), conditions);
}

TEST(ScheduleMemory, ATextOfAnotherCaseOrADamagedOneIsNone) {
  const ScheduleCase conditions = case_of(resnet50());
  const ScheduleSetting setting{
      .graph = false, .overlap = true, .bucket_bytes = 100 * kMebi, .max_ctas = 8, .register_memory = false};
  const std::string text = schedule_text(conditions, setting);
  EXPECT_EQ(parse_schedule(text, conditions), setting);
  ScheduleSetting cpu = cpu_setting({}, {});
  cpu.algorithm = comm::Algorithm::kHierarchical;
  cpu.cycle_time = std::chrono::microseconds(250);
  std::string cpu_text = schedule_text(conditions, cpu);
  EXPECT_EQ(parse_schedule(cpu_text, conditions), cpu);
  cpu_text.replace(cpu_text.find("hierarchical"), 12, "hierarchicak");
  EXPECT_EQ(parse_schedule(cpu_text, conditions), std::nullopt);
  EXPECT_EQ(parse_schedule(text, case_of(resnet50(), 4)), std::nullopt);
  EXPECT_EQ(parse_schedule(text + "more", conditions), std::nullopt);
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_EQ(parse_schedule(text.substr(0, length), conditions), std::nullopt) << length;
  }
}

TEST(ScheduleMemory, AFileIsReplacedAndFoundAgain) {
  const fs::path folder = fs::temp_directory_path() / ("hvd_schedule_memory_" + std::to_string(::getpid()));
  const ScheduleCase conditions = case_of(resnet50());
  EXPECT_EQ(kept_schedule(folder.string(), conditions), std::nullopt);
  ScheduleSetting setting = defaults();
  for (const int ctas : {4, 16}) {
    setting.max_ctas = ctas;
    keep_schedule(folder.string(), conditions, setting);
    EXPECT_EQ(kept_schedule(folder.string(), conditions), setting);
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace hvd::bench::schedule_search_test
