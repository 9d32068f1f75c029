#!/usr/bin/env bash
# Trains the sample on RANKS MPI ranks. Needs nothing but Python 3.11: see ../environment.sh.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<EOF
usage: bash sample_code/sharding_propagation/run.sh RANKS

Plans, partitions and trains a small feed-forward network with one annotated operator on RANKS MPI ranks of
this machine: 2, 4, 8, 16, 32 or 64; more than it has cores is allowed. Tells what was decided and why, and
compares with the same training on one rank. IR dumps go to rank_0/, rank_1/, ... beside the sample.

If no Python at hand has autoshard, the first run installs it into .venv in the checkout.
EOF
}

if [ $# -ne 1 ]; then
  usage >&2
  exit 2
fi
case $1 in
-h | --help)
  usage
  exit
  ;;
2 | 4 | 8 | 16 | 32 | 64) ranks=$1 ;;
*)
  printf 'run.sh: RANKS is %q; it can be 2, 4, 8, 16, 32 or 64\n\n' "$1" >&2
  usage >&2
  exit 2
  ;;
esac

. "$here/../environment.sh"
find_environment

command=("$PYTHON" -m autoshard run -n "$ranks")
table=$here/rank_table_${ranks}pcs.json
if [ -f "$table" ]; then
  command+=(--rank-table "$table")
fi
exec "${command[@]}" "$here/train.py"
