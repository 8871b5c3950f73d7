#!/usr/bin/env bash
# Checks the units of dist/systemd as systemd reads them, and that none may do more on a machine than it must: an
# exposure of at most 2.5 of 10. Starts nothing.
#
#   scripts/units.sh
set -euo pipefail
cd "$(dirname "$0")/.."

exposure_max=2.5

command -v systemd-analyze >/dev/null || { echo "units: systemd-analyze is missing (package systemd)" >&2; exit 1; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# The system's own units, which ours name, and a program at the place where ours start it.
mkdir -p "$root/usr/bin" "$root/usr/lib/systemd" "$root/etc/systemd/system"
cp -r /lib/systemd/system "$root/usr/lib/systemd/"
cp "$(type -P true)" "$root/usr/bin/farleaf"
cp -r dist/systemd/. "$root/etc/systemd/system/"
ln -s farleaf-memory@.service "$root/etc/systemd/system/farleaf-memory@0.service"

units=(farleaf-memory@0.service farleaf-compute.service farleaf-redis.service)
systemd-analyze verify --root="$root" --man=no farleaf.target "${units[@]}"
for unit in "${units[@]}"; do
    grep -q '^Type=notify$' "$root/etc/systemd/system/$unit" || { echo "units: $unit is not Type=notify" >&2; exit 1; }
    # The threshold is in tenths.
    systemd-analyze security --root="$root" --offline=yes --threshold="${exposure_max/./}" "$unit" >"$root/told" ||
        { cat "$root/told" >&2; echo "units: $unit is exposed by more than $exposure_max" >&2; exit 1; }
    tail -n 1 "$root/told" | sed 's/^[^A-Za-z]*//'
done
