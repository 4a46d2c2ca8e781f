#include "framework/runtime/startup_table.hpp"

#include <fmt/format.h>
#include <starpu.h>
#include <unistd.h>

#include <numeric>
#include <string>
#include <vector>

#include "kernels/gemm.hpp"

namespace tegula::detail {
namespace {

// "node-name<tab>CPU workers<tab>GPUs", what a row says of one rank.
std::string describe_rank(const RankSetup& setup) {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  std::string gpus;
  for (int i = 0; i < setup.gpus; ++i) {
    char name[128];
    starpu_worker_get_name(starpu_worker_get_by_type(STARPU_CUDA_WORKER, i), name, sizeof name);
    gpus += (gpus.empty() ? "" : ", ") + std::string(name);
  }
  return fmt::format("{:<20} {:>11}  {}", host, setup.cpu_workers, gpus.empty() ? "-" : gpus);
}

std::vector<std::string> gather(const Job& job, const std::string& mine) {
  int length = static_cast<int>(mine.size());
  std::vector<int> lengths(job.size), offsets(job.size);
  MPI_Gather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, job.control);
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
  std::string all(job.rank == 0 ? offsets.back() + lengths.back() : 0, ' ');
  MPI_Gatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), offsets.data(), MPI_CHAR, 0,
              job.control);
  std::vector<std::string> rows;
  if (job.rank == 0)
    for (int rank = 0; rank < job.size; ++rank) rows.push_back(all.substr(offsets[rank], lengths[rank]));
  return rows;
}

}  // namespace

void print_startup_table(const Job& job, const RankSetup& setup) {
  const std::vector<std::string> ranks = gather(job, describe_rank(setup));
  if (job.rank != 0) return;
  int major = 0, minor = 0, release = 0;
  starpu_get_version(&major, &minor, &release);
  std::string table = fmt::format("tegula: {} rank{} on {} node{}, scheduler {}, StarPU {}.{}.{}\n", job.size,
                                  job.size > 1 ? "s" : "", setup.nodes, setup.nodes > 1 ? "s" : "",
                                  setup.scheduler, major, minor, release);
  table += fmt::format("  {:<9} {:<20} {:>11}  {}\n", "rank", "node", "CPU workers", "GPUs");
  for (int first = 0, last; first < job.size; first = last + 1) {
    for (last = first; last + 1 < job.size && ranks[last + 1] == ranks[first];) ++last;
    const std::string which = last > first ? fmt::format("{}-{}", first, last) : fmt::format("{}", first);
    table += fmt::format("  {:<9} {}\n", which, ranks[first]);
  }
  fmt::print(stderr, "{}", table);
}

}  // namespace tegula::detail
