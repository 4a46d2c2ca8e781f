// The registry: filled by static constants in the ops' own source files before main, read-only afterwards.
#include "kernels/op.hpp"

#include <algorithm>

namespace tegula {

namespace {
std::vector<const OpInfo*>& all_ops() {
  static std::vector<const OpInfo*> ops;
  return ops;
}
}  // namespace

void detail::add_to_registry(const OpInfo& info) {
  auto& ops = all_ops();
  auto place = std::ranges::lower_bound(ops, info.name, {}, [](const OpInfo* op) { return op->name; });
  if (place != ops.end() && (*place)->name == info.name)
    throw std::logic_error("two ops are named " + info.name);
  ops.insert(place, &info);
}

std::span<const OpInfo* const> registry() { return all_ops(); }

const OpInfo& find_op(std::string_view name) {
  const auto& ops = all_ops();
  auto place =
      std::ranges::lower_bound(ops, name, {}, [](const OpInfo* op) { return std::string_view(op->name); });
  if (place == ops.end() || (*place)->name != name)
    throw std::invalid_argument("no op is named " + std::string(name));
  return **place;
}

Access OpInfo::access(const void* attributes, int operand) const {
  switch (Access stated = operands[operand].access) {
    case Access::accumulate:
      return accumulates(attributes) ? Access::read_write : Access::write;
    case Access::optional:
      return Access::read;
    default:
      return stated;
  }
}

double OpInfo::bytes(const void* attributes, DType run_for) const {
  double sum = 0;
  for (int i = 0; i < static_cast<int>(operands.size()); ++i) {
    Access mode = access(attributes, i);
    if (mode == Access::scratch || !has(attributes, i)) continue;
    double touched =
        static_cast<double>(extent(attributes, i, run_for)) * static_cast<double>(size_of(dtype(i, run_for)));
    sum += mode == Access::read_write ? 2 * touched : touched;
  }
  return sum;
}

}  // namespace tegula
