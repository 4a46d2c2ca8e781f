#include "framework/io/run_folder.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "framework/io/confusion_matrix.hpp"
#include "tests/io/temporary_folder.hpp"

namespace tegula::io {
namespace {

TEST_CASE("a run folder holds configuration, metrics and results") {
  const TemporaryFolder folder;
  RunFolder run(folder / "runs/a", "name", "batch = 4\n", /*active=*/true);
  run.record({{"step", 1}, {"loss", 0.5}});
  run.record({{"step", 2}, {"loss", 0.25}});
  run.write("result.json", {{"accuracy", 1}});
  CHECK(contents(run.path() / "config.toml") == "batch = 4\n");
  CHECK(contents(run.path() / "metrics.jsonl") == "{\"step\":1,\"loss\":0.5}\n{\"step\":2,\"loss\":0.25}\n");
  CHECK(contents(run.path() / "result.json") == "{\n  \"accuracy\": 1\n}\n");
}

TEST_CASE("a run that goes on keeps the metrics up to where it does, and knows the last of them") {
  const TemporaryFolder folder;
  {
    RunFolder run(folder / "a", "name", "", /*active=*/true);
    CHECK(run.last_kept().empty());
    for (int step = 1; step <= 3; ++step) run.record({{"step", step}});
  }
  CHECK(RunFolder(folder / "a", "name", "", /*active=*/true, /*resumed=*/2).last_kept() == "{\"step\":2}");
  CHECK(contents(folder / "a/metrics.jsonl") == "{\"step\":1}\n{\"step\":2}\n");
  CHECK(RunFolder(folder / "a", "name", "", /*active=*/true, /*resumed=*/1).last_kept() == "{\"step\":1}");
  CHECK(RunFolder(folder / "a", "name", "", /*active=*/true, /*resumed=*/0).last_kept().empty());
  CHECK(contents(folder / "a/metrics.jsonl").empty());
}

TEST_CASE("without a path the folder is named after what runs, and when") {
  CHECK(RunFolder("", "mlp", "", /*active=*/false).path().string().starts_with("runs/mlp-20"));
}

TEST_CASE("on other ranks nothing is written") {
  const TemporaryFolder folder;
  RunFolder run(folder / "a", "name", "", /*active=*/false);
  run.record({{"step", 1}});
  run.write("result.json", {});
  CHECK(!std::filesystem::exists(folder / "a"));
}

TEST_CASE("hexadecimal floats are exact") {
  CHECK(hex_float(0.1) == "0x1.999999999999ap-4");
  CHECK(hex_float(1) == "0x1p+0");
}

TEST_CASE("a confusion matrix counts what was taken for what") {
  ConfusionMatrix confusion({"cat", "dog"});
  CHECK(confusion.accuracy() == 0);
  confusion.add(0, 0);
  confusion.add(0, std::vector<double>{0.1, 0.9});
  confusion.add(1, std::vector<double>{-2.0, -1.0});
  confusion.add(1, std::vector<double>{-1.0, -1.0});  // equal: the first
  confusion.add(1, 1);
  CHECK(confusion.accuracy() == doctest::Approx(0.6));
  CHECK(confusion.accuracy_of(1) == doctest::Approx(2.0 / 3));
  CHECK(confusion.json()["confusion"].dump() == "[[1,1],[1,2]]");
  CHECK(confusion.json()["accuracy_per_class"]["cat"] == 0.5);
  CHECK(contains(confusion.table(), "cat                  1       1     0.5000\n"));
}

}  // namespace
}  // namespace tegula::io
