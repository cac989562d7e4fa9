#!/usr/bin/env bash
# Build and run the tests of the kernels under a sanitizer: run.sh address|thread [FOLDER]
#
# Registers of 16 numbers are tested on every processor: with AVX-512 where it has that, else lowered to AVX2.
set -euo pipefail
sanitizer=${1:?address or thread}
out=${2:-$(mktemp -d)}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

has_avx512() {
    for feature in avx512f avx512bw avx512dq avx512vl; do
        grep -qw "$feature" "${CPUINFO:-/proc/cpuinfo}" || return 1
    done
}

extra=()
if has_avx512 2>/dev/null; then
    echo "avx512: the processor's own instructions"
else
    echo "avx512: lowered to AVX2, since this processor has not the instructions"
    extra+=(-DDECOMPX_LOWERED)
fi
if [ "$sanitizer" = address ]; then extra+=(-fsanitize=undefined -fno-sanitize-recover=all); fi
"${CXX:-g++}" -std=c++20 -O1 -g1 -ffp-contract=fast -Wall -Wextra -Wno-psabi \
    "-fsanitize=$sanitizer" "${extra[@]}" -pthread \
    "$here"/../rows_*.cpp "$here"/../levels.cpp "$here"/rows_test.cpp -o "$out/rows_test_$sanitizer"
"$out/rows_test_$sanitizer"
