// The kernels and tile layouts under their Python names, for tests and for `headstart doctor`. Arrays are copied; speed is no concern.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "bandwidth.h"
#include "bind.h"
#include "half.h"
#include "pack.h"

namespace nb = nanobind;

namespace headstart {
namespace {

constexpr Type kTypes[] = {Type::F32, Type::F16, Type::BF16, Type::Q8_0, Type::Q4_0, Type::Q4_1, Type::Q5_0, Type::Q5_1, Type::Q4_K, Type::Q5_K, Type::Q6_K};

using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Row = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy, float>;

Type type_named(const std::string& name) {
  for (Type type : kTypes)
    if (name == type_name(type)) return type;
  throw std::invalid_argument("`type_name` must be one of type_names(), got '" + name + "'");
}

std::vector<std::string> names_of_types() {
  std::vector<std::string> names;
  for (Type type : kTypes) names.emplace_back(type_name(type));
  return names;
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Kernels* kernels : kernels_here()) names.emplace_back(kernels->name);
  return names;
}

// Memory that starts on a cache line, as the model's own does.
template <class T>
class Aligned {
 public:
  explicit Aligned(size_t n) : memory_(n * sizeof(T) + 64), start_(reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) & ~uintptr_t{63})) {}
  T* data() { return start_; }

 private:
  std::vector<uint8_t> memory_;
  T* start_;
};

void check_file_bytes(Type type, const nb::bytes& data, int n, int k) {
  if (n < 1 || k < 1 || k % block_size(type) != 0)
    throw std::invalid_argument("`n` must be 1 or more and `k` a multiple of " + std::to_string(block_size(type)) + ", got " + std::to_string(n) + " and " + std::to_string(k));
  const size_t expected = size_t(n) * row_bytes(type, k);
  if (data.size() != expected) throw std::invalid_argument("`data` must hold " + std::to_string(expected) + " bytes, got " + std::to_string(data.size()));
}

Result dequantize(const std::string& name, nb::bytes data, int k) {
  const Type type = type_named(name);
  const size_t width = k > 0 ? row_bytes(type, k) : 0;
  const size_t n = width ? data.size() / width : 0;
  check_file_bytes(type, data, static_cast<int>(n), k);
  auto [out, owner] = new_floats(n * size_t(k));
  for (size_t row = 0; row < n; row++) dequantize_row(type, reinterpret_cast<const uint8_t*>(data.c_str()) + row * width, k, out + row * size_t(k));
  return Result(out, {n, size_t(k)}, owner);
}

// Activations with their quantised form, as the decoder prepares them.
struct Activations {
  Aligned<float> x, scale, sum;
  Aligned<int8_t> q;
  Aligned<int32_t> minus_half_sum;
  Acts acts;

  Activations(const Kernels& kernels, const Rows& rows, bool quantized)
      : x(rows.size()), scale(rows.size() / kGroup + 1), sum(rows.size() / kGroup + 1), q(rows.size()), minus_half_sum(rows.size() / 16 + 1) {
    const int k = static_cast<int>(rows.shape(1));
    if (quantized && k % kGroup != 0) throw std::invalid_argument("`x` must have a multiple of 32 columns, got " + std::to_string(k));
    std::memcpy(x.data(), rows.data(), rows.size() * sizeof(float));
    acts = {k, x.data(), q.data(), scale.data(), sum.data(), minus_half_sum.data()};
    if (quantized)
      for (size_t row = 0; row < rows.shape(0); row++) kernels.quantize(acts, static_cast<int>(row), 0, k);
  }
};

Result matmul(const std::string& set, const std::string& name, nb::bytes data, int n, int k, const Rows& x) {
  const Kernels& kernels = kernels_for(set);
  const Type type = type_named(name);
  check_file_bytes(type, data, n, k);
  if (x.shape(1) != size_t(k)) throw std::invalid_argument("`x` must have " + std::to_string(k) + " columns, got " + std::to_string(x.shape(1)));
  Matrix w{type, n, k, tile_bytes(type, k), nullptr};
  Aligned<uint8_t> tiles(size_t(w.num_tiles()) * w.tile_bytes);
  w.tiles = tiles.data();
  const size_t stride = row_bytes(type, k);
  for (int t = 0; t < w.num_tiles(); t++)
    pack_tile(type, reinterpret_cast<const uint8_t*>(data.c_str()) + size_t(t) * kTile * stride, stride, std::min(kTile, n - t * kTile), k, tiles.data() + size_t(t) * w.tile_bytes);
  const Activations activations(kernels, x, layout(type).group_bytes != 0);
  const size_t rows = x.shape(0);
  auto [out, owner] = new_floats(rows * size_t(n));
  kernels.matmul(w, activations.acts, static_cast<int>(rows), 0, w.num_tiles(), out, size_t(n));
  return Result(out, {rows, size_t(n)}, owner);
}

nb::bytes weight_blocks(const std::string& name, const Rows& x) {
  const std::optional<Type> type = quantized_type(name);
  const int width = static_cast<int>(x.shape(1));
  if (width % kGroup != 0) throw std::invalid_argument("`x` must have a multiple of 32 columns, got " + std::to_string(width));
  const size_t bytes = row_bytes(*type, width);
  std::vector<uint8_t> blocks(x.shape(0) * bytes);
  for (size_t row = 0; row < x.shape(0); row++)
    if (!quantize_row(*type, x.data() + row * x.shape(1), width, blocks.data() + row * bytes)) throw std::invalid_argument("`x` holds numbers that are not finite or too large for " + name);
  return nb::bytes(blocks.data(), blocks.size());
}

nb::tuple quantize(const std::string& set, const Rows& x) {
  const Activations a(kernels_for(set), x, true);
  auto [values, values_owner] = new_floats(x.size());
  auto [scales, scales_owner] = new_floats(x.size() / kGroup);
  for (size_t i = 0; i < x.size(); i++) values[i] = a.acts.q[i];
  std::memcpy(scales, a.acts.scale, x.size() / kGroup * sizeof(float));
  return nb::make_tuple(Result(values, {x.shape(0), x.shape(1)}, values_owner), Result(scales, {x.shape(0), x.shape(1) / kGroup}, scales_owner));
}

Result attend(const std::string& set, const Rows& query, const Rows& keys, const Rows& values, int first, int chain, std::vector<int32_t> tail) {
  const Kernels& kernels = kernels_for(set);
  const size_t heads = query.shape(0), dim = query.shape(1), slots = keys.shape(0), padded = (slots + kTile - 1) / kTile * kTile;
  if (keys.shape(1) != dim || values.shape(0) != slots || values.shape(1) != dim || dim % kTile != 0)
    throw std::invalid_argument("`query`, `keys` and `values` must agree on their width, a multiple of 16");
  bool inside = 0 <= first && first <= chain && size_t(chain) <= slots && size_t(chain - first) + tail.size() > 0;
  for (int32_t slot : tail) inside = inside && 0 <= slot && size_t(slot) < slots;
  if (!inside) throw std::invalid_argument("`first`, `chain` and `tail` must name at least one slot, all of them held");
  Aligned<uint16_t> k(padded * dim), v(padded * dim);
  for (size_t slot = 0; slot < slots; slot++)
    for (size_t d = 0; d < dim; d++) {
      k.data()[(slot / kTile * dim + d) * kTile + slot % kTile] = float_to_half(keys(slot, d));
      v.data()[slot * dim + d] = float_to_half(values(slot, d));
    }
  const size_t most = size_t(chain - first) + tail.size();
  Aligned<float> scratch(heads * (most + 32 + dim));
  auto [out, owner] = new_floats(heads * dim);
  const Seen seen{chain, tail.data(), int(tail.size())};
  kernels.attend({query.data(), heads * dim, 1.0f, 1, int(heads), int(dim), k.data(), v.data(), first, &seen, scratch.data(), out, heads * dim});
  return Result(out, {heads, dim}, owner);
}

Result rms_norm(const std::string& set, const Row& x, const Row& weight, float eps) {
  if (x.size() != weight.size()) throw std::invalid_argument("`weight` must be as long as `x`");
  auto [out, owner] = new_floats(x.size());
  kernels_for(set).rms_norm(x.data(), weight.data(), eps, static_cast<int>(x.size()), out);
  return Result(out, {x.size()}, owner);
}

Result gate(const std::string& set, const std::string& name, const Row& gate, const Row& up) {
  if (gate.size() != up.size()) throw std::invalid_argument("`up` must be as long as `gate`");
  if (name != "silu" && name != "gelu") throw std::invalid_argument("`activation` must be silu or gelu, got '" + name + "'");
  auto [out, owner] = new_floats(gate.size());
  std::memcpy(out, gate.data(), gate.size() * sizeof(float));
  (name == "silu" ? kernels_for(set).silu_mul : kernels_for(set).gelu_mul)(out, up.data(), static_cast<int>(gate.size()));
  return Result(out, {gate.size()}, owner);
}

std::vector<int> to_half(const std::string& set, const Row& x) {
  std::vector<uint16_t> halves(x.size());
  kernels_for(set).to_half(x.data(), halves.data(), static_cast<int>(x.size()));
  return {halves.begin(), halves.end()};
}

double bandwidth(int threads, size_t megabytes, int repeats) {
  if (threads < 1 || threads > 1024 || megabytes < 1 || megabytes > 1 << 20 || repeats < 1)
    throw std::invalid_argument("`threads` must be from 1 to 1024, `megabytes` from 1 to 1048576 and `repeats` 1 or more");
  nb::gil_scoped_release release;
  return read_bandwidth(threads, megabytes << 20, repeats);
}

int argmax(const std::string& set, const Row& x) {
  if (x.size() == 0) throw std::invalid_argument("`x` must not be empty");
  return kernels_for(set).argmax(x.data(), static_cast<int>(x.size()));
}

std::vector<uint32_t> noise(const std::string& set, uint64_t seed, uint64_t position, uint32_t group, uint32_t half) {
  std::vector<uint32_t> words(64);
  kernels_for(set).noise(seed, position, group, half, words.data());
  return words;
}

}  // namespace

const Kernels& kernels_for(const std::string& name) {
  if (const Kernels* kernels = kernels_named(name.c_str())) return *kernels;
  std::string known;
  for (const std::string& set : instruction_sets()) known += (known.empty() ? "" : ", ") + set;
  throw std::invalid_argument("`instruction_set` must be one this CPU and this build have (" + known + "), got '" + name + "'");
}

std::optional<Type> quantized_type(const std::optional<std::string>& name) {
  if (!name) return std::nullopt;
  if (*name != "Q8_0" && *name != "Q4_0") throw std::invalid_argument("`quantize` must be Q8_0 or Q4_0, got '" + *name + "'");
  return type_named(*name);
}

std::pair<float*, nb::capsule> new_floats(size_t n) {
  float* data = new float[n];
  return {data, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<float*>(p); })};
}

void bind_kernels(nb::module_& m) {
  m.def("read_bandwidth", &bandwidth, nb::arg("threads"), nb::arg("megabytes"), nb::arg("repeats"), "Bytes per second that so many threads read from memory, the best of `repeats`.");
  m.def("instruction_sets", &instruction_sets, "Names of the instruction sets that this build holds and this CPU runs, the fastest first.");
  m.def("best_instruction_set", [] { return std::string(kernels_best()->name); }, "The one a model uses unless told otherwise.");
  m.def("type_names", &names_of_types, "Names of the weight types that can be read.");
  m.def("dequantize", &dequantize, nb::arg("type_name"), nb::arg("data"), nb::arg("k"), "Rows of `k` weights as a file holds them → float32 [rows, k].");
  m.def("matmul", &matmul, nb::arg("instruction_set"), nb::arg("type_name"), nb::arg("data"), nb::arg("n"), nb::arg("k"), nb::arg("x"), "x [rows, k] times the file's matrix [n, k], transposed: float32 [rows, n].");
  m.def("quantize", &quantize, nb::arg("instruction_set"), nb::arg("x"), "The 8-bit integers (as floats, [rows, k]) and scales [rows, k/32] that stand for x [rows, k].");
  m.def("weight_blocks", &weight_blocks, nb::arg("type_name"), nb::arg("x"), "Weights [rows, k] as a file would hold them in Q8_0 or Q4_0.");
  m.def("attend", &attend, nb::arg("instruction_set"), nb::arg("query"), nb::arg("keys"), nb::arg("values"), nb::arg("first"), nb::arg("chain"), nb::arg("tail"), "One query [heads, dim] over slots first … chain − 1 and `tail` of keys and values [slots, dim]: float32 [heads, dim].");
  m.def("rms_norm", &rms_norm, nb::arg("instruction_set"), nb::arg("x"), nb::arg("weight"), nb::arg("eps"), "x / √(mean x² + eps) · weight.");
  m.def("gate", &gate, nb::arg("instruction_set"), nb::arg("activation"), nb::arg("gate"), nb::arg("up"), "activation(gate) · up, for 'silu' or 'gelu' (its tanh form).");
  m.def("to_half", &to_half, nb::arg("instruction_set"), nb::arg("x"), "The bits of each number as a half float.");
  m.def("noise", &noise, nb::arg("instruction_set"), nb::arg("seed"), nb::arg("position"), nb::arg("group"), nb::arg("half"), "Upper (half 0) or lower (1) noise words of the 64 tokens of a group.");
  m.def("argmax", &argmax, nb::arg("instruction_set"), nb::arg("x"), "Index of the largest entry, the first of equals; of the first NaN where there is one.");
}

}  // namespace headstart
