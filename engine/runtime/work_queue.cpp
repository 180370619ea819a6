#include "engine/runtime/work_queue.h"

#include <utility>

namespace hvd {

void WorkQueue::take_up_to_command(Taken& taken) {
  for (; ready(); entries_.pop_front()) {
    if (const auto* step = std::get_if<Schedule>(&entries_.front())) {
      taken.step = *step;
    } else {
      taken.submissions.push_back(std::move(std::get<Submission>(entries_.front())));
    }
  }
}

WorkQueue::Command* WorkQueue::take_command() {
  if (entries_.empty() || !command_first()) return nullptr;
  Command* const command = std::get<Command*>(entries_.front());
  entries_.pop_front();
  return command;
}

}  // namespace hvd
