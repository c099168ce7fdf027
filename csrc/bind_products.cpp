// `headstart._core.Products`: matrices for Python, beside the model whose threads multiply by them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bind.h"
#include "products.h"

namespace nb = nanobind;

namespace headstart {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::shared_ptr<Products> load(const std::shared_ptr<SharedModel>& model, nb::list tensors, const std::string& quantize) {
  const Type widest = *quantized_type(quantize);
  std::vector<Bits> arrays;
  const std::vector<Tensor> found = tensors_of(tensors, arrays);
  nb::gil_scoped_release release;
  return std::make_shared<Products>(found, model->model, widest);
}

nb::object multiply(const Products& products, size_t index, const Rows& x, std::optional<int> outputs) {
  if (index >= products.size()) throw std::invalid_argument("`index` must be below " + std::to_string(products.size()) + ", got " + std::to_string(index));
  const Matrix& matrix = products[index];
  const int wanted = outputs.value_or(matrix.n);
  if (wanted < 1 || wanted > matrix.n) throw std::invalid_argument("`outputs` must be from 1 to " + std::to_string(matrix.n) + ", got " + std::to_string(wanted));
  if (x.shape(1) != size_t(matrix.k) || x.shape(0) > 1 << 20) throw std::invalid_argument("`x` must be rows of " + std::to_string(matrix.k) + " numbers, got " + std::to_string(x.shape(0)) + " of " + std::to_string(x.shape(1)));
  float* out = nullptr;
  nb::object array = new_array({x.shape(0), size_t(wanted)}, out);
  nb::gil_scoped_release release;
  products.multiply(index, x.data(), int(x.shape(0)), wanted, out);
  return array;
}

}  // namespace

void bind_products(nb::module_& m) {
  nb::class_<Products>(m, "Products", "Matrices beside a model, on its threads.")
      .def_static("load", &load, nb::arg("model"), nb::arg("tensors"), nb::arg("quantize") = "Q8_0",
                  "`tensors` (name, array, type), matrices [outputs, inputs] whose inputs are a multiple of 32. `quantize`: Q8_0 or Q4_0, which\n"
                  "wider ones become. Raises FileError for numbers that cannot be quantised.")
      .def("multiply", &multiply, nb::arg("index"), nb::arg("x"), nb::arg("outputs") = nb::none(),
           "The matrix at `index` by each row of `x` [rows, inputs]: float32 [rows, outputs], or only the first so many outputs. A row does not depend on the others.")
      .def_prop_ro("weight_bytes", &Products::weight_bytes, "Memory held for weights.");
}

}  // namespace headstart
