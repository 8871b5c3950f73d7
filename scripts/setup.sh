#!/usr/bin/env bash
# Installs what building Farleaf takes and is missing here. Says what it does and why; does nothing,
# and needs no network, when nothing is missing.
#
#   scripts/setup.sh            install what is missing
#   scripts/setup.sh --check    only say what is missing; exit 1 if anything is
#   scripts/setup.sh --clients  instead, Redis's clients for scripts/clients.sh, as far as they can be had, in
#                               target/clients
#   scripts/setup.sh --image    instead, what `make image` takes: mmdebstrap, buildah
#   scripts/setup.sh --python   instead, what `make python` takes from PyPI: maturin, and the packages of its tests
#   scripts/setup.sh --verbs    instead, what `make verbs` takes: a virtual machine and its kernel
set -euo pipefail
cd "$(dirname "$0")/.."

check_only=false verbs=false clients=false image=false python=false
case "${1:-}" in
    "") ;;
    --check) check_only=true ;;
    --verbs) verbs=true ;;
    --clients) clients=true ;;
    --image) image=true ;;
    --python) python=true ;;
    *) echo "usage: scripts/setup.sh [--check | --clients | --image | --python | --verbs]" >&2; exit 2 ;;
esac

missing=0

have() { command -v "$1" >/dev/null 2>&1; }
ok() { printf '  ok       %s\n' "$*"; }
doing() { printf '  install  %s\n' "$*"; }
fail() { printf '\nsetup: %s\n' "$*" >&2; exit 1; }

# Says that something is missing; true if it is to be installed now.
lacks() {
    missing=1
    if $check_only; then
        printf '  missing  %s\n' "$*"
        return 1
    fi
    doing "$*"
}

# True if a C program can be compiled and linked: a compiler alone, without libc's files, cannot.
can_link() {
    have cc || return 1
    local out
    out=$(mktemp) || return 1
    if echo 'int main(void) { return 0; }' | cc -x c -o "$out" - 2>/dev/null; then
        rm -f "$out"
    else
        rm -f "$out"
        return 1
    fi
}

# Runs a command as root, by sudo if need be.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

apt_install() {
    if ! have apt-get; then
        fail "there is no apt-get here. Install by your system's own means: a C compiler with" \
            "linker and libc headers (command cc), and make. Then run this again."
    fi
    if [ "$(id -u)" -ne 0 ] && ! have sudo; then
        fail "installing packages takes root, and there is no sudo. Ask somebody who may:" \
            "apt-get install $*"
    fi
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

setup_linker() {
    if can_link && have make; then
        ok "cc and make"
        return
    fi
    lacks "build-essential, ca-certificates: Rust links by cc, the targets are run by make," \
        "crates are downloaded over TLS" || return 0
    apt_install build-essential ca-certificates
    can_link || fail "cc still cannot link a program; run: echo 'int main(){}' | cc -x c -"
}

# The value of a string key in one of our TOML files.
toml_string() { sed -n "s/^$2 *= *\"\\([^\"]*\\)\".*/\\1/p" "$1" | head -n 1; }

at_least() { # HAVE WANT
    [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]
}

setup_rust() {
    local channel rust_min components component installed
    channel=$(toml_string rust-toolchain.toml channel)
    rust_min=$(toml_string Cargo.toml rust-version)
    components=$(sed -n 's/^components *= *\[\(.*\)\].*/\1/p' rust-toolchain.toml | tr -d '",')

    # rustup's own installer puts it there, but only a new shell's PATH shows it.
    local cargo_bin="${CARGO_HOME:-$HOME/.cargo}/bin"
    if ! have rustup && ! have cargo && [ -x "$cargo_bin/cargo" ]; then
        PATH="$cargo_bin:$PATH"
        echo "  note     $cargo_bin is not in PATH; for this shell: . $cargo_bin/../env"
    fi

    if have rustup && [ -z "${RUSTUP_TOOLCHAIN:-}" ]; then
        if ! rustup toolchain list | grep -Eq "^$channel(-| |\$)"; then
            lacks "Rust $channel by rustup: the version that rust-toolchain.toml pins" || return 0
            # shellcheck disable=SC2086 # a list of words
            rustup toolchain install "$channel" --profile minimal --no-self-update \
                ${components:+--component ${components// /,}}
        fi
        installed=$(rustup component list --installed --toolchain "$channel")
        for component in $components; do
            case "$installed" in
                *"$component"*) ;;
                *)
                    lacks "$component for Rust $channel: 'make lint' runs it" || continue
                    rustup component add --toolchain "$channel" "$component"
                    ;;
            esac
        done
    elif ! have cargo || ! have rustc; then
        missing=1
        fail "Rust is missing. Get rustup, which brings the version that this project pins
  ($channel): without root as https://rustup.rs says, or, from Debian 13 on, by
  apt-get install rustup. Then run this again."
    fi

    $check_only && [ "$missing" -ne 0 ] && return 0
    local version
    version=$(rustc --version | cut -d' ' -f2)
    at_least "${version%%-*}" "$rust_min" ||
        fail "rustc is $version, and Farleaf takes $rust_min or later; with rustup: rustup update"
    ok "rustc $version"
    for component in $components; do
        local tool=${component/rustfmt/fmt}
        cargo "$tool" --version >/dev/null 2>&1 ||
            echo "  note     cargo $tool is missing: 'make lint' and .ci/run will not work"
    done
}

setup_crates() {
    have cargo || return 0
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    if cargo fetch --quiet --locked --offline --target "$host" 2>/dev/null; then
        ok "crates of Cargo.lock"
        return
    fi
    lacks "crates of Cargo.lock, so that building works offline from here on" || return 0
    cargo fetch --locked --target "$host"
}

# Only tests need it, and say that they leave something out where it is missing.
setup_etcd() {
    if have "${FARLEAF_ETCD:-etcd}"; then
        ok "etcd"
    elif ! have apt-get || { [ "$(id -u)" -ne 0 ] && ! have sudo; }; then
        echo "  note     etcd is missing, and cannot be installed from here: tests of clusters are left out"
    elif lacks "etcd-server: tests of clusters start servers of their own (Debian starts it as a service, too)"; then
        apt_install etcd-server || echo "  note     etcd-server cannot be had: tests of clusters are left out"
    fi
}

# Only `farleaf repro redis` and its tests need it, which say so where it is missing.
setup_redis() {
    if have redis-server && have redis-benchmark; then
        ok "redis-server"
    elif ! have apt-get || { [ "$(id -u)" -ne 0 ] && ! have sudo; }; then
        echo "  note     redis-server is missing, and cannot be installed from here: nothing is measured beside it"
    elif lacks "redis-server: farleaf repro redis measures beside it (Debian starts it as a service, too)"; then
        apt_install redis-server || echo "  note     redis-server cannot be had: nothing is measured beside it"
    fi
}

# What the virtual machine takes is named where it is used.
setup_verbs() {
    local rig=scripts/softroce/run.sh packages
    packages=$("$rig" --missing)
    if [ -n "$packages" ]; then
        have apt-get || fail "no apt-get here, and the virtual machine takes Debian's packages: $packages"
        doing "$packages: a virtual machine with an RDMA device of software"
        # shellcheck disable=SC2086 # a list of words
        apt_install $packages
    fi
    "$rig" --prepare
    ok "virtual machine with Soft-RoCE"
}

# Root and a network of the image's own are for its tests.
setup_image() {
    local mirror=${FARLEAF_MIRROR:-http://deb.debian.org/debian}
    if ! have mmdebstrap || ! have buildah || ! have setpriv || ! have ip || ! python3 -c 'import yaml' 2>/dev/null; then
        doing "mmdebstrap, buildah: the image without a daemon; iproute2, python3-yaml: its tests"
        apt_install mmdebstrap buildah iproute2 util-linux python3-yaml
    fi
    mmdebstrap --quiet --simulate --variant=extract bookworm /dev/null "$mirror" || fail "$mirror cannot be reached"
    [ "$(id -u)" -eq 0 ] || fail "its tests take root: chroot, and a network of their own"
    unshare --net --mount true || fail "its tests take a network of their own, which this system refuses"
    ok "mmdebstrap and buildah"
}

# Redis's clients from their languages' registries. One that cannot be had is left out, by its name: nothing but
# scripts/clients.sh needs it.
setup_clients() {
    local folder=${FARLEAF_CLIENTS:-target/clients} sources=$PWD/scripts/clients
    mkdir -p "$folder"
    folder=$(realpath "$folder")
    client() { # NAME COMMAND...
        local name=$1
        shift
        if ( set -e; "$@" ) >"$folder/log" 2>&1; then
            ok "$name"
        else
            echo "  note     $name cannot be had here: $(tail -n 1 "$folder/log")"
        fi
    }
    python_clients() {
        [ -x "$folder/venv/bin/python" ] || python3 -m venv "$folder/venv"
        "$folder/venv/bin/pip" install -q redis==8.1.0 valkey==6.2.0
    }
    node_clients() {
        mkdir -p "$folder/node"
        cd "$folder/node"
        npm install --no-audit --no-fund --prefix . ioredis@6.0.0 redis@6.3.1
    }
    go_clients() {
        mkdir -p "$folder/go"
        cp "$sources/go/main.go" "$folder/go/"
        cd "$folder/go"
        [ -f go.mod ] || go mod init clients
        go get github.com/redis/go-redis/v9@v9.23.0 github.com/redis/rueidis@v1.0.79
        go build -o clients .
    }
    ycsb() {
        mkdir -p "$folder/ycsb"
        cp "$sources/ycsb/main.go" "$folder/ycsb/"
        cd "$folder/ycsb"
        [ -f go.mod ] || go mod init ycsb
        go get github.com/pingcap/go-ycsb@v1.0.3
        go mod tidy
        go build -o ycsb .
    }
    java_clients() {
        mkdir -p "$folder/java"
        cp "$sources/java/pom.xml" "$folder/java/"
        cd "$folder/java"
        mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib
        javac -cp 'lib/*' -d . "$sources/java/Clients.java"
    }
    echo "Redis's clients for scripts/clients.sh, in $folder"
    client "redis-py, valkey-py" python_clients
    client "ioredis, node-redis" node_clients
    client "go-redis, rueidis" go_clients
    client "go-ycsb" ycsb
    client "jedis, lettuce" java_clients
}

if $clients; then
    setup_redis
    setup_clients
    exit
fi
if $image; then
    setup_image
    exit
fi
if $python; then
    exec scripts/python.sh setup
fi
if $verbs; then
    setup_verbs
    exit
fi

echo "Farleaf: what building takes"
setup_linker
setup_rust
setup_etcd
setup_redis
if ! $check_only || [ "$missing" -eq 0 ]; then setup_crates; fi
if [ "$missing" -ne 0 ] && $check_only; then exit 1; fi
echo "Ready. Next: make run"
