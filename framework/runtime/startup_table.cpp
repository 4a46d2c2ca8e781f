#include "framework/runtime/startup_table.hpp"

#include <fmt/format.h>
#include <starpu.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/blas.hpp"

namespace tegula::detail {
namespace {

std::string row(std::string rank, std::string node, std::string cpu_workers, const std::string& gpus) {
  rank.resize(std::max<std::size_t>(rank.size(), 9), ' ');
  node.resize(std::max<std::size_t>(node.size(), 20), ' ');
  cpu_workers.resize(std::max<std::size_t>(cpu_workers.size(), 11), ' ');
  return fmt::format("  {}  {}  {}  {}\n", rank, node, cpu_workers, gpus);
}

// What a row says of this rank.
std::string describe_rank(const RankSetup& setup) {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  std::string gpus;
  for (int i = 0; i < setup.gpus; ++i) {
    char name[128];
    starpu_worker_get_name(starpu_worker_get_by_type(STARPU_CUDA_WORKER, i), name, sizeof name);
    if (i > 0) gpus += ", ";
    gpus += name;
  }
  return row("", host, std::to_string(setup.cpu_workers), gpus.empty() ? "none" : gpus);
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
  table += row("rank", "node", "CPU workers", "GPUs");
  for (int first = 0, last = 0; first < job.size; first = last + 1) {
    for (last = first; last + 1 < job.size && ranks[last + 1] == ranks[first];) ++last;
    const std::string which = last > first ? fmt::format("{}-{}", first, last) : std::to_string(first);
    std::string line = ranks[first];
    line.replace(2, which.size(), which);
    table += line;
  }
  if (const std::string warning = gemm_warning(); !warning.empty())
    table += fmt::format("  warning: {}\n", warning);
  fmt::print(stderr, "{}", table);
}

}  // namespace tegula::detail
