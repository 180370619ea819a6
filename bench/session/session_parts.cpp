#include "bench/session/session_parts.h"

#include <exception>
#include <string>

#include "bench/world/settings.h"

namespace hvd::bench {

void RankGroup::tell(const Directive& directive) { engine_.broadcast_message(encode(directive), 0); }

std::vector<Answer> RankGroup::execute(const Directive& directive) {
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

void RankGroup::run(const std::function<void()>& work, const std::function<void(const Error&)>& give_up) {
  try {
    work();
    tell(Directive{});
  } catch (const Error& error) {
    give_up(error);
    if (end(error)) throw AgreedError(error.code(), error.what());
    throw;
  } catch (const std::exception& fault) {
    const Error error(Errc::kBackend, fault.what());
    give_up(error);
    if (end(error)) throw AgreedError(error.code(), error.what());
    throw;
  }
}

bool RankGroup::end(const Error& error) noexcept {
  if (!in_lockstep_) return false;
  try {
    Directive directive;
    directive.failed = true;
    directive.code = error.code();
    directive.text = error.what();
    tell(directive);
    return true;
  } catch (const std::exception&) {
    return false;  // the engine has failed, so the peers know about the error already
  }
}

}  // namespace hvd::bench
