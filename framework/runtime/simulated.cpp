#include "framework/runtime/simulated.hpp"

#ifdef STARPU_SIMGRID
#include <simgrid/mailbox.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace tegula::detail {

namespace {
std::unique_ptr<SimulatedPlace> place;
}

const SimulatedPlace& simulated_place(int rank, int ranks) {
  if (place) return *place;
  const char *file = std::getenv(cluster_variable), *per_node = std::getenv(ranks_per_node_variable);
  if (!file)
    throw std::runtime_error(
        "[runtime] this program was built to be simulated: start it with tegula-simulate run");
  place = std::make_unique<SimulatedPlace>(SimulatedPlace{simulation::read_cluster(file), {}});
  place->seat = place->cluster.seats(ranks, per_node ? std::atoi(per_node) : 0).at(rank);
  return *place;
}

const SimulatedPlace& simulated_place() { return *place; }

#ifdef STARPU_SIMGRID
namespace {
// Ranks are threads of one process: what a mailbox brings is an address, and who gets it owns what is there. SimGrid itself hands the
// address over; where SMPI runs, it copies as many bytes from there instead, so that they have to be the same.
struct Parcel {
  Parcel* self = this;
  std::vector<double> values;
};
}  // namespace

void sum_over_simulated_ranks(int rank, int ranks, double* values, int count) {
  const auto bytes = static_cast<long>(count * sizeof(double));
  auto mailbox = [](const char* way, int peer) {
    return sg_mailbox_by_name((std::string(way) + std::to_string(peer)).c_str());
  };
  auto put = [&](sg_mailbox_t to) {
    auto parcel = std::make_unique<Parcel>();
    parcel->values.assign(values, values + count);
    sg_mailbox_put(to, parcel.release(), bytes);
  };
  auto get = [](sg_mailbox_t from) {
    return std::unique_ptr<Parcel>(static_cast<Parcel*>(sg_mailbox_get(from)))->values;
  };
  if (rank != 0) {
    put(mailbox("sum-from-", rank));
    std::ranges::copy(get(mailbox("sum-to-", rank)), values);
    return;
  }
  for (int peer = 1; peer < ranks; ++peer) {
    const std::vector<double> theirs = get(mailbox("sum-from-", peer));
    for (int i = 0; i < count; ++i) values[i] += theirs[i];
  }
  for (int peer = 1; peer < ranks; ++peer) put(mailbox("sum-to-", peer));
}
#else
void sum_over_simulated_ranks(int, int, double*, int) {}
#endif

}  // namespace tegula::detail
