// A draft head (EAGLE): one decoder layer that continues the hidden states of a target model, with each token's embedding beside them.
#pragma once
#include <cstdint>
#include <vector>

namespace headstart {

// What a head's config says. Widths are checked when it is loaded, against one another and against its tensors.
struct HeadShape {
  bool first = false;                // generation 1; else 3
  bool norm_before_residual = false;
  int hidden = 0, states = 0;        // `states`: numbers of the target's hidden states of one token
  int heads = 0, kv_heads = 0, head_dim = 0, ff = 0;
  float eps = 1e-6f;
  std::vector<float> rope;           // angle per position of each pair of dimensions
  float rope_magnitude = 1.0f;       // of the rotated numbers
  std::vector<int32_t> ids;          // the target's id of each token that it drafts
};

}  // namespace headstart
