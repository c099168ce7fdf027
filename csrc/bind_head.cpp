// `headstart._core.Head`: a draft head for Python, beside the model whose threads it runs on.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "head.h"
#include "model.h"

namespace nb = nanobind;

namespace headstart {

namespace {

Tensor tensor_of(const nb::tuple& item, Bits& array) {
  if (item.size() != 3) throw std::invalid_argument("a tensor is (name, array, type)");
  array = nb::cast<Bits>(item[1]);
  const std::string type = nb::cast<std::string>(item[2]);
  Tensor t;
  t.name = nb::cast<std::string>(item[0]);
  t.type = static_cast<uint32_t>(type == "F32" ? Type::F32 : type == "F16" ? Type::F16 : Type::BF16);
  if ((type != "F32" && type != "F16" && type != "BF16") || array.itemsize() != (type == "F32" ? 4 : 2))
    throw std::invalid_argument("tensor " + t.name + " must be F32, F16 or BF16, in numbers of that size");
  if (array.ndim() < 1 || array.ndim() > 2) throw std::invalid_argument("tensor " + t.name + " must be a vector or a matrix");
  for (size_t axis = array.ndim(); axis-- > 0;) t.shape.push_back(array.shape(axis));
  t.data = static_cast<const uint8_t*>(array.data());
  t.bytes = array.nbytes();
  return t;
}

}  // namespace

std::vector<Tensor> tensors_of(const nb::list& items, std::vector<Bits>& arrays) {
  std::vector<Tensor> found;
  arrays.resize(nb::len(items));
  for (size_t i = 0; i < arrays.size(); i++) found.push_back(tensor_of(nb::cast<nb::tuple>(items[i]), arrays[i]));
  return found;
}

namespace {

using States = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

struct Head {
  std::shared_ptr<SharedModel> shared;
};

std::shared_ptr<Head> load(const std::shared_ptr<SharedModel>& target, nb::list tensors, nb::handle ids, int generation, bool norm_before_residual, int hidden, int states, int heads,
                           int kv_heads, int head_dim, int ff, float eps, const std::vector<float>& rope, float rope_magnitude, const std::string& quantize) {
  if (generation != 1 && generation != 3) throw std::invalid_argument("`generation` must be 1 or 3, got " + std::to_string(generation));
  const Type widest = *quantized_type(quantize);
  const HeadShape shape{generation == 1, norm_before_residual, hidden, states, heads, kv_heads, head_dim, ff, eps, rope, rope_magnitude, integers(ids, "ids")};
  std::vector<Bits> arrays;
  const std::vector<Tensor> found = tensors_of(tensors, arrays);
  auto head = std::make_shared<Head>(Head{std::make_shared<SharedModel>()});
  nb::gil_scoped_release release;
  head->shared->model = Model::load_head(shape, found, target->model, widest);
  return head;
}

// What an ask keeps alive during the pass, and where its answer goes.
struct Answer {
  std::shared_ptr<SharedCache> cache;
  States hidden;
  nb::object outputs, logits;
  std::vector<int64_t> best;
};

nb::list score(const Head& head, nb::handle asks, bool from_target) {
  const Model& model = *head.shared->model;
  const Extent extent{0, {}, from_target};
  const size_t hidden = size_t(model.config().hidden), width = from_target ? size_t(model.state_width()) : hidden, row = size_t(model.num_logits(extent));
  std::vector<Ask> passes;
  std::vector<Answer> answers;
  for (nb::handle item : nb::iter(asks)) {
    const nb::tuple ask = nb::cast<nb::tuple>(item);
    if (ask.size() != 6) throw std::invalid_argument("an ask is (cache, tokens, hidden, parents, grows, num_logits)");
    Answer answer{nb::cast<std::shared_ptr<SharedCache>>(ask[0]), nb::cast<States>(ask[2]), nb::none(), nb::none(), {}};
    Ask pass;
    pass.cache = answer.cache->cache.get();
    pass.tokens = integers(ask[1], "tokens");
    if (!ask[3].is_none()) pass.parents = integers(ask[3], "parents");
    pass.grows = nb::cast<bool>(ask[4]);
    pass.num_logits = nb::cast<int>(ask[5]);
    pass.hidden = answer.hidden.data();
    const size_t tokens = pass.tokens.size();
    if (tokens == 0) throw std::invalid_argument("`tokens` must hold at least one token");
    if (answer.hidden.shape(0) != tokens || answer.hidden.shape(1) != width)
      throw std::invalid_argument("`hidden` must be " + std::to_string(width) + " numbers for each of " + std::to_string(tokens) + " tokens");
    if (pass.num_logits < 0 || size_t(pass.num_logits) > tokens) throw std::invalid_argument("`num_logits` must be between 0 and the number of tokens");
    answer.outputs = new_array({tokens, hidden}, pass.features);
    answer.logits = new_array({size_t(pass.num_logits), row}, pass.logits);
    answer.best.resize(size_t(pass.num_logits));
    pass.best = answer.best.data();  // stays where it is when the answer moves
    passes.push_back(std::move(pass));
    answers.push_back(std::move(answer));
  }
  {
    nb::gil_scoped_release release;
    std::lock_guard lock(head.shared->mutex);
    model.score(passes, {1}, extent);
  }
  nb::list out;
  for (const Answer& answer : answers) out.append(nb::make_tuple(answer.outputs, answer.logits, answer.best));
  return out;
}

}  // namespace

void bind_head(nb::module_& m) {
  nb::class_<Head>(m, "Head", "A draft head (EAGLE): one layer that continues a model's hidden states.")
      .def_static("load", &load, nb::arg("target"), nb::arg("tensors"), nb::arg("ids"), nb::kw_only(), nb::arg("generation"), nb::arg("norm_before_residual"), nb::arg("hidden"),
                  nb::arg("states"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("ff"), nb::arg("eps"), nb::arg("rope"), nb::arg("rope_magnitude") = 1.0f, nb::arg("quantize") = "Q8_0",
                  "`tensors` (name, array, type) by the names of published checkpoints; embeddings and vocabulary rows may be missing: the target's are\n"
                  "used then. `ids`: the target's id of each token that is drafted. `rope`: the angle per position of each pair of dimensions. `quantize`: Q8_0 or Q4_0, which wider matrices of the layer become. Raises FileError for a head that cannot be run.")
      .def("open", [](const Head& head) { return open_cache(head.shared); }, "An empty cache.")
      .def("score", &score, nb::arg("asks"), nb::arg("from_target") = false,
           "For each ask (cache, tokens, hidden, parents or None, grows, num_logits): what the layer puts out [tokens, hidden], logits\n"
           "[num_logits, ids], and a list of the place of each row's largest. `hidden` [tokens, width] are earlier outputs, or with `from_target` hidden states of the target. Tokens that a\n"
           "tree `grows` by name their parents among all its tokens since it was begun.")
      .def_prop_ro("weight_bytes", [](const Head& head) { return head.shared->model->weight_bytes(); }, "Memory held for weights.")
      .def_prop_ro("bytes_per_pass", [](const Head& head) { return head.shared->model->bytes_per_pass(); }, "Weights of one pass, `fc` included.");
}

}  // namespace headstart
