#include "bench/session/message.h"

#include <fmt/format.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "engine/base/assert.h"

namespace hvd::bench {
namespace {

// One list of fields serves both encoding and decoding: `Archive` is a Writer or a Reader.
class Writer {
 public:
  template <class T>
  void operator()(const T& value) requires std::is_trivially_copyable_v<T> {
    append(&value, sizeof value);
  }
  void operator()(const std::string& text) {
    (*this)(text.size());
    append(text.data(), text.size());
  }
  template <class T>
  void operator()(const std::vector<T>& values) {
    (*this)(values.size());
    append(values.data(), values.size() * sizeof(T));
  }
  std::vector<std::byte> bytes;

 private:
  void append(const void* data, std::size_t count) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes.insert(bytes.end(), first, first + count);
  }
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <class T>
  void operator()(T& value) requires std::is_trivially_copyable_v<T> {
    take(&value, sizeof value);
  }
  void operator()(std::string& text) {
    text.resize(length(1));
    take(text.data(), text.size());
  }
  template <class T>
  void operator()(std::vector<T>& values) {
    values.resize(length(sizeof(T)));
    take(values.data(), values.size() * sizeof(T));
  }
  [[nodiscard]] bool finished() const { return bytes_.empty(); }

 private:
  std::size_t length(std::size_t element) {
    std::size_t count = 0;
    take(&count, sizeof count);
    HVD_ASSERT(count <= bytes_.size() / element);
    return count;
  }
  void take(void* out, std::size_t count) {
    HVD_ASSERT(count <= bytes_.size());
    if (count > 0) std::memcpy(out, bytes_.data(), count);
    bytes_ = bytes_.subspan(count);
  }
  std::span<const std::byte> bytes_;
};

template <class Archive, class C>
void each_field(Archive& archive, C& directive) requires std::is_same_v<std::remove_const_t<C>, Directive> {
  archive(directive.task);
  archive(directive.phase);
  archive(directive.steps);
  archive(directive.discard);
  archive(directive.new_graphs);
  archive(directive.failed);
  archive(directive.code);
  archive(directive.text);
  archive(directive.turn);
  archive(directive.snapshot);
}

template <class Archive, class A>
void each_field(Archive& archive, A& answer) requires std::is_same_v<std::remove_const_t<A>, Answer> {
  archive(answer.signal);
  for (const StepSeries& series : kStepSeries) archive(answer.samples.*series.of_rank);
  archive(answer.gradient_checksums);
  archive(answer.parameter_checksums);
  archive(answer.snapshot_checksums);
  archive(answer.planned_bytes);
  archive(answer.baseline_bytes);
  archive(answer.peak_bytes);
  archive(answer.processor_seconds);
  archive(answer.bucket_seconds);
  archive(answer.problem);
  archive(answer.note);
}

template <class T>
std::vector<std::byte> encoded(const T& value) {
  Writer writer;
  each_field(writer, value);
  return std::move(writer.bytes);
}

template <class T>
T decoded(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  T value;
  each_field(reader, value);
  HVD_ASSERT(reader.finished());
  return value;
}

}  // namespace

std::vector<std::byte> encode(const Directive& directive) { return encoded(directive); }
std::vector<std::byte> encode(const Answer& answer) { return encoded(answer); }
Directive decode_directive(std::span<const std::byte> bytes) { return decoded<Directive>(bytes); }
Answer decode_answer(std::span<const std::byte> bytes) { return decoded<Answer>(bytes); }

void append(RankSamples& samples, const RankSamples& more) {
  for (const StepSeries& series : kStepSeries) {
    const std::vector<double>& from = more.*series.of_rank;
    std::vector<double>& to = samples.*series.of_rank;
    to.insert(to.end(), from.begin(), from.end());
  }
}

std::string stop_text(const std::vector<Answer>& answers, const std::vector<std::string>& hosts) {
  for (std::size_t r = 0; r < answers.size(); ++r) {
    if (answers[r].signal.empty()) continue;
    return fmt::format("stopped by {} on rank {} ({})", answers[r].signal, r, hosts.at(r));
  }
  return {};
}

}  // namespace hvd::bench
