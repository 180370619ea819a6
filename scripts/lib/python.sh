# Sourced. Sets HVD_PYTHON to the first Python 3.10 or newer with numpy and matplotlib among: $HVD_PYTHON, the
# checkout's build/python (scripts/install_deps --tests), and HVD_PYTHONS.
# shellcheck shell=bash

# The first python3 on the PATH often has no numpy or matplotlib (pyenv, conda, a module), or is too old: that of RHEL 9
# is 3.9, with newer ones beside it.
HVD_PYTHONS=(python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/bin/python3 /usr/local/bin/python3
  /opt/conda/bin/python3)

# Removes the current folder, which may contain a stranger's files, from the path on which Python looks for modules.
HVD_PYTHON_PATH='import sys; sys.path[:] = filter(None, sys.path)'

# Only searches for the packages, because importing matplotlib takes a second.
HVD_PYTHON_CHECK="$HVD_PYTHON_PATH"'; import importlib.util as u
sys.exit(sys.version_info < (3, 10) or not (u.find_spec("numpy") and u.find_spec("matplotlib")))'

hvd_python_is_good() {
  "$1" -c "$HVD_PYTHON_CHECK" >/dev/null 2>&1
}

hvd_choose_python() {
  local candidate here
  here=$(dirname "${BASH_SOURCE[0]}")/../../build/python/bin/python
  for candidate in ${HVD_PYTHON:+"$HVD_PYTHON"} "$here" "${HVD_PYTHONS[@]}"; do
    if command -v "$candidate" >/dev/null && hvd_python_is_good "$candidate"; then
      HVD_PYTHON=$(command -v "$candidate")
      export HVD_PYTHON
      return 0
    fi
  done
  echo "no Python 3.10+ with numpy and matplotlib was found: install them (Debian: python3-numpy python3-matplotlib;" \
    "RHEL 9: with pip into a virtual environment of python3.11), or set HVD_PYTHON" >&2
  return 2
}

# hvd_exec_with PYTHON MODULE ARGS...: replaces the shell by `PYTHON -m MODULE ARGS...`. The folder above lib/ is on the
# module path instead of the current folder.
hvd_exec_with() {
  local packages python=$1
  packages=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
  shift
  local start="$HVD_PYTHON_PATH; import runpy; del sys.argv[0]; "
  start+='runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)'
  PYTHONPATH="$packages${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 exec "$python" -c "$start" "$@"
}

# hvd_exec_module MODULE ARGS...: runs the module in a Python with numpy and matplotlib.
hvd_exec_module() {
  hvd_choose_python || exit 2
  hvd_exec_with "$HVD_PYTHON" "$@"
}

# hvd_exec_plain VERSION MODULE ARGS...: runs a module that needs no packages in any Python 3.VERSION or newer.
hvd_exec_plain() {
  local minor=$1 candidate
  shift
  for candidate in ${HVD_PYTHON:+"$HVD_PYTHON"} "${HVD_PYTHONS[@]}"; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c "import sys; sys.exit(sys.version_info < (3, $minor))" 2>/dev/null; then
      hvd_exec_with "$candidate" "$@"
    fi
  done
  echo "no Python 3.$minor or newer was found: load a module that has one, or set HVD_PYTHON" >&2
  exit 2
}

# hvd_exec COMMAND ARGS...: replaces the shell by `python -m hvdb COMMAND ARGS...`. Login nodes have few packages, so
# `campaign` needs only Python 3.11 (tomllib), and hvdb without a command needs only Python 3.10.
hvd_exec() {
  case ${1:-} in
    campaign) hvd_exec_plain 11 hvdb "$@" ;;
    '' | -*) hvd_exec_plain 10 hvdb "$@" ;;
    *) hvd_exec_module hvdb "$@" ;;
  esac
}
