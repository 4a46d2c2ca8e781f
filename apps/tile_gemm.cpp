// A tiled matrix product by hand, on the tile API: C = A B, cut into square tiles, ragged at the edges.
//
//   tile_gemm [--size N] [--tile N] [--trace DIR]
#include <fmt/format.h>
#include <tegula/tegula.hpp>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>

using namespace tegula;

int main(int argc, char** argv) {
  std::int64_t size = 2048, tile = 512;
  std::string trace;
  CLI::App app("A tiled matrix product");
  app.add_option("--size", size, "rows and columns of the matrices")->check(CLI::PositiveNumber);
  app.add_option("--tile", tile, "rows and columns of a tile")->check(CLI::PositiveNumber);
  app.add_option("--trace", trace, "record what workers do into this folder: docs/traces.md");
  CLI11_PARSE(app, argc, argv);

  return run([&] {
    Runtime runtime(argc, argv, {.trace = trace});
    const std::int64_t count = (size + tile - 1) / tile;
    const auto extent = [&](std::int64_t i) { return std::min(tile, size - i * tile); };
    const auto matrix = [&] {
      std::vector<Tile> tiles;
      for (std::int64_t i = 0; i < count; ++i)
        for (std::int64_t j = 0; j < count; ++j)
          tiles.emplace_back(runtime, std::vector{extent(i), extent(j)}, f32);
      return tiles;
    };
    const std::vector<Tile> a = matrix(), b = matrix(), c = matrix();
    for (std::int64_t t = 0; t < count * count;
         ++t) {  // each row of A holds 0.5, each of B 2: C is N everywhere
      submit::fill(a[t],
                   [n = a[t].elements()](void* data) { std::fill_n(static_cast<float*>(data), n, 0.5F); });
      submit::fill(b[t],
                   [n = b[t].elements()](void* data) { std::fill_n(static_cast<float*>(data), n, 2.0F); });
    }
    runtime.wait();

    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t j = 0; j < count; ++j)
        for (std::int64_t k = 0; k < count; ++k)
          submit::gemm(a[i * count + k], b[k * count + j], c[i * count + j], {.accumulate = k > 0});
    runtime.wait();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;

    for (const Tile& block : c)
      for (float value : block.read<float>())
        if (value != static_cast<float>(size)) throw std::runtime_error("the product is wrong");
    if (runtime.rank() == 0)
      fmt::print("{:.1f} GFLOP/s\n", 2e-9 * std::pow(static_cast<double>(size), 3) / seconds.count());
    return 0;
  });
}
