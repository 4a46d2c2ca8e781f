#!/usr/bin/env bash
# Installs into a temporary folder, builds a ten-line program against the installed copy, outside the tree and by
# pkg-config alone, and runs it.
#
#   tests/install/install_test.sh BUILD_FOLDER PKG_CONFIG_PATH
set -euo pipefail
build=$1 starpu_path=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

DESTDIR=$folder/root meson install -C "$build" --no-rebuild --quiet
pc=$(find "$folder/root" -name tegula.pc)
prefix=$folder/root$(sed -n 's/^prefix=//p' "$pc")
export PKG_CONFIG_PATH=${pc%/*}:$starpu_path
flags() { pkg-config --define-variable=prefix="$prefix" "$@" tegula; }

cat >"$folder/program.cpp" <<'CODE'
#include <cstdio>
#include <tegula/tegula.hpp>
int main(int argc, char** argv) {
  tegula::Runtime runtime(argc, argv);
  tegula::Graph g;
  tegula::Tensor x = g.state("x", tegula::f32, {g.axis("i", 10)}, tegula::Initializer::fill(3));
  tegula::Tensor y = tegula::sum(x * x);
  auto program = tegula::compile(g, tegula::Plan(), runtime, {.outputs = {y}});
  std::printf("sum of squares %g\n", program.run().value(y));
}
CODE
cd "$folder"
# shellcheck disable=SC2046
${CXX:-c++} $(flags --cflags) program.cpp -o program $(flags --libs) -Wl,-rpath,"$(flags --variable=libdir)"
output=$(./program 2>&1)
echo "$output"
grep -qx 'sum of squares 90' <<<"$output"
