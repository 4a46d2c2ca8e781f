// Checkpoints of a training run, and weights of others. Each rank writes and reads the parts of a file that its own tiles
// are: nothing is gathered, and a checkpoint can be resumed under any plan on any number of ranks. See
// checkpoint_format.hpp for what lies on the disk.
//
//   io::CheckpointWriter writer(program, tensors, "runs/gpt/checkpoints");
//   if (auto folder = io::newest_checkpoint("runs/gpt/checkpoints")) state = io::load(program, tensors, *folder);
//   ...
//   writer.save(step, {{"epoch", epoch}});   // returns at once; training goes on while it is written
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "framework/io/checkpoint_format.hpp"
#include "framework/program/program.hpp"

namespace tegula::io {

// Where a state lies. The tensor `name` of the file has `shape`, seen as a matrix (rows, columns) whose columns are the
// last extent. The state, row-major, is its columns column_begin and on, as many as its elements fill in so many rows. So
// shape may merge or part the state's own extents, and several states may share a tensor side by side, which together
// they must fill: the weights of q, k and v in GPT-2's c_attn say.
struct CheckpointTensor {
  Tensor state;
  std::string file = "model";  // without .safetensors; optimizer for what only a resumed run needs
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t column_begin = 0;
};

// The state under its own name and extents.
CheckpointTensor checkpoint_tensor(const Tensor& state, std::string file = "model");

// Saves checkpoints beside the training. Program must outlive it. All methods are collective.
//
// The folder must be one that all ranks see: a parallel file system, or a local one on a single node. Ranks write
// neighbouring bytes of one file, which NFS leaves whole only between processes of one node.
class CheckpointWriter {
 public:
  // Makes the folder `root` and clears it of what killed runs have left. Keeps the newest `keep` checkpoints (0: all).
  // `texts` are files by name that each checkpoint has as well, for other programs. Throws std::invalid_argument where tensors do not fit together, std::runtime_error where root cannot be written to; on all
  // ranks alike.
  CheckpointWriter(const Program& program, std::vector<CheckpointTensor> tensors, std::filesystem::path root,
                   int keep = 3, std::map<std::string, std::string> texts = {});
  // Waits as wait() does, unless an exception is passing and there are other ranks: the job is about to end then, and what
  // is not yet complete is left behind. Says on stderr what no save() or wait() has thrown.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Saves the states as they are between the runs submitted so far and the later ones. Returns at once, or when the
  // checkpoint before is complete. Own tiles are copied to host memory, and written from there by a thread. A
  // checkpoint of the same step is replaced. Throws what the one before has failed of, std::runtime_error with file
  // and reason; that a rank could not write is thrown on all.
  void save(std::int64_t step, const nlohmann::ordered_json& contents);

  // Returns when the checkpoint being written, if any, is complete and on the disk; what remains of rank 0's upkeep, `latest`
  // and the removal of old ones, is done when its wait() returns. Throws as save() does.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct LoadOptions {
  bool convert =
      false;  // take bf16 and f16 from a file for f32 states and f32 for theirs, rounded to nearest even
};

// Loads a checkpoint and the number of updates into a program, under any plan. Of the files that `tensors` name, each must
// hold just those tensors; a file that none names is left alone. Checksums of all are verified before any state changes. Each
// rank reads what it owns and its share of the checksums. Throws std::runtime_error naming file, tensor and reason, on
// all ranks alike. Collective.
CheckpointState load(Program& program, const std::vector<CheckpointTensor>& tensors,
                     const std::filesystem::path& folder, const LoadOptions& options = {});

// Loads weights from elsewhere: a .safetensors file, the model.safetensors.index.json of several, or a folder that holds one
// of both under these names. Which file a tensor is in is for the index to say, not for CheckpointTensor::file. Returns
// the names that were not asked for. Throws as load() does. Collective.
std::vector<std::string> load_weights(Program& program, const std::vector<CheckpointTensor>& tensors,
                                      const std::filesystem::path& path, const LoadOptions& options = {});

}  // namespace tegula::io
