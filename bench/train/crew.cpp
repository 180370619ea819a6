#include "bench/train/crew.h"

#include <exception>
#include <string>

namespace hvd::bench {

void Crew::tell(const Directive& directive) { engine_.broadcast_message(encode(directive), 0); }

std::vector<Answer> Crew::perform(const Directive& directive) {
  in_lockstep_ = false;
  tell(directive);
  const Answer mine = own_.execute(directive);
  std::vector<Answer> answers;
  for (const comm::Bytes& bytes : engine_.gather(encode(mine))) answers.push_back(decode_answer(bytes));
  in_lockstep_ = true;
  const std::string stopped = stop_text(answers, engine_.topology().hosts);
  if (!stopped.empty()) throw Error(Errc::kInterrupted, stopped);
  return answers;
}

void Crew::end() { tell(Directive{}); }

bool Crew::end(const Error& error) noexcept {
  if (!in_lockstep_) return false;
  try {
    Directive directive;
    directive.failed = true;
    directive.code = error.code();
    directive.text = error.what();
    tell(directive);
    return true;
  } catch (const std::exception&) {
    return false;  // the engine has failed too, and its peers know
  }
}

}  // namespace hvd::bench
