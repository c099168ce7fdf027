// Draft heads: how one is made into a model of one layer, and what such a model does before that layer (Li et al. 2024, 2025).
//
// Matrices of the layer become Q8_0 or Q4_0, as asked, but for `fc`, which stays as it is: hidden states of the target differ a
// hundredfold in size within a group of 32, and as eight bits the small ones would be lost. Borrowed rows of the vocabulary keep the
// target's own bits.
#include "head.h"

#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string>

#include "pack.h"
#include "packer.h"
#include "pass.h"

namespace headstart {
namespace {

constexpr int kMost = 1 << 20;  // of any width

Config config_of(const HeadShape& s, const Config& target) {
  const auto within = [](const char* name, int value, int most) {
    if (value < 1 || value > most) throw FileError(std::string("`") + name + "` of the head must be from 1 to " + std::to_string(most) + ", got " + std::to_string(value));
  };
  within("hidden_size", s.hidden, 1 << 17);
  within("target_hidden_size", s.states, kMost);
  within("num_attention_heads", s.heads, 1024);
  within("num_key_value_heads", s.kv_heads, 1024);
  within("head_dim", s.head_dim, 1024);
  within("intermediate_size", s.ff, kMost);
  if (s.heads % s.kv_heads) throw FileError("num_attention_heads of the head must be a multiple of num_key_value_heads, got " + std::to_string(s.heads) + " and " + std::to_string(s.kv_heads));
  if (s.hidden % kGroup || s.states % kGroup || s.ff % kGroup || s.head_dim % kTile || s.heads / s.kv_heads * s.head_dim % kGroup)
    throw FileError("widths of the head must be multiples of 32 and its attention heads of 16 for the native engine, got hidden_size " + std::to_string(s.hidden) + ", hidden states of " +
                    std::to_string(s.states) + ", intermediate_size " + std::to_string(s.ff) + ", head_dim " + std::to_string(s.head_dim) + " (try --engine transformers)");
  if (!(s.eps >= 0.0f)) throw FileError("rms_norm_eps of the head must be positive");
  if (s.rope.size() != static_cast<size_t>(s.head_dim / 2)) throw FileError("the head turns " + std::to_string(s.rope.size()) + " pairs of dimensions, wanted " + std::to_string(s.head_dim / 2));
  for (const float rate : s.rope) if (!(rate >= 0.0f && rate <= 1.0f)) throw FileError("rotary embeddings of the head must turn by angles from 0 to 1 a position");
  if (!(s.rope_magnitude > 0.0f && s.rope_magnitude < 1e3f)) throw FileError("the magnitude of the head's rotary embeddings must be positive and below 1000");
  Config c;
  c.architecture = "eagle";
  c.layers = 1;
  c.hidden = s.hidden;
  c.heads = s.heads;
  c.kv_heads = s.kv_heads;
  c.head_dim = c.rope_dim = s.head_dim;
  c.ff = s.ff;
  c.vocab = target.vocab;
  c.context = target.context;
  c.eps = s.eps;
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  return c;
}

// Tensors of a head by name, with the shape they must have, inputs first.
class Parts {
 public:
  explicit Parts(const std::vector<Tensor>& tensors) {
    for (const Tensor& t : tensors) by_name_[t.name] = &t;
  }

  const Tensor* maybe(const std::string& name, const std::vector<uint64_t>& shape) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    const Tensor* t = found->second;
    if (t->shape != shape) {
      std::string wanted;
      for (auto size = shape.rbegin(); size != shape.rend(); ++size) wanted += (wanted.empty() ? "" : ", ") + std::to_string(*size);
      throw FileError("tensor " + in_quotes(name) + " of the head must have shape [" + wanted + "]");
    }
    if (block_size(static_cast<Type>(t->type)) != 1) throw FileError("tensor " + in_quotes(name) + " of the head must be F32, F16 or BF16");
    return t;
  }

  const Tensor* must(const std::string& name, const std::vector<uint64_t>& shape) const {
    const Tensor* t = maybe(name, shape);
    if (!t) throw FileError("tensor " + in_quotes(name) + " of the head is missing");
    return t;
  }

  std::vector<float> vector(const std::string& name, int size, bool needed) const {
    const std::vector<uint64_t> shape = {static_cast<uint64_t>(size)};
    const Tensor* t = needed ? must(name, shape) : maybe(name, shape);
    if (!t) return {};
    std::vector<float> out(static_cast<size_t>(size));
    dequantize_row(static_cast<Type>(t->type), t->data, size, out.data());
    return out;
  }

 private:
  std::map<std::string, const Tensor*> by_name_;
};

// Norms and biases into memory, matrices as jobs for the packer, in the order in which a pass reads them.
Packer lay_out(Model::Weights& w, const Config& c, const HeadShape& s, const Parts& parts, Type widest) {
  const std::string layer = "midlayer.", attention = layer + "self_attn.";
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  w.fusion = std::make_unique<Fusion>();
  w.layers.resize(1);
  Fusion& f = *w.fusion;
  Layer& l = w.layers[0];
  f.first = s.first;
  f.norm_before_residual = s.norm_before_residual;
  f.fc_bias = parts.vector("fc.bias", c.hidden, false);
  if (!f.first) {
    f.input_norm = parts.vector(layer + "input_layernorm.weight", c.hidden, true);
    f.hidden_norm = parts.vector(layer + "hidden_norm.weight", c.hidden, true);
    w.norm = parts.vector("norm.weight", c.hidden, true);
  }
  l.feed_norm = parts.vector(layer + "post_attention_layernorm.weight", c.hidden, true);
  l.q_bias = parts.vector(attention + "q_proj.bias", q, false);
  l.k_bias = parts.vector(attention + "k_proj.bias", kv, false);
  l.v_bias = parts.vector(attention + "v_proj.bias", kv, false);
  Packer packer;
  const auto add = [&](const std::string& name, int outputs, int inputs, Matrix& m, std::optional<Type> most) {
    packer.add(parts.must(name, {static_cast<uint64_t>(inputs), static_cast<uint64_t>(outputs)}), m, most);
  };
  const int entry = f.first ? c.hidden : 2 * c.hidden;
  add("fc.weight", c.hidden, f.first ? 2 * c.hidden : s.states, f.fc, std::nullopt);
  add(attention + "q_proj.weight", q, entry, l.q, widest);
  add(attention + "k_proj.weight", kv, entry, l.k, widest);
  add(attention + "v_proj.weight", kv, entry, l.v, widest);
  add(attention + "o_proj.weight", c.hidden, q, l.o, widest);
  add(layer + "mlp.gate_proj.weight", c.ff, c.hidden, l.gate, widest);
  add(layer + "mlp.up_proj.weight", c.ff, c.hidden, l.up, widest);
  add(layer + "mlp.down_proj.weight", c.hidden, c.ff, l.down, widest);
  return packer;
}

// Rows `ids` of a matrix, one after another.
Tensor some_rows(const Tensor& matrix, const std::vector<int32_t>& ids, std::vector<uint8_t>& held) {
  const size_t width = row_bytes(static_cast<Type>(matrix.type), static_cast<int>(matrix.shape[0]));
  held.resize(ids.size() * width);
  for (size_t i = 0; i < ids.size(); i++) std::memcpy(held.data() + i * width, matrix.data + static_cast<size_t>(ids[i]) * width, width);
  Tensor t = matrix;
  t.shape[1] = ids.size();
  t.data = held.data();
  t.bytes = held.size();
  return t;
}

}  // namespace

std::shared_ptr<Model> Model::load_head(const HeadShape& shape, const std::vector<Tensor>& tensors, std::shared_ptr<const Model> target, Type widest) {
  std::shared_ptr<Model> model(new Model());
  model->weights_ = std::make_unique<Weights>(nullptr);
  model->config_ = config_of(shape, target->config_);
  model->kernels_ = target->kernels_;
  model->runner_ = std::make_unique<Runner>(*model, target->runner_->crew);
  Weights& w = *model->weights_;
  Config& c = model->config_;
  const Parts parts(tensors);
  const uint64_t hidden = static_cast<uint64_t>(c.hidden), vocab = static_cast<uint64_t>(c.vocab);
  const Tensor* embedding = parts.maybe("embed_tokens.weight", {hidden, vocab});
  const Tensor* head = parts.maybe("lm_head.weight", {hidden, shape.ids.size()});
  if ((!embedding || !head) && c.hidden != target->config_.hidden)
    throw FileError("the head brings no " + std::string(embedding ? "lm_head.weight" : "embed_tokens.weight") + " and is " + std::to_string(c.hidden) + " wide, the target " +
                    std::to_string(target->config_.hidden) + "; it cannot borrow the target's");
  if (shape.ids.empty()) throw FileError("the head drafts no tokens");
  for (const int32_t id : shape.ids)
    if (id < 0 || id >= c.vocab) throw FileError("the head drafts token " + std::to_string(id) + ", outside the target's vocabulary of " + std::to_string(c.vocab));
  if (embedding) {
    w.own_embedding.assign(embedding->data, embedding->data + embedding->bytes);
    w.own_tensor = *embedding;
    w.own_tensor.data = w.own_embedding.data();
  } else {
    c.embedding_scale = target->config_.embedding_scale;
  }
  w.embedding = embedding ? &w.own_tensor : target->weights_->embedding;
  Packer packer = lay_out(w, c, shape, parts, widest);
  std::vector<uint8_t> held;
  const Tensor borrowed = head ? *head : some_rows(*target->weights_->head_tensor, shape.ids, held);
  packer.add(&borrowed, w.head, Type::Q8_0);
  w.rope = shape.rope;
  w.rope_magnitude = shape.rope_magnitude;
  {
    std::lock_guard lock(model->runner_->crew->mutex);
    packer.pack(w, model->runner_->pool, false, nullptr);
  }
  w.target = std::move(target);
  return model;
}

// The hidden states of all rows side by side, and the rows' angles.
void Model::Runner::gather_states() {
  const size_t width = static_cast<size_t>(extent->from_target ? m.state_width() : c.hidden);
  float* out = state_buffer.get(rows.size() * width);
  states = {static_cast<int>(width), out, nullptr, nullptr, nullptr, nullptr};
  for (const Piece& piece : pieces) {
    const size_t count = static_cast<size_t>(piece.last - piece.first) * width;
    std::memcpy(out, piece.ask->hidden + static_cast<size_t>(piece.first) * width, count * sizeof(float));
    out += count;
  }
  for (size_t row = 0; row < rows.size(); row++) fill_angles(w.rope, rows[row].position, w.rope_magnitude, false, angles + 2 * row * static_cast<size_t>(c.rope_dim));
}

// Generation 1: embedding and hidden state side by side, for `fc`.
void Model::Runner::join(const Residual& mine, int row) {
  const size_t hidden = static_cast<size_t>(c.hidden), at = static_cast<size_t>(row);
  float* joined = mine.joined.x + 2 * at * hidden;
  read_embedding(rows[at].token, joined);
  std::memcpy(joined + hidden, states.x + at * hidden, hidden * sizeof(float));
}

// The row's residual, and what the layer reads.
void Model::Runner::enter(const Residual& mine, int row) {
  const Fusion& f = *w.fusion;
  const size_t hidden = static_cast<size_t>(c.hidden), at = static_cast<size_t>(row);
  const bool projected = f.first || extent->from_target;
  float* x = mine.x + at * hidden;
  std::memcpy(x, (projected ? delta : states.x) + at * hidden, hidden * sizeof(float));
  if (projected && !f.fc_bias.empty()) k.add(x, f.fc_bias.data(), c.hidden);
  if (f.first) {
    std::memcpy(mine.normed.x + at * hidden, x, hidden * sizeof(float));
    return k.quantize(mine.normed, row, 0, c.hidden);
  }
  float* joined = mine.joined.x + 2 * at * hidden;
  read_embedding(rows[at].token, joined);
  k.rms_norm(joined, f.input_norm.data(), c.eps, c.hidden, joined);
  k.rms_norm(x, f.hidden_norm.data(), c.eps, c.hidden, joined + hidden);
  if (f.norm_before_residual) std::memcpy(x, joined + hidden, hidden * sizeof(float));
  k.quantize(mine.joined, row, 0, 2 * c.hidden);
}

}  // namespace headstart
