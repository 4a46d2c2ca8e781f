// How a checkpoint is made. The training thread submits one task per own tile, which copies it to host memory in its turn.
// When all have come, this rank's thread writes them where they belong, brings them to the disk and says so in a marker
// file, with its share of the checksums. Rank 0's waits for all markers, writes state.json and gives the folder its name;
// the others wait to see it. The threads meet by files alone: MPI is the training's.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "framework/io/checkpoint_layout.hpp"
#include "framework/io/file.hpp"
#include "framework/io/safetensors.hpp"

namespace tegula::io {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

// The own tiles of all states, as they come in.
struct Snapshot {
  struct Piece {
    const CheckpointFileTensor* tensor;
    const CheckpointPart* part;
    TileRegion region;
    std::vector<std::byte> data;
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Piece> pieces;
  std::int64_t expected = 0;
  bool ended = false;  // no more will come
};

// Goes with the last of the tasks that show tiles, whether or not they ran: those behind a failed kernel do not.
class SnapshotEnd {
 public:
  explicit SnapshotEnd(std::shared_ptr<Snapshot> snapshot) : snapshot_(std::move(snapshot)) {}
  SnapshotEnd(const SnapshotEnd&) = delete;
  SnapshotEnd& operator=(const SnapshotEnd&) = delete;
  ~SnapshotEnd() {
    const std::scoped_lock lock(snapshot_->mutex);
    snapshot_->ended = true;
    snapshot_->changed.notify_all();
  }

 private:
  std::shared_ptr<Snapshot> snapshot_;
};

struct Run {
  std::int64_t index;  // of the first element in the file's tensor
  const std::byte* data;
  std::int64_t length;
};

// Writes runs in the order of the file, neighbours together: a tile's rows alone would be many short writes.
void write_runs(SharedFile& file, std::uint64_t offset, std::size_t element_bytes, std::vector<Run>& runs) {
  constexpr std::size_t limit = std::size_t{1} << 20;
  std::ranges::sort(runs, {}, &Run::index);
  std::vector<std::byte> together;
  std::uint64_t begin = offset;  // of `together`
  auto flush = [&] {
    file.write_at(begin, together);
    together.clear();
  };
  for (const Run& run : runs) {
    const std::span bytes(run.data, static_cast<std::size_t>(run.length) * element_bytes);
    const std::uint64_t at = offset + static_cast<std::uint64_t>(run.index) * element_bytes;
    if (at != begin + together.size() || together.size() + bytes.size() > limit) {
      flush();
      begin = at;
    }
    if (bytes.size() > limit)
      file.write_at(at, bytes);
    else
      together.insert(together.end(), bytes.begin(), bytes.end());
  }
  flush();
}

class Stopped : public std::exception {};

}  // namespace

struct CheckpointWriter::State {
  struct Save {
    CheckpointState state;
    fs::path partial, complete;
    // Tells the markers of this save from those of one of the same step that has failed.
    std::int64_t attempt = 0;
    std::shared_ptr<Snapshot> snapshot = std::make_shared<Snapshot>();

    fs::path marker(int rank) const {
      return partial / ("rank-" + std::to_string(rank) + ".save-" + std::to_string(attempt) + ".done");
    }
    fs::path failure_of_first() const { return partial / ("save-" + std::to_string(attempt) + ".failed"); }
  };

  const Program* program;
  int rank, ranks;
  std::shared_ptr<const CheckpointFiles> files;  // also of tasks that outlive the writer
  std::map<std::string, SafetensorsHeader> headers;
  fs::path root;
  int keep;
  std::map<std::string, std::string> texts;
  int exceptions_at_start = std::uncaught_exceptions();
  std::int64_t attempts = 0;

  std::thread thread;
  std::exception_ptr error;        // of the thread, read when it has ended
  std::atomic<bool> stop = false;  // the job ends: nobody is worth waiting for

  void run(Save& save);
  void receive(Snapshot& snapshot) const;
  void write_tiles(Save& save) const;
  void collect_checksums(Save& save) const;
  void complete(Save& save) const;
  void await_completion(const Save& save) const;
  template <class Condition>
  void poll(Condition condition) const;
  void finish();
};

template <class Condition>
void CheckpointWriter::State::poll(Condition condition) const {
  for (auto pause = std::chrono::milliseconds(1); !condition();
       pause = std::min(2 * pause, std::chrono::milliseconds(50))) {
    if (stop) throw Stopped();
    std::this_thread::sleep_for(pause);
  }
}

void CheckpointWriter::State::receive(Snapshot& snapshot) const {
  std::unique_lock lock(snapshot.mutex);
  while (!snapshot.changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return snapshot.ended; }))
    if (stop) throw Stopped();
  if (static_cast<std::int64_t>(snapshot.pieces.size()) != snapshot.expected)
    throw std::runtime_error("an error, thrown elsewhere, ended the run before all its tiles were computed");
}

void CheckpointWriter::State::write_tiles(Save& save) const {
  for (const auto& [stem, tensors] : *files) {
    const SafetensorsHeader& header = headers.at(stem);
    SharedFile file(save.partial / (stem + ".safetensors"));
    if (rank == 0) file.write_at(0, std::as_bytes(std::span(header.text)));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const CheckpointFileTensor& tensor = tensors[i];
      const std::size_t element_bytes = size_of(tensor.dtype);
      std::uint64_t& sum = save.state.checksums[stem][tensor.name];
      std::vector<Run> runs;
      for (const Snapshot::Piece& piece : save.snapshot->pieces) {
        if (piece.tensor != &tensor) continue;
        for_each_file_run(
            piece.region, *piece.part, tensor.columns,
            [&](std::int64_t in_tile, std::int64_t index, std::int64_t length) {
              const std::byte* data = piece.data.data() + static_cast<std::size_t>(in_tile) * element_bytes;
              runs.push_back({index, data, length});
              sum += checksum({data, static_cast<std::size_t>(length) * element_bytes}, element_bytes, index);
            });
      }
      write_runs(file, header.offsets[i], element_bytes, runs);
    }
    file.flush();
  }
}

// Waits for the other ranks' markers and adds up what they say.
void CheckpointWriter::State::collect_checksums(Save& save) const {
  for (int other = 1; other < ranks; ++other) {
    const fs::path marker = save.marker(other);
    poll([&] { return fs::exists(marker); });
    const auto json = ordered_json::parse(read_text(marker), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("checksums"))
      throw std::runtime_error("on rank " + std::to_string(other) + ": " +
                               (json.is_object() && json.contains("error") && json["error"].is_string()
                                    ? json["error"].get<std::string>()
                                    : "it could write neither its tiles nor why"));
    for (const auto& [stem, tensors] : parse_checksums(json["checksums"], marker.string()))
      for (const auto& [tensor, sum] : tensors) save.state.checksums[stem][tensor] += sum;
  }
}

// Rank 0: all data are on the disk.
void CheckpointWriter::State::complete(Save& save) const {
  for (const auto& [stem, header] : headers) {
    const fs::path file = save.partial / (stem + ".safetensors");
    if (fs::file_size(file) != header.file_bytes)
      throw std::runtime_error(file.string() + ": has " + std::to_string(fs::file_size(file)) +
                               " bytes, but all ranks together wrote " + std::to_string(header.file_bytes) +
                               "; is the folder the same one for all ranks?");
  }
  for (const auto& [name, text] : texts) write_file(save.partial / name, text);
  write_file(save.partial / "state.json", state_text(save.state));
  for (const auto& entry : fs::directory_iterator(save.partial)) {
    const std::string name = entry.path().filename().string(), extension = entry.path().extension().string();
    if (name != "state.json" && !texts.contains(name) &&
        !(extension == ".safetensors" && headers.contains(entry.path().stem().string())))
      fs::remove(entry.path());
  }
  flush_folder(save.partial);
  publish_checkpoint(save.partial, save.complete);
  write_file(root / "latest", save.complete.filename().string() + "\n");
  remove_old_checkpoints(root, save.state.step, keep);
}

void CheckpointWriter::State::await_completion(const Save& save) const {
  poll([&] { return !fs::exists(save.partial) || fs::exists(save.failure_of_first()); });
  if (fs::exists(save.complete / "state.json") && !fs::exists(save.failure_of_first())) return;
  std::string reason = save.complete.string() + ": vanished; does another run write to this folder?";
  if (fs::exists(save.failure_of_first())) {
    const std::string told = read_text(save.failure_of_first());
    reason = "on rank 0: " + (told.empty() ? "it could write neither its tiles nor why" : told);
  }
  throw std::runtime_error(reason);
}

// The thread. What ends it is told to the other ranks as far as a disk that may be full allows.
void CheckpointWriter::State::run(Save& save) {
  std::string message;
  try {
    std::error_code failed;
    fs::create_directories(save.partial, failed);
    if (failed) throw_file_error(save.partial, "create the folder", failed.value());
    receive(*save.snapshot);
    write_tiles(save);
    save.snapshot.reset();  // memory that the training may want
    if (rank == 0) {
      collect_checksums(save);
      complete(save);
    } else {
      write_file(save.marker(rank), ordered_json{{"checksums", checksums_json(save.state.checksums)}}.dump());
      await_completion(save);
    }
    return;
  } catch (const Stopped&) {
    return;
  } catch (const std::exception& caught) {
    message = caught.what();
    error = std::make_exception_ptr(std::runtime_error(
        "[checkpoint] step " + std::to_string(save.state.step) + " was not saved: " + message));
  }
  const fs::path note = rank == 0 ? save.failure_of_first() : save.marker(rank);
  try {
    write_file(note, rank == 0 ? message : ordered_json{{"error", message}}.dump());
  } catch (const std::exception&) {
    try {
      const SharedFile empty(note);    // a name may find room where a byte does not
    } catch (const std::exception&) {  // then the exception on this rank has to do
    }
  }
}

void CheckpointWriter::State::finish() {
  if (thread.joinable()) thread.join();
}

CheckpointWriter::CheckpointWriter(const Program& program, std::vector<CheckpointTensor> tensors,
                                   fs::path root, int keep, std::map<std::string, std::string> texts)
    : state_(std::make_unique<State>()) {
  Runtime& runtime = program.runtime();
  State& s = *state_;
  s.program = &program;
  s.rank = runtime.rank();
  s.ranks = runtime.size();
  s.files = std::make_shared<const CheckpointFiles>(checkpoint_files(tensors));
  s.root = std::move(root);
  s.keep = keep;
  s.texts = std::move(texts);
  if (keep < 0)
    throw std::invalid_argument("[checkpoint] keep is " + std::to_string(keep) +
                                ": give the number of checkpoints to keep, or 0 for all");
  for (const auto& [stem, list] : *s.files) {
    std::vector<TensorView> views;
    for (const CheckpointFileTensor& tensor : list)
      views.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    // Transformers reads only files that say so: they are as PyTorch would write them.
    s.headers.emplace(stem, safetensors_header(views, {{"format", "pt"}}));
  }
  // Collective, so that nobody writes before rank 0 has cleared the folder.
  alike(runtime, [&] {
    if (s.rank != 0) return;
    make_writable_folder(s.root);
    remove_remains(s.root);
  });
}

CheckpointWriter::~CheckpointWriter() {
  State& s = *state_;
  // A single rank waits for nobody.
  if (s.ranks > 1 && std::uncaught_exceptions() > s.exceptions_at_start) s.stop = true;
  s.finish();
  if (!s.error || s.stop) return;
  try {
    std::rethrow_exception(s.error);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tegula: rank %d: an error that no wait() reported: %s\n", s.rank, error.what());
  }
}

void CheckpointWriter::wait() {
  state_->finish();
  if (state_->error) std::rethrow_exception(std::exchange(state_->error, nullptr));
}

void CheckpointWriter::save(std::int64_t step, const ordered_json& contents) {
  wait();
  State& s = *state_;
  if (step < 0)
    throw std::invalid_argument("[checkpoint] a step is not negative, got " + std::to_string(step));
  auto save = std::make_shared<State::Save>();
  save->state = {step, s.program->updates(), contents, {}};
  static_cast<void>(state_text(save->state));  // what JSON cannot say is thrown here, not by the thread
  save->complete = s.root / checkpoint_name(step);
  save->partial = save->complete.string() + ".partial";
  save->attempt = s.attempts++;

  auto end = std::make_shared<SnapshotEnd>(save->snapshot);
  for (const auto& [stem, tensors] : *s.files)
    for (const CheckpointFileTensor& tensor : tensors)
      for (const CheckpointPart& part : tensor.parts)
        save->snapshot->expected +=
            s.program->visit(part.state, [snapshot = save->snapshot.get(), end, tensor = &tensor,
                                          part = &part](const TileRegion& region, const void* data) {
              const auto* bytes = static_cast<const std::byte*>(data);
              const auto count = static_cast<std::size_t>(product(region.extent)) * size_of(tensor->dtype);
              std::vector<std::byte> copy(bytes, bytes + count);
              const std::scoped_lock lock(snapshot->mutex);
              snapshot->pieces.push_back({tensor, part, region, std::move(copy)});
            });
  end.reset();
  s.thread = std::thread([&s, save] { s.run(*save); });
}

}  // namespace tegula::io
