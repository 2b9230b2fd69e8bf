#!/usr/bin/env bash
# Builds the environments of the systems that the benches run beside p2ptrain, in .others/ (ignored by git):
#
#   .others/hivemind   hivemind 1.1.12 and gloo. numpy stays at 2.2.6: with 2.4 and later hivemind's quantisers raise,
#                      and its averager then averages nothing and reports success.
#   .others/torchft    torchft 0.2.0
#
# Does nothing for an environment that stands. OTHERS: another place for them; PYTHON: the interpreter that makes them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
others=${OTHERS:-.others}

build() { # build NAME MODULE REQUIREMENT...
  local name=$1 module=$2
  shift 2
  local folder=$others/$name
  local stamp=$folder/.installed
  if [[ -f $stamp && $(cat "$stamp") == "$*" ]]; then
    echo "$folder stands"
    return
  fi
  rm -rf "$folder"
  "$python" -m venv "$folder"
  "$folder/bin/python" -m pip install --quiet "$@"
  "$folder/bin/python" -c "import $module"
  echo "$*" > "$stamp"
  echo "$folder built"
}

build hivemind hivemind torch==2.13.0 hivemind==1.1.12 numpy==2.2.6 bitsandbytes
build torchft torchft torch==2.13.0 torchft==0.2.0 numpy
