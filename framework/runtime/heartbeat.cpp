#include "framework/runtime/heartbeat.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <utility>

namespace tegula::detail {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds period(200);  // between two beats
constexpr milliseconds look(100);    // how often the thread looks at what it was told
constexpr milliseconds soon(10);     // the same when it is in a hurry
// A launcher that ends a job because a rank has died sends the others SIGTERM, and SIGKILL a second later: by then all has
// to be said.
constexpr milliseconds missed(600);
constexpr milliseconds own_stop(2000);  // from one look to the next: this process was stopped itself
constexpr milliseconds patience(2000);  // with messages to ranks that may be gone, too
constexpr int tag = 1;

struct Waiting {
  std::mutex mutex;
  std::uint64_t next = 0;
  struct Message {
    int peer;
    const char* what;  // null: one that is sent
  };
  std::map<std::uint64_t, Message> messages;  // in the order in which they were asked for

  // What is waited for of each peer, those first who keep this rank waiting longest; empty for nothing. With `only`, of that
  // one, if anything is.
  std::string describe(int only = none) {
    std::scoped_lock lock(mutex);
    std::vector<std::pair<int, std::vector<const char*>>> peers;
    for (const auto& [id, message] : messages) {
      if (!message.what) continue;
      auto place = std::ranges::find(peers, message.peer, [](const auto& peer) { return peer.first; });
      if (place == peers.end()) place = peers.insert(place, {message.peer, {}});
      place->second.push_back(message.what);
    }
    if (const auto place = std::ranges::find(peers, only, [](const auto& peer) { return peer.first; });
        place != peers.end())
      peers = {*place};
    std::string all;
    constexpr std::size_t told = 4;
    for (std::size_t i = 0; i < std::min(peers.size(), told); ++i) {
      const auto& [peer, what] = peers[i];
      all += fmt::format("{}{}: {}", i == 0 ? "waits for " : "; for ",
                         peer < 0 ? "all ranks" : fmt::format("rank {}", peer), what[0]);
      if (what.size() > 1) all += fmt::format(", and {} more", what.size() - 1);
    }
    if (peers.size() > told) all += fmt::format("; and for {} more ranks", peers.size() - told);
    // Whatever was sent ahead of its being written is on this list, too: it counts where nothing else is waited for.
    if (peers.empty() && !messages.empty())
      all = fmt::format("waits for rank {}: to take a message", messages.begin()->second.peer);
    return all;
  }
  static constexpr int none = -2;
};
Waiting& waiting() {
  static Waiting all;
  return all;
}

// The one that runs, for a rank that fails in whatever thread.
std::mutex current_mutex;
Heartbeat* current = nullptr;
std::atomic<bool> this_rank_fails = false;  // what it waits for is of no interest then

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

Heartbeat::Heartbeat(const Job& job, std::chrono::seconds limit)
    : job_(job),
      limit_(limit),
      next_((job.rank + 1) % job.size),
      before_((job.rank + job.size - 1) % job.size) {
  MPI_Comm_dup(job.control, &ring_);
  std::array<char, 256> mine = {}, before = {};
  gethostname(mine.data(), mine.size() - 1);
  MPI_Sendrecv(mine.data(), mine.size(), MPI_CHAR, next_, 0, before.data(), before.size(), MPI_CHAR, before_,
               0, ring_, MPI_STATUS_IGNORE);
  host_before_ = before.data();
  thread_ = std::thread([this] { run(); });
  std::scoped_lock lock(current_mutex);
  current = this;
}

Heartbeat::~Heartbeat() {
  {
    std::scoped_lock lock(current_mutex);
    current = nullptr;
  }
  {
    std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
  MPI_Comm_free(&ring_);
}

void Heartbeat::fall_silent() { this_rank_fails = true; }

void Heartbeat::announce_failure() {
  std::scoped_lock staying(current_mutex);
  if (!current) return;
  if (std::this_thread::get_id() == current->thread_.get_id()) {
    current->tell_others(current->before_);  // who is the reason that this rank fails
    return;
  }
  std::unique_lock lock(current->mutex_);
  current->failing_ = true;
  current->wake_.notify_one();
  current->announced_.wait_for(lock, patience, [] { return current->announced_failure_; });
}

void Heartbeat::run() {
  now_ = heard_ = looked_ = Clock::now();
  MPI_Irecv(&received_, sizeof received_, MPI_BYTE, MPI_ANY_SOURCE, tag, ring_, &receiving_);
  while (!said_last_ || !heard_last_ || !sent_.empty()) {
    const bool failing = pause();
    progress();
    if (failing && !somebody_is_gone_) {
      tell_others(job_.rank);
      std::scoped_lock lock(mutex_);
      announced_failure_ = true;
      announced_.notify_one();
    }
    if (now_ - beaten_ >= period && (sent_.empty() || told_to_end_) && !said_last_) {
      send(next_, Word::alive);
      beaten_ = now_;
    }
    if (!heard_last_) watch_neighbour();
  }
  MPI_Cancel(&receiving_);
  MPI_Wait(&receiving_, MPI_STATUS_IGNORE);
}

// Until there is something to do. Returns whether this rank fails.
bool Heartbeat::pause() {
  std::unique_lock lock(mutex_);
  // Near the end the neighbours' last words are waited for.
  wake_.wait_for(lock, stopping_ ? milliseconds(1) : look,
                 [&] { return (stopping_ && !said_last_) || (failing_ && !somebody_is_gone_); });
  if (stopping_ && !said_last_) {
    send(next_, Word::last);
    said_last_ = true;
  }
  return failing_;
}

void Heartbeat::send(int rank, Word word, int about) {
  Sent& message = *sent_.emplace_back(std::make_unique<Sent>(Beat{word, about}));
  MPI_Isend(&message.beat, sizeof message.beat, MPI_BYTE, rank, tag, ring_, &message.request);
}

// Takes note of what was sent and what was said.
void Heartbeat::progress() {
  now_ = Clock::now();
  if (now_ - looked_ >
      own_stop) {  // it knows nothing of others, and if it is to end now, it is because of that
    heard_ = now_;
    told_to_end_ = now_;
  }
  looked_ = now_;
  std::erase_if(sent_, [](const std::unique_ptr<Sent>& message) {
    int done = 0;
    MPI_Test(&message->request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  });
  for (;;) {
    int done = 0;
    MPI_Status status;
    MPI_Test(&receiving_, &done, &status);
    if (!done) return;
    const Beat beat = received_;
    MPI_Irecv(&received_, sizeof received_, MPI_BYTE, MPI_ANY_SOURCE, tag, ring_, &receiving_);
    hear(status.MPI_SOURCE, beat);
  }
}

void Heartbeat::hear(int from, const Beat& beat) {
  if (from == before_) heard_ = now_;
  switch (beat.word) {
    case Word::alive:
      break;
    case Word::ending:
      if (!told_to_end_) told_to_end_ = now_;
      break;
    case Word::last:
      heard_last_ = true;
      break;
    case Word::gone: {
      if (std::exchange(somebody_is_gone_, true) || this_rank_fails) break;
      if (const std::string awaited = waiting().describe(); !awaited.empty()) say(awaited);
      break;
    }
  }
}

// A neighbour that says nothing for too long ends the job. One that is silent when the launcher ends the job has died. The
// launcher does so node by node, in seconds, so that whoever notices tells the others.
void Heartbeat::watch_neighbour() {
  if (!told_to_end_ && job_.signal_received() == SIGTERM) {
    told_to_end_ = now_;
    for (int rank = 0; rank < job_.size; ++rank)
      if (rank != job_.rank) send(rank, Word::ending);
  }
  const bool silent = limit_.count() > 0 && now_ - heard_ > limit_;
  const bool dead = !somebody_is_gone_ && told_to_end_ && heard_ < *told_to_end_ && now_ - heard_ > missed;
  if (!silent && !dead) return;
  std::string awaited = waiting().describe(before_);
  awaited = awaited.empty() ? "" : "; this rank " + awaited;
  if (silent)
    fail(fmt::format("nothing was heard of rank {} on {} for {} s: it is stopped, or its node is gone{}",
                     before_, host_before_, limit_.count(), awaited));
  say(fmt::format("nothing is heard of rank {} on {}: it has died, or is stopped{}", before_, host_before_,
                  awaited));
  tell_others(before_);
}

// The word is passed to each by this rank: a ring of many would take long.
void Heartbeat::tell_others(int gone) {
  somebody_is_gone_ = true;
  for (int rank = 0; rank < job_.size; ++rank)
    if (rank != job_.rank && rank != gone) send(rank, Word::gone, gone);
  // It has to leave, and the others have to look at it.
  const Clock::time_point start = Clock::now();
  do {
    std::this_thread::sleep_for(soon);
    progress();
  } while (now_ - start < 2 * look || (!sent_.empty() && now_ - start < patience));
}

}  // namespace tegula::detail
