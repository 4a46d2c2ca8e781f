# shellcheck shell=bash disable=SC2034
# What the scripts here share: where the tree is, how a step is run and reported, which machine this is.
# To be sourced, after which a script sets `retry` to the command a user types to try again.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=$root/.deps
logs=$deps/logs
retry=$0
jobs=$(nproc)

# Open MPI refuses to run as root unless told twice.
if [[ $(id -u) -eq 0 ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

say() { printf '%s\n' "$*" >&2; }
die() { say "$(basename "$0"): $*"; exit 1; }

# Nothing ends without a word.
trap 'say "$0: line $LINENO failed: $BASH_COMMAND"' ERR

# step NAME COMMAND...: runs the command with its output in a log; says how long it took, or on failure
# which step, the end of the log, and how to retry.
step() {
  local name=$1 log started=$SECONDS code=0
  shift
  mkdir -p "$logs"
  log=$logs/${name//[^a-zA-Z0-9._-]/-}.log
  printf '%-44s' "$name ..." >&2
  set +e
  (set -e; "$@") >"$log" 2>&1 </dev/null
  code=$?
  set -e
  if [[ $code -ne 0 ]]; then
    say "FAILED (exit code $code)"
    say "the end of $log:"
    tail -n 25 "$log" | sed 's/^/  | /' >&2
    say ""
    say "The step \"$name\" failed. To try again: $retry"
    exit 1
  fi
  say "done ($((SECONDS - started)) s)"
}

# The CUDA compiler, or nothing.
find_nvcc() {
  local candidate
  for candidate in "$(command -v nvcc || true)" "${CUDA_HOME:-/nonexistent}/bin/nvcc" "${CUDA_PATH:-/nonexistent}/bin/nvcc" \
    /usr/local/cuda/bin/nvcc; do
    if [[ -n $candidate && -x $candidate ]]; then
      echo "$candidate"
      break
    fi
  done
}

# meson looks for nvcc in PATH only.
if nvcc=$(find_nvcc) && [[ -n $nvcc ]]; then
  PATH=$PATH:$(dirname "$nvcc")
fi

has_gpu() {
  [[ -e /dev/nvidia0 ]] || { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }
}

# provide_packages GROUP...; provide_starpu leaves the folder of StarPU's .pc files in $starpu_pc.
provide_packages() { step "packages ($*)" "$root/scripts/packages" "$@"; }

provide_starpu() {
  "$root/scripts/starpu" >/dev/null || exit 1
  starpu_pc=$("$root/scripts/starpu" --pkg-config-path)
}

# Leaves the option with which meson builds the simulated programs as well in $simgrid_option.
provide_simgrid() {
  provide_packages simulation
  simgrid_option=-Dsimgrid=$("$root/scripts/starpu" --simgrid) || exit 1
}

# configure_build FOLDER OPTION...: meson setup, only when the folder, the options or the list of source
# files changed (meson.build finds an op's files, and looks for new ones only when it is run again).
configure_build() {
  local folder=$1 wanted state=$1/tegula-configured
  shift
  wanted=$(
    printf '%s\n' "$@"
    cd "$root"
    { find ./*/ -type f \( -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' \) -not -path './build*' || true; } |
      LC_ALL=C sort | cksum
  )
  [[ -f $folder/build.ninja && -f $state && $(<"$state") == "$wanted" ]] && return
  if [[ -f $folder/build.ninja ]]; then
    step "configure $(basename "$folder")" meson setup --reconfigure "$folder" "$root" "$@"
  else
    rm -rf "$folder/meson-private" # an earlier attempt stopped half-way
    step "configure $(basename "$folder")" meson setup "$folder" "$root" "$@"
  fi
  printf '%s\n' "$wanted" >"$state"
}

# configured FOLDER OPTION: the option's value in a configured folder, or nothing.
configured() {
  [[ -f $1/build.ninja ]] || return 0
  meson introspect --buildoptions "$1" 2>/dev/null |
    python3 -c 'import json, sys; print(*(o["value"] for o in json.load(sys.stdin) if o["name"] == sys.argv[1]))' "$2"
}

# The pkg-config path as meson wants it: ours first, then the user's.
pkg_config_option() { echo "-Dpkg_config_path=$starpu_pc${PKG_CONFIG_PATH:+,${PKG_CONFIG_PATH//:/,}}"; }
