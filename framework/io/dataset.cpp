#include "framework/io/dataset.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "framework/io/shuffle.hpp"
#include "framework/program/listing.hpp"

namespace tegula::io {

namespace fs = std::filesystem;

ImageBatch::ImageBatch(const ImageDataset& dataset, std::shared_ptr<const std::vector<std::int64_t>> order,
                       std::int64_t begin, std::int64_t size)
    : dataset_(&dataset), order_(std::move(order)), begin_(begin), size_(size) {}

std::int64_t ImageBatch::label(std::int64_t i) const {
  return dataset_->labels_[static_cast<std::size_t>(index(i))];
}

void ImageBatch::fill_images(const TileRegion& region, void* data) const {
  const std::size_t rank = region.extent.size();
  assert(rank >= 2 && rank <= 4);
  // (batch, pixel) sees an image as one long row.
  const std::int64_t row_begin = rank == 2 ? 0 : region.begin[rank - 2];
  const std::int64_t row_count = rank == 2 ? 1 : region.extent[rank - 2];
  const std::int64_t pixel_begin = region.begin[rank - 1], pixel_count = region.extent[rank - 1];
  const std::int64_t row_pixels = rank == 2 ? dataset_->rows_ * dataset_->columns_ : dataset_->columns_;
  const std::int64_t image_pixels = dataset_->rows_ * dataset_->columns_;
  const auto [mean, deviation] = dataset_->normalization_;
  const float scale = 1 / (255 * deviation), shift = -mean / deviation;

  auto* out = static_cast<float*>(data);
  for (std::int64_t b = region.begin[0]; b < region.begin[0] + region.extent[0]; ++b) {
    if (b >= size_) {
      out = std::fill_n(out, row_count * pixel_count, shift);
      continue;
    }
    const std::uint8_t* image = dataset_->pixels_.data() + index(b) * image_pixels;
    for (std::int64_t r = row_begin; r < row_begin + row_count; ++r) {
      const std::uint8_t* row = image + r * row_pixels + pixel_begin;
      for (std::int64_t i = 0; i < pixel_count; ++i) out[i] = static_cast<float>(row[i]) * scale + shift;
      out += pixel_count;
    }
  }
}

void ImageBatch::fill_labels(const TileRegion& region, void* data) const {
  auto* out = static_cast<std::int32_t*>(data);
  for (std::int64_t b = region.begin[0]; b < region.begin[0] + region.extent[0]; ++b)
    *out++ = b < size_ ? static_cast<std::int32_t>(label(b)) : padding;
}

ImageDataset::ImageDataset(IdxArray images, IdxArray labels, std::int64_t classes,
                           Normalization normalization, const std::string& name)
    : pixels_(std::move(images.values)),
      labels_(std::move(labels.values)),
      rows_(images.extents.at(1)),
      columns_(images.extents.at(2)),
      classes_(classes),
      normalization_(normalization) {
  if (images.extents[0] != size()) {
    throw std::runtime_error(fmt::format("{}: {} images but {} labels; the two files must be of the same set",
                                         name, images.extents[0], size()));
  }
  if (pixels_.empty()) throw std::runtime_error(name + ": holds no images");
  const auto wrong = std::ranges::find_if(labels_, [&](std::uint8_t label) { return label >= classes_; });
  if (wrong != labels_.end()) {
    throw std::runtime_error(fmt::format("{}: label {} of image {} is out of range: expected 0 to {}", name,
                                         *wrong, wrong - labels_.begin(), classes_ - 1));
  }
}

ImageDataset ImageDataset::read(const fs::path& folder, const std::string& set, std::int64_t classes,
                                Normalization normalization, const std::string& hint) {
  auto find = [&](const std::string& file) {
    for (const char* suffix : {".gz", ""})
      if (fs::path path = folder / (file + suffix); fs::exists(path)) return path;
    throw std::runtime_error(
        fmt::format("{}: no such file, with or without .gz; {}", (folder / file).string(), hint));
  };
  const fs::path images = find(set + "-images-idx3-ubyte"), labels = find(set + "-labels-idx1-ubyte");
  return {read_idx(images, 3), read_idx(labels, 1), classes, normalization, labels.string()};
}

std::vector<ImageBatch> ImageDataset::batches(std::int64_t batch) const {
  std::vector<std::int64_t> order(labels_.size());
  std::iota(order.begin(), order.end(), 0);
  return split(std::move(order), batch);
}

std::vector<ImageBatch> ImageDataset::shuffled_batches(std::int64_t batch, std::uint64_t seed,
                                                       std::uint64_t epoch) const {
  return split(shuffled_order(size(), seed, static_cast<std::uint32_t>(epoch)), batch);
}

std::vector<ImageBatch> ImageDataset::split(std::vector<std::int64_t> order, std::int64_t batch) const {
  const auto shared = std::make_shared<const std::vector<std::int64_t>>(std::move(order));
  std::vector<ImageBatch> batches;
  for (std::int64_t begin = 0; begin < size(); begin += batch)
    batches.emplace_back(*this, shared, begin, std::min(batch, size() - begin));
  return batches;
}

}  // namespace tegula::io
