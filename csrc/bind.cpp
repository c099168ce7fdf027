// `headstart._core`: models and caches for Python. The interpreter is let go while a model loads or scores.
//
// One lock a model: whatever touches it or one of its caches waits its turn, so threads of a program may share a model freely.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "model.h"
#include "weight_file.h"

namespace nb = nanobind;

namespace headstart {
namespace {

using Array = nb::ndarray<nb::numpy, float>;
using Progress = std::function<void(double)>;

}  // namespace

// Any sequence of whole numbers, arrays included.
std::vector<int32_t> integers(nb::handle sequence, const char* name) {
  nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array;
  if (nb::try_cast(sequence, array, false)) return {array.data(), array.data() + array.size()};
  std::vector<int32_t> out;
  for (nb::handle item : nb::iter(sequence)) {
    const nb::object index = nb::steal(PyNumber_Index(item.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow || value < INT32_MIN || value > INT32_MAX) throw std::invalid_argument(std::string("`") + name + "` must hold 32-bit numbers");
    out.push_back(static_cast<int32_t>(value));
  }
  return out;
}

nb::object new_array(std::initializer_list<size_t> shape, float*& data) {
  size_t n = 1;
  for (size_t size : shape) n *= size;
  auto [start, owner] = new_floats(n);
  data = start;
  return nb::cast(Array(start, shape, owner));
}

std::shared_ptr<SharedCache> open_cache(const std::shared_ptr<SharedModel>& shared) {
  return std::make_shared<SharedCache>(SharedCache{shared, std::make_shared<Cache>(shared->model)});
}

namespace {

std::shared_ptr<SharedModel> load(std::shared_ptr<WeightFile> file, int threads, std::optional<std::string> instruction_set, int context, std::optional<std::string> quantize,
                                  std::optional<Progress> progress) {
  if (threads < 1 || threads > 1024) throw std::invalid_argument("`threads` must be from 1 to 1024, got " + std::to_string(threads));
  if (context < 0) throw std::invalid_argument("`context` must be 1 or more, or 0 for the file's own, got " + std::to_string(context));
  const std::optional<Type> widest = quantized_type(quantize);
  const Kernels* kernels = instruction_set ? &kernels_for(*instruction_set) : kernels_best();
  Progress tell;
  if (progress)
    tell = [&](double fraction) {
      nb::gil_scoped_acquire acquire;
      (*progress)(fraction);
    };
  auto shared = std::make_shared<SharedModel>();
  nb::gil_scoped_release release;
  shared->model = Model::load(std::move(file), threads, kernels, context, widest, tell);
  return shared;
}

std::shared_ptr<SharedCache> fork(const SharedCache& cache) {
  return std::make_shared<SharedCache>(SharedCache{cache.owner, cache.locked([](Cache& c) { return c.fork(); })});
}

// An ask, what it keeps alive during the pass, and where its answer goes.
struct Answer {
  std::shared_ptr<SharedCache> cache;
  nb::object logits, features;
  std::vector<int64_t> best;
};

nb::list score(const std::shared_ptr<SharedModel>& shared, nb::handle asks, nb::handle feature_layers, int depth, nb::handle tiles) {
  const Config& config = shared->model->config();
  std::vector<int> layers = integers(feature_layers, "feature_layers");
  for (int layer : layers)
    if (layer < 0 || layer > config.layers) throw std::invalid_argument("`feature_layers` must be from 0 to " + std::to_string(config.layers) + ", got " + std::to_string(layer));
  const Extent extent{depth, integers(tiles, "tiles")};
  const size_t width = size_t(shared->model->num_logits(extent));
  std::vector<Ask> passes;
  std::vector<Answer> answers;
  for (nb::handle item : nb::iter(asks)) {
    const nb::tuple ask = nb::cast<nb::tuple>(item);
    if (ask.size() != 4) throw std::invalid_argument("an ask is (cache, tokens, parents, num_logits)");
    Answer answer{nb::cast<std::shared_ptr<SharedCache>>(ask[0]), nb::none(), nb::none(), {}};
    Ask pass{answer.cache->cache.get(), integers(ask[1], "tokens"), {}, nb::cast<int>(ask[3]), nullptr, nullptr, nullptr};
    const size_t tokens = pass.tokens.size();
    if (!ask[2].is_none()) {
      pass.parents = integers(ask[2], "parents");
      if (pass.parents.size() != tokens) throw std::invalid_argument("`parents` must name one parent a token");
    }
    if (pass.num_logits < 0 || size_t(pass.num_logits) > tokens) throw std::invalid_argument("`num_logits` must be between 0 and the number of tokens");
    answer.logits = new_array({size_t(pass.num_logits), width}, pass.logits);
    answer.best.resize(size_t(pass.num_logits));
    pass.best = answer.best.data();  // stays where it is when the answer moves
    if (!layers.empty()) answer.features = new_array({tokens, layers.size(), size_t(config.hidden)}, pass.features);
    passes.push_back(std::move(pass));
    answers.push_back(std::move(answer));
  }
  {
    nb::gil_scoped_release release;
    std::lock_guard lock(shared->mutex);
    shared->model->score(passes, layers, extent);
  }
  nb::list out;
  for (const Answer& answer : answers) out.append(nb::make_tuple(answer.logits, answer.features, answer.best));
  return out;
}

// Rows of one of the model's two vocabulary matrices. Files are mapped and read only: no lock is needed.
template <void (Model::*Read)(const std::vector<int32_t>&, float*) const>
nb::object vocabulary_rows(const SharedModel& shared, nb::handle tokens) {
  const std::vector<int32_t> ids = integers(tokens, "tokens");
  float* data = nullptr;
  nb::object rows = new_array({ids.size(), size_t(shared.model->config().hidden)}, data);
  nb::gil_scoped_release release;
  ((*shared.model).*Read)(ids, data);
  return rows;
}

void bind_cache(nb::module_& m) {
  nb::class_<SharedCache>(m, "Cache", "What one sequence has been scored on.")
      .def_prop_ro("length", [](const SharedCache& cache) { return cache.locked([](Cache& c) { return c.length(); }); }, "Number of tokens held.")
      .def_prop_ro("bytes", [](const SharedCache& cache) { return cache.locked([](Cache& c) { return c.bytes(); }); }, "Memory held for keys and values.")
      .def("rewind", [](const SharedCache& cache, int length) { cache.locked([&](Cache& c) { c.rewind(length); }); }, nb::arg("length"), "Forget everything after the first `length` tokens.")
      .def("keep", [](const SharedCache& cache, nb::handle path) {
        const std::vector<int32_t> indices = integers(path, "path");
        cache.locked([&](Cache& c) { c.keep(indices); });
      }, nb::arg("path"), "Of the last score keep the chain at these indices, drop the rest.")
      .def("fork", &fork, "An independent copy.");
}

template <auto Member>
auto config_value() {
  return [](const SharedModel& shared) { return shared.model->config().*Member; };
}

void bind_model(nb::module_& m) {
  nb::class_<SharedModel>(m, "Model", "A decoder-only language model.")
      .def_static("load", &load, nb::arg("file"), nb::arg("threads"), nb::arg("instruction_set") = nb::none(), nb::arg("context") = 0, nb::arg("quantize") = nb::none(), nb::arg("progress") = nb::none(),
                  "Raises FileError for a file that cannot be used, ValueError for an option that cannot. `progress` is told the fraction done.\n"
                  "`quantize`: Q8_0 or Q4_0, which matrices of more bits a weight become.")
      .def("open", &open_cache, "An empty cache.")
      .def("score", &score, nb::arg("asks"), nb::arg("feature_layers") = nb::make_tuple(), nb::arg("layers") = 0, nb::arg("tiles") = nb::make_tuple(),
           "For each ask (cache, tokens, parents or None, num_logits): logits [num_logits, vocab], features [tokens, layers, hidden] or None,\n"
           "and a list of the place of each row's largest logit: the first of equals, the first NaN where there is one.\n"
           "`layers`: stop after so many (0: all), norm and score; such tokens must be rewound before more layers score.\n"
           "`tiles`: logits of these groups of sixteen tokens only, side by side (none: all).")
      .def("embeddings", &vocabulary_rows<&Model::embeddings>, nb::arg("tokens"), "What a pass starts from, float32 [tokens, hidden].")
      .def("head_rows", &vocabulary_rows<&Model::head_rows>, nb::arg("tokens"), "Rows of the vocabulary head, as the file holds them, float32 [tokens, hidden].")
      .def_prop_ro("architecture", config_value<&Config::architecture>())
      .def_prop_ro("layers", config_value<&Config::layers>())
      .def_prop_ro("hidden", config_value<&Config::hidden>())
      .def_prop_ro("heads", config_value<&Config::heads>())
      .def_prop_ro("kv_heads", config_value<&Config::kv_heads>())
      .def_prop_ro("head_dim", config_value<&Config::head_dim>())
      .def_prop_ro("ff", config_value<&Config::ff>())
      .def_prop_ro("vocab", config_value<&Config::vocab>())
      .def_prop_ro("context", config_value<&Config::context>())
      .def_prop_ro("window", config_value<&Config::window>())
      .def_prop_ro("threads", [](const SharedModel& shared) { return shared.model->threads(); })
      .def_prop_ro("instruction_set", [](const SharedModel& shared) { return std::string(shared.model->kernels().name); })
      .def_prop_ro("weight_bytes", [](const SharedModel& shared) { return shared.model->weight_bytes(); }, "Memory held for weights.")
      .def_prop_ro("bytes_per_pass", [](const SharedModel& shared) { return shared.model->bytes_per_pass(); }, "Weights read by a pass that scores one token.")
      .def_prop_ro("cache_bytes_per_token", [](const SharedModel& shared) { return shared.model->cache_bytes_per_token(); });
}

}  // namespace
}  // namespace headstart

NB_MODULE(_core, m) {
  nb::exception<headstart::FileError>(m, "FileError");
  headstart::bind_kernels(m);
  headstart::bind_file(m);
  headstart::bind_rows(m);
  headstart::bind_cache(m);
  headstart::bind_model(m);
  headstart::bind_head(m);
  headstart::bind_products(m);
}
