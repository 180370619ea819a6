#!/bin/bash
# Times of the ring all-reduce between namespaces beside its formula, for rates, latencies and numbers of nodes.
cd "$(dirname "$0")/../../.." || exit 2
for rate in ${RATES:-25 50 100 200 400}; do
  for latency in ${LATENCIES:-0 1000}; do
    for nodes in ${NODES:-2 3 4 6 8}; do
      tests/testbed/network_bench --nodes $nodes --rate-mbit $rate --latency-us $latency -- {bench} coll --collective \
        all_reduce --algorithm ring --no-bound --place in -b 16K -e $((rate * 32))K -f 4 -n 10 -w 2 --max-time 1 2>&1 |
        awk -v nodes=$nodes -v rate=$rate -v added=$latency '
          /one way/ { idle = $6 }
          / float / {
            step = $1 / nodes / (rate * 1e6 / 8 * 1448 / 1514) * 1e6
            took = $10 / (2 * (nodes - 1))
            if (!known) known = took - step  # latency of a step between so many ranks, from the smallest message
            printf "%d nodes %3d Mbit/s +%4d us  %8d B  step %8.0f us, wire %8.0f us, idle latency %4d us: ", nodes, rate,
              added, $1, took, step, idle
            printf "%.3f of the formula; with the latency of the smallest message, %4.0f us: %.3f\n",
              took / (step + idle), known, took / (step + known)
          }'
    done
  done
done
