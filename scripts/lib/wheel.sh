#!/usr/bin/env bash
# wheel.sh: makes two wheels in build/wheels: hvdb, and hvd_bench with the program. scripts/build wheel calls this.
#
# Debian 12's g++ compiles the program for the C library of Debian 11, so that the wheel runs on every Linux with glibc
# 2.31 or newer. The wheel holds the other libraries. What the program is compiled against comes from Debian and PyPI
# once, and is kept in ~/.cache/hvd_bench/wheel.
# Variables: HVD_DEBIAN_MIRROR, where packages come from.
# Exit codes: 0 made; 2 with one line if it cannot be made here.
set -euo pipefail
lib=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=scripts/lib/shell.sh
source "$lib/shell.sh"
# shellcheck source=scripts/lib/own_apt.sh
source "$lib/own_apt.sh"

mirror=${HVD_DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages=({libc6,libc6-dev,linux-libc-dev,libcrypt1,libcrypt-dev,libgcc-s1,libstdc++6,libgomp1,gcc-10-base}/bullseye
  {libcli11-dev,libfmt-dev,libfmt9,libsqlite3-dev,libopenmpi-dev,libmpich-dev}/bookworm)
# oneDNN 2.6.0. PyPI has no later 2.x, and 3.x has no Winograd convolutions.
onednn='onednn-cpu-gomp==2022.2.1 --hash=sha256:091357f4d66ebd6a391d4327e0bee2401597b30753f087222bb3559c1b4e625e
onednn-devel-cpu-gomp==2022.2.1 --hash=sha256:b263bcaf903c7910ae0aae35d495f5a87408090e32787be70b46fbc2734a159c'
auditwheel=auditwheel==6.8.2  # for tests/scripts/wheel

cache=${XDG_CACHE_HOME:-$HOME/.cache}/hvd_bench/wheel
sysroot=$cache/sysroot
libraries=$sysroot/usr/lib/x86_64-linux-gnu
pip=("$cache/tools/bin/python" -m pip --disable-pip-version-check -q)

[ "$(uname -m)" = x86_64 ] || hvd_fail "the wheel is made on x86-64, and this is $(uname -m)"
for program in apt-get dpkg-deb dpkg-source gcc-12 g++-12 cmake ninja make; do
  command -v "$program" >/dev/null ||
    hvd_fail "no $program here: on Debian 12, apt-get install g++-12 dpkg-dev cmake ninja-build make python3-venv"
done

# Debian's static hwloc needs libudev, which not every system has, so hwloc is compiled without it.
make_hwloc() (
  cd "$cache"/files/hwloc-*/
  ./configure -q CC="gcc-12 --sysroot=$sysroot" CFLAGS="-O2 -fPIC" --prefix=/usr --libdir="${libraries#"$sysroot"}" \
    --enable-static --disable-shared --disable-plugins --disable-libudev --disable-libxml2 --disable-io --disable-cairo
  make -s -C include install DESTDIR="$sysroot"
  make -s -C hwloc install DESTDIR="$sysroot"
)

make_sysroot() {
  local archive link
  rm -rf "$cache"
  mkdir -p "$cache/files" "$libraries" "$sysroot/licenses"
  /usr/bin/python3 -m venv "$cache/tools"
  "${pip[@]}" install "$auditwheel"
  hvd_own_apt "$cache/apt" amd64 "deb $mirror bullseye main" "deb $mirror bookworm main" "deb-src $mirror bookworm main"
  cd "$cache/files"
  apt-get -q download "${packages[@]}"
  apt-get -q source hwloc/bookworm
  for archive in *.deb; do dpkg-deb -x "$archive" "$sysroot"; done
  find "$sysroot" -type l -lname '/*' | while read -r link; do ln -sfn "$sysroot$(readlink "$link")" "$link"; done
  rm "$libraries/libsqlite3.so"  # the wheel's program holds SQLite
  make_hwloc
  echo "$onednn" >onednn.txt
  "${pip[@]}" download --require-hashes --only-binary :all: --no-deps -r onednn.txt
  for archive in *.whl; do /usr/bin/python3 -m zipfile -e "$archive" onednn; done
  cp -R onednn/*.data/data/include "$sysroot/usr"
  cp onednn/*.data/data/lib/libdnnl.so.2 "$libraries"
  ln -s libdnnl.so.2 "$libraries/libdnnl.so"
  ln -s libgomp.so.1 "$libraries/libgomp.so"
  cp -R onednn/*.data/data/share/doc/onednn "$sysroot/licenses"
  cp hwloc-*/COPYING "$sysroot/licenses/hwloc"
  for archive in libcli11-dev libfmt-dev libsqlite3-dev gcc-10-base; do
    cp "$sysroot/usr/share/doc/$archive/copyright" "$sysroot/licenses/$archive"
  done
  rm -rf "$cache/apt" "$cache/files"
  echo "$wanted" >"$sysroot/.hvd_packages"
}

wanted="${packages[*]} $onednn $auditwheel"
if [ "$(cat "$sysroot/.hvd_packages" 2>/dev/null)" != "$wanted" ]; then
  hvd_say "what the wheel is compiled against, into $cache"
  mkdir -p "$hvd_root/build"
  log=$hvd_root/build/wheel_packages.log
  # In a process of its own, because in a condition bash ignores failures of single commands.
  (set -e; make_sysroot) >"$log" 2>&1 &
  wait $! || hvd_fail "$mirror or PyPI did not give it: $(tail -n 1 "$log") (all of it: $log)"
fi

hvd_say "both wheels, into build/wheels"
cd "$hvd_root"
rm -rf build/wheel build/wheels
# scikit-build-core names the wheel's platform after this variable.
export _PYTHON_HOST_PLATFORM=manylinux_2_31_x86_64
export SKBUILD_BUILD_DIR=build/wheel
export SKBUILD_CMAKE_ARGS="--toolchain=$hvd_root/cmake/wheel.cmake;-DHVD_SYSROOT=$sysroot"
"${pip[@]}" wheel --no-deps --wheel-dir build/wheels ./scripts . || hvd_fail "pip wheel failed; see its message above" 1
ls build/wheels/*.whl
