#!/usr/bin/env bash
# Build and run the tests of the kernels under a sanitizer: run.sh address|thread [FOLDER]
set -euo pipefail
sanitizer=${1:?address or thread}
out=${2:-$(mktemp -d)}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# Registers of 16 numbers are tested on every processor.
extra=(-DDECOMPX_LOWERED)
if [ "$sanitizer" = address ]; then extra+=(-fsanitize=undefined -fno-sanitize-recover=all); fi
"${CXX:-g++}" -std=c++20 -O1 -g1 -ffp-contract=fast -Wall -Wextra -Wno-psabi \
    "-fsanitize=$sanitizer" "${extra[@]}" -pthread \
    "$here"/../rows_*.cpp "$here"/../levels.cpp "$here"/rows_test.cpp -o "$out/rows_test_$sanitizer"
"$out/rows_test_$sanitizer"
