#include "framework/io/checkpoint_layout.hpp"

#include <exception>
#include <set>
#include <stdexcept>

namespace tegula::io {

namespace {

[[noreturn]] void fail(const CheckpointTensor& tensor, const std::string& what) {
  throw std::invalid_argument("[checkpoint] '" + tensor.name + "' of " + tensor.file + ".safetensors " +
                              what);
}

// The columns that a state has in its tensor.
CheckpointPart part_of(const CheckpointTensor& tensor, const CheckpointFileTensor& whole) {
  CheckpointPart part{tensor.state, {}, tensor.column_begin, 0};
  for (const Axis& axis : tensor.state.axes()) part.extents.push_back(axis.extent());
  const std::int64_t all = whole.elements(), own = product(part.extents);
  const std::int64_t rows = whole.columns == 0 ? 0 : all / whole.columns;
  part.columns = rows == 0 ? whole.columns : own / rows;
  if (part.columns * rows != own)
    fail(tensor, "has " + std::to_string(rows) + " rows, which do not divide the " + std::to_string(own) +
                     " elements of " + tensor.state.describe());
  if (part.begin < 0 || part.begin > whole.columns - part.columns)
    fail(tensor, "has " + std::to_string(whole.columns) + " columns; " + tensor.state.describe() +
                     " would be columns " + std::to_string(part.begin) + " to " +
                     std::to_string(part.begin + part.columns));
  return part;
}

void check(const CheckpointTensor& tensor) {
  if (!tensor.state) fail(tensor, "is of no state: CheckpointTensor::state is empty");
  if (tensor.state.info().kind != TensorInfo::Kind::state)
    fail(tensor, "is to hold " + tensor.state.describe() + ", which is not a state of the graph");
  if (tensor.name.empty() || tensor.name == "__metadata__") fail(tensor, "needs another name");
  if (tensor.file.empty() || tensor.file.find('/') != std::string::npos)
    fail(tensor, "needs a file name without folders");
  for (std::int64_t extent : tensor.shape)
    if (extent < 0) fail(tensor, "has a negative extent: " + shape_text(tensor.shape));
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string list;
  for (std::int64_t extent : shape) list += (list.empty() ? "" : ", ") + std::to_string(extent);
  return "(" + list + ")";
}

CheckpointTensor checkpoint_tensor(const Tensor& state, std::string file) {
  std::vector<std::int64_t> shape;
  for (const Axis& axis : state.axes()) shape.push_back(axis.extent());
  return {state, std::move(file), state.name(), std::move(shape)};
}

CheckpointFiles checkpoint_files(std::span<const CheckpointTensor> tensors) {
  CheckpointFiles files;
  std::set<int> states;
  for (const CheckpointTensor& tensor : tensors) {
    check(tensor);
    if (!states.insert(tensor.state.id()).second)
      fail(tensor, "holds " + tensor.state.describe() + ", which another entry holds, too");
    std::vector<CheckpointFileTensor>& file = files[tensor.file];
    auto whole = std::ranges::find(file, tensor.name, &CheckpointFileTensor::name);
    if (whole == file.end()) {
      const std::int64_t columns = tensor.shape.empty() ? 1 : tensor.shape.back();
      file.push_back({tensor.name, tensor.state.dtype(), tensor.shape, columns, {}});
      whole = file.end() - 1;
    }
    if (whole->shape != tensor.shape)
      fail(tensor, "has shape " + shape_text(whole->shape) + " for one state and " +
                       shape_text(tensor.shape) + " for another");
    if (whole->dtype != tensor.state.dtype())
      fail(tensor, "would hold both " + std::string(name_of(whole->dtype)) + " and " +
                       std::string(name_of(tensor.state.dtype())));
    whole->parts.push_back(part_of(tensor, *whole));
  }
  for (auto& [stem, file] : files)
    for (CheckpointFileTensor& whole : file) {
      std::ranges::stable_sort(whole.parts, {}, &CheckpointPart::begin);
      std::int64_t end = 0;
      for (const CheckpointPart& part : whole.parts) {
        if (part.begin != end)
          throw std::invalid_argument("[checkpoint] '" + whole.name + "' of " + stem +
                                      ".safetensors has a hole or an overlap at column " +
                                      std::to_string(std::min(part.begin, end)) + ", before " +
                                      part.state.describe());
        end += part.columns;
      }
      if (end != whole.columns)
        throw std::invalid_argument("[checkpoint] '" + whole.name + "' of " + stem + ".safetensors has " +
                                    std::to_string(whole.columns) + " columns, but its states end at " +
                                    std::to_string(end));
    }
  return files;
}

void alike(Runtime& runtime, const std::function<void()>& local) {
  std::exception_ptr error;
  std::string message;
  try {
    local();
  } catch (const std::exception& caught) {
    error = std::current_exception();
    message = caught.what();
  }
  const int ranks = runtime.size(), rank = runtime.rank();
  std::vector<double> failed(ranks, 0);
  failed[rank] = error ? 1 : 0;
  runtime.sum_over_ranks(failed.data(), ranks);
  const auto first = std::ranges::find(failed, 1.0);
  if (first == failed.end()) return;
  // The words of the first rank that failed, as sums with the zeros of the others: few need them, and rarely.
  std::vector<double> letters(1000, 0);
  if (first - failed.begin() == rank)
    for (std::size_t i = 0; i < std::min(letters.size(), message.size()); ++i)
      letters[i] = static_cast<unsigned char>(message[i]);
  runtime.sum_over_ranks(letters.data(), static_cast<int>(letters.size()));
  if (error) std::rethrow_exception(error);
  message = "on rank " + std::to_string(first - failed.begin()) + ": ";
  for (double letter : letters)
    if (letter != 0) message += static_cast<char>(static_cast<unsigned char>(letter));
  throw std::runtime_error(message);
}

void sum_over_ranks(Runtime& runtime, std::span<std::uint64_t> values) {
  constexpr int limbs = 4, limb_bits = 16;  // sums of these are exact in doubles
  std::vector<double> sums(values.size() * limbs);
  for (std::size_t i = 0; i < sums.size(); ++i)
    sums[i] = static_cast<double>((values[i / limbs] >> (i % limbs * limb_bits)) & 0xffffU);
  runtime.sum_over_ranks(sums.data(), static_cast<int>(sums.size()));
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (i % limbs == 0) values[i / limbs] = 0;
    values[i / limbs] += static_cast<std::uint64_t>(sums[i]) << (i % limbs * limb_bits);
  }
}

}  // namespace tegula::io
