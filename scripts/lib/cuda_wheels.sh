# Sourced by install_deps --cuda. Makes a CUDA Toolkit with cuDNN and NCCL from NVIDIA's wheels on PyPI, for machines
# without a toolkit. This toolkit is enough to compile and link the GPU code and to run its tests without a GPU.
# shellcheck shell=bash

# The versions with which the GPU code is tested. Python wheels spare the user the set-up of NVIDIA's repository.
hvd_cuda_wheels=(
  nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88  # the compiler
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85                   # headers and the runtime library
  nvidia-cublas==13.1.0.3 nvidia-cuda-nvrtc==13.0.88
  nvidia-cudnn-cu13==9.19.0.56 nvidia-nccl-cu13==2.28.9
)
# shellcheck disable=SC2034  # used by install_deps
hvd_cuda_size="1.2 GB to download, 1.7 GB on disk"

hvd_system_prefixes=(/usr/local /usr)

# hvd_has_header HEADER PREFIX...: succeeds if the header is below one of the prefixes, in a folder that CMake searches.
hvd_has_header() {
  local header=$1 prefix file
  shift
  for prefix in "$@"; do
    for file in "$prefix"/{,include,targets/*/include,include/*-linux-gnu}/"$header"; do
      [ ! -e "$file" ] || return 0
    done
  done
  return 1
}

# hvd_machine_has_cuda: prints the nvcc of CUDA 12 or newer that CMake would find, if CMake would also find the headers
# of cuDNN and NCCL. Otherwise names the missing header.
hvd_machine_has_cuda() {
  local nvcc release prefixes
  nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc) || return 1
  release=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  [ "${release:-0}" -ge 12 ] || return 1
  IFS=':;' read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  prefixes+=("${nvcc%/bin/*}" "$(readlink -f "$nvcc" | sed 's|/bin/[^/]*$||')" "${hvd_system_prefixes[@]}")
  hvd_cuda_header "$nvcc" cudnn_backend.h CUDNN_ROOT "${prefixes[@]}" || return 1
  hvd_cuda_header "$nvcc" nccl.h NCCL_ROOT "${prefixes[@]}" || return 1
  echo "$nvcc"
}

# hvd_cuda_header NVCC HEADER ROOT_VARIABLE PREFIX...: like hvd_has_header, with a message if the header is missing.
hvd_cuda_header() {
  local nvcc=$1 header=$2 root=$3
  shift 3
  hvd_has_header "$header" ${!root:+"${!root}"} "$@" && return 0
  echo "there is $nvcc, but no $header: set CMAKE_PREFIX_PATH or $root if it is elsewhere" >&2
  return 1
}

# hvd_cuda_is_there FOLDER: succeeds if FOLDER contains exactly hvd_cuda_wheels.
hvd_cuda_is_there() { [ "$(cat "$1/wheels.txt" 2>/dev/null)" = "${hvd_cuda_wheels[*]}" ]; }

# hvd_flatten_wheels SITE_PACKAGES FOLDER: merges the folders of the wheels into one toolkit. Adds the library names
# that a linker looks for, because wheels contain, for example, only libcudart.so.13.
hvd_flatten_wheels() {
  local package file
  for package in cu13 cudnn nccl; do cp -al "$1/nvidia/$package/." "$2/" || return 1; done
  mkdir "$2/licences" && cp -al "$1"/*.dist-info "$2/licences/" || return 1
  ln -s lib "$2/lib64"
  for file in "$2"/lib/lib*.so.*; do ln -s "${file##*/}" "${file%%.so.*}.so" || return 1; done
}

# hvd_install_cuda FOLDER: installs everything or nothing. Needs python3 with venv, but no root.
hvd_install_cuda() {
  local folder=$1 partial=$1.partial
  rm -rf "$partial"
  mkdir -p "$partial" || return 1
  python3 -m venv "$partial/venv" || return 1
  "$partial/venv/bin/pip" install -q --disable-pip-version-check --no-deps --only-binary :all: \
    --target "$partial/site-packages" "${hvd_cuda_wheels[@]}" || return 1
  hvd_flatten_wheels "$partial/site-packages" "$partial" || return 1
  rm -rf "$partial/venv" "$partial/site-packages"
  "$partial/bin/nvcc" --version >/dev/null || return 1
  echo "${hvd_cuda_wheels[*]}" >"$partial/wheels.txt"
  rm -rf "$folder"
  mv "$partial" "$folder"
}
