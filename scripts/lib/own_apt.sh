# Sourced by scripts that unpack Debian's packages into a folder, without changing the machine's.
# shellcheck shell=bash

# hvd_own_apt FOLDER ARCHITECTURE SOURCE...: makes an apt with a state of its own in FOLDER. From then on apt-get uses
# it (APT_CONFIG). Each SOURCE is a line of sources.list. Returns an error if a package list cannot be downloaded.
hvd_own_apt() {
  local apt=$1 architecture=$2
  shift 2
  mkdir -p "$apt"/{etc/apt.conf.d,etc/preferences.d,state/lists/partial,cache/archives/partial} || return 1
  touch "$apt/state/status"
  printf '%s\n' "$@" >"$apt/etc/sources.list"
  cat >"$apt/apt.conf" <<TEXT
Dir "$apt";
Dir::Etc "etc";
Dir::Etc::trustedparts "/etc/apt/trusted.gpg.d";
Dir::State "state";
Dir::State::status "status";
Dir::Cache "cache";
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Install-Recommends "false";
APT::Sandbox::User "";
TEXT
  export APT_CONFIG=$apt/apt.conf
  apt-get -q -o APT::Update::Error-Mode=any update
}
