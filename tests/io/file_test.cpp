#include "framework/io/file.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <string>

#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

namespace fs = std::filesystem;

std::ptrdiff_t files_in(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

TEST_CASE("an atomic file replaces the old one at commit, not before") {
  const TemporaryFolder folder;
  write_file(folder / "a", "old");
  {
    AtomicFile file(folder / "a");
    file.write("new");
    CHECK(contents(folder / "a") == "old");
    file.commit();
  }
  CHECK(contents(folder / "a") == "new");
  { AtomicFile(folder / "a").write("abandoned"); }
  CHECK(contents(folder / "a") == "new");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("a write that fails midway keeps the old file and leaves nothing behind") {
  const TemporaryFolder folder;
  write_file(folder / "a", "old");
  // A limit on the size of files stands in for a full disk, which takes root to make.
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{1000, before.rlim_max};
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = message_of([&] { write_file(folder / "a", std::string(5000, 'x')); });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(contains(message, ": cannot write: File too large; free some space, or choose another folder"));
  CHECK(contents(folder / "a") == "old");
  CHECK(files_in(folder.path()) == 1);
}

TEST_CASE("lines are appended, and a full disk is an error") {
  const TemporaryFolder folder;
  { LineFile(folder / "log").add("one"); }
  { LineFile(folder / "log", LineFile::Mode::append).add("two"); }
  CHECK(contents(folder / "log") == "one\ntwo\n");
  { LineFile(folder / "log").add("three"); }
  CHECK(contents(folder / "log") == "three\n");
  LineFile full("/dev/full");
  CHECK(message_of([&] { full.add("x"); }) ==
        "/dev/full: cannot write: No space left on device; free some space, or choose another folder");
}

TEST_CASE("a shared file is written piece by piece, and an error is told") {
  const TemporaryFolder folder;
  auto bytes = [](const char* text) {
    return std::as_bytes(std::span(text, std::char_traits<char>::length(text)));
  };
  {
    SharedFile one(folder / "a"), two(folder / "a");
    one.write_at(3, bytes("def"));
    two.write_at(0, bytes("abc"));
    two.flush();
  }
  CHECK(contents(folder / "a") == "abcdef");
  const MappedFile mapped(folder / "a");
  CHECK(mapped.bytes().size() == 6);
  SharedFile full("/dev/full");
  CHECK(message_of([&] { full.write_at(1, bytes("x")); }) ==
        "/dev/full: cannot write: No space left on device; free some space, or choose another folder");
  CHECK(contains(message_of([&] { SharedFile(folder / "none" / "a"); }),
                 "No such file or directory; check the path"));
}

TEST_CASE("folders are made, or the reason given") {
  const TemporaryFolder folder;
  make_writable_folder(folder / "a/b/c");
  make_writable_folder(folder / "a/b/c");
  CHECK(fs::is_directory(folder / "a/b/c"));
  write_file(folder / "file", "");
  CHECK(contains(message_of([&] { make_writable_folder(folder / "file/below"); }),
                 "is a file where a folder is needed"));
  CHECK(contains(message_of([&] { make_writable_folder(folder / "file"); }),
                 "is a file where a folder is needed"));
  if (::geteuid() != 0) {  // root may write everywhere
    fs::permissions(folder / "a", fs::perms::owner_read | fs::perms::owner_exec);
    CHECK(contains(message_of([&] { make_writable_folder(folder / "a"); }),
                   "Permission denied; check its permissions"));
    fs::permissions(folder / "a", fs::perms::owner_all);
  }
}

}  // namespace
}  // namespace tegula::io
