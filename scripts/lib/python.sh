# Sourced. Sets HVD_PYTHON to a Python 3.10 or newer that has numpy and matplotlib: the one in HVD_PYTHON if it is
# set, else the first good one of the PATH and the system. The first python3 on a PATH is often another one
# (pyenv, conda, a module) without them.
# shellcheck shell=bash

# Found, not imported: importing matplotlib takes a second.
HVD_PYTHON_CHECK='import sys, importlib.util as u
sys.exit(sys.version_info < (3, 10) or not (u.find_spec("numpy") and u.find_spec("matplotlib")))'

hvd_python_is_good() {
  "$1" -c "$HVD_PYTHON_CHECK" >/dev/null 2>&1
}

hvd_choose_python() {
  local candidate
  for candidate in ${HVD_PYTHON:+"$HVD_PYTHON"} python3 /usr/bin/python3 /usr/local/bin/python3; do
    if command -v "$candidate" >/dev/null && hvd_python_is_good "$candidate"; then
      HVD_PYTHON=$(command -v "$candidate")
      export HVD_PYTHON
      return 0
    fi
  done
  echo "no Python 3.10+ with numpy and matplotlib was found: run scripts/install_deps, or set HVD_PYTHON" >&2
  return 2
}

# hvd_exec_module MODULE ARGS...: becomes `python -m MODULE ARGS...`, with scripts/ on the path.
hvd_exec_module() {
  local scripts
  scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  hvd_choose_python || exit 2
  PYTHONPATH="$scripts${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 exec "$HVD_PYTHON" -m "$@"
}

# hvd_exec COMMAND ARGS...: becomes `python -m hvdb COMMAND ARGS...`.
hvd_exec() { hvd_exec_module hvdb "$@"; }

# hvd_exec_plain FOLDER PACKAGE CHECK VERSION ARGS...: becomes `python -m PACKAGE ARGS...` with FOLDER of this project on
# its path, in a Python (of VERSION or newer, for the message) that passes CHECK and needs nothing beside it.
hvd_exec_plain() {
  local top folder=$1 package=$2 check=$3 version=$4 candidate
  shift 4
  top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  for candidate in ${HVD_PYTHON:+"$HVD_PYTHON"} python3 python3.14 python3.13 python3.12 python3.11 python3.10 \
    /usr/bin/python3 /opt/conda/bin/python3; do
    if command -v "$candidate" >/dev/null && "$candidate" -c "$check" 2>/dev/null; then
      PYTHONPATH="$top/$folder${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 exec "$candidate" -m "$package" "$@"
    fi
  done
  echo "no Python $version or newer was found: load a module that has one, or set HVD_PYTHON" >&2
  exit 2
}

# hvd_exec_campaign ARGS...: login nodes have little; tomllib came with 3.11. scripts/ is on the path for hvdb.edge.
hvd_exec_campaign() {
  local scripts
  scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  PYTHONPATH="$scripts${PYTHONPATH:+:$PYTHONPATH}" hvd_exec_plain slurm campaign 'import tomllib' 3.11 "$@"
}
