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
      return
    fi
  done
}

has_gpu() {
  [[ -e /dev/nvidia0 ]] || { command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }
}
