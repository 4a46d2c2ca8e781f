#include "kernels/random.hpp"

#include "kernels/simd.hpp"

namespace tegula {

namespace {

constexpr int chunk = 512;        // elements made at once
constexpr int vector_block = 64;  // in blocks of this size, so that all of them are made by vector code

// v[0], ..., v[n - 1] from the words of elements 4 first, 4 first + 1, ...: make(w0, w1, v0, v1) makes a pair
// of them, as normal numbers want. n is a multiple of vector_block.
template <class C, class Make>
TEGULA_CLONES void make_values(const RandomStream& random, std::uint64_t first, int n, C* v, Make make) {
  const std::uint64_t seed = random.seed;
  const auto stream = static_cast<std::uint32_t>(random.tensor),
             step = static_cast<std::uint32_t>(random.step);
  alignas(64) std::uint32_t words[chunk];
  for (int i = 0; i < n; i += vector_block) {
#pragma omp simd
    for (int b = 0; b < vector_block / 4; ++b) {
      PhiloxWords w = philox(seed, stream, step, first + (i / 4 + b));
      words[i + 4 * b] = w.w0;
      words[i + 4 * b + 1] = w.w1;
      words[i + 4 * b + 2] = w.w2;
      words[i + 4 * b + 3] = w.w3;
    }
#pragma omp simd
    for (int j = 0; j < vector_block; j += 2) make(words[i + j], words[i + j + 1], v[i + j], v[i + j + 1]);
  }
}

// Calls use(i, n, v): the values of elements i, ..., i + n - 1 of the tile are v[0], ..., v[n - 1].
template <class C, class Make, class Use>
void for_values(const RandomStream& random, const TileInTensor& tile, Make make, Use use) {
  const int inner = static_cast<int>(tile.at.rank) - 1;
  const std::int64_t row = inner >= 0 && tile.at.stride[0][inner] == 1 ? tile.at.extent[inner] : 1;
  alignas(64) C v[chunk];
  for (std::int64_t i = 0, n; i < tile.elements(); i += n) {
    const std::int64_t element = tile.element(i), lane = element % 4;
    n = std::min(row - i % row, chunk - lane);
    const int padded = static_cast<int>((lane + n + vector_block - 1) / vector_block * vector_block);
    make_values(random, element / 4, padded, v, make);
    use(i, n, v + lane);
  }
}

template <class T>
auto store_to(T* y) {
  return [y](std::int64_t begin, std::int64_t n, const Compute<T>* v) {
    for (std::int64_t i = 0; i < n; ++i) y[begin + i] = round_to<T>(v[i]);
  };
}

}  // namespace

std::vector<TileInTensor> TileInTensor::samples() {
  using Extents = std::vector<std::int64_t>;
  auto tile = [](Extents extents, Extents begin, Extents full) { return TileInTensor(extents, begin, full); };
  return {tile({1}, {0}, {1}),
          tile({0, 3}, {2, 1}, {9, 4}),
          tile({3, 7}, {0, 0}, {3, 7}),
          tile({5, 1}, {2, 6}, {9, 7}),
          tile({2, 3, 129}, {1, 0, 30}, {3, 4, 300}),
          tile({256, 256}, {256, 512}, {1024, 768})};
}

template <class T>
void Fill::cpu(Out<T> y) const {
  std::fill_n(y.pointer, n, static_cast<T>(static_cast<Compute<T>>(value)));
}

template <class T>
void Uniform::cpu(Out<T> y) const {
  using C = Compute<T>;
  auto make = [=, *this](std::uint32_t w0, std::uint32_t w1, C& v0, C& v1) TEGULA_INLINE {
    v0 = value(uniform_of<C>(w0));
    v1 = value(uniform_of<C>(w1));
  };
  for_values<C>(random, tile, make, store_to(y.pointer));
}

template <class T>
void Normal::cpu(Out<T> y) const {
  using C = Compute<T>;
  auto make = [m = C(mean), s = C(stddev)](std::uint32_t w0, std::uint32_t w1, C& v0, C& v1) TEGULA_INLINE {
    auto [z0, z1] = normal_of<C>(w0, w1);
    v0 = m + s * z0;
    v1 = m + s * z1;
  };
  for_values<C>(random, tile, make, store_to(y.pointer));
}

template <class T>
void Dropout::cpu(In<T> x, Out<T> y) const {
  using C = Compute<T>;
  auto make = [=, *this](std::uint32_t w0, std::uint32_t w1, C& v0, C& v1) TEGULA_INLINE {
    v0 = factor<C>(w0);
    v1 = factor<C>(w1);
  };
  for_values<C>(random, tile, make, [=](std::int64_t begin, std::int64_t n, const C* v) {
    for (std::int64_t i = 0; i < n; ++i) y[begin + i] = round_to<T>(C(x[begin + i]) * v[i]);
  });
}

void Uniform::reference(Out<double> y) const {
  for (std::int64_t i = 0; i < tile.elements(); ++i)
    y[i] = value(uniform_of<double>(random.word(tile.element(i))));
}

void Normal::reference(Out<double> y) const {
  for (std::int64_t i = 0; i < tile.elements(); ++i) {
    const std::int64_t element = tile.element(i), even = element & ~std::int64_t{1};
    auto [z0, z1] = normal_of<double>(random.word(even), random.word(even + 1));
    y[i] = mean + stddev * (element == even ? z0 : z1);
  }
}

void Dropout::reference(In<double> x, Out<double> y) const {
  for (std::int64_t i = 0; i < tile.elements(); ++i)
    y[i] = x[i] * factor<double>(random.word(tile.element(i)));
}

template <class Op>
static std::vector<Op> on_tiles(Op op) {
  std::vector<Op> all;
  for (const TileInTensor& tile : TileInTensor::samples()) all.push_back(op), all.back().tile = tile;
  return all;
}
static constexpr RandomStream stream = {0x0123456789abcdef, 7, 3};
std::vector<Uniform> Uniform::samples() { return on_tiles<Uniform>({-0.5, 2, stream, {}}); }
std::vector<Normal> Normal::samples() { return on_tiles<Normal>({0.25, 2, stream, {}}); }
std::vector<Dropout> Dropout::samples() { return on_tiles<Dropout>({0.3, stream, {}}); }

const Register<Fill> registered_fill;
const Register<Uniform> registered_uniform;
const Register<Normal> registered_normal;
const Register<Dropout> registered_dropout;

}  // namespace tegula
