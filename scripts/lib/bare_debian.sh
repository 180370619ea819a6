#!/usr/bin/env bash
# bare_debian.sh RELEASE FOLDER COMMAND...: makes a Debian RELEASE (bookworm, trixie) in FOLDER, with nothing but what
# debootstrap installs, git and certificates, clones HEAD into it, and runs COMMAND in the clone as root. A Debian that
# is complete in FOLDER already is used again. What COMMAND starts and mounts is in namespaces of its own, which the
# kernel removes with its last process, however it ends.
# Variables: HVD_DEBIAN_MIRROR, where packages come from.
# Exit codes: COMMAND's; 77 with one line if no bare Debian can be had here; 2 if making one failed.
set -euo pipefail
# shellcheck source=scripts/lib/shell.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/shell.sh"

release=$1 folder=$(realpath -m "$2")
shift 2
mirror=${HVD_DEBIAN_MIRROR:-http://deb.debian.org/debian}
isolated=(unshare --mount --propagation private --pid --fork --kill-child=KILL)

cannot() { hvd_fail "no bare Debian here: $1" 77; }
[ "$(id -u)" -eq 0 ] || cannot "making one needs root"
command -v debootstrap >/dev/null || cannot "no debootstrap (scripts/install_deps --tests installs it)"
"${isolated[@]}" true 2>/dev/null || cannot "this root may not make namespaces"
wget -q --spider --tries=2 --timeout=20 "$mirror/dists/$release/InRelease" || cannot "$mirror cannot be reached"

if [ ! -f "$folder/srv/complete" ]; then
  rm -rf --one-file-system "$folder"
  mkdir -p "$folder"
  # debootstrap leaves mounts behind when it is killed.
  "${isolated[@]}" --mount-proc debootstrap --variant=minbase --include=ca-certificates,git "$release" "$folder" \
    "$mirror" </dev/null || hvd_fail "debootstrap of $release failed; see its message above"
  touch "$folder/srv/complete"
fi
cp -L /etc/resolv.conf "$folder/etc/resolv.conf"
rm -rf "$folder/srv/hvd_bench"
# By default git refuses a checkout that belongs to another user. Cloning one is not dangerous.
git -c "safe.directory=*" clone -q --no-hardlinks -u "git -c 'safe.directory=*' upload-pack" "$hvd_root" \
  "$folder/srv/hvd_bench"
hvd_say "$release: a clone of $(git -c "safe.directory=*" -C "$hvd_root" log -1 --format='%h (%s)')"

# The compiler's cache is the host's: ccache compares the compiler and every included header, so that it never hides
# what this Debian lacks.
cache=${CCACHE_DIR:-$HOME/.cache/ccache}
mkdir -p "$cache" "$folder/root/.cache/ccache"

# pivot_root and not chroot, because in a chroot the kernel refuses namespaces that some tests use.
# shellcheck disable=SC2016  # for the inner shell
enter='set -euo pipefail
root=$1 cache=$2
shift 2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"  # names there contain process ids, which two namespaces share
mount -t tmpfs tmpfs "$root/run"
mount --bind "$cache" "$root/root/.cache/ccache"
mkdir "$root/run/outside"
cd "$root"
pivot_root . run/outside
umount -l /run/outside
cd /srv/hvd_bench
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb "$@"'
exec "${isolated[@]}" bash -c "$enter" enter "$folder" "$cache" "$@" </dev/null
