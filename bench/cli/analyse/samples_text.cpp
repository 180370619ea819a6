#include "bench/cli/analyse/samples_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "bench/cli/console.h"
#include "bench/cli/line_reader.h"

namespace hvd::bench {
namespace {

constexpr std::string_view kFirstLine = "hvd-samples 1";
// No real training exceeds these limits. They keep the memory of a text below 1 GB.
constexpr double kLongestStep = 86400, kShortestStep = 1e-9, kLargestLoss = 1e100;
constexpr double kRounding = 1e-6;  // of the sum of a step's parts
constexpr std::size_t kMostSteps = 1'000'000, kMostRanks = 4096, kMostRounds = 1000, kMostFacts = 256;
constexpr std::size_t kSeriesOfARank = 6, kLinesOfARank = kSeriesOfARank + 1;
constexpr LineReader::Limits kLimits{.lines = (kLinesOfARank + 1) * kMostSteps,
                                     .numbers = (kSeriesOfARank + 1) * kMostSteps};
constexpr std::size_t kModelBytes = 200, kReasonBytes = 400, kFactBytes = 4096, kHostBytes = 255, kKeyLetters = 64;
constexpr std::size_t kUnitLetters = 20;
constexpr std::uint64_t kMostUnits = std::uint64_t{1} << 30, kMostThreads = 1 << 16, kMostWarmUp = 1'000'000'000;
constexpr std::uint64_t kMostParameters = std::uint64_t{1} << 50;
constexpr std::string_view kTimeForm = "dddd-dd-ddTdd:dd:dd.dddZ";  // d: a digit
constexpr std::array<std::string_view, 5> kComputeTypes{"fp32", "tf32", "fp16", "bf16", "fp64"};
constexpr std::array<std::string_view, 4> kReducedTypes{"fp32", "fp16", "bf16", "fp64"};
constexpr std::array<std::string_view, 2> kBackends{"gloo", "nccl"};

class SamplesParser : LineReader {
 public:
  SamplesParser(std::string_view text, const std::string& origin) : LineReader(text, origin, kLimits) {}

  SamplesText run() {
    if (line() != kFirstLine) {
      fail(fmt::format("is not a text of samples that this program can read; the first line must be '{}'", kFirstLine));
    }
    next_line();
    head();
    ranks();
    do {
      expect("round");
    } while (round() && at("round"));
    expect("end");
    if (whole(0, kMostRounds) != out_.rounds.size()) fail(fmt::format("the text has {} rounds", out_.rounds.size()));
    if (more_words() || !at_end_of_text()) fail("there is text after the number of rounds");
    out_.exposed = exposed_.value_or(false);
    out_.loss = loss_.value_or(false);
    return std::move(out_);
  }

 private:
  void head() {
    RunRecord& run = out_.run;
    line("model", [&] { run.model = text(kModelBytes); });
    line("unit", [&] { run.unit = unit(); });
    line("units_per_rank", [&] { run.batch_size = count(1, kMostUnits); });
    line("device", [&] { run.device = one_of(std::array<std::string_view, 1>{"torch"}); });
    line("schedule", [&] { run.schedule = one_of(std::array<std::string_view, 1>{"ddp"}); });
    line("comm", [&] { run.comm = one_of(kBackends); });
    line("compute_type", [&] { run.compute_type = one_of(kComputeTypes); });
    line("allreduce_type", [&] { run.allreduce_type = one_of(kReducedTypes); });
    line("threads", [&] { run.threads = static_cast<int>(whole(0, kMostThreads)); });
    line("parameters", [&] { run.parameters = count(0, kMostParameters); });
    line("gradient_bytes", [&] { run.gradient_bytes = count(0, 8 * kMostParameters); });
    line("warmup_steps", [&] { run.warmup_steps = count(0, kMostWarmUp); });
    line("started_utc", [&] { run.started_utc = time(); });
    line("finished_utc", [&] {
      run.finished_utc = time();
      if (run.finished_utc < run.started_utc) fail("the training ended before it began");
    });
    line("status", [&] {
      run.status = choice({"complete", "incomplete"}, std::array{RunStatus::kComplete, RunStatus::kIncomplete});
    });
    if (incomplete()) line("status_reason", [&] { run.status_reason = text(kReasonBytes); });
    while (at("fact")) line("fact", [&] { fact(); });
  }

  [[nodiscard]] bool incomplete() const { return out_.run.status == RunStatus::kIncomplete; }
  std::int64_t count(std::uint64_t low, std::uint64_t high) { return static_cast<std::int64_t>(whole(low, high)); }
  template <std::size_t n>
  std::string one_of(const std::array<std::string_view, n>& words) {
    return std::string(choice(words, words));
  }

  std::string checked(std::string_view value, std::size_t most) const {
    if (value.empty() || value.size() > most) fail(fmt::format("a text must have 1 to {} bytes", most));
    if (printable(value) != value) fail(fmt::format("'{:.40}' is not printable UTF-8", printable(value)));
    return std::string(value);
  }
  std::string text(std::size_t most) { return checked(rest_of_line(), most); }

  std::string unit() {
    const std::string_view value = word();
    const bool small = std::all_of(value.begin(), value.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    if (value.empty() || value.size() > kUnitLetters || !small) {
      fail(fmt::format("the unit of work must be 1 to {} small letters, such as images or tokens", kUnitLetters));
    }
    return std::string(value);
  }

  std::string time() {
    const std::string_view value = word();
    const auto fits = [](char c, char form) { return form == 'd' ? c >= '0' && c <= '9' : c == form; };
    const bool has_form = std::equal(value.begin(), value.end(), kTimeForm.begin(), kTimeForm.end(), fits);
    const auto at = [value](std::size_t first, std::size_t count = 2) {
      return std::accumulate(value.begin() + first, value.begin() + first + count, 0U, [](unsigned number, char digit) {
        return 10 * number + static_cast<unsigned>(digit - '0');
      });
    };
    const auto is_day = [&at] {
      return (std::chrono::year(static_cast<int>(at(0, 4))) / std::chrono::month(at(5)) / std::chrono::day(at(8))).ok();
    };
    if (!has_form || !is_day() || at(11) > 23 || at(14) > 59 || at(17) > 59) {
      fail(fmt::format("'{:.40}' is not a time such as 2026-11-20T20:56:00.123Z", value));
    }
    return std::string(value);
  }

  void fact() {
    const std::string key(word());
    const bool plain = std::all_of(key.begin(), key.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    });
    const auto begins = [&key](std::string_view prefix) {
      return key.starts_with(prefix) && key.size() > prefix.size();
    };
    if (!plain || key.size() > kKeyLetters || std::none_of(kFactPrefixes.begin(), kFactPrefixes.end(), begins)) {
      fail(fmt::format("'{:.80}' is not the key of a fact: up to {} of a-z 0-9 _ . that begin with one of {}", key,
                       kKeyLetters, fmt::join(kFactPrefixes, " ")));
    }
    if (key == "work.unit") fail("the fact work.unit follows from the line 'unit'; leave it out");
    if (out_.run.provenance.size() == kMostFacts) fail(fmt::format("more than {} facts", kMostFacts));
    const bool in_fingerprint = whole(0, 1) == 1;
    if (!out_.run.provenance.try_emplace(key, ProvenanceFact{text(kFactBytes), in_fingerprint}).second) {
      fail(fmt::format("the fact {} stands there twice", key));
    }
  }

  void ranks() {
    std::vector<RankRecord>& ranks = out_.run.ranks;
    std::set<std::string> hosts;
    while (at("rank")) {
      if (ranks.size() == kMostRanks) fail(fmt::format("more than {} ranks", kMostRanks));
      line("rank", [&] {
        RankRecord rank;
        rank.rank = static_cast<int>(whole(ranks.size(), ranks.size()));
        rank.local_rank = static_cast<int>(whole(0, kMostRanks - 1));
        rank.host = checked(word(), kHostBytes);
        hosts.insert(rank.host);
        ranks.push_back(std::move(rank));
      });
    }
    if (ranks.size() < 2) fail("two ranks or more can be compared with one alone; there must be a line for each");
    out_.run.world_size = out_.run.allocation_size = static_cast<int>(ranks.size());
    out_.run.nodes = static_cast<int>(hosts.size());
  }

  /// Returns false if the round ends early, as the last round of an incomplete training may.
  bool round() {
    const std::size_t number = out_.rounds.size() + 1;
    if (number > kMostRounds) fail(fmt::format("more than {} rounds", kMostRounds));
    (void)whole(number, number);
    end_line();
    Round& round = out_.rounds.emplace_back();
    phase("solo", round.solo, 1);
    for (const auto& [name, of_phase] : {std::pair{"none", &round.none}, std::pair{"full", &round.full}}) {
      if (incomplete() && number > 1 && !at("phase")) return false;
      phase(name, *of_phase, out_.run.ranks.size());
    }
    ++out_.whole;
    return true;
  }

  void phase(std::string_view name, std::vector<RankSamples>& ranks, std::size_t count) {
    line("phase", [&] { one_of(std::array{name}); });
    for (std::size_t r = 0; r < count; ++r) {
      line("rank", [&] { (void)whole(r, r); });
      ranks.push_back(rank(name == "full"));
      if (ranks.back().step.size() == ranks.front().step.size()) continue;
      fail(fmt::format("rank {} had {} steps, and rank 0 had {}", r, ranks.back().step.size(), ranks[0].step.size()));
    }
  }

  RankSamples rank(bool full) {
    RankSamples samples;
    line("step_seconds", [&] { steps(samples.step); });
    const std::size_t count = samples.step.size();
    const auto series = [&](std::string_view key, std::vector<double>& into, double most = kLongestStep) {
      line(key, [&] { values(into, count, key == "loss" ? -most : 0, most); });
    };
    if (here("input_seconds", input_)) {
      series("input_seconds", samples.input);
      for (std::size_t i = 0; i < count; ++i) {
        if (samples.input[i] < samples.step[i]) continue;
        fail(fmt::format("the line above: step {} waits {} s for its batch, and takes {} s", i + 1, samples.input[i],
                         samples.step[i]));
      }
    }
    series("compute_seconds", samples.compute);
    for (std::vector<double>* of_engine : {&samples.exposed, &samples.reduce, &samples.control, &samples.copy}) {
      of_engine->assign(count, 0);
    }
    if (full && here("exposed_seconds", exposed_)) series("exposed_seconds", samples.exposed);
    series("update_seconds", samples.update);
    require_whole(samples);
    if (full && here("loss", loss_)) series("loss", samples.loss, kLargestLoss);
    return samples;
  }

  /// The caller has just read the last part of the steps.
  void require_whole(const RankSamples& samples) const {
    for (std::size_t i = 0; i < samples.step.size(); ++i) {
      const double input = samples.input.empty() ? 0 : samples.input[i];
      const double parts = input + samples.compute[i] + samples.exposed[i] + samples.update[i];
      if (parts <= samples.step[i] * (1 + kRounding) + kShortestStep) continue;
      fail(fmt::format("the lines above: the parts of step {} take {:g} s, and the step takes {:g} s", i + 1, parts,
                       samples.step[i]));
    }
  }

  /// Returns true if the line is `key`, which stands in all places or in none; `given`: as in the first place.
  bool here(std::string_view key, std::optional<bool>& given) {
    const bool is_here = at(key);
    if (given.value_or(is_here) != is_here) {
      fail(fmt::format("{} must be there for every rank and round, or for none", key));
    }
    given = is_here;
    return is_here;
  }

  void steps(std::vector<double>& into) {
    do {
      if (++steps_ > kMostSteps) fail(fmt::format("more than {} steps", kMostSteps));
      into.push_back(real(kShortestStep, kLongestStep));
    } while (more_words());
  }

  void values(std::vector<double>& into, std::size_t count, double low, double high) {
    into.clear();
    for (std::size_t i = 0; i < count; ++i) {
      if (!more_words()) fail(fmt::format("{} values, and step_seconds has {}", i, count));
      into.push_back(real(low, high));
    }
  }

  SamplesText out_;
  std::optional<bool> input_, exposed_, loss_;  // the series is given; nothing: not known yet
  std::size_t steps_ = 0;
};

}  // namespace

SamplesText parse_samples(std::string_view text, const std::string& origin) {
  return SamplesParser(text, origin).run();
}

}  // namespace hvd::bench
