// The registry: filled by static constants in the ops' own source files before main, read-only afterwards.
#include "kernels/op.hpp"

#include <algorithm>
#include <map>

namespace tegula {

namespace {
std::vector<OpInfo*>& all_ops() {
  static std::vector<OpInfo*> ops;
  return ops;
}
// By name, because a CUDA body may register before its op does.
std::map<std::string, OpInfo::CudaKernel, std::less<>>& cuda_bodies() {
  static std::map<std::string, OpInfo::CudaKernel, std::less<>> bodies;
  return bodies;
}
auto place_of(std::string_view name) {
  return std::ranges::lower_bound(all_ops(), name, {},
                                  [](const OpInfo* op) -> std::string_view { return op->name; });
}
bool holds(std::vector<OpInfo*>::iterator place, std::string_view name) {
  return place != all_ops().end() && (*place)->name == name;
}
}  // namespace

void detail::add_to_registry(OpInfo& info) {
  auto place = place_of(info.name);
  if (holds(place, info.name)) throw std::logic_error("two ops are named " + info.name);
  if (auto body = cuda_bodies().find(info.name); body != cuda_bodies().end()) info.cuda = body->second;
  all_ops().insert(place, &info);
}

void detail::add_cuda_body(const std::string& op, OpInfo::CudaKernel kernel) {
  cuda_bodies()[op] = kernel;
  if (auto place = place_of(op); holds(place, op)) (*place)->cuda = kernel;
}

std::span<const OpInfo* const> registry() { return all_ops(); }

const OpInfo& find_op(std::string_view name) {
  auto place = place_of(name);
  if (!holds(place, name)) throw std::invalid_argument("no op is named " + std::string(name));
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

namespace {

// Over the operands, without scratch: weight(access) x bytes.
template <class Weight>
double weighted_bytes(const OpInfo& op, const void* attributes, DType run_for, Weight weight) {
  double sum = 0;
  for (int i = 0; i < static_cast<int>(op.operands.size()); ++i) {
    const Access mode = op.access(attributes, i);
    if (mode == Access::scratch || !op.has(attributes, i)) continue;
    sum += weight(mode) * static_cast<double>(op.extent(attributes, i, run_for)) *
           static_cast<double>(size_of(op.dtype(i, run_for)));
  }
  return sum;
}

}  // namespace

double OpInfo::operand_bytes(const void* attributes, DType run_for) const {
  return weighted_bytes(*this, attributes, run_for, [](Access) { return 1; });
}

double OpInfo::bytes(const void* attributes, DType run_for) const {
  return weighted_bytes(*this, attributes, run_for,
                        [](Access mode) { return mode == Access::read_write ? 2 : 1; });
}

}  // namespace tegula
