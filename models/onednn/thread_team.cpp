#include "models/thread_team.h"

#include <omp.h>
#include <sched.h>

#include <cstddef>
#include <set>

#include "models/onednn/threads.h"

namespace hvd::models {

int thread_limit() {
  return omp_get_max_active_levels() == 0 ? 1 : omp_get_thread_limit();  // level 0: no region ever runs in parallel
}

std::vector<int> bound_processors() {
  std::set<int> all;
  if (omp_get_proc_bind() == omp_proc_bind_false) return {};
  for (int place = 0; place < omp_get_num_places(); ++place) {
    std::vector<int> processors(static_cast<std::size_t>(omp_get_place_num_procs(place)));
    omp_get_place_proc_ids(place, processors.data());
    all.insert(processors.begin(), processors.end());
  }
  return {all.begin(), all.end()};
}

ThreadTeam start_team(int wanted) {
  const onednn::ThreadScope scope(wanted);
  ThreadTeam team;
  std::set<int> all;
#pragma omp parallel
  {
    cpu_set_t mine;
    CPU_ZERO(&mine);
    const bool known = sched_getaffinity(0, sizeof mine, &mine) == 0;
#pragma omp critical
    {
      team.threads = omp_get_num_threads();
      for (int cpu = 0; known && cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &mine)) all.insert(cpu);
      }
    }
  }
  team.processors.assign(all.begin(), all.end());
  return team;
}

}  // namespace hvd::models
