#include "tests/cudnn/plan/golden.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <utility>

#include "engine/base/hash.h"
#include "tests/gpu/call_log.h"

namespace hvd::models::cudnn::testing {
namespace {

constexpr std::size_t kParts = 16;
constexpr std::size_t kPartDigits = 4;  // few are enough: parts are compared only if the hash of the text differs
constexpr std::size_t kMaxLines = 6;    // a message shows at most this many lines of a part
constexpr std::size_t kMaxWidth = 400;

std::string without_remark(const std::string& line) { return line.substr(0, line.find(test::kRemark)); }

std::string shortened(std::string line) {
  if (line.size() > kMaxWidth) line = line.substr(0, kMaxWidth) + "...";
  return line;
}

/// Hashes lines `begin` to `end` - 1. Ignores lines that the text does not have.
std::uint64_t hash_of(const std::vector<std::string>& text, std::size_t begin, std::size_t end) {
  Hasher hasher;
  for (std::size_t i = begin; i < std::min(end, text.size()); ++i) hasher.text(without_remark(text[i]));
  return hasher.value();
}

/// A text of `lines` lines is cut into kParts parts. part_begin() returns the first line of a part, part_end() the line
/// after its last line. The last part has no end, so if a text gets longer, its last part differs.
std::size_t part_begin(std::size_t lines, std::size_t part) { return lines * part / kParts; }
std::size_t part_end(std::size_t lines, std::size_t part) {
  return part + 1 == kParts ? static_cast<std::size_t>(-1) : part_begin(lines, part + 1);
}

/// Returns the digests of the parts of `text`. The text is cut at the same lines as an earlier text of `lines` lines.
std::array<std::string, kParts> parts_of(const std::vector<std::string>& text, std::size_t lines) {
  std::array<std::string, kParts> parts;
  for (std::size_t i = 0; i < kParts; ++i) {
    parts[i] = hex64(hash_of(text, part_begin(lines, i), part_end(lines, i))).substr(0, kPartDigits);
  }
  return parts;
}

std::string digest_of(const std::string& figures, const std::vector<std::string>& text) {
  std::string digest = figures + (figures.empty() ? "" : " ") + "lines " + std::to_string(text.size()) + " hash " +
                       hex64(hash_of(text, 0, text.size()));
  digest += " parts";
  for (const std::string& part : parts_of(text, text.size())) digest += " " + part;
  return digest;
}

/// One line of the file after parsing: the figures by name, including "lines" and "hash", and the digests of the parts.
struct Digest {
  std::vector<std::pair<std::string, std::string>> figures;
  std::vector<std::string> parts;

  explicit Digest(const std::string& text) {
    std::istringstream words(text);
    std::string word, number;
    while (words >> word && word != "parts" && words >> number) figures.emplace_back(word, number);
    while (words >> word) parts.push_back(word);
  }
  [[nodiscard]] std::string find(const std::string& name) const {
    for (const auto& [word, number] : figures) {
      if (word == name) return number;
    }
    return "none";
  }
};

std::string file_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == ' ' || c == '/'; }, '-');
  std::erase(name, ',');
  return name + ".txt";
}

std::optional<std::vector<std::string>> read_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(std::move(line));
  return lines;
}

void write_lines(const std::filesystem::path& path, const std::vector<std::string>& lines) {
  std::ofstream file(path);
  for (const std::string& line : lines) file << line << "\n";
  if (!file.flush()) std::cerr << path << " cannot be written\n";
}

std::string line_or_end(const std::vector<std::string>& lines, std::size_t i) {
  return i < lines.size() ? shortened(lines[i]) : "the end";
}

}  // namespace

Golden::Golden(GoldenOptions options) : options_(std::move(options)) {
  std::filesystem::create_directories(options_.texts);
  const auto lines = read_lines(options_.file);
  if (!lines || lines->empty()) {
    unusable_ = "there is no " + options_.file;
  } else if (lines->front() != options_.first_line) {
    unusable_ = options_.file + " was made with \"" + lines->front() + "\", here is \"" + options_.first_line + "\"";
  } else {
    for (std::size_t i = 1; i < lines->size(); ++i) {
      const std::string& line = (*lines)[i];
      const std::size_t colon = line.find(": ");
      if (colon != std::string::npos) digests_[line.substr(0, colon)] = line.substr(colon + 2);
    }
  }
  if (options_.write) unusable_.clear();
}

Golden::~Golden() {
  if (!options_.write) return;
  std::vector<std::string> lines{options_.first_line};
  for (const auto& [name, digest] : digests_) lines.push_back(std::string(name).append(": ").append(digest));
  write_lines(options_.file, lines);
}

std::string Golden::check(const std::string& name, const std::string& figures, const std::vector<std::string>& text) {
  write_lines(std::filesystem::path(options_.texts) / file_name(name), text);
  checked_.insert(name);
  std::string digest = digest_of(figures, text);
  const auto found = digests_.find(name);
  if (found != digests_.end() && found->second == digest) return {};
  if (options_.write) {
    digests_[name] = std::move(digest);
    return {};
  }
  if (found == digests_.end()) return name + ": not in " + options_.file;
  return where(name, found->second, digest, text);
}

std::string Golden::where(const std::string& name, const std::string& old, const std::string& digest,
                          const std::vector<std::string>& text) const {
  const Digest was(old), is(digest);
  std::string message = name + ":";
  for (const auto& [figure, number] : is.figures) {
    if (const std::string before = was.find(figure); before != number) {
      message += " " + figure + " was " + before + ", is " + number + ";";
    }
  }
  const std::string file = file_name(name);
  const std::string now = (std::filesystem::path(options_.texts) / file).string();
  const auto before =
      options_.before.empty() ? std::nullopt : read_lines(std::filesystem::path(options_.before) / file);
  if (before) {
    const std::size_t most = std::max(before->size(), text.size());
    std::size_t i = 0;
    const auto equal = [&] {
      return i < before->size() && i < text.size() && without_remark((*before)[i]) == without_remark(text[i]);
    };
    while (i < most && equal()) ++i;
    if (i == most) return message + "\n  the text is the same: " + now;
    return message + "\n  first difference in line " + std::to_string(i + 1) + " of " + now + ":\n  was " +
           line_or_end(*before, i) + "\n  is  " + line_or_end(text, i);
  }
  std::size_t lines = 0;
  std::istringstream(was.find("lines")) >> lines;
  const auto parts = parts_of(text, lines);
  const std::size_t part = static_cast<std::size_t>(
      std::mismatch(parts.begin(), parts.end(), was.parts.begin(), was.parts.end()).first - parts.begin());
  if (part == kParts) return message + "\n  the text is the same: " + now;
  const std::size_t begin = part_begin(lines, part), end = std::min(part_end(lines, part), text.size());
  message += "\n  first difference between lines " + std::to_string(begin + 1) + " and " + std::to_string(end) +
             " of " + now + ", which are now";
  for (std::size_t i = begin; i < std::min(begin + kMaxLines, end); ++i) message += "\n    " + shortened(text[i]);
  if (end > begin + kMaxLines) message += "\n    ...";
  return message + "\n  for the very line: run the test in the commit that " + options_.file +
         " is of, keep its folder of texts, and name that in HVD_GUARD_BEFORE";
}

std::vector<std::string> Golden::unchecked(const std::string& prefix) const {
  std::vector<std::string> names;
  for (const auto& [name, digest] : digests_) {
    if (name.starts_with(prefix) && !checked_.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace hvd::models::cudnn::testing
