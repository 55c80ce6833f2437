#!/usr/bin/env bash
# Makes the Slurm tests possible: installs Debian's slurm-wlm and munge if they are missing and if we may do so without
# asking (as root, or with a sudo that wants no password). If not, says loudly that those tests will be skipped; where
# CI=true that is an error. Only the programs are needed: every test configures and starts its own daemons.
#
# `tests/install-slurm.sh PACKAGE...` installs these instead, in the same way, and fails if it cannot.
set -euo pipefail
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

missing() {
    local program
    for program in munged slurmctld slurmd sbatch srun; do
        command -v "$program" > /dev/null || echo "$program"
    done
}

# Prints why not, if it fails.
install() {
    local run=(env DEBIAN_FRONTEND=noninteractive) log
    local get=(apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300)
    command -v apt-get > /dev/null || { echo "there is no apt-get here"; return 1; }
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2> /dev/null || { echo "neither root nor sudo without a password"; return 1; }
        run=(sudo -n "${run[@]}")
    fi
    # A fresh container has no package lists, an old one lists packages that are gone: fetch them only then.
    log=$("${run[@]}" "${get[@]}" install "$@" 2>&1) && return
    log=$({ "${run[@]}" apt-get -qq update && "${run[@]}" "${get[@]}" install "$@"; } 2>&1) && return
    printf 'apt-get failed:\n%s\n' "$(tail -n 5 <<< "$log")"
    return 1
}

if [ $# -gt 0 ]; then
    echo "==> apt: installing $*"
    why=$(install "$@") || { echo "==> apt: cannot install $*: $why"; exit 1; }
    exit
fi

if [ -n "$(missing)" ]; then
    echo "==> slurm: missing; trying to install slurm-wlm and munge"
    why=$(install slurm-wlm munge) || true
    lacking=$(missing | paste -sd' ')
    if [ -n "$lacking" ]; then
        consequence="THE SLURM TESTS WILL BE SKIPPED"
        [ "${CI-}" = true ] && consequence="THE SLURM TESTS CANNOT RUN, and CI=true insists on them"
        echo "!!! slurm: $consequence: $lacking missing (apt install slurm-wlm munge): $why" >&2
        [ "${CI-}" != true ]
        exit
    fi
fi
if ! command -v ip > /dev/null; then # tests make networks with it
    why=$(install iproute2) || echo "==> ip: missing; the test of several networks is skipped: $why"
fi
echo "==> slurm: $(slurmctld -V) (${SECONDS} s)"
