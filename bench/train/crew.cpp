#include "bench/train/crew.h"

#include <exception>
#include <string>

namespace hvd::bench {

void Crew::tell(const Command& command) { engine_.broadcast_message(encode(command), 0); }

std::vector<Answer> Crew::perform(const Command& command) {
  in_lockstep_ = false;
  tell(command);
  const Answer mine = own_.execute(command);
  std::vector<Answer> answers;
  for (const comm::Bytes& bytes : engine_.gather(encode(mine))) answers.push_back(decode_answer(bytes));
  in_lockstep_ = true;
  for (std::size_t r = 0; r < answers.size(); ++r) {
    if (answers[r].signal.empty()) continue;
    throw Error(Errc::kInterrupted, "stopped by " + answers[r].signal + " on rank " + std::to_string(r) + " (" +
                                        engine_.topology().hosts.at(r) + "); what was measured until then is kept");
  }
  return answers;
}

void Crew::end() { tell(Command{}); }

bool Crew::end(const Error& error) noexcept {
  if (!in_lockstep_) return false;
  try {
    Command command;
    command.failed = true;
    command.code = error.code();
    command.text = error.what();
    tell(command);
    return true;
  } catch (const std::exception&) {
    return false;  // the engine has failed too, and its peers know
  }
}

}  // namespace hvd::bench
