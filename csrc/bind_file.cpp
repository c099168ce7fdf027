// `headstart._core.File`: weights on disk for Python, from a GGUF file or from a directory of tensors that Python read.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bind.h"
#include "gguf.h"
#include "model.h"

namespace nb = nanobind;

namespace headstart {
namespace {

std::shared_ptr<WeightFile> open_gguf(const std::string& path) {
  nb::gil_scoped_release release;
  return std::make_shared<GgufFile>(path);
}

Value value_of(const std::string& key, nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) return nb::cast<bool>(value);
  if (nb::isinstance<nb::int_>(value)) return nb::cast<int64_t>(value);
  if (nb::isinstance<nb::float_>(value)) return nb::cast<double>(value);
  if (nb::isinstance<nb::str>(value)) return nb::cast<std::string>(value);
  if (nb::isinstance<nb::list>(value)) return nb::cast<std::vector<double>>(value);
  throw std::invalid_argument("`metadata` " + key + " must be a truth, a number, a text or a list of numbers");
}

// A tensor is (name, type, shape with inputs first, index of its file, offset in it, bytes).
std::shared_ptr<WeightFile> list_tensors(const std::string& path, const std::vector<std::string>& files, nb::list tensors, nb::dict metadata) {
  Values values;
  for (const auto& [key, value] : metadata) {
    const std::string name = nb::cast<std::string>(key);
    values.emplace(name, value_of(name, value));
  }
  std::vector<Listing> listings;
  for (nb::handle item : tensors) {
    const nb::tuple t = nb::cast<nb::tuple>(item);
    if (t.size() != 6) throw std::invalid_argument("a tensor is (name, type, shape, file, offset, bytes)");
    listings.push_back({nb::cast<std::string>(t[0]), nb::cast<uint32_t>(t[1]), nb::cast<std::vector<uint64_t>>(t[2]), nb::cast<size_t>(t[3]),
                        nb::cast<uint64_t>(t[4]), nb::cast<uint64_t>(t[5])});
  }
  nb::gil_scoped_release release;
  return std::make_shared<ListedFile>(path, files, listings, std::move(values));
}

// Weight type → how many numbers a file holds in it, all tensors counted.
std::map<std::string, uint64_t> types(const WeightFile& file) {
  std::map<std::string, uint64_t> counts;
  for (const Tensor& tensor : file.tensors()) {
    uint64_t numbers = 1;
    for (uint64_t size : tensor.shape) numbers *= size;
    counts[tensor_type_name(tensor.type)] += numbers;
  }
  return counts;
}

struct ToPython {
  nb::object operator()(const Strings& texts) const { return nb::make_tuple("texts", texts.count); }
  template <class T>
  nb::object operator()(const T& value) const { return nb::cast(value); }
};

nb::dict metadata(const WeightFile& file) {
  nb::dict out;
  for (const auto& [key, value] : file.values()) out[nb::bytes(key.data(), key.size())] = std::holds_alternative<std::string>(value)
      ? nb::object(nb::bytes(std::get<std::string>(value).data(), std::get<std::string>(value).size()))
      : std::visit(ToPython{}, value);
  return out;
}

nb::list tensors(const WeightFile& file) {
  nb::list out;
  for (const Tensor& t : file.tensors())
    out.append(nb::make_tuple(nb::bytes(t.name.data(), t.name.size()), tensor_type_name(t.type), t.shape, nb::bytes(reinterpret_cast<const char*>(t.data), t.bytes)));
  return out;
}

nb::tuple needs(std::shared_ptr<WeightFile> file, int context, std::optional<std::string> quantize) {
  if (context < 0) throw std::invalid_argument("`context` must be 1 or more, or 0 for the file's own, got " + std::to_string(context));
  const Model::Needs found = Model::needs(std::move(file), context, quantized_type(quantize));
  return nb::make_tuple(found.weights, found.cache_per_token, found.context);
}

}  // namespace

void bind_file(nb::module_& m) {
  nb::class_<WeightFile>(m, "File", "Weights on disk: metadata by key, tensors by name.")
      .def_prop_ro("path", &WeightFile::path)
      .def_prop_ro("size", &WeightFile::file_bytes, "Bytes of all files together.")
      .def_prop_ro("types", &types, "Weight type → how many numbers the file holds in it.")
      .def("needs", &needs, nb::arg("context") = 0, nb::arg("quantize") = nb::none(),
           "What its model will hold: bytes of weights, cache bytes a token, tokens a sequence may hold. Raises FileError if it cannot be run.")
      .def("metadata", &metadata, "Everything in the header; texts as bytes, of a list of texts only how many. For tests.")
      .def("tensors", &tensors, "(name, type, shape with inputs first, data), copied. For tests.");
  m.def("open_gguf", &open_gguf, nb::arg("path"), "A GGUF file; of a split one, name the first part. Raises FileError.");
  m.def("list_tensors", &list_tensors, nb::arg("path"), nb::arg("files"), nb::arg("tensors"), nb::arg("metadata"),
        "Tensors (name, type, shape with inputs first, index of the file, offset, bytes) in `files`, as transformers keeps them. Raises FileError.");
}

}  // namespace headstart
