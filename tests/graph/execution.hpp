// Runs the listings of all ranks on hashes instead of numbers, without StarPU and MPI: the contents of a buffer are a
// hash of how they were computed, from which tiles, in which order. Same hashes, same bits.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "framework/program/listing.hpp"

namespace tegula::test {

using Hash = std::uint64_t;

class Execution {
 public:
  // One listing per rank. Throws std::logic_error where a listing breaks a rule:
  //  - what is read was written, and is dropped once, after its last use; state stays; memory is taken over when it is free;
  //  - a send and a receive of the same tag, bytes and region meet, and no tag is used twice;
  //  - ranks that work their listings off in order do not wait for each other for ever;
  //  - tasks come in the order of the nodes, where the schedule gives them one time, and each tile of state lives on one rank.
  explicit Execution(const std::vector<Listing>& ranks);

  const std::map<std::pair<int, int>, Hash>& state() const { return state_; }  // by tensor and tile
  const std::map<std::pair<int, int>, Hash>& outputs() const { return outputs_; }
  const std::multiset<Hash>& tasks() const { return tasks_; }  // what each task of any rank computed
  std::int64_t messages() const { return messages_; }

 private:
  struct Message {
    int from, to;
    Hash tile, contents;
  };
  class Rank;
  std::map<std::pair<int, int>, Hash> state_, outputs_;
  std::multiset<Hash> tasks_;
  std::map<std::tuple<int, int, std::int64_t>, Message> sent_;  // by sender, receiver and tag
  std::int64_t messages_ = 0;
};

}  // namespace tegula::test
