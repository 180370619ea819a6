#include "bench/session/validator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "bench/measure/median.h"
#include "bench/session/records.h"
#include "bench/store/result_store.h"
#include "engine/base/hash.h"

namespace hvd::bench {
namespace {

constexpr std::int64_t kWarmUp = 1;         // untimed steps in addition to Trainer::settling_steps()
constexpr std::size_t kNamedOfAParty = 16;  // a finding names at most this many of the ranks that have equal bits

/// Returns "5.1 % [4.6, 5.7]".
std::string amount(const Slowness& time) {
  return fmt::format("{:.1f} % [{:.1f}, {:.1f}]", 100 * time.slower, 100 * time.low, 100 * time.high);
}

int most_on_one_host(const std::vector<std::string>& hosts) {
  std::map<std::string, int> ranks;
  int most = 0;
  for (const std::string& host : hosts) most = std::max(most, ++ranks[host]);
  return most;
}

}  // namespace

Validator::Validator(const SessionParts& session)
    : session_(session),
      groups_(groups_of(session.facts.kinds)),
      others_(session.trainer.engine()),
      log_(session.facts.kinds.size(), 1),
      checksums_(session.facts.kinds.size()) {
  const std::vector<std::string>& hosts = session.trainer.engine().topology().hosts;
  result_.threshold = session.options.validate->threshold;
  result_.timed_steps = session.options.validate->steps;
  result_.steps = static_cast<std::int64_t>(session.trainer.settling_steps()) + kWarmUp + result_.timed_steps;
  result_.turns = (most_on_one_host(hosts) + session.facts.ranks_at_once - 1) / session.facts.ranks_at_once;
  result_.groups = group_titles(session.facts.kinds, groups_);
  result_.ranks.resize(session.facts.kinds.size());
  for (std::size_t r = 0; r < ranks(); ++r) {
    result_.ranks[r].host = hosts.at(r);
    result_.ranks[r].gpu = session.facts.kinds[r].gpu;
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const std::size_t r : groups_[g]) result_.ranks[r].group = g;
  }
}

void Validator::run() {
  session_.rank_group.run([this] { validate(); }, [this](const Error& error) { give_up(error); });
}

void Validator::validate() {
  tell_progress();  // the first call that can report a problem of the store
  start_run();
  sum_weights();
  while (steps_done_ < result_.steps) {
    take_step();
    tell_progress();
  }
  sum_weights();
  measure_use();
  judge_bits();
  judge_times();
  complete();
}

void Validator::start_run() {
  record_ = begin_record(session_, Phase::kNone);
  // Readers ignore the figures of runs with this fact, because in a validation all ranks train on the same batches.
  record_.provenance["validate.turns"] = {std::to_string(result_.turns), true};
  started_ = true;
  save();
}

void Validator::sum_weights() {
  const std::vector<Answer> answers = session_.rank_group.execute({.task = Task::kSumWeights});
  for (std::size_t r = 0; r < ranks(); ++r) checksums_[r].push_back(answers[r].snapshot_checksums.at(0));
}

void Validator::take_step() {
  std::vector<Answer> step(ranks());
  for (int turn = 0; turn < result_.turns; ++turn) {
    std::vector<Answer> answers = session_.rank_group.execute(
        {.task = Task::kSumStep, .turn = {.number = turn, .ranks_at_once = session_.facts.ranks_at_once}});
    for (std::size_t r = 0; r < ranks(); ++r) {
      if (!answers[r].snapshot_checksums.empty()) step[r] = std::move(answers[r]);
    }
  }
  for (std::size_t r = 0; r < ranks(); ++r) checksums_[r].push_back(step[r].snapshot_checksums.at(0));
  ++steps_done_;
  if (steps_done_ > result_.steps - result_.timed_steps) {
    log_.add(step);
  } else {
    ++record_.warmup_steps;
  }
}

void Validator::measure_use() {
  const std::vector<Answer> answers = session_.rank_group.execute({.task = Task::kMeasureMemory});
  const std::optional<OtherUse> others = others_.use(answers);
  fill_use(record_, answers, others);
  if (others && others->disturbs()) disturbance_ = "other programs used " + others->text() + " processors meanwhile";
}

void Validator::judge_bits() {
  for (std::size_t r = 0; r < ranks(); ++r) {
    result_.ranks[r].weights = hex64(checksums_[r].back());
    result_.ranks[r].gradients = hex64(checksums_[r].at(checksums_[r].size() - 2));
    record_.ranks[r].gradient_checksum = result_.ranks[r].gradients;
  }
  for (const std::vector<std::size_t>& group : groups_) judge_bits(group);
  record_.checks =
      result_.findings.empty()
          ? fmt::format("equal bits on equal ranks: gradients of {} steps, weights before and after", result_.steps)
          : "failed: " + result_.findings.front().text;
}

void Validator::judge_bits(const std::vector<std::size_t>& group) {
  std::vector<std::vector<std::uint64_t>> sums;
  sums.reserve(group.size());
  for (const std::size_t r : group) sums.push_back(checksums_[r]);
  const BitVote bits = vote(sums);
  for (const Deviation& deviation : bits.named) {
    const std::size_t rank = group[deviation.member];
    add(ValidationFinding::Kind::kDiffers, {rank},
        fmt::format("{} computes other bits than the majority of {} equal ranks, first in {}: {}; if the same rank is "
                    "named again, suspect its hardware",
                    name_of(rank), group.size(), snapshot_name(deviation.snapshot),
                    tensors_that_differ(rank, group[bits.reference], deviation.snapshot)));
  }
  if (!bits.disagreement) return;
  const Disagreement& differ = *bits.disagreement;
  std::vector<std::size_t> ranks;
  std::string parties;
  for (const std::vector<std::size_t>& party : differ.parties) {
    parties += parties.empty() ? "" : " | ";
    for (std::size_t i = 0; i < party.size(); ++i) {
      ranks.push_back(group[party[i]]);
      if (i < kNamedOfAParty) parties += (i == 0 ? "" : ", ") + name_of(group[party[i]]);
    }
    if (party.size() > kNamedOfAParty) parties += fmt::format(" and {} more", party.size() - kNamedOfAParty);
  }
  const std::string tensors =
      tensors_that_differ(group[differ.parties[0][0]], group[differ.parties[1][0]], differ.snapshot);
  add(ValidationFinding::Kind::kDisagree, ranks,
      fmt::format("{} equal ranks compute different bits, and no majority says which are right: {}; first in {}: {}",
                  group.size(), parties, snapshot_name(differ.snapshot), tensors));
}

void Validator::judge_times() {
  for (std::size_t r = 0; r < ranks(); ++r) result_.ranks[r].seconds = median(log_.ranks()[r].compute);
  for (const std::vector<std::size_t>& group : groups_) judge_times(group);
  if (!disturbance_.empty()) result_.notes.push_back(disturbance_ + ": times are uncertain");
}

void Validator::judge_times(const std::vector<std::size_t>& group) {
  if (group.size() == 1) {
    add(ValidationFinding::Kind::kUnclear, group,
        name_of(group.front()) + " has no equal rank, so nothing is compared with it");
    return;
  }
  std::vector<std::vector<double>> seconds;
  std::vector<std::string> hosts;
  for (const std::size_t r : group) {
    const std::vector<double>& times = log_.ranks()[r].compute;
    if (std::any_of(times.begin(), times.end(), [](double time) { return !(time > 0); })) {
      add(ValidationFinding::Kind::kUnclear, {r},
          name_of(r) + " has times of 0, so the times of its group are not compared");
      return;
    }
    seconds.push_back(log_.ranks()[r].compute);
    hosts.push_back(result_.ranks[r].host);
  }
  const SlowRanks slowness = find_slow_ranks(seconds, hosts, session_.options.validate->threshold, session_.setup.seed);
  for (std::size_t i = 0; i < group.size(); ++i) {
    result_.ranks[group[i]].time = slowness.ranks[i];
    result_.ranks[group[i]].seconds = slowness.ranks[i].seconds;
  }
  for (const NodeSlowness& node : slowness.nodes) {
    std::vector<std::size_t> slow;
    for (const std::size_t i : node.ranks) slow.push_back(group[i]);
    add(ValidationFinding::Kind::kSlow, slow,
        fmt::format("all {} ranks of host {} are slow: the host is {} slower than the median of the others",
                    slow.size(), node.host, amount(node.time)));
  }
  for (const std::size_t i : slowness.slow) {
    add(ValidationFinding::Kind::kSlow, {group[i]},
        fmt::format("{} is {} slower than the median of the others", name_of(group[i]), amount(slowness.ranks[i])));
  }
  for (const std::size_t i : slowness.unclear) {
    const bool disturbed = !disturbance_.empty() && hosts[i] == result_.ranks[0].host;
    add(ValidationFinding::Kind::kUnclear, {group[i]},
        fmt::format(
            "{} {}: {} slower than the median of the others{}", name_of(group[i]),
            disturbed ? "is not clear" : "may be slow", amount(slowness.ranks[i]),
            disturbed ? ", but " + disturbance_ + "; stop them and validate again" : "; more --steps may tell"));
  }
  if (group.size() < kMajority) {
    result_.notes.push_back(std::to_string(group.size()) +
                            " equal ranks have no majority: if they differ, nobody can tell which of them is right");
  }
}

void Validator::complete() {
  fill_samples(record_, log_);
  record_.images_per_second.reset();  // not a result of training, because ranks may have taken turns
  record_.status = RunStatus::kComplete;
  record_.stop_reason = "steps asked for";
  record_.finished_utc = utc_now();
  if (session_.setup.device == Device::kCuda) {
    result_.notes.emplace_back(
        session_.options.gpu.tunes()
            ? "on GPUs: engines that add in a fixed order (--deterministic), those of rank 0 on all ranks"
            : "on GPUs: engines that add in a fixed order (--deterministic), by cuDNN's heuristics; "
              "ranks with other engines are not equal ranks");
  }
  save();
}

void Validator::give_up(const Error& error) {
  if (!started_) return;
  mark_incomplete(record_, error, session_.trainer.engine());
  try {
    save();
  } catch (const std::exception&) {
    // Ignore this error and report `error`.
  }
}

void Validator::add(ValidationFinding::Kind kind, const std::vector<std::size_t>& ranks, std::string text) {
  ValidationFinding finding{kind, {}, std::move(text)};
  for (const std::size_t r : ranks) finding.ranks.push_back(static_cast<int>(r));
  result_.findings.push_back(std::move(finding));
}

void Validator::save() {
  if (session_.observer.save) session_.observer.save(record_);
}

void Validator::tell_progress() {
  if (!session_.observer.progress) return;
  const double done = static_cast<double>(steps_done_), all = static_cast<double>(result_.steps);
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
  session_.observer.progress(
      {"validating", "", steps_done_, 0, 0, steps_done_ == 0 ? -1 : elapsed / done * (all - done)});
}

std::string Validator::name_of(std::size_t rank) const {
  const ValidatedRank& validated = result_.ranks[rank];
  return fmt::format("rank {} (host {}{}{})", rank, validated.host, validated.gpu.empty() ? "" : ", ", validated.gpu);
}

std::string Validator::snapshot_name(std::size_t snapshot) const {
  if (snapshot == 0) return "the weights before the first step";
  const auto step = static_cast<std::int64_t>(snapshot);
  return step > result_.steps ? "the weights after the last step" : "the gradients of step " + std::to_string(step);
}

std::string Validator::tensors_that_differ(std::size_t rank, std::size_t other, std::size_t snapshot) {
  auto found = tensors_.find(snapshot);
  if (found == tensors_.end()) {
    found =
        tensors_.emplace(snapshot, session_.rank_group.execute({.task = Task::kReturnChecksums, .snapshot = snapshot}))
            .first;
  }
  const std::vector<std::uint64_t>& mine = found->second[rank].snapshot_checksums;
  const std::vector<std::uint64_t>& theirs = found->second[other].snapshot_checksums;
  std::size_t count = 0;
  std::string first;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i] != theirs[i] && count++ == 0) first = session_.trainer.train_step().slots()[i].name;
  }
  return fmt::format("{} of {} tensors, the first of backward is {}", count, mine.size(), first);
}

}  // namespace hvd::bench
