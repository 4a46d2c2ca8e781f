#include "framework/io/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace tegula::io {

namespace fs = std::filesystem;

namespace {

// Retries a system call that a signal interrupted, as Ctrl-C during a checkpoint does.
template <class Call>
auto uninterrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

struct Descriptor {
  int number;
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
};

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

void throw_file_error(const fs::path& path, std::string_view action, int error) {
  std::string text = path.string() + ": cannot " + std::string(action) + ": " + std::strerror(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      text += "; free some space, or choose another folder";
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      text += "; check its permissions, or choose another folder";
      break;
    case ENOTDIR:
    case EEXIST:
      text += "; part of the path is a file where a folder is needed";
      break;
    case ENOENT:
      text += "; check the path";
      break;
    default:
      break;
  }
  throw std::runtime_error(text);
}

// A rename is on the disk only once its folder is.
void flush_folder(const fs::path& folder) {
  Descriptor file{uninterrupted([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); })};
  // Some file systems (network ones above all) cannot flush a folder and say EINVAL; the rename stands there.
  if (file.number >= 0 && uninterrupted([&] { return ::fsync(file.number); }) < 0 && errno != EINVAL)
    throw_file_error(folder, "flush", errno);
}

namespace {

// To open a pipe must not wait for its other end.
Descriptor open_to_read(const fs::path& path) {
  return {uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); })};
}

// Throws if the file is not open, or not a regular one.
std::size_t size_of(const Descriptor& file, const fs::path& path) {
  struct stat status {};
  if (file.number < 0 || ::fstat(file.number, &status) < 0) throw_file_error(path, "read", errno);
  if (!S_ISREG(status.st_mode)) throw std::runtime_error(path.string() + ": cannot read: not a regular file");
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace

std::vector<std::byte> read_file(const fs::path& path) {
  const Descriptor file = open_to_read(path);
  std::vector<std::byte> bytes(size_of(file, path));
  for (std::size_t done = 0; done < bytes.size();) {
    ssize_t count =
        uninterrupted([&] { return ::read(file.number, bytes.data() + done, bytes.size() - done); });
    if (count < 0) throw_file_error(path, "read", errno);
    if (count == 0) throw std::runtime_error(path.string() + ": became shorter while it was read; try again");
    done += static_cast<std::size_t>(count);
  }
  return bytes;
}

std::string read_text(const fs::path& path) {
  const std::vector<std::byte> bytes = read_file(path);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

MappedFile::MappedFile(const fs::path& path) {
  const Descriptor file = open_to_read(path);
  const std::size_t size = size_of(file, path);
  if (size == 0) return;  // which mmap refuses
  void* start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.number, 0);
  if (start == MAP_FAILED) throw_file_error(path, "map", errno);
  bytes_ = {static_cast<const std::byte*>(start), size};
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void make_writable_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_file_error(path, "create the folder", error.value());
  if (!fs::is_directory(path)) throw_file_error(path, "create the folder", ENOTDIR);
  if (::access(path.c_str(), W_OK | X_OK) < 0) throw_file_error(path, "write to the folder", errno);
}

OutputFile::OutputFile(fs::path path, int flags) : path_(std::move(path)) {
  descriptor_ =
      uninterrupted([&] { return ::open(path_.c_str(), flags | O_WRONLY | O_CREAT | O_CLOEXEC, 0666); });
  if (descriptor_ < 0) fail("write");
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::fail(std::string_view action) {
  const int error = errno;
  if (temporary_) ::unlink(path_.c_str());
  throw_file_error(path_, action, error);
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t count = uninterrupted([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
    if (count < 0) fail("write");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

AtomicFile::AtomicFile(fs::path path)
    : OutputFile(path.string() + ".tmp" + std::to_string(::getpid()), O_TRUNC), target_(std::move(path)) {
  temporary_ = true;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::unlink(path_.c_str());
}

void AtomicFile::commit() {
  if (uninterrupted([&] { return ::fsync(descriptor_); }) < 0) fail("flush");
  if (::rename(path_.c_str(), target_.c_str()) < 0) fail("rename");
  ::close(std::exchange(descriptor_, -1));  // cannot fail any more: fsync has written everything
  flush_folder(folder_of(target_));
}

void SharedFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = uninterrupted(
        [&] { return ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
    if (count < 0) fail("write");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += static_cast<std::uint64_t>(count);
  }
}

void SharedFile::flush() {
  if (uninterrupted([&] { return ::fsync(descriptor_); }) < 0) fail("flush");
}

void write_file(const fs::path& path, std::string_view contents) {
  AtomicFile file(path);
  file.write(contents);
  file.commit();
}

LineFile::LineFile(fs::path path, Mode mode)
    : OutputFile(std::move(path), O_APPEND | (mode == Mode::fresh ? O_TRUNC : 0)) {}

void LineFile::add(std::string line) {
  line += '\n';
  write(line);
}

}  // namespace tegula::io
