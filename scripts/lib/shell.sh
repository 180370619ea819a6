# Sourced by the shell entry points: the root of the checkout, functions that print, settings for MPI.
# shellcheck shell=bash

# shellcheck disable=SC2034  # used by scripts that source this file
hvd_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

hvd_say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
[ -t 1 ] || hvd_say() { printf '==> %s\n' "$*"; }

# hvd_fail MESSAGE [CODE]: prints one line on standard error and exits.
hvd_fail() {
  printf '%s: %s\n' "${0##*/}" "$1" >&2
  exit "${2:-2}"
}

# hvd_duration SECONDS: prints the duration as "45 s" or "3 min 20 s".
hvd_duration() {
  if [ "$1" -lt 60 ]; then
    printf '%d s' "$1"
  else
    printf '%d min %d s' "$(($1 / 60))" "$(($1 % 60))"
  fi
}

# Allows Open MPI to run as root, which is normal in containers, and to start more ranks than cores, which laptops need.
# Open MPI 5 places ranks through PRRTE, which reads its own variables. Only necessary variables are set, because
# variables that tune MPI are part of a run's fingerprint.
hvd_prepare_mpi() {
  if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
  if [ "$(nproc)" -lt 2 ]; then
    export OMPI_MCA_rmaps_base_oversubscribe=1                      # Open MPI 4
    export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe    # Open MPI 5
    export OMPI_MCA_mpi_yield_when_idle=1  # ranks that share a core must not spin
  fi
}
