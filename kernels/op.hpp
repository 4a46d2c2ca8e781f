// The form in which an operation on tiles is stated, once. An op is a struct: its members are the
// attributes of one task (extents, strides, flags; trivially copyable), its member functions the kernels.
//
//   struct Softmax {                                  // y[r, c] = exp(x[r, c]) / sum_c exp(x[r, c])
//     static constexpr std::string_view name = "softmax";
//     std::int32_t rows, cols;
//     std::array<std::int64_t, 2> extents(DType) const;               // elements of each operand
//     double flops() const;
//     void reference(In<double> x, Out<double> y) const;            // plain loops: the definition
//     static std::vector<Softmax> samples();                        // tested all, the last one timed
//     template <class T> void cpu(In<T> x, Out<T> y) const;         // softmax.cpp
//     template <class T> void cuda(Stream, In<T> x, Out<T> y) const;  // softmax.cu
//   };
//
// The signature of `cpu` is the operand list: access modes, element types, order. From the struct are
// derived the StarPU codelet, access modes, footprint, cost, dtype dispatch, trace name, tests and
// benchmark. `const Register<Softmax> registered;` in softmax.cpp enters it into the registry,
// `const RegisterCuda<Softmax> registered_cuda;` in softmax.cu adds the CUDA body where nvcc is found.
//
// Optional members: `using dtypes = Types<float>` (default RealTypes); `bool accumulates() const` where
// an operand is Acc; `static constexpr Scalar scalars[]`; `bool has(int operand) const` where an operand is
// Maybe; `double sample(int operand, double u) const`, which maps u in [0, 1) to an input of the
// generated tests (default 2u - 1); `static constexpr double ulps`, the error that the tests allow.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/dtype.hpp"

struct CUstream_st;

namespace tegula {

using Stream = CUstream_st*;  // cudaStream_t, without needing CUDA's headers

enum class Access : std::uint8_t {
  read,
  write,  // every element is overwritten
  read_write,
  accumulate,  // read_write where the op's accumulates() says so, else write
  scratch,     // memory for the duration of one task, owned by the worker
  optional,    // read, or absent (a null pointer) where the op's has() says so
};

template <class T, Access access_mode>
struct Operand {
  using Element = T;
  using Pointer =
      std::conditional_t<access_mode == Access::read || access_mode == Access::optional, const T*, T*>;
  static constexpr Access access = access_mode;
  Pointer pointer;
  operator Pointer() const {
    return pointer;
  }  // NOLINT(google-explicit-constructor): is a pointer, with a role
};
template <class T>
using In = Operand<T, Access::read>;
template <class T>
using Out = Operand<T, Access::write>;
template <class T>
using InOut = Operand<T, Access::read_write>;
template <class T>
using Acc = Operand<T, Access::accumulate>;
template <class T>
using Scratch = Operand<T, Access::scratch>;
template <class T>
using Maybe = Operand<T, Access::optional>;

// An attribute (a double) that changes from step to step, as the learning rate does: given by name when a
// program runs, written into the attributes at `offset`. Optional ones keep what the attributes say.
struct Scalar {
  std::string_view name;
  std::size_t offset;
  bool optional = false;
};

struct OperandInfo {
  Access access;
  bool fixed;  // true: always of type `dtype`; false: of the type the op is run for
  DType dtype;
};

// What the rest of the system knows of an op: the struct with its type erased.
struct OpInfo {
  using Kernel = void (*)(const void* attributes, void* const* tiles, DType dtype);
  using CudaKernel = void (*)(const void* attributes, void* const* tiles, DType dtype, Stream stream);

  std::string name;
  std::vector<OperandInfo> operands;
  std::vector<DType> dtypes;
  std::span<const Scalar> scalars;
  std::size_t attributes_bytes = 0;
  double ulps = 0;

  Kernel cpu = nullptr;
  CudaKernel cuda = nullptr;  // stays null in a build without CUDA
  void (*reference)(const void* attributes,
                    void* const* tiles) = nullptr;  // tiles of double (fixed types as stated)
  double (*flops)(const void* attributes) = nullptr;
  std::int64_t (*extent)(const void* attributes, int operand, DType dtype) = nullptr;
  bool (*accumulates)(const void* attributes) = nullptr;
  bool (*has)(const void* attributes, int operand) = nullptr;
  double (*sample)(const void* attributes, int operand, double u) = nullptr;
  std::vector<std::vector<std::byte>> (*samples)() = nullptr;

  DType dtype(int operand, DType run_for) const {
    return operands[operand].fixed ? operands[operand].dtype : run_for;
  }
  // How `operand` is accessed by a task with these attributes: never accumulate or optional.
  Access access(const void* attributes, int operand) const;
  // Bytes of its operands, each once, without scratch: the size of a task in models of its time.
  double operand_bytes(const void* attributes, DType run_for) const;
  // Bytes a task must move at least: each operand once, twice where it is read and written.
  double bytes(const void* attributes, DType run_for) const;
};

// All registered ops, in the order of their names.
std::span<const OpInfo* const> registry();
// The registered op of this name; throws std::invalid_argument if there is none.
const OpInfo& find_op(std::string_view name);

namespace detail {

void add_to_registry(OpInfo& info);
void add_cuda_body(const std::string& op, OpInfo::CudaKernel kernel);

template <class>
struct Signature;
template <class Op, class... A>
struct Signature<void (Op::*)(A...) const> {
  static constexpr std::size_t size = sizeof...(A);
  static constexpr std::array access = {A::access...};
  static constexpr std::array dtype = {dtype_of<typename A::Element>...};

  template <class F>
  static void call(F&& f, void* const* tiles) {
    [&]<std::size_t... I>(std::index_sequence<I...>) { f(A{static_cast<typename A::Pointer>(tiles[I])}...); }
    (std::make_index_sequence<sizeof...(A)>{});
  }
};

template <class Op>
struct DTypesOf {
  using type = RealTypes;
};
template <class Op>
requires requires { typename Op::dtypes; }
struct DTypesOf<Op> {
  using type = typename Op::dtypes;
};

// Calls f.template operator()<T>() for the type among the op's dtypes that `dtype` names.
template <class F, class... T>
void dispatch(Types<T...>, std::string_view op, DType dtype, F&& f) {
  bool done = ((dtype_of<T> == dtype && (f.template operator()<T>(), true)) || ...);
  if (!done)
    throw std::invalid_argument("[" + std::string(op) + "] has no kernel for " + std::string(name_of(dtype)));
}

template <class Op>
OpInfo& mutable_info();

template <class Op>
std::string name_of() {
  if constexpr (std::is_invocable_v<decltype(Op::name)>)
    return Op::name();
  else
    return std::string(Op::name);
}

template <class Op>
OpInfo describe() {
  using DTypes = typename DTypesOf<Op>::type;
  using Single = Signature<decltype(&Op::template cpu<float>)>;
  using Double = Signature<decltype(&Op::template cpu<double>)>;
  static_assert(std::is_trivially_copyable_v<Op>, "attributes travel as bytes");

  OpInfo info;
  info.name = name_of<Op>();
  for (std::size_t i = 0; i < Single::size; ++i)
    info.operands.push_back({Single::access[i], Single::dtype[i] == Double::dtype[i], Single::dtype[i]});
  [&]<class... T>(Types<T...>) { info.dtypes = {dtype_of<T>...}; }(DTypes{});
  if constexpr (requires { Op::scalars; }) info.scalars = Op::scalars;
  info.attributes_bytes = sizeof(Op);
  if constexpr (requires { Op::ulps; })
    info.ulps = Op::ulps;
  else
    info.ulps = 16;

  info.cpu = [](const void* attributes, void* const* tiles, DType dtype) {
    const Op& op = *static_cast<const Op*>(attributes);
    dispatch(DTypes{}, mutable_info<Op>().name, dtype, [&]<class T>() {
      using S = Signature<decltype(&Op::template cpu<T>)>;
      S::call([&](auto... operand) { op.template cpu<T>(operand...); }, tiles);
    });
  };
  info.reference = [](const void* attributes, void* const* tiles) {
    const Op& op = *static_cast<const Op*>(attributes);
    using S = Signature<decltype(&Op::reference)>;
    S::call([&](auto... operand) { op.reference(operand...); }, tiles);
  };
  info.flops = [](const void* attributes) { return static_cast<const Op*>(attributes)->flops(); };
  info.extent = [](const void* attributes, int operand, DType dtype) -> std::int64_t {
    return static_cast<const Op*>(attributes)->extents(dtype)[operand];
  };
  info.accumulates = [](const void* attributes) {
    if constexpr (requires(const Op& op) { op.accumulates(); })
      return static_cast<const Op*>(attributes)->accumulates();
    else
      return false;
  };
  info.has = [](const void* attributes, int operand) {
    if constexpr (requires(const Op& op) { op.has(0); })
      return static_cast<const Op*>(attributes)->has(operand);
    else
      return true;
  };
  info.sample = [](const void* attributes, int operand, double u) {
    if constexpr (requires(const Op& op) { op.sample(0, 0.5); })
      return static_cast<const Op*>(attributes)->sample(operand, u);
    else
      return 2 * u - 1;
  };
  info.samples = [] {
    std::vector<std::vector<std::byte>> all;
    for (const Op& op : Op::samples()) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&op);
      all.emplace_back(bytes, bytes + sizeof(Op));
    }
    return all;
  };
  return info;
}

// The one OpInfo of an op.
template <class Op>
OpInfo& mutable_info() {
  static OpInfo info = describe<Op>();
  return info;
}

}  // namespace detail

// Found by name, so that only an op's own source files need its kernels.
template <class Op>
const OpInfo& op_info() {
  static const OpInfo& info = find_op(detail::name_of<Op>());
  return info;
}

// Enters an op into the registry: one constant per op, in the source file of its CPU body.
template <class Op>
struct Register {
  Register() { detail::add_to_registry(detail::mutable_info<Op>()); }
};

// Adds the CUDA body: one constant per op, in its .cu file.
template <class Op>
struct RegisterCuda {
  RegisterCuda() { detail::add_cuda_body(detail::name_of<Op>(), kernel); }

  // Of the op it needs the signature only: the CPU body is in another file.
  static void kernel(const void* attributes, void* const* tiles, DType dtype, Stream stream) {
    const Op& op = *static_cast<const Op*>(attributes);
    static const std::string name = detail::name_of<Op>();
    detail::dispatch(typename detail::DTypesOf<Op>::type(), name, dtype, [&]<class T>() {
      using S = detail::Signature<decltype(&Op::template cpu<T>)>;
      S::call([&](auto... operand) { op.template cuda<T>(stream, operand...); }, tiles);
    });
  }
};

// What is set aside for `bytes` of scratch: one of eight sizes per power of two, so that ragged tiles share the memory of whole
// ones.
inline std::size_t scratch_room(std::size_t bytes) {
  if (bytes <= 64) return bytes;
  const std::size_t step = std::bit_floor(bytes - 1) / 8;
  return (bytes + step - 1) / step * step;
}

}  // namespace tegula
