// Whole passes of a model: rows one token at a time on portable code, beside every other way to the same rows on an instruction set.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "check_kernels.h"
#include "gguf.h"
#include "model.h"

namespace headstart {

using Tokens = std::vector<int32_t>;

const Tokens kParents = {-1, -1, 0, 0, 1, 2, 3, 5};  // two children of the end, branches of different depths
const std::vector<Tokens> kPaths = {{0, 2, 5, 7}, {0, 3, 6}, {1, 4}};

inline Tokens joined(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline Tokens chosen(const Tokens& from, const Tokens& indices) {
  Tokens out;
  for (int32_t i : indices) out.push_back(from[static_cast<size_t>(i)]);
  return out;
}

// A model that runs on one instruction set.
class Scorer {
 public:
  Scorer(const char* path, int threads, const Kernels& kernels) : model_(Model::load(std::make_shared<GgufFile>(path), threads, &kernels, 0, std::nullopt, nullptr)) {}

  Tokens tokens(int count, uint32_t seed) const {
    Random random(seed);
    Tokens out(static_cast<size_t>(count));
    for (int32_t& t : out) t = random.below(model_->config().vocab);
    return out;
  }
  std::shared_ptr<Cache> open() const { return std::make_shared<Cache>(model_); }
  size_t vocab() const { return static_cast<size_t>(model_->config().vocab); }

  // Logits of the last `wanted` tokens, [wanted, vocab], and of several sequences in one pass.
  struct Part {
    std::shared_ptr<Cache> cache;
    Tokens tokens, parents;
    int wanted;
    std::vector<float> rows;
  };
  void score(std::vector<Part>& parts) const {
    std::vector<Ask> asks;
    for (Part& p : parts) {
      p.rows.resize(static_cast<size_t>(p.wanted) * vocab());
      Ask ask;
      ask.cache = p.cache.get();
      ask.tokens = p.tokens;
      ask.parents = p.parents;
      ask.num_logits = p.wanted;
      ask.logits = p.rows.data();
      asks.push_back(ask);
    }
    model_->score(asks, {});
  }
  std::vector<float> score(const std::shared_ptr<Cache>& cache, const Tokens& tokens, const Tokens& parents = {}) const {
    std::vector<Part> parts = {{cache, tokens, parents, static_cast<int>(tokens.size()), {}}};
    score(parts);
    return parts[0].rows;
  }
  std::shared_ptr<Cache> filled(const Tokens& tokens) const {
    const std::shared_ptr<Cache> cache = open();
    if (!tokens.empty()) score(cache, tokens);
    return cache;
  }
  // A pass a token; remembered, as every set is compared with the same rows.
  const std::vector<float>& one_by_one(const Tokens& tokens) const {
    std::vector<float>& rows = known_[tokens];
    if (!rows.empty()) return rows;
    const std::shared_ptr<Cache> cache = open();
    for (int32_t token : tokens) {
      const std::vector<float> row = score(cache, {token});
      rows.insert(rows.end(), row.begin(), row.end());
    }
    return rows;
  }

 private:
  std::shared_ptr<Model> model_;
  mutable std::map<Tokens, std::vector<float>> known_;
};

// From any length, in one pass.
inline void compare_chains(const Scorer& model, const Scorer& reference, Comparison& c) {
  const Tokens text = model.tokens(26, 1);
  const std::vector<float>& expected = reference.one_by_one(text);
  for (int start : {0, 1, 13}) {
    const std::shared_ptr<Cache> cache = model.filled(Tokens(text.begin(), text.begin() + start));
    const std::vector<float> rows = model.score(cache, Tokens(text.begin() + start, text.end()));
    c.same(rows.data(), expected.data() + static_cast<size_t>(start) * model.vocab(), rows.size());
  }
}

// Each path of a tree is its chain, before it is kept and after.
inline void compare_trees(const Scorer& model, const Scorer& reference, Comparison& c) {
  const Tokens nodes = model.tokens(static_cast<int>(kParents.size()), 2), after = model.tokens(3, 3);
  for (int start : {0, 14}) {
    const Tokens prefix = model.tokens(start, 4);
    const std::shared_ptr<Cache> cache = model.filled(prefix);
    const std::vector<float> rows = model.score(cache, nodes, kParents);
    for (const Tokens& path : kPaths) {
      const std::vector<float>& chain = reference.one_by_one(joined(joined(prefix, chosen(nodes, path)), after));
      const float* expected = chain.data() + static_cast<size_t>(start) * model.vocab();
      for (int32_t node : path) {
        c.same(rows.data() + static_cast<size_t>(node) * model.vocab(), expected, model.vocab());
        expected += model.vocab();
      }
      const std::shared_ptr<Cache> kept = cache->fork();
      kept->keep(path);
      const std::vector<float> rest = model.score(kept, after);
      c.same(rest.data(), expected, rest.size());
    }
  }
}

// Two chains and a tree of different lengths in one pass: each as if alone.
inline void compare_batches(const Scorer& model, const Scorer& reference, Comparison& c) {
  const Tokens a = model.tokens(12, 5), b = model.tokens(19, 6), d = model.tokens(6, 7), nodes = model.tokens(static_cast<int>(kParents.size()), 8);
  std::vector<Scorer::Part> parts = {
      {model.filled({a.begin(), a.begin() + 3}), {a.begin() + 3, a.end()}, {}, 9, {}},
      {model.filled(d), nodes, kParents, static_cast<int>(nodes.size()), {}},
      {model.open(), b, {}, 2, {}},
  };
  model.score(parts);
  for (const auto& [part, text] : {std::pair{&parts[0], a}, std::pair{&parts[2], b}}) {
    const std::vector<float>& expected = reference.one_by_one(text);
    c.same(part->rows.data(), expected.data() + expected.size() - part->rows.size(), part->rows.size());
  }
  for (const Tokens& path : kPaths) {
    const std::vector<float>& expected = reference.one_by_one(joined(d, chosen(nodes, path)));
    for (size_t i = 0; i < path.size(); i++)
      c.same(parts[1].rows.data() + static_cast<size_t>(path[i]) * model.vocab(), expected.data() + (d.size() + i) * model.vocab(), model.vocab());
  }
}

inline void compare_passes(const Scorer& model, const Scorer& reference, Comparison& c) {
  compare_chains(model, reference, c);
  compare_trees(model, reference, c);
  compare_batches(model, reference, c);
}

}  // namespace headstart
