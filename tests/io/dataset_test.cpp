#include "framework/io/dataset.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "framework/program/listing.hpp"
#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

// 10 images of 2 x 3: pixel p of image i is 10 i + p; label i is i modulo 4.
IdxArray images() {
  IdxArray array{{10, 2, 3}, {}};
  for (int i = 0; i < 10; ++i)
    for (int p = 0; p < 6; ++p) array.values.push_back(static_cast<std::uint8_t>(10 * i + p));
  return array;
}
IdxArray labels(std::int64_t count = 10) {
  IdxArray array{{count}, {}};
  for (std::int64_t i = 0; i < count; ++i) array.values.push_back(static_cast<std::uint8_t>(i % 4));
  return array;
}
// With this normalisation pixels come out as they are stored.
constexpr ImageDataset::Normalization identity{0.0f, 1.0f / 255};

ImageDataset small() { return {images(), labels(), 4, identity, "labels"}; }

TEST_CASE("sets that contradict themselves are refused") {
  CHECK(message_of([] { ImageDataset(images(), labels(9), 4, identity, "labels"); }) ==
        "labels: 10 images but 9 labels; the two files must be of the same set");
  CHECK(message_of([] { ImageDataset(images(), labels(), 3, identity, "labels"); }) ==
        "labels: label 3 of image 3 is out of range: expected 0 to 2");
  CHECK(message_of([] {
          ImageDataset({{0, 2, 3}, {}}, labels(0), 4, identity, "labels");
        }) == "labels: holds no images");
  CHECK(contains(message_of([] { ImageDataset::read("/nowhere", "train", 10, identity, "give --data"); }),
                 "/nowhere/train-images-idx3-ubyte: no such file, with or without .gz; give --data"));
}

TEST_CASE("batches cover the set once, the last one smaller") {
  const ImageDataset data = small();
  const auto batches = data.batches(4);
  REQUIRE(batches.size() == 3);
  CHECK(batches[0].size() == 4);
  CHECK(batches[2].size() == 2);
  CHECK(batches[2].label(1) == 9 % 4);
}

TEST_CASE("an order depends on seed and epoch, and is a permutation") {
  const ImageDataset data = small();
  auto order = [&](std::uint64_t seed, std::uint64_t epoch) {
    std::vector<float> first_pixels(10);
    const auto batch = data.shuffled_batches(10, seed, epoch);
    batch.at(0).fill_images({{0, 0}, {10, 1}}, first_pixels.data());
    return first_pixels;
  };
  CHECK(order(1, 2) == order(1, 2));
  CHECK(order(1, 2) != order(1, 3));
  CHECK(order(1, 2) != order(2, 2));
  auto sorted = order(1, 2);
  std::ranges::sort(sorted);
  for (int i = 0; i < 10; ++i) CHECK(sorted[static_cast<std::size_t>(i)] == doctest::Approx(10 * i));
}

TEST_CASE("a tile gets its part of the batch, flat or as an image") {
  const ImageDataset data = small();
  const ImageBatch batch = data.batches(4)[1];  // images 4 to 7
  std::vector<float> flat(2 * 3), image(1 * 1 * 2 * 2);
  batch.fill_images({{1, 2}, {2, 3}}, flat.data());
  CHECK(flat == std::vector<float>{52, 53, 54, 62, 63, 64});
  batch.fill_images({{3, 0, 0, 1}, {1, 1, 2, 2}}, image.data());
  CHECK(image == std::vector<float>{71, 72, 74, 75});

  std::vector<std::int32_t> label(3);
  batch.fill_labels({{1}, {3}}, label.data());
  CHECK(label == std::vector<std::int32_t>{1, 2, 3});
}

TEST_CASE("a partial batch is padded") {
  const ImageDataset data = small();
  const ImageBatch batch = data.batches(4)[2];  // images 8 and 9 of a batch of 4
  std::vector<float> pixels(3, -1);
  std::vector<std::int32_t> label(3);
  batch.fill_images({{1, 0}, {3, 1}}, pixels.data());
  batch.fill_labels({{1}, {3}}, label.data());
  CHECK(pixels == std::vector<float>{90, 0, 0});
  CHECK(label == std::vector<std::int32_t>{1, ImageBatch::padding, ImageBatch::padding});
}

}  // namespace
}  // namespace tegula::io
