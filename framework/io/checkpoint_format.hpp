// A checkpoint as it lies on the disk, whoever writes it:
//
//   ROOT/latest                    the name of the folder to resume from
//   ROOT/step-00000100/            complete: it got this name when all below was on the disk
//     model.safetensors            parameters, for any tool that reads weights
//     optimizer.safetensors        what only a resumed run needs
//     state.json                   step, what the program adds, a checksum of each tensor
//   ROOT/step-00000200.partial/    being written, or left behind by a run that was killed; .old: being removed
//
// No byte of a checkpoint depends on tiles or ranks. Nothing here knows of tasks or messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tegula::io {

// Sum over elements of mix(bits, index) mod 2^64, for `elements` that stand from index `first` of their tensor on. A rank
// holds pieces scattered over a tensor: of their sums, in any order, the whole one is the sum. Of CRCs it is not: they
// would have to be combined run by run in the order of the file, by someone who knows all runs. For a given index, mix
// is one to one in the bits, so a single wrong element is always found, and any other damage but once in 2^64.
std::uint64_t checksum(std::span<const std::byte> elements, std::size_t element_bytes, std::int64_t first);

using Checksums = std::map<std::string, std::map<std::string, std::uint64_t>>;  // by file and tensor

// What state.json says.
struct CheckpointState {
  std::int64_t step = 0;
  std::int64_t updates = 0;         // see Program::updates
  nlohmann::ordered_json contents;  // the program's own: seed, place in the data, settings
  Checksums checksums;
};

std::string state_text(const CheckpointState& state);
// Throws std::runtime_error starting with `name`.
CheckpointState parse_state(std::string_view text, const std::string& name);

nlohmann::ordered_json checksums_json(const Checksums& checksums);
Checksums parse_checksums(const nlohmann::ordered_json& json, const std::string& name);

// The file of each tensor, from the model.safetensors.index.json beside weights that were cut into several files. Throws
// std::runtime_error starting with `name`, also for files that would lie in another folder.
std::map<std::string, std::string> parse_weight_map(std::string_view text, const std::string& name);

std::string checkpoint_name(std::int64_t step);  // step-00000100

// The folder that `latest` names, or without it the complete one of the highest step. Local.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& root);

// For one writer at a time, rank 0's.
void remove_remains(const std::filesystem::path& root);  // of runs that were killed
// Gives a finished folder its name, which may be taken by an earlier checkpoint of the step: that one goes.
void publish_checkpoint(const std::filesystem::path& partial, const std::filesystem::path& complete);
// Keeps the `keep` newest complete folders (0: all), the one of `step` among them. Those of later steps are from a run that
// was abandoned for an earlier checkpoint: they go first.
void remove_old_checkpoints(const std::filesystem::path& root, std::int64_t step, int keep);

}  // namespace tegula::io
