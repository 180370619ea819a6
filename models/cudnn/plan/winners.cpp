#include "models/cudnn/plan/winners.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/files.h"
#include "engine/base/hash.h"

namespace hvd::models::cudnn {
namespace {

constexpr std::string_view kFirstLine = "hvd_bench cudnn winners 2";
constexpr std::string_view kProduct = "lt:";
constexpr std::string_view kExtension = ".winners";
constexpr std::string_view kFusion = "fusion ";

template <class Number>
bool parse_number(std::string_view text, Number& value, int base = 10) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size();
}

bool parse_number(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Parses text like "62[2=5,13=1]".
bool parse_choice(std::string_view text, EngineChoice& choice) {
  const std::size_t open = text.find('[');
  if (open == std::string_view::npos || text.back() != ']') return false;
  if (!parse_number(text.substr(0, open), choice.engine)) return false;
  std::string_view knobs = text.substr(open + 1, text.size() - open - 2);
  while (!knobs.empty()) {
    const std::size_t comma = std::min(knobs.find(','), knobs.size());
    const std::string_view knob_text = knobs.substr(0, comma);
    const std::size_t equals = knob_text.find('=');
    Knob knob;
    if (equals == std::string_view::npos || !parse_number(knob_text.substr(0, equals), knob.type) ||
        !parse_number(knob_text.substr(equals + 1), knob.value)) {
      return false;
    }
    choice.knobs.push_back(knob);
    knobs.remove_prefix(std::min(comma + 1, knobs.size()));
  }
  return true;
}

// Parses text like "62[2=5,13=1]" or "lt:...".
bool parse_engine(const std::string& text, Winner& winner) {
  if (!text.starts_with(kProduct)) return parse_choice(text, winner.choice);
  winner.algorithm = text;
  return text.size() > kProduct.size();
}

bool parse_winner(const std::string& line, Winner& winner) {
  std::istringstream words(line);
  std::string winner_word, signature, choice, workspace_word, workspace, time_word, time, rest;
  words >> winner_word >> signature >> choice >> workspace_word >> workspace >> time_word >> time;
  return winner_word == "winner" && workspace_word == "workspace" && time_word == "microseconds" && !(words >> rest) &&
         parse_number(signature, winner.signature, 16) && parse_engine(choice, winner) &&
         parse_number(workspace, winner.choice.workspace_bytes) && parse_number(time, winner.microseconds);
}

bool same_engine(const EngineChoice& a, const EngineChoice& b) { return a.engine == b.engine && a.knobs == b.knobs; }

std::string libraries_line(const Plan& plan) { return "cudnn " + plan.cudnn + " cublaslt " + plan.cublaslt; }

std::string dashed(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == ' ' || c == '/'; }, '-');
  return text;
}

}  // namespace

std::uint64_t signature_hash(std::string_view signature) { return Hasher().text(signature).value(); }

std::uint64_t program_hash(const Plan& plan) {
  Hasher hasher;
  hasher.text(name(plan.options.compute)).text(hvd::name(plan.options.gradient));
  for (const Group& group : plan.program.groups) hasher.text(signature(plan.program, group));
  return hasher.value();
}

std::string winners_file_name(const Plan& plan) {
  return dashed(plan.program.model + "-" + hex64(program_hash(plan)) + "-" + std::string(name(plan.options.compute)) +
                ".cudnn-" + plan.cudnn + "." + plan.device) +
         std::string(kExtension);
}

std::string chosen_text(const Plan& plan) {
  std::string text;
  for (const EngineCandidates& engine : plan.engines) {
    text.append(text.empty() ? "" : "; ").append(hex64(signature_hash(engine.signature))).append(" ");
    text += engine.choices.at(engine.chosen).text();
  }
  return text;
}

std::string winners_text(const Plan& plan, const Winners& winners) {
  std::ostringstream out;
  out << kFirstLine << "\n"
      << libraries_line(plan) << "\ndevice " << plan.device << "\nprogram " << plan.program.model << " "
      << hex64(program_hash(plan)) << " " << name(plan.options.compute) << "\n";
  if (!winners.fusion.empty()) out << kFusion << winners.fusion << "\n";
  for (const Winner& winner : winners.list) {
    out << "winner " << hex64(winner.signature) << " "
        << (winner.algorithm.empty() ? winner.choice.text() : winner.algorithm) << " workspace "
        << winner.choice.workspace_bytes << " microseconds " << winner.microseconds << "\n";
  }
  return out.str();
}

Winners parse_winners(std::string_view text, const Plan& plan) {
  std::istringstream lines{std::string(text)};
  std::string line;
  const auto expect = [&](const std::string& wanted) { return std::getline(lines, line) && line == wanted; };
  const auto unusable = [](std::string why) { return Winners{.list = {}, .why_not = std::move(why)}; };
  if (!expect(std::string(kFirstLine))) return unusable("it is not a winners file of this version");
  Winners winners;
  if (!expect(libraries_line(plan))) winners.why_not = "it was measured with \"" + line + "\"";
  if (!expect("device " + plan.device) && winners.why_not.empty())
    winners.why_not = "it was measured on \"" + line + "\"";
  if (!std::getline(lines, line) || !line.starts_with("program ")) return unusable("line 4 is damaged");
  for (int number = 5; std::getline(lines, line); ++number) {
    if (number == 5 && line.starts_with(kFusion)) {
      winners.fusion = line.substr(kFusion.size());
      continue;
    }
    Winner winner;
    if (!parse_winner(line, winner)) return unusable("line " + std::to_string(number) + " is damaged");
    winners.list.push_back(std::move(winner));
  }
  winners.foreign = !winners.why_not.empty();
  if (winners.foreign) winners.list.clear();
  return winners;
}

std::vector<Winner> borrow_winners(const std::string& folder, const Plan& plan, const std::vector<Winner>& winners) {
  std::set<std::uint64_t> there;
  for (const Winner& winner : winners) there.insert(winner.signature);
  std::vector<std::string> paths;
  std::error_code error;  // set if the folder does not exist yet or cannot be read to its end
  for (auto file = std::filesystem::directory_iterator(folder, error); !error && file != end(file);
       file.increment(error)) {
    if (file->path().extension() == kExtension) paths.push_back(file->path().string());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Winner> borrowed;
  for (const std::string& path : paths) {
    for (Winner& winner : load_winners(path, plan).list) {
      if (there.insert(winner.signature).second) borrowed.push_back(std::move(winner));
    }
  }
  return borrowed;
}

std::vector<Winner> in_use(const Plan& plan, const std::vector<Winner>& winners) {
  std::map<std::uint64_t, const EngineChoice*> chosen;
  for (const EngineCandidates& engine : plan.engines) {
    chosen[signature_hash(engine.signature)] = &engine.choices.at(engine.chosen);
  }
  std::vector<Winner> used;
  for (const Winner& winner : winners) {
    const auto found = chosen.find(winner.signature);
    const bool is = found != chosen.end() && same_engine(*found->second, winner.choice);
    if (is || !winner.algorithm.empty()) used.push_back(winner);
  }
  return used;
}

std::size_t choose_winners(Plan& plan, const std::vector<Winner>& winners) {
  std::map<std::uint64_t, const EngineChoice*> by_signature;
  for (const Winner& winner : winners) {
    if (winner.algorithm.empty()) by_signature[winner.signature] = &winner.choice;
  }
  std::size_t without = 0;
  plan.workspace_bytes = 0;
  for (EngineCandidates& engine : plan.engines) {
    const auto winner = by_signature.find(signature_hash(engine.signature));
    const auto candidate = std::find_if(engine.choices.begin(), engine.choices.end(), [&](const EngineChoice& choice) {
      return winner != by_signature.end() && same_engine(choice, *winner->second);
    });
    if (candidate == engine.choices.end()) {
      ++without;
    } else {
      candidate->workspace_bytes = std::max(candidate->workspace_bytes, winner->second->workspace_bytes);
      engine.chosen = static_cast<std::size_t>(candidate - engine.choices.begin());
    }
    plan.workspace_bytes = std::max(plan.workspace_bytes, engine.choices[engine.chosen].workspace_bytes);
  }
  return without;
}

void save_winners(const std::string& path, const Plan& plan, const Winners& winners) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) throw Error(Errc::kIo, "cannot make the folder " + folder.string() + ": " + error.message());
  replace_file(path, winners_text(plan, winners));  // atomically, because ranks of a host may save at once
}

Winners load_winners(const std::string& path, const Plan& plan) {
  const std::optional<std::string> text = read_file(path);
  if (!text) return {.list = {}, .why_not = std::strerror(errno)};
  return parse_winners(*text, plan);
}

}  // namespace hvd::models::cudnn
