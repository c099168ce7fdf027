// One pass of a model over many sequences: what it works on, and the stages that all threads share. Private to model.cpp and pass.cpp.
#pragma once
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "kernels.h"
#include "model.h"
#include "pool.h"
#include "weights.h"

namespace headstart {

constexpr int kPassRows = 256;  // more rows in a pass gain no speed and cost memory

// Threads, and the turn to use them: a model's own, or shared with the draft heads beside it.
struct Crew {
  explicit Crew(int threads) : pool(threads) {}
  Pool pool;
  std::mutex mutex;
};

// The tree that the tokens of an ask end, those of earlier scores included; of a chain nothing.
struct Tree {
  int root = 0;                         // what it hangs from: a length of the cache
  std::vector<int32_t> parents, depths;  // [nodes]
};

// Part of an ask that is in this pass.
struct Piece {
  Ask* ask;
  int first, last;  // tokens of the ask
  const Tree* tree;
};

struct PassRow {
  int32_t token;
  int slot, position;
  int chain;           // slots before this one that are a chain; then `tail`
  int tail, num_tail;  // into Runner::tails
  size_t piece;
};

template <class T>
class Buffer {  // grows, never shrinks, 64-byte aligned
 public:
  T* get(size_t count) {
    if (count > size_) {
      data_.reset(static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64)));
      if (!data_) {
        size_ = 0;
        throw std::bad_alloc();
      }
      size_ = count;
    }
    return data_.get();
  }

 private:
  struct Free { void operator()(T* p) const { std::free(p); } };
  std::unique_ptr<T, Free> data_;
  size_t size_ = 0;
};

struct ActsBuffer {
  Buffer<float> x, scale, sum;
  Buffer<int8_t> q;
  Buffer<int32_t> minus_half_sum;
  Acts acts(size_t rows, int k) {
    const size_t n = rows * static_cast<size_t>(k), groups = n / kGroup;
    return {k, x.get(n), q.get(n), scale.get(groups), sum.get(groups), minus_half_sum.get(2 * groups)};
  }
};

inline void copy_row(const Acts& from, int row, const Acts& to, int to_row) {
  const size_t k = static_cast<size_t>(from.k), groups = k / kGroup, f = static_cast<size_t>(row), t = static_cast<size_t>(to_row);
  std::memcpy(to.x + t * k, from.x + f * k, k * sizeof(float));
  std::memcpy(to.q + t * k, from.q + f * k, k);
  std::memcpy(to.scale + t * groups, from.scale + f * groups, groups * sizeof(float));
  std::memcpy(to.sum + t * groups, from.sum + f * groups, groups * sizeof(float));
  std::memcpy(to.minus_half_sum + 2 * t * groups, from.minus_half_sum + 2 * f * groups, 2 * groups * sizeof(int32_t));
}

inline Acts rows_from(const Acts& a, int row) {
  const size_t k = static_cast<size_t>(a.k), groups = k / kGroup, r = static_cast<size_t>(row);
  return {a.k, a.x + r * k, a.q + r * k, a.scale + r * groups, a.sum + r * groups, a.minus_half_sum + 2 * r * groups};
}

// Rows of one piece that attend together.
struct Block {
  int first, rows;
};

// What a thread works on that others may work on too, or that is its own copy: see `Runner::alone`.
struct Residual {
  float* x;     // [rows, hidden] the residual stream
  Acts normed;  // its norm, input of the next product
  Acts wanted;  // rows of the last norm whose logits are wanted
  Acts joined;  // of a draft head: embedding and hidden state side by side
};

// For a head's rotated numbers: cosines [dim], then the sines that go with each number's partner [dim].
void fill_angles(const std::vector<float>& angles, int position, float magnitude, bool interleaved, float* out);

struct Model::Runner {
  Runner(const Model& model, std::shared_ptr<Crew> crew);
  static Tree tree_of(const Ask& ask);  // throws std::invalid_argument where there is none
  void run(std::vector<Piece> some, const std::vector<int>& features, const Extent& part);

  const Model& m;
  const Config& c;
  const Kernels& k;
  const Model::Weights& w;
  const std::shared_ptr<Crew> crew;
  Pool& pool;

 private:
  // A thread's part of a stage: tasks taken from its front by the owner, from its back by threads that have nothing left.
  struct alignas(64) Range {
    std::atomic<uint64_t> taken{0};  // low half: from the front; high half: from the back
  };

  // A row's largest logit among those one thread computed.
  struct Lead {
    int64_t place = -1;
    float value = 0.0f;
    bool beats(const Lead& other) const {
      const bool nan = value != value, other_nan = other.value != other.value;
      if (place < 0 || other.place < 0) return place >= 0;
      if (nan != other_nan) return nan;
      return value > other.value || (!(value < other.value) && place < other.place);
    }
  };

  void lay_out();
  void prepare();
  void work(int thread);
  void read_embedding(int32_t token, float* out) const;
  void embed(int row);
  void gather_states();
  void join(const Residual& mine, int row);
  void enter(const Residual& mine, int row);
  void project_heads(const Layer& l, int layer, const Acts& normed, int first, int last);
  void finish_head(const Layer& l, int layer, int row, int head);
  void attend(int layer, const Block& block, int kv_head, int first_head, int last_head, int thread);
  void open_row(const Residual& mine, bool added, const float* post_norm, const float* norm, int row, int feature);
  void save_feature(int row, int feature, const float* values);
  void score_head(const Acts& wanted, int first, int last);
  void look_over(int first, int last, Lead* mine) const;
  void settle_best();
  int heads_per_part() const;
  template <class Task, class Meanwhile>
  void share(int thread, size_t stage, int tasks, int chunk, Task&& task, Meanwhile&& meanwhile);

  int q_width() const { return c.heads * c.head_dim; }
  int kv_width() const { return c.kv_heads * c.head_dim; }
  int qkv_width() const { return q_width() + 2 * kv_width(); }
  int num_rows() const { return static_cast<int>(rows.size()); }

  // The pass under way.
  std::vector<Piece> pieces;
  std::vector<PassRow> rows;
  std::vector<int32_t> tails;
  std::vector<Block> blocks;
  struct Wanted { int row; float* out; int64_t* best; };
  std::vector<Wanted> wanted;  // rows whose logits are wanted, and where they go
  std::vector<Lead> leads;  // [threads, wanted]
  const std::vector<int>* feature_layers = nullptr;
  const Extent* extent = nullptr;
  size_t width = 0;  // numbers of a row of logits
  int longest = 0;
  // Few rows: every thread computes them all, in memory of its own, which costs less than waiting for one another.
  bool alone = false;
  std::vector<Residual> residuals;  // by thread
  Acts mixed, gated, states;
  float *delta = nullptr, *qkv = nullptr, *up = nullptr, *angles = nullptr, *local_angles = nullptr, *scratch = nullptr;
  size_t scratch_per_thread = 0;
  std::vector<Range> ranges;  // [3, threads]: while one stage's are in use, the next one's are cleared

  struct ResidualBuffer { Buffer<float> x; ActsBuffer normed, wanted, joined; };
  std::vector<ResidualBuffer> residual_buffers;
  ActsBuffer mixed_buffer, gated_buffer;
  Buffer<float> delta_buffer, qkv_buffer, up_buffer, angle_buffer, local_buffer, scratch_buffer, state_buffer;
};

}  // namespace headstart
