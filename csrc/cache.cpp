// Caches: what a sequence's tokens left behind, layer by layer, and how it is cut back, thinned out and copied.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "model.h"

namespace headstart {

Cache::Cache(std::shared_ptr<const Model> model) : model_(std::move(model)) {
  const size_t layers = static_cast<size_t>(model_->config().layers);
  keys_.resize(layers);
  values_.resize(layers);
}

// Room for `slots` tokens in every layer. Keys stand in tiles of sixteen slots, one block a head, so a head's block moves as a whole.
void Cache::reserve(int slots) {
  if (slots <= capacity_) return;
  const Config& c = model_->config();
  int wanted = std::max({64, slots, capacity_ * 2});
  wanted = std::max(slots, std::min(wanted, c.context));
  wanted = (wanted + kTile - 1) / kTile * kTile;
  const size_t before = static_cast<size_t>(capacity_) * static_cast<size_t>(c.head_dim), after = static_cast<size_t>(wanted) * static_cast<size_t>(c.head_dim);
  const size_t heads = static_cast<size_t>(c.kv_heads);
  const auto grown = [&](const std::vector<uint16_t>& old) {
    std::vector<uint16_t> bigger(heads * after);
    for (size_t h = 0; h < heads && before; h++) std::copy_n(old.begin() + static_cast<ptrdiff_t>(h * before), before, bigger.begin() + static_cast<ptrdiff_t>(h * after));
    return bigger;
  };
  // First everything new, then the exchange: a failed allocation leaves the cache as it was.
  std::vector<std::vector<uint16_t>> keys, values;
  for (size_t l = 0; l < keys_.size(); l++) {
    keys.push_back(grown(keys_[l]));
    values.push_back(grown(values_[l]));
  }
  keys_.swap(keys);
  values_.swap(values);
  capacity_ = wanted;
}

void Cache::rewind(int length) {
  if (length < 0 || length > length_) throw std::invalid_argument("`length` must be between 0 and " + std::to_string(length_) + ", got " + std::to_string(length));
  // Of a tree its first nodes are left, perhaps a chain.
  last_parents_.resize(std::min(last_parents_.size(), static_cast<size_t>(std::max(0, length - last_start_))));
  bool chain = true;
  for (size_t i = 0; i < last_parents_.size(); i++) chain = chain && last_parents_[i] == static_cast<int32_t>(i) - 1;
  if (chain) last_parents_.clear();
  length_ = length;
  whole_ = std::min(whole_, length);
  last_start_ = std::min(last_start_, length);
}

void Cache::keep(const std::vector<int32_t>& path) {
  const int scored = length_ - last_start_;
  for (size_t i = 0; i < path.size(); i++) {
    if (path[i] < 0 || path[i] >= scored || (i && path[i] <= path[i - 1]))
      throw std::invalid_argument("`path` must hold increasing indices of the last " + std::to_string(scored) + " scored tokens");
    const int parent = last_parents_.empty() ? path[i] - 1 : last_parents_[static_cast<size_t>(path[i])];
    if (parent != (i ? path[i - 1] : -1)) throw std::invalid_argument("`path` must be a chain from the end the cache had before the last score");
  }
  const Config& c = model_->config();
  const size_t dim = static_cast<size_t>(c.head_dim), per_head = static_cast<size_t>(capacity_) * dim;
  for (size_t l = 0; l < keys_.size(); l++)
    for (size_t h = 0; h < static_cast<size_t>(c.kv_heads); h++)
      for (size_t i = 0; i < path.size(); i++) {
        const size_t from = static_cast<size_t>(last_start_ + path[i]), to = static_cast<size_t>(last_start_) + i;
        if (from == to) continue;
        uint16_t* k = keys_[l].data() + h * per_head;
        for (size_t d = 0; d < dim; d++) k[(to / kTile * dim + d) * kTile + to % kTile] = k[(from / kTile * dim + d) * kTile + from % kTile];
        std::memcpy(values_[l].data() + h * per_head + to * dim, values_[l].data() + h * per_head + from * dim, dim * sizeof(uint16_t));
      }
  length_ = last_start_ + static_cast<int>(path.size());
  whole_ = std::min(whole_, length_);
  last_parents_.clear();
}

std::shared_ptr<Cache> Cache::fork() const { return std::make_shared<Cache>(*this); }

size_t Cache::bytes() const { return static_cast<size_t>(capacity_) * model_->cache_bytes_per_token(); }

}  // namespace headstart
