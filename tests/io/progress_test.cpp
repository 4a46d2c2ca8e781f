#include "framework/io/progress.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

TEST_CASE("a file gets plain lines: the first step, the last, and notes") {
  const TemporaryFolder folder;
  std::FILE* out = std::fopen((folder / "log").c_str(), "w");
  {
    Progress progress(3, /*quiet=*/false, "images", out);
    for (int step = 1; step <= 3; ++step) progress.step(0, step, 0.5, 256);
    progress.note("done");
    CHECK(progress.items_per_s() > 0);
    Progress(3, /*quiet=*/true, "images", out).note("unseen");
  }
  std::fclose(out);
  const std::string text = contents(folder / "log");
  CHECK(text.starts_with("epoch 0  step 1/3  loss 0.5000  "));
  CHECK(contains(text, "step 3/3"));
  CHECK(!contains(text, "step 2/3"));
  CHECK(text.ends_with("done\n"));
  CHECK(!contains(text, "\r"));
  CHECK(!contains(text, "unseen"));
}

TEST_CASE("durations read well") {
  CHECK(duration(41.6) == "42s");
  CHECK(duration(187) == "3m07s");
  CHECK(duration(7500) == "2h05m");
  CHECK(duration(std::numeric_limits<double>::infinity()) == "?");
}

}  // namespace
}  // namespace tegula::io
