#include "framework/runtime/heartbeat.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <map>

namespace tegula::detail {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto period = std::chrono::seconds(1);
enum Beat : char { alive, last };

struct Waiting {
  std::mutex mutex;
  std::uint64_t next = 0;
  struct Message {
    int peer;
    const char* what;
  };
  std::map<std::uint64_t, Message> messages;  // in the order in which they were asked for

  std::string of(int peer) {
    std::scoped_lock lock(mutex);
    std::string first;
    int count = 0;
    for (const auto& [id, message] : messages)
      if (message.peer == peer && count++ == 0) first = message.what;
    if (count == 0) return "nothing";
    return count == 1 ? first : fmt::format("{} and {} more", first, count - 1);
  }
};
Waiting& waiting() {
  static Waiting all;
  return all;
}

}  // namespace

std::uint64_t begin_waiting(int peer, const char* what) {
  Waiting& all = waiting();
  std::scoped_lock lock(all.mutex);
  all.messages.emplace(all.next, Waiting::Message{peer, what});
  return all.next++;
}

void end_waiting(std::uint64_t id) {
  Waiting& all = waiting();
  std::scoped_lock lock(all.mutex);
  all.messages.erase(id);
}

Heartbeat::Heartbeat(const Job& job, std::chrono::seconds limit) : job_(job), limit_(limit) {
  MPI_Comm_dup(job.control, &ring_);
  exchange_hosts();
  thread_ = std::thread([this] { beat(); });
}

Heartbeat::~Heartbeat() {
  {
    std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  MPI_Comm_free(&ring_);
}

void Heartbeat::exchange_hosts() {
  std::array<char, 256> mine = {}, before = {};
  gethostname(mine.data(), mine.size() - 1);
  MPI_Sendrecv(mine.data(), mine.size(), MPI_CHAR, (job_.rank + 1) % job_.size, 0, before.data(),
               before.size(), MPI_CHAR, (job_.rank + job_.size - 1) % job_.size, 0, ring_, MPI_STATUS_IGNORE);
  host_before_ = before.data();
}

void Heartbeat::beat() {
  const int next = (job_.rank + 1) % job_.size, before = (job_.rank + job_.size - 1) % job_.size;
  char sent = alive, received = alive;
  MPI_Request sending = MPI_REQUEST_NULL, receiving = MPI_REQUEST_NULL;
  MPI_Irecv(&received, 1, MPI_CHAR, before, 1, ring_, &receiving);
  Clock::time_point heard = Clock::now(), looked = heard;
  bool said_last = false, heard_last = false;
  while (!said_last || !heard_last || sending != MPI_REQUEST_NULL) {
    bool stopping;
    {
      std::unique_lock lock(mutex_);
      // Near the end the neighbours' last words are waited for.
      wake_.wait_for(lock, stopping_ ? std::chrono::milliseconds(1) : period,
                     [&] { return stopping_ && !said_last; });
      stopping = stopping_;
    }
    const Clock::time_point now = Clock::now();
    if (now - looked > 4 * period)
      heard = now;  // this process was stopped itself, and knows nothing of others
    looked = now;
    int done = 0;
    MPI_Test(&sending, &done, MPI_STATUS_IGNORE);
    if (done && !said_last) {
      sent = stopping ? last : alive;
      said_last = stopping;
      MPI_Isend(&sent, 1, MPI_CHAR, next, 1, ring_, &sending);
    }
    for (done = 1; done && !heard_last;) {
      MPI_Test(&receiving, &done, MPI_STATUS_IGNORE);
      if (!done) break;
      heard = now;
      heard_last = received == last;
      if (!heard_last) MPI_Irecv(&received, 1, MPI_CHAR, before, 1, ring_, &receiving);
    }
    if (!heard_last && now - heard > limit_)
      fail(fmt::format(
          "nothing was heard of rank {} on {} for {} s: it is stopped, or its node is gone; this rank "
          "waits for {} of it",
          before, host_before_, limit_.count(), waiting().of(before)));
  }
}

}  // namespace tegula::detail
