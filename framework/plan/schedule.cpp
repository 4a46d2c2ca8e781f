#include "framework/plan/schedule.hpp"

#include <stdexcept>

namespace tegula::schedules {

namespace {

int in_turn(const Pipeline& p, int stage, int) { return stage % p.places; }

// As if a forward and a backward pass took as long as each other. `ahead`: forward passes of a stage before its first
// backward one.
double forward_time(int stage, int ahead, double first_backward, int m) {
  return m < ahead ? stage + m : first_backward + 2 * (m - ahead) + 1;
}
double first_backward(const Pipeline& p, int stage) { return 2 * p.stages - 1 - stage; }

double alternating(const Pipeline& p, int stage, int ahead, int m, Pass pass) {
  const double first = first_backward(p, stage);
  return pass == Pass::forward ? forward_time(stage, ahead, first, m) : first + 2 * m;
}

double zero_bubble(const Pipeline& p, int stage, int ahead, int put_off, int m, Pass pass) {
  if (pass != Pass::weight_gradient) return alternating(p, stage, ahead, m, pass);
  return alternating(p, stage, ahead, m + put_off, pass) + 0.5;
}

}  // namespace

Schedule sequential() {
  return {"sequential", in_turn, [](const Pipeline&, int, int m, Pass) { return double(m); }};
}

Schedule gpipe() {
  return {"gpipe", in_turn, [](const Pipeline& p, int stage, int m, Pass pass) {
            if (pass == Pass::forward) return double(stage + m);
            return double(p.micro_batches + 2 * p.stages - 2 - stage + m);
          }};
}

Schedule one_forward_one_backward() {
  return {"1f1b", in_turn, [](const Pipeline& p, int stage, int m, Pass pass) {
            return alternating(p, stage, p.stages - stage, m, pass);
          }};
}

Schedule interleaved() {
  return {"interleaved", in_turn, [](const Pipeline& p, int stage, int m, Pass pass) {
            const int place = stage % p.places, part = stage / p.places;
            const int parts = (p.stages + p.places - 1) / p.places;
            const int group = m / p.places, member = m % p.places;
            const int ahead = 2 * (p.places - place - 1) + (parts - 1) * p.places;
            const int turn = pass == Pass::forward ? part : parts - 1 - part;
            const double nth =
                (group * parts + turn) * p.places + member;  // of the place's passes of this kind
            if (pass == Pass::forward) return place + (nth < ahead ? nth : 2 * nth - ahead);
            return place + ahead + 2 * nth + 1;
          }};
}

Schedule zero_bubble_h1() {
  return {"zero-bubble-h1", in_turn,
          [](const Pipeline& p, int stage, int m, Pass pass) {
            return zero_bubble(p, stage, p.stages - stage, stage, m, pass);
          },
          true};
}

Schedule zero_bubble_h2() {
  return {"zero-bubble-h2", in_turn,
          [](const Pipeline& p, int stage, int m, Pass pass) {
            return zero_bubble(p, stage, 2 * (p.stages - stage) - 1, 2 * stage, m, pass);
          },
          true};
}

Schedule chimera() {
  return {"chimera",
          [](const Pipeline& p, int stage, int m) {
            const int place = stage % p.places;
            return m % 2 == 0 ? place : p.places - 1 - place;
          },
          [](const Pipeline& p, int stage, int m, Pass pass) {
            return alternating(p, stage, p.stages - stage, m / 2, pass);
          }};
}

namespace {
using Make = Schedule (*)();
constexpr Make all[] = {sequential,     gpipe,  one_forward_one_backward, interleaved, zero_bubble_h1,
                        zero_bubble_h2, chimera};
}  // namespace

Schedule find(std::string_view name) {
  std::string known;
  for (Make make : all) {
    if (Schedule schedule = make(); schedule.name == name) return schedule;
    known += (known.empty() ? "" : ", ") + make().name;
  }
  throw std::invalid_argument("[schedule] there is none called \"" + std::string(name) + "\", only " + known);
}

std::vector<std::string> names() {
  std::vector<std::string> list;
  for (Make make : all) list.push_back(make().name);
  return list;
}

}  // namespace tegula::schedules
