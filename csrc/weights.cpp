// Metadata → Config, tensors → tiles. Both go by GGUF's names. What an architecture does not define, and what is not known here, is refused by name.
#include "weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "pack.h"
#include "packer.h"

namespace headstart {
namespace {

const std::set<std::string> kArchitectures = {"llama", "qwen2", "qwen3", "gemma3"};
const std::set<uint32_t> kTypes = {0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 30};

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); i++) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Takes tensors out of a file one by one and, at the end, says whether any was left over.
class Taker {
 public:
  Taker(const WeightFile& file, const Config& config) : file_(file), config_(config) {}

  const Tensor* maybe(const std::string& name, const std::vector<uint64_t>& shape) {
    const Tensor* t = file_.tensor(name);
    if (!t) return nullptr;
    taken_.insert(name);
    if (t->shape != shape) throw FileError("tensor " + in_quotes(name) + " has shape " + shape_text(t->shape) + ", expected " + shape_text(shape));
    if (!kTypes.count(t->type))
      throw FileError("tensor " + in_quotes(name) + " is of GGUF type " + tensor_type_name(t->type) + ", which is not supported; use a file in Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, F16, BF16 or F32");
    return t;
  }

  const Tensor* must(const std::string& name, const std::vector<uint64_t>& shape) {
    const Tensor* t = maybe(name, shape);
    if (!t) throw FileError("tensor " + in_quotes(name) + " is missing; is this a whole " + config_.architecture + " model?");
    return t;
  }

  std::vector<float> vector(const Tensor* t) {
    if (!t) return {};
    std::vector<float> out(t->shape[0]);
    dequantize_row(static_cast<Type>(t->type), t->data, static_cast<int>(out.size()), out.data());
    bytes_ += sizeof(float) * out.size();
    return out;
  }

  std::vector<float> norm(const std::string& name, uint64_t size) {
    std::vector<float> out = vector(must(name, {size}));
    if (config_.norm_offset != 0.0f)
      for (float& weight : out) weight += config_.norm_offset;
    return out;
  }

  size_t vector_bytes() const { return bytes_; }

  void finish() const {
    for (const Tensor& t : file_.tensors())
      if (!taken_.count(t.name) && t.name.rfind("rope_freqs", 0) != 0)
        throw FileError("tensor " + in_quotes(t.name) + " is not part of a " + config_.architecture + " model as known here; this variant is not supported");
  }

 private:
  const WeightFile& file_;
  const Config& config_;
  std::set<std::string> taken_;
  size_t bytes_ = 0;
};

// Angle per position of each rotated pair: base^(−2i/d), stretched as the file says (linear; Llama-3 factors; YaRN, Peng et al. 2023).
std::vector<float> rope_angles(const WeightFile& file, const Config& c, float base, bool scaled) {
  const int pairs = c.rope_dim / 2;
  std::vector<float> factors(static_cast<size_t>(pairs), 1.0f), angles(static_cast<size_t>(pairs));
  const Tensor* freqs = file.tensor("rope_freqs.weight");
  if (freqs && scaled) {
    if (freqs->shape != std::vector<uint64_t>{static_cast<uint64_t>(pairs)} || freqs->type != 0) throw FileError("tensor rope_freqs.weight must be " + std::to_string(pairs) + " numbers of type F32");
    dequantize_row(Type::F32, freqs->data, pairs, factors.data());
  }
  if (const Value* listed = scaled ? file.find(c.architecture + ".rope.frequency_factors") : nullptr) {  // files without that tensor
    const auto* numbers = std::get_if<std::vector<double>>(listed);
    if (!numbers || numbers->size() != factors.size()) throw FileError(c.architecture + ".rope.frequency_factors must be a list of " + std::to_string(pairs) + " numbers");
    for (size_t i = 0; i < factors.size(); i++) factors[i] = static_cast<float>((*numbers)[i]);
  }
  const std::string prefix = c.architecture + ".rope.scaling.";
  const std::string kind = scaled ? file.text(prefix + "type", "none") : "none";
  const double stretch = c.rope_scale, dim = c.rope_dim;
  double low = 0, high = 0;
  if (kind == "yarn") {
    const double trained = static_cast<double>(file.number(prefix + "original_context_length", 1, 1u << 30));
    const double fast = file.real(prefix + "yarn_beta_fast", 32.0), slow = file.real(prefix + "yarn_beta_slow", 1.0);
    const auto turn = [&](double turns) { return dim * std::log(trained / (turns * 2.0 * M_PI)) / (2.0 * std::log(static_cast<double>(base))); };
    low = std::max(0.0, std::floor(turn(fast)));
    high = std::min(dim - 1.0, std::ceil(turn(slow)));
  }
  for (int i = 0; i < pairs; i++) {
    const size_t at = static_cast<size_t>(i);
    const double plain = std::pow(static_cast<double>(base), -2.0 * i / dim) / factors[at];
    double angle = plain;
    if (kind == "linear") angle = plain / stretch;
    if (kind == "yarn") {
      const double keep = 1.0 - std::clamp((i - low) / std::max(0.001, high - low), 0.0, 1.0);
      angle = plain / stretch * (1.0 - keep) + plain * keep;
    }
    angles[at] = static_cast<float>(angle);
  }
  return angles;
}

// Which layers see only a window: as the file says, layer by layer or every n-th one not; else as the architecture has it.
void read_windows(const WeightFile& file, Config& c) {
  const std::string p = c.architecture + ".attention.";
  const bool gemma = c.architecture == "gemma3";
  if (!gemma && !file.find(p + "sliding_window")) return;
  c.window = static_cast<int>(file.number(p + "sliding_window", gemma ? 1 : 0, 1u << 30));
  const Value* pattern = file.find(p + "sliding_window_pattern");
  if (const auto* list = pattern ? std::get_if<std::vector<double>>(pattern) : nullptr) {
    if (list->size() != static_cast<size_t>(c.layers)) throw FileError(p + "sliding_window_pattern must say of each of the " + std::to_string(c.layers) + " layers whether it has a window");
    for (const double windowed : *list) c.windows.push_back(windowed != 0.0);
    return;
  }
  const uint64_t period = file.number(p + "sliding_window_pattern", 1, 1u << 20, gemma ? 6 : 1u << 20);
  for (int i = 0; i < c.layers; i++) c.windows.push_back((static_cast<uint64_t>(i) + 1) % period != 0);
}

}  // namespace

Config read_config(const WeightFile& file, int context) {
  Config c;
  c.architecture = file.text("general.architecture", "");
  if (!kArchitectures.count(c.architecture))
    throw FileError("architecture " + in_quotes(c.architecture) + " is not supported by the native engine; it knows llama, qwen2, qwen3 and gemma3 (try --engine transformers)");
  const std::string p = c.architecture + ".";
  const auto number = [&](const char* key, uint64_t least, uint64_t most) { return static_cast<int>(file.number(p + key, least, most)); };
  const auto number_or = [&](const char* key, uint64_t least, uint64_t most, int otherwise) {
    return static_cast<int>(file.number(p + key, least, most, static_cast<uint64_t>(otherwise)));
  };
  if (file.find(p + "expert_count") && file.number(p + "expert_count", 0, 1u << 20) > 0)
    throw FileError("this " + c.architecture + " model is a mixture of experts, which the native engine does not support (try --engine transformers)");
  c.layers = number("block_count", 1, 1000);
  c.hidden = number("embedding_length", 1, 1 << 17);
  c.ff = number("feed_forward_length", 1, 1 << 20);
  c.heads = number("attention.head_count", 1, 1024);
  c.kv_heads = number_or("attention.head_count_kv", 1, 1024, c.heads);
  if (c.heads % c.kv_heads) throw FileError(p + "attention.head_count " + std::to_string(c.heads) + " is not a multiple of " + p + "attention.head_count_kv " + std::to_string(c.kv_heads));
  c.head_dim = number_or("attention.key_length", 1, 1024, c.hidden / c.heads);
  if (number_or("attention.value_length", 1, 1024, c.head_dim) != c.head_dim) throw FileError(p + "attention.value_length differs from key_length, which is not supported");
  if (c.hidden % kGroup || c.ff % kGroup || c.head_dim % kTile || c.heads / c.kv_heads * c.head_dim % kGroup)
    throw FileError("widths must be multiples of 32 and heads of 16 for the native engine: embedding " + std::to_string(c.hidden) + ", feed-forward " + std::to_string(c.ff) + ", head " + std::to_string(c.head_dim));
  c.rope_dim = number_or("rope.dimension_count", 2, 1024, c.head_dim);
  if (c.rope_dim > c.head_dim || c.rope_dim % 2) throw FileError(p + "rope.dimension_count " + std::to_string(c.rope_dim) + " does not fit heads of " + std::to_string(c.head_dim));
  c.context = number("context_length", 1, 1 << 30);
  if (context > c.context) throw FileError("`context` must be at most the model's " + std::to_string(c.context) + ", got " + std::to_string(context));
  if (context > 0) c.context = context;
  c.eps = static_cast<float>(file.real(p + "attention.layer_norm_rms_epsilon", 1e-5));
  c.rope_base = static_cast<float>(file.real(p + "rope.freq_base", c.architecture == "gemma3" ? 1e6 : 1e4));
  const std::string scaling = file.text(p + "rope.scaling.type", "none");
  if (scaling != "none" && scaling != "linear" && scaling != "yarn") throw FileError(p + "rope.scaling.type " + in_quotes(scaling) + " is not supported; none, linear and yarn are");
  c.rope_scale = static_cast<float>(file.real(p + "rope.scaling.factor", 1.0));
  if (!(c.eps >= 0.0f) || !(c.rope_base > 0.0f) || !(c.rope_scale > 0.0f)) throw FileError(p + "layer_norm_rms_epsilon, rope.freq_base and rope.scaling.factor must be positive");
  c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  c.rope_interleaved = c.architecture == "llama" && !file.as_trained();
  if (c.architecture == "gemma3") {
    c.gelu = true;
    c.embedding_scale = std::sqrt(static_cast<float>(c.hidden));
    c.local_rope = true;
    c.local_rope_base = static_cast<float>(file.real(p + "rope.freq_base_swa", 1e4));
    c.norm_offset = file.as_trained() ? 1.0f : 0.0f;
    if (c.layers == 62) c.attention_scale = 1.0f / std::sqrt(static_cast<float>(c.hidden) / static_cast<float>(c.heads));  // the 27B model
  }
  if (file.find(p + "attention.scale")) c.attention_scale = static_cast<float>(file.real(p + "attention.scale", 0.0));
  if (!(c.attention_scale > 0.0f) || !(c.local_rope_base > 0.0f)) throw FileError(p + "attention.scale and rope.freq_base_swa must be positive");
  read_windows(file, c);
  const Tensor* embedding = file.tensor("token_embd.weight");
  if (!embedding || embedding->shape.size() != 2 || embedding->shape[1] > 1u << 24) throw FileError("tensor token_embd.weight is missing or not a matrix");
  c.vocab = static_cast<int>(embedding->shape[1]);
  return c;
}

namespace {

// Takes every tensor: norms and biases into memory, matrices as jobs for the packer.
Packer lay_out(Model::Weights& w, const Config& c, std::optional<Type> widest) {
  Taker take(*w.file, c);
  Packer packer;
  const auto add = [&](const Tensor* t, Matrix& m) { packer.add(t, m, widest); };
  const uint64_t hidden = static_cast<uint64_t>(c.hidden), ff = static_cast<uint64_t>(c.ff), dim = static_cast<uint64_t>(c.head_dim);
  const uint64_t q = static_cast<uint64_t>(c.heads) * dim, kv = static_cast<uint64_t>(c.kv_heads) * dim, vocab = static_cast<uint64_t>(c.vocab);
  const bool gemma = c.architecture == "gemma3", norms = gemma || c.architecture == "qwen3";
  w.embedding = take.must("token_embd.weight", {hidden, vocab});
  w.norm = take.norm("output_norm.weight", hidden);
  w.layers.resize(static_cast<size_t>(c.layers));
  for (int i = 0; i < c.layers; i++) {
    Layer& l = w.layers[static_cast<size_t>(i)];
    const std::string p = "blk." + std::to_string(i) + ".";
    l.attention_norm = take.norm(p + "attn_norm.weight", hidden);
    l.feed_norm = take.norm(p + "ffn_norm.weight", hidden);
    if (gemma) {
      l.post_attention_norm = take.norm(p + "post_attention_norm.weight", hidden);
      l.post_feed_norm = take.norm(p + "post_ffw_norm.weight", hidden);
    }
    if (norms) {
      l.q_norm = take.norm(p + "attn_q_norm.weight", dim);
      l.k_norm = take.norm(p + "attn_k_norm.weight", dim);
    }
    l.q_bias = take.vector(take.maybe(p + "attn_q.bias", {q}));
    l.k_bias = take.vector(take.maybe(p + "attn_k.bias", {kv}));
    l.v_bias = take.vector(take.maybe(p + "attn_v.bias", {kv}));
    add(take.must(p + "attn_q.weight", {hidden, q}), l.q);
    add(take.must(p + "attn_k.weight", {hidden, kv}), l.k);
    add(take.must(p + "attn_v.weight", {hidden, kv}), l.v);
    add(take.must(p + "attn_output.weight", {q, hidden}), l.o);
    add(take.must(p + "ffn_gate.weight", {hidden, ff}), l.gate);
    add(take.must(p + "ffn_up.weight", {hidden, ff}), l.up);
    add(take.must(p + "ffn_down.weight", {ff, hidden}), l.down);
  }
  const Tensor* head = take.maybe("output.weight", {hidden, vocab});
  w.head_tensor = head ? head : w.embedding;
  add(w.head_tensor, w.head);
  take.finish();
  w.vector_bytes = take.vector_bytes();
  return packer;
}

}  // namespace

size_t measure_weights(Model::Weights& w, const Config& c, std::optional<Type> widest) {
  const Packer packer = lay_out(w, c, widest);
  return packer.bytes() + Packer::kBeyond + w.vector_bytes;
}

void load_weights(Model::Weights& w, const Config& c, std::optional<Type> widest, Pool& pool, const std::function<void(double)>& progress) {
  Packer packer = lay_out(w, c, widest);
  w.rope = rope_angles(*w.file, c, c.rope_base, true);
  w.local_rope = c.local_rope ? rope_angles(*w.file, c, c.local_rope_base, false) : w.rope;
  if (w.file->text(c.architecture + ".rope.scaling.type", "none") == "yarn") {
    const double factor = w.file->real(c.architecture + ".rope.scaling.attn_factor", 1.0);
    w.rope_magnitude = static_cast<float>(factor * (1.0 + 0.1 * std::log(static_cast<double>(c.rope_scale))));
  }
  packer.pack(w, pool, true, progress);
}

}  // namespace headstart
