// Row helpers under their Python names. They take and fill numpy arrays in place; the interpreter is let go for none of them, since
// each lasts microseconds.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind.h"
#include "rows.h"

namespace nb = nanobind;

namespace headstart {
namespace {

template <class T>
using Numbers = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = Numbers<float>;
using Filled = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = Numbers<int64_t>;

// Asked for once: under some virtual machines each question to the CPU takes tens of microseconds.
const Kernels& kernels() {
  static const Kernels* const best = kernels_best();
  return *best;
}

void same_length(size_t a, size_t b, const char* name) {
  if (a != b) throw std::invalid_argument(std::string("`") + name + "` must be as long as the first array");
}

void softmax(const Floats& logits, float top, float temperature, const Filled& out) {
  same_length(logits.size(), out.size(), "out");
  kernels().softmax(logits.data(), top, temperature, static_cast<int>(logits.size()), out.data());
}

std::pair<int64_t, double> at_least(const Floats& x, float threshold) {
  int64_t count = 0;
  const double sum = kernels().at_least(x.data(), threshold, static_cast<int>(x.size()), &count);
  return {count, sum};
}

double residual(const Floats& p, const Floats& q, float scale, const Filled& out) {
  same_length(p.size(), q.size(), "q");
  same_length(p.size(), out.size(), "out");
  return kernels().residual(p.data(), q.data(), scale, static_cast<int>(p.size()), out.data());
}

// Ids index the other array: none may be outside it.
void inside(const Ids& ids, const Floats& q, size_t n) {
  same_length(ids.size(), q.size(), "q");
  bool good = true;
  for (size_t i = 0; i < ids.size(); i++) good = good && ids.data()[i] >= 0 && static_cast<size_t>(ids.data()[i]) < n;
  if (!good) throw std::invalid_argument("`ids` must be places of `p`, from 0 to " + std::to_string(n) + " − 1");
}

double common_of(const Floats& p, const Ids& ids, const Floats& q, float scale) {
  inside(ids, q, p.size());
  return common(p.data(), ids.data(), q.data(), static_cast<int64_t>(ids.size()), scale);
}

double beyond_of(const Floats& p, const Ids& ids, const Floats& q, float scale, const std::optional<Filled>& out) {
  inside(ids, q, p.size());
  if (out) same_length(p.size(), out->size(), "out");
  return beyond(p.data(), static_cast<int64_t>(p.size()), ids.data(), q.data(), static_cast<int64_t>(ids.size()), scale, out ? out->data() : nullptr);
}

int64_t pick_place(const Floats& probs, double uniform) { return pick(probs.data(), static_cast<int64_t>(probs.size()), uniform); }

template <class Real>
int64_t race_places(uint64_t seed, uint64_t position, const Numbers<Real>& probs, const std::optional<Ids>& ids) {
  if (ids) same_length(probs.size(), ids->size(), "ids");
  return race(kernels(), seed, position, probs.data(), ids ? ids->data() : nullptr, static_cast<int64_t>(probs.size()));
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def("softmax", &softmax, nb::arg("logits"), nb::arg("top"), nb::arg("temperature"), nb::arg("out"), "out = e^((logits − top)/temperature), normalised.");
  m.def("at_least", &at_least, nb::arg("x"), nb::arg("threshold"), "How many entries are at least `threshold`, and their sum.");
  m.def("residual", &residual, nb::arg("p"), nb::arg("q"), nb::arg("scale"), nb::arg("out"), "out = max(scale·p − q, 0); comes back: its sum.");
  m.def("common", &common_of, nb::arg("p"), nb::arg("ids"), nb::arg("q"), nb::arg("scale"), "Σ min(scale·p, q) over the places `ids` of p, which q is of.");
  m.def("beyond", &beyond_of, nb::arg("p"), nb::arg("ids"), nb::arg("q"), nb::arg("scale"), nb::arg("out").none() = nb::none(),
        "out = max(scale·p − q, 0), q being of the places `ids` and zero elsewhere; comes back: its sum. Without `out`, the sum alone.");
  m.def("pick", &pick_place, nb::arg("probs"), nb::arg("uniform"), "The place where the running sum first exceeds uniform · total; −1 where all are zero.");
  m.def("fixed_log", &fixed_log, nb::arg("u"), "Natural log of u in (0, 1), the same bits on every machine.");
  m.def("race", &race_places<float>, nb::arg("seed"), nb::arg("position"), nb::arg("probs"), nb::arg("ids").none(),
        "The place whose keyed clock over its probability is least; −1 where all are zero.");
  m.def("race", &race_places<double>, nb::arg("seed"), nb::arg("position"), nb::arg("probs"), nb::arg("ids").none());
}

}  // namespace headstart
