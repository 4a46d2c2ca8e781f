// Reading and writing whole files, with errors that say which file, what happened and what to do. Results
// that took hours to compute must not be lost to an unchecked write, or replaced by half a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tegula::io {

// All bytes of a regular file. Throws std::runtime_error if it cannot be read.
std::vector<std::byte> read_file(const std::filesystem::path& path);

std::string read_text(const std::filesystem::path& path);  // the same as a string

// The bytes of a regular file, read by the operating system when they are looked at: for files that need not fit the
// memory. A program must not shorten a file that is mapped; to replace it by another, as AtomicFile does, is fine.
class MappedFile {
 public:
  // Throws std::runtime_error if it cannot be read.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

// Creates `path` and its parents where missing. Throws std::runtime_error if that fails or the folder cannot
// be written to, so that a run finds out before it trains.
void make_writable_folder(const std::filesystem::path& path);

// std::runtime_error that says what could not be done to `path`, why (an errno), and what to try.
[[noreturn]] void throw_file_error(const std::filesystem::path& path, std::string_view action, int error);

// Brings the names in a folder, and what was renamed there, to the disk.
void flush_folder(const std::filesystem::path& folder);

// An open file descriptor whose every write is checked. Base of the writers below.
class OutputFile {
 public:
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Throws std::runtime_error unless all bytes were taken.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

 protected:
  OutputFile(std::filesystem::path path, int flags);
  ~OutputFile();
  // Throws for errno. Removes a temporary file first: where nobody catches the exception, no destructor will.
  [[noreturn]] void fail(std::string_view action);

  std::filesystem::path path_;  // of the file being written
  int descriptor_ = -1;
  bool temporary_ = false;
};

// A file that appears under its name complete, or not at all: written under a temporary name in the same
// folder, flushed to the disk and renamed by commit(). Without commit() the destructor removes it.
class AtomicFile : public OutputFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  void commit();

 private:
  std::filesystem::path target_;
};

// A file that processes write together, each where it has something to say. Made where it is missing, never cut.
class SharedFile : private OutputFile {
 public:
  explicit SharedFile(std::filesystem::path path) : OutputFile(std::move(path), 0) {}
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  void flush();  // to the disk
};

void write_file(const std::filesystem::path& path, std::string_view contents);  // through an AtomicFile

// Lines added at the end of a file, each by one write, so that a reader or a crash sees whole lines only.
class LineFile : public OutputFile {
 public:
  enum class Mode { fresh, append };
  explicit LineFile(std::filesystem::path path, Mode mode = Mode::fresh);
  void add(std::string line);
};

}  // namespace tegula::io
