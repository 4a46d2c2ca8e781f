// How checkpoints and weights are read: files are mapped, each rank touches what its tiles need.
#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

#include "framework/io/checkpoint_layout.hpp"
#include "framework/io/file.hpp"
#include "framework/io/safetensors.hpp"

namespace tegula::io {

namespace fs = std::filesystem;

namespace {

// A tensor that the program wants, and where it was found.
struct Found {
  const CheckpointFileTensor* tensor;
  std::shared_ptr<const Safetensors> file;
  const TensorView* view;
};

bool converts(DType from, DType to) { return (from == f32 && is_half(to)) || (is_half(from) && to == f32); }

Found find_in(const std::shared_ptr<const Safetensors>& file, const CheckpointFileTensor& tensor,
              const LoadOptions& options) {
  const TensorView& view = file->at(tensor.name);
  const std::string where = file->name() + ": '" + tensor.name + "' has ";
  if (view.shape != tensor.shape)
    throw std::runtime_error(where + "shape " + shape_text(view.shape) + ", the program needs " +
                             shape_text(tensor.shape));
  if (view.dtype != tensor.dtype && !(options.convert && converts(view.dtype, tensor.dtype)))
    throw std::runtime_error(
        where + "dtype " + std::string(name_of(view.dtype)) + ", the program needs " +
        std::string(name_of(tensor.dtype)) +
        (converts(view.dtype, tensor.dtype) ? "; LoadOptions::convert allows that" : ""));
  return {&tensor, file, &view};
}

std::string list_of(const std::vector<std::string>& names) {
  std::string list;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 5); ++i)
    list += (i == 0 ? "'" : ", '") + names[i] + "'";
  return names.size() > 5 ? list + " and " + std::to_string(names.size() - 5) + " more" : list;
}

std::vector<std::string> names_in(const Safetensors& file) {
  std::vector<std::string> names;
  for (const TensorView& view : file.tensors()) names.push_back(view.name);
  for (const auto& [name, dtype] : file.foreign()) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> without(std::vector<std::string> names,
                                 const std::vector<CheckpointFileTensor>& wanted) {
  std::set<std::string_view> known;
  for (const CheckpointFileTensor& tensor : wanted) known.insert(tensor.name);
  std::erase_if(names, [&](const std::string& name) { return known.contains(name); });
  return names;
}

// The elements of one run, from the type of the file to that of the tile.
void copy_run(const TensorView& from, std::int64_t index, std::int64_t length, DType to, void* tile,
              std::int64_t in_tile) {
  const std::byte* source = from.bytes.data() + static_cast<std::size_t>(index) * size_of(from.dtype);
  std::byte* target = static_cast<std::byte*>(tile) + static_cast<std::size_t>(in_tile) * size_of(to);
  if (from.dtype == to) {
    std::memcpy(target, source, static_cast<std::size_t>(length) * size_of(to));
    return;
  }
  visit_dtype(from.dtype, [&]<class From>() {
    visit_dtype(to, [&]<class To>() {
      for (std::int64_t i = 0; i < length; ++i) {
        From value;
        std::memcpy(&value, source + i * sizeof(From),
                    sizeof value);  // the file's data may be at an odd address
        const To converted = static_cast<To>(static_cast<float>(value));
        std::memcpy(target + i * sizeof(To), &converted, sizeof converted);
      }
    });
  });
}

void fill(Program& program, const std::vector<Found>& all) {
  for (const Found& found : all)
    for (const CheckpointPart& part : found.tensor->parts)
      program.fill(part.state, [file = found.file, view = found.view, part, columns = found.tensor->columns](
                                   const TileRegion& region, void* tile) {
        for_each_file_run(region, part, columns,
                          [&](std::int64_t in_tile, std::int64_t index, std::int64_t length) {
                            copy_run(*view, index, length, part.state.dtype(), tile, in_tile);
                          });
      });
  program.runtime().wait();
}

// Each rank sums up a slice of every tensor.
void verify(Runtime& runtime, const std::vector<Found>& all, const std::vector<std::uint64_t>& expected) {
  std::vector<std::uint64_t> sums;
  for (const Found& found : all) {
    const std::int64_t elements = found.tensor->elements(), ranks = runtime.size(), rank = runtime.rank();
    const std::int64_t slice = (elements + ranks - 1) / ranks;
    const std::int64_t begin = std::min(elements, rank * slice), end = std::min(elements, begin + slice);
    const std::size_t element_bytes = size_of(found.view->dtype);
    sums.push_back(checksum(found.view->bytes.subspan(static_cast<std::size_t>(begin) * element_bytes,
                                                      static_cast<std::size_t>(end - begin) * element_bytes),
                            element_bytes, begin));
  }
  sum_over_ranks(runtime, sums);
  for (std::size_t i = 0; i < all.size(); ++i)
    if (sums[i] != expected[i])
      throw std::runtime_error(
          all[i].file->name() + ": the checksum of '" + all[i].tensor->name +
          "' is not the one in state.json: the data are damaged; load another checkpoint");
}

// All that is wrong with a checkpoint apart from its data.
std::vector<Found> open_checkpoint(const CheckpointFiles& files, const fs::path& folder,
                                   const LoadOptions& options, CheckpointState& state,
                                   std::vector<std::uint64_t>& checksums) {
  const std::string state_name = (folder / "state.json").string();
  if (!fs::exists(folder / "state.json"))
    throw std::runtime_error(
        state_name + ": missing: this is not a complete checkpoint; weights alone are for load_weights");
  state = parse_state(read_text(folder / "state.json"), state_name);
  std::vector<Found> all;
  for (const auto& [stem, tensors] : files) {
    auto file = std::make_shared<const Safetensors>(Safetensors::map(folder / (stem + ".safetensors")));
    const std::vector<std::string> extra = without(names_in(*file), tensors);
    for (const CheckpointFileTensor& tensor : tensors) {
      all.push_back(find_in(file, tensor, options));
      const auto& sums = state.checksums[stem];
      const auto sum = sums.find(tensor.name);
      if (sum == sums.end())
        throw std::runtime_error(state_name + ": has no checksum of '" + tensor.name + "' in " +
                                 file->name());
      checksums.push_back(sum->second);
    }
    if (!extra.empty())
      throw std::runtime_error(file->name() + ": holds " + list_of(extra) +
                               ", which the program has not: it is from another model");
  }
  return all;
}

// A file of weights for each tensor that some file or index names.
struct Weights {
  fs::path folder;
  std::map<std::string, std::string> files;  // by tensor
  std::string source;                        // file that says so
};

Weights open_weights(fs::path path) {
  constexpr const char* single = "model.safetensors";
  constexpr const char* index = "model.safetensors.index.json";
  if (fs::is_directory(path)) {
    if (!fs::exists(path / single) && !fs::exists(path / index))
      throw std::runtime_error(path.string() + ": holds neither " + single + " nor " + index);
    path /= fs::exists(path / single) ? single : index;
  }
  if (path.extension() == ".json")
    return {path.parent_path(), parse_weight_map(read_text(path), path.string()), path.string()};
  Weights weights{path.parent_path(), {}, path.string()};
  for (const std::string& name : names_in(Safetensors::map(path)))
    weights.files[name] = path.filename().string();
  return weights;
}

}  // namespace

CheckpointState load(Program& program, const std::vector<CheckpointTensor>& tensors, const fs::path& folder,
                     const LoadOptions& options) {
  const CheckpointFiles files = checkpoint_files(tensors);
  CheckpointState state;
  std::vector<Found> all;
  std::vector<std::uint64_t> checksums;
  alike(program.runtime(), [&] { all = open_checkpoint(files, folder, options, state, checksums); });
  verify(program.runtime(), all, checksums);
  fill(program, all);
  program.updates(state.updates);
  return state;
}

std::vector<std::string> load_weights(Program& program, const std::vector<CheckpointTensor>& tensors,
                                      const fs::path& path, const LoadOptions& options) {
  std::vector<CheckpointTensor> in_one_file = tensors;
  for (CheckpointTensor& tensor : in_one_file) tensor.file = "model";
  CheckpointFiles files = checkpoint_files(in_one_file);
  const std::vector<CheckpointFileTensor>& wanted = files["model"];
  std::vector<Found> all;
  std::vector<std::string> extra;
  alike(program.runtime(), [&] {
    const Weights weights = open_weights(path);
    std::map<std::string, std::shared_ptr<const Safetensors>> opened;
    for (const CheckpointFileTensor& tensor : wanted) {
      const auto named = weights.files.find(tensor.name);
      if (named == weights.files.end())
        throw std::runtime_error(weights.source + ": holds no tensor '" + tensor.name + "'");
      auto& file = opened[named->second];
      if (!file) file = std::make_shared<const Safetensors>(Safetensors::map(weights.folder / named->second));
      all.push_back(find_in(file, tensor, options));
    }
    for (const auto& [name, file] : weights.files) extra.push_back(name);
    extra = without(extra, wanted);
  });
  fill(program, all);
  return extra;
}

}  // namespace tegula::io
