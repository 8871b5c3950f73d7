# Local cluster: finds the program, makes a folder for the run, and starts and ends `farleaf up`. Scripts source it.
#
# It takes the script's first argument for the program, and sets `farleaf` and `work`. `cluster_up TABLE ENGINE
# OPTION...` starts a cluster with a table, and sets `pool`. `cluster_down` ends it, as the script's end does. A script
# that starts more than that defines `end_more`, which runs before.
# shellcheck shell=bash

farleaf=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/debug/farleaf}")
[ -x "$farleaf" ] || {
    echo "$(basename "$0" .sh): there is no program $farleaf: cargo build -p farleaf-cli" >&2
    exit 1
}
export FARLEAF_CONFIG=
work=$(mktemp -d)
cluster=''

end_more() { :; }

# Ends what this run has started, and nothing else.
cluster_down() {
    end_more
    if [ -n "$cluster" ]; then
        kill "$cluster" 2>/dev/null || true
        wait "$cluster" || true
    fi
    cluster=''
}
trap 'cluster_down; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

cluster_up() {
    local table=$1 engine=$2
    shift 2
    "$farleaf" up "$@" >"$work/up" 2>"$work/up-err" &
    cluster=$!
    until [ -s "$work/up" ]; do
        kill -0 "$cluster" 2>/dev/null || { cat "$work/up-err" >&2; exit 1; }
        sleep 0.02
    done
    pool=$(grep -o 'tcp://[^ ]*' "$work/up")
    "$farleaf" put --quiet "$pool" "$table" first value --create --engine "$engine"
}
