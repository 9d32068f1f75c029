#!/usr/bin/env bash
# All tests: plain ones under pytest, and beside them those in tests/mpi on several numbers of MPI ranks. Needs nothing
# but Python 3.11: see ../sample_code/environment.sh. Arguments are passed on to every pytest, e.g. -k layout.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/../sample_code/environment.sh"
cd "$ROOT"
# The tests are about this checkout, even where another autoshard is installed.
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
find_environment test

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
touch "$scratch/failed"
# A rank that waits gives its core away: to other ranks, and to tests beside them.
export OMPI_MCA_mpi_yield_when_idle=1

# Each of several processes that test at a time computes on one core, unless told otherwise: threads that wait for others
# take these cores from tests.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

# One pytest under a title. Its exit code 5 is "no test was selected", which -k can make true of one part.
part() { # TITLE COMMAND...
  local title=$1 code=0
  shift
  printf '\n== %s\n' "$title"
  "$@" || code=$?
  if [ "$code" -ne 0 ] && [ "$code" -ne 5 ]; then
    printf 'failed: %s\n' "$title" >>"$scratch/failed"
  fi
}

on_ranks() {
  for ranks in 1 2 4 6; do
    part "MPI tests on $ranks ranks" \
      "$PYTHON" -m autoshard run -n "$ranks" --timeout 900 tests/mpi/run_pytest.py -q tests/mpi "$@"
  done
  part "training, random programs, rings and experts on 8 ranks" \
    "$PYTHON" -m autoshard run -n 8 --timeout 900 tests/mpi/run_pytest.py -q \
    tests/mpi/test_transformer.py tests/mpi/test_random_programs.py tests/mpi/test_attention_rings.py \
    tests/mpi/test_experts_on_ranks.py "$@"
}

# Ranks leave cores idle, as when one plans for all; what they have to say is shown in its turn. They are a group of
# processes, which ends with this one.
set -m
on_ranks "$@" </dev/null >"$scratch/ranks.log" 2>&1 &
ranks=$!
set +m
trap 'kill -- -"$ranks" 2>/dev/null || true; rm -rf "$scratch"' EXIT
"$PYTHON" tests/compiled_once.py
# One process more than a small machine has cores: some tests mostly wait, for ranks or for time to pass.
part "plain tests" "$PYTHON" -m pytest -q -n 3 --durations=25 --ignore=tests/mpi tests "$@"
wait "$ranks"
cat "$scratch/ranks.log"

printf '\n'
if [ -s "$scratch/failed" ]; then
  cat "$scratch/failed"
  exit 1
fi
printf 'all parts passed\n'
