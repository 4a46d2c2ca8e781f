// Labelled images in memory, in a fresh order each epoch, handed out as batches that fill tiles on demand:
// each rank converts just the tiles it owns, on a worker, while earlier steps still run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "framework/io/idx.hpp"

namespace tegula {
struct TileRegion;
}

namespace tegula::io {

class ImageDataset;

// `size` consecutive places of an order in which a dataset is visited. Light to copy; the dataset must
// outlive it.
class ImageBatch {
 public:
  ImageBatch(const ImageDataset& dataset, std::shared_ptr<const std::vector<std::int64_t>> order,
             std::int64_t begin, std::int64_t size);

  std::int64_t size() const { return size_; }
  std::int64_t label(std::int64_t i) const;

  // Fill one tile of a tensor whose first axis is the batch; callable from any thread. A batch smaller than
  // that axis, as the last of an epoch may be, is followed by black images with label `padding`.
  static constexpr std::int32_t padding = -1;
  // data: f32, normalised. The tensor is (batch, pixel) or (batch, [channel = 1,] row, column).
  void fill_images(const TileRegion& region, void* data) const;
  // data: i32. The tensor is (batch).
  void fill_labels(const TileRegion& region, void* data) const;

 private:
  std::int64_t index(std::int64_t i) const { return (*order_)[static_cast<std::size_t>(begin_ + i)]; }

  const ImageDataset* dataset_;
  std::shared_ptr<const std::vector<std::int64_t>> order_;
  std::int64_t begin_, size_;
};

class ImageDataset {
 public:
  // Pixels are seen as (x / 255 - mean) / deviation.
  struct Normalization {
    float mean, deviation;
  };

  // Throws std::runtime_error starting with `name` if images (count, rows, columns) and labels (count) differ
  // in number, there are none, or a label is not below `classes`.
  ImageDataset(IdxArray images, IdxArray labels, std::int64_t classes, Normalization normalization,
               const std::string& name);

  // Reads SET-images-idx3-ubyte and SET-labels-idx1-ubyte, each with or without .gz, where SET is "train" or
  // "t10k". Throws std::runtime_error naming the file; `hint` says where missing ones come from.
  static ImageDataset read(const std::filesystem::path& folder, const std::string& set, std::int64_t classes,
                           Normalization normalization, const std::string& hint);

  std::int64_t size() const { return static_cast<std::int64_t>(labels_.size()); }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t classes() const { return classes_; }

  // The whole set in batches of `batch` (the last one smaller where need be), in the order of the files.
  std::vector<ImageBatch> batches(std::int64_t batch) const;
  // The same in an order that depends only on (seed, epoch): the same on every rank and after every resume.
  std::vector<ImageBatch> shuffled_batches(std::int64_t batch, std::uint64_t seed, std::uint64_t epoch) const;

 private:
  friend class ImageBatch;
  std::vector<ImageBatch> split(std::vector<std::int64_t> order, std::int64_t batch) const;

  std::vector<std::uint8_t> pixels_, labels_;
  std::int64_t rows_, columns_, classes_;
  Normalization normalization_;
};

}  // namespace tegula::io
